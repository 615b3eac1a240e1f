"""A worker that notes what it does: worker.py <witness file> <gate file>

The witness gets a line when a job begins and one when it ends:

    <begin|end> <jid> <attempt> <fence> <node>
"""

import logging
import os
import sys
import time

import yardmaster

logging.basicConfig(level=logging.INFO)
witness = os.open(sys.argv[1], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
worker = yardmaster.Worker(create_queues=True)


def note(what, job):
    os.write(witness, f"{what} {job.id} {job.attempt} {job.fence} {worker.node}\n".encode())


@worker.job("python", concurrency=8)
def echo(job):
    note("begin", job)
    note("end", job)
    return job.payload


@worker.job("python-long")
def hold(job):
    """Is in hand until the gate is there, whatever happens to nodes meanwhile."""
    note("begin", job)
    while not os.path.exists(sys.argv[2]):
        job.progress(50)
        time.sleep(0.05)
    note("end", job)
    return "held"


worker.run()
