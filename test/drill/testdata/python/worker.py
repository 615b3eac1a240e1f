"""A worker that records the jobs it runs: worker.py <witness file> <gate file>

It appends a line to the witness file when a job begins, and one when it ends:

    <begin|end> <jid> <attempt> <fence> <node>
"""

import logging
import os
import sys
import time

import yardmaster

logging.basicConfig(level=logging.INFO)
witness = os.open(sys.argv[1], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
worker = yardmaster.Worker()


def record(what, job):
    os.write(witness, f"{what} {job.id} {job.attempt} {job.fence} {worker.node}\n".encode())


@worker.job("python", concurrency=8)
def echo(job):
    record("begin", job)
    record("end", job)
    return job.payload


@worker.job("python-long")
def hold(job):
    """Run until the gate file exists, across losses of nodes."""
    record("begin", job)
    while not os.path.exists(sys.argv[2]):
        job.progress(50)
        time.sleep(0.05)
    record("end", job)
    return "held"


worker.run()
