"""A worker of a queue, with a handler in a thread or in an event loop, that prints the jobs that it begins."""

import sys

import yardmaster

worker = yardmaster.Worker()
queue, kind = sys.argv[1:]


def plain(job):
    print("begin", job.id, flush=True)


async def coroutine(job):
    plain(job)


worker.job(queue)({"thread": plain, "coroutine": coroutine}[kind])
worker.run()
