"""What the tests of peers ask for, on the runner of examples/runner-python."""

import runner


@runner.handler("context")
def context(job):
    return {"attempt": job.attempt, "queue_name": job.queue, "fence": job.fence, "deadline": job.deadline.isoformat(),
            "trace_context": job.trace, "correlation_context": job.correlation or None}


@runner.handler("unsendable")
def unsendable(job):
    return {job}


runner.main()
