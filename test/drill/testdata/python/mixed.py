"""A worker of the queue "mixed", beside workers in other languages."""

import time

import yardmaster

worker = yardmaster.Worker()


@worker.job("mixed", concurrency=4)
def work(job):
    time.sleep(0.05)
    return {"by": "python", "n": job.payload["n"]}


worker.run()
