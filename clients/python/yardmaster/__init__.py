"""Overhop workers and producers for Yardmaster, without dependencies.

A worker runs jobs:

    worker = Worker(["10.0.0.1:9876", "10.0.0.2:9876"])

    @worker.job("mail", concurrency=4)
    def send(job):
        return {"sent": job.payload["to"]}

    worker.run()

A producer enqueues them:

    with Client(["10.0.0.1:9876", "10.0.0.2:9876"]) as client:
        jid = client.enqueue("mail", {"to": "ann"})
        print(client.result(jid, timeout=30))

Both connect to any one of the nodes and switch to another if it fails. A
worker keeps its jobs when it switches, because a job belongs to a worker by its
token and not by its connection.

Modules: ``codec`` and ``protocol`` are pure; ``connection`` has the thread that
reads and writes; ``session`` repeats requests, and ``jobcalls``, ``queuecalls``,
``apicalls``, ``limitcalls`` and ``operationcalls`` are the calls of ``aio.AsyncClient``, which
``client.Client`` makes to block (see ``waits``); ``worker`` has the public side of a worker, ``dispatcher`` and
``subscriptions`` its state, ``reports`` sends what handlers report, ``executor`` has the threads and the
event loop of its handlers; ``typed`` and
``schemas`` are about dataclasses, ``testing`` is for your tests.
"""

from .aio import AsyncClient
from .client import Client
from .codec import decode, encode
from .errors import (ApiError, CancelledError, CodecError, ConnectionLost, DuplicateJob, Fail, InvalidPayload, InvalidQuery, JobCancelled, JobFailed,
                     JobNotFound, MessageTooLarge, NotSupported, OverhopError, PayloadError, PermanentError, QueueNotFound, RateLimited, Retry, Snooze,
                     StopReason, TLSError, Unauthorized, Unavailable)
from .handlers import Handler, Middleware
from .job import Job, JobLogHandler, current_job
from .jobcalls import Enqueued
from .limitcalls import LimitSettings, QueueSettings
from .newjob import JobOptions, NewJob
from .records import ListedJob, Operation, OperationPreview
from .schemas import schema
from .typed import Returns, from_plain, kind, to_plain
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "ApiError", "AsyncClient", "CancelledError", "Client", "CodecError", "ConnectionLost", "DuplicateJob", "Enqueued", "Fail", "Handler",
    "InvalidPayload", "InvalidQuery", "Job", "JobCancelled", "JobFailed", "JobLogHandler", "JobNotFound", "JobOptions", "LimitSettings",
    "ListedJob", "MessageTooLarge", "Middleware", "NewJob", "NotSupported", "Operation", "OperationPreview", "OverhopError", "PayloadError",
    "PermanentError", "QueueNotFound", "QueueSettings", "RateLimited", "Retry", "Returns", "Snooze", "StopReason", "TLSError", "Unauthorized",
    "Unavailable", "Worker", "current_job", "decode", "encode", "from_plain", "kind", "schema", "to_plain",
]
