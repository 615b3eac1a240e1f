"""Helpers for the unit tests of handlers and producers, without a node.

run_job() runs a worker's handler with a payload, and FakeClient records what is
enqueued. Both encode and decode values as for the wire. They do not imitate the
yard: nothing is retried, delayed, refused for its queue, key or schema, or limited
in time, and only what the test runs is run. Test that with a node: ``yardmaster node``
starts one without configuration.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import threading
import uuid
from typing import Any, Dict, List, Optional, Sequence, Union

from .client import BlockingCalls, Client
from .codec import decode, encode, read_json
from .errors import CancelledError, PayloadError, Retry, Snooze
from .executor import Executor
from .handlers import Outcome, Registered
from .job import Job
from .newjob import NewJob
from .protocol import DONE, ENQUEUE, PING, Fields
from .typed import kind_of, to_plain
from .worker import Worker

__all__ = ["Enqueue", "FakeAsyncClient", "FakeClient", "JobRun", "perform", "run_job"]


# ---------------------------------------------------------------- handlers


@dataclasses.dataclass
class JobRun:
    """How an attempt has ended, and what its handler reported."""

    outcome: str                     # completed, retry, snooze, failed or cancelled
    result: Any = None               # plain, as a producer gets it
    error: Optional[BaseException] = None  # what the handler raised, or PayloadError for its payload or result
    delay: Optional[float] = None    # seconds of Retry or Snooze
    progress: List[Any] = dataclasses.field(default_factory=list)  # (percent, data) of each report
    log: List[str] = dataclasses.field(default_factory=list)       # the lines of the job's log


def run_job(worker: Worker, payload: Any, *, queue: Optional[str] = None, fn: Optional[str] = None, attempt: int = 1) -> Any:
    """Run the handler of a job, with the worker's middleware, and return its result, plain as a producer gets it.

    ``payload`` is an instance of a dataclass with a kind, or any payload with the
    name of the ``queue`` and, if the job names one, the function ``fn``. What the
    handler raises is raised, Retry, Snooze and Fail too. Raises LookupError if the
    worker has no handler, and PayloadError if the payload is not what it takes.
    """
    run = perform(worker, payload, queue=queue, fn=fn, attempt=attempt)
    if run.error is not None:
        raise run.error
    return run.result


def perform(worker: Worker, payload: Any, *, queue: Optional[str] = None, fn: Optional[str] = None, attempt: int = 1,
            cancel: Optional[str] = None) -> JobRun:
    """Run the handler of a job as run_job() does, and return how it ended instead of raising what it raises.

    With ``cancel``, a reason such as "CANCELLED", "DEADLINE", "LEASE_LOST" or
    "SHUTDOWN", the job must stop when the handler reports progress or logs for
    the first time.
    """
    new = NewJob(payload, queue=queue, fn=fn) if queue is None or kind_of(type(payload)) is not None else NewJob(queue, payload, fn)
    request = new.request(None)
    run = JobRun("completed")
    fields = decode(encode(request))
    job: Job[Any] = Job(_Reports(run, cancel), {
        "jid": f"{fields['q']}:{uuid.uuid4()}", "q": fields["q"], "fn": fields.get("fn"), "tok": bytes(16), "fence": attempt,
        "attempt": attempt, **{name: fields[name] for name in ("job_payload", "job_payload_json") if name in fields}})
    subscription = worker._subscriptions.get(job.queue)
    handler = None if subscription is None else subscription.handler_of(job.fn)
    if handler is None:
        raise LookupError(f"the worker has no handler for function {job.fn!r} of queue {job.queue!r}")
    executor = Executor(lambda *ended: None, lambda job: None)
    executor.middleware = worker._dispatcher.executor.middleware
    outcome = _run_async(executor, job, handler) if handler.is_async else executor.run(job, handler)
    _read_outcome(run, outcome, job._error)
    return run


def _run_async(executor: Executor, job: Job[Any], handler: Registered) -> Outcome:
    """Run a coroutine handler in an event loop of its own, in another thread if this one has a loop that runs."""
    outcomes: List[Outcome] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        job._on_cancel = task.cancel
        outcomes.append(await executor.run_async(job, handler))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):  # of a task that was cancelled and has not awaited since
            asyncio.run(main())
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        run()
    else:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(run).result()
    return outcomes[0]


def _read_outcome(run: JobRun, outcome: Outcome, raised: Optional[BaseException]) -> None:
    """Set how a run has ended, from the message that a worker would send."""
    message_type, fields = outcome
    payload = decode(encode(fields))
    if message_type == DONE:
        read_json(payload, "result")
        run.result = payload.get("result")
        return
    run.error = raised if raised is not None else PayloadError("", str(payload["error"]["message"]))
    if isinstance(raised, Snooze):
        run.outcome, run.delay = "snooze", raised.seconds
    elif isinstance(raised, CancelledError):
        run.outcome = "cancelled"
    else:
        run.outcome = "retry" if payload["retry"] else "failed"
        run.delay = raised.after if isinstance(raised, Retry) else None


class _Reports:
    """Records what a handler reports."""

    def __init__(self, run: JobRun, cancel: Optional[str]) -> None:
        self._run, self._cancel = run, cancel

    def report_progress(self, job: Job[Any], progress: bytes) -> None:
        fields = decode(progress)
        read_json(fields, "data")
        self._run.progress.append((fields.get("percent"), fields.get("data")))
        self._stop(job)

    def report_log(self, job: Job[Any], lines: bytes) -> None:
        self._run.log += [line["msg"] for line in decode(lines)["lines"]]
        self._stop(job)

    def _stop(self, job: Job[Any]) -> None:
        if self._cancel is not None:
            job._cancel(self._cancel)


# ---------------------------------------------------------------- producers


@dataclasses.dataclass(frozen=True)
class Enqueue:
    """A job that a fake client was asked to enqueue."""

    queue: str
    fn: Optional[str]
    payload: Any     # plain
    options: Fields  # the other fields of the message, such as "scheduled_at", "priority" and "key"


class _Recorder:
    """The jobs that were enqueued, and assertions about them."""

    def __init__(self) -> None:
        self.enqueued: List[Enqueue] = []
        self._lock = threading.Lock()

    def record(self, request: Fields) -> Fields:
        """Record an ENQUEUE and return its answer."""
        fields: Fields = decode(encode(request))
        read_json(fields, "job_payload")
        queue, fn, payload = fields.pop("q"), fields.pop("fn", None), fields.pop("job_payload")
        with self._lock:
            self.enqueued.append(Enqueue(queue, fn, payload, fields))
        return {"jid": f"{queue}:{uuid.uuid4()}"}

    def matching(self, job: Union[str, type], fields: Dict[str, Any]) -> List[Enqueue]:
        """Return the jobs of a queue, or of a payload's class, whose payload has these fields."""
        plain = {name: to_plain(value) for name, value in fields.items()}
        kind = kind_of(job) if isinstance(job, type) else None
        if isinstance(job, type) and kind is None:
            raise TypeError(f"{job.__name__} has no kind")
        return [e for e in self.enqueued
                if (e.fn == kind.function and kind.queue in (None, e.queue) if kind is not None else e.queue == job)
                and all(isinstance(e.payload, dict) and name in e.payload and e.payload[name] == value for name, value in plain.items())]


class _FakeCalls(BlockingCalls):
    """Answers ENQUEUEs, and nothing else."""

    recorder: _Recorder

    async def _call(self, message_type: int, payload: Fields, timeout: Optional[float] = None, done_codes: Sequence[str] = ()) -> Fields:
        if message_type == ENQUEUE:
            return self.recorder.record(payload)
        if message_type == PING:
            return {"server_time": "2026-01-01T00:00:00Z"}
        raise NotImplementedError("a fake client only enqueues: test other calls with a node")

    async def _call_all(self, message_type: int, requests: Sequence[Fields]) -> List[Union[Fields, Exception]]:
        return [await self._call(message_type, request) for request in requests]


class _Assertions:
    """What both fake clients have."""

    _recorder: _Recorder

    @property
    def enqueued(self) -> List[Enqueue]:
        """The jobs that were enqueued, in order."""
        return self._recorder.enqueued

    def assert_enqueued(self, job: Union[str, type], *, count: Optional[int] = None, **fields: Any) -> List[Enqueue]:
        """Return the jobs of a queue, or of a payload's class, whose payload has these fields.

        Raises AssertionError if there is none, or not ``count`` of them.
        """
        found = self._recorder.matching(job, fields)
        if len(found) != count if count is not None else not found:
            wanted = "at least one" if count is None else str(count)
            raise AssertionError(f"{len(found)} jobs match {_describe(job, fields)}, want {wanted}; enqueued: {self.enqueued}")
        return found

    def assert_not_enqueued(self, job: Union[str, type], **fields: Any) -> None:
        """Raise AssertionError if there is a job that assert_enqueued() would return."""
        found = self._recorder.matching(job, fields)
        if found:
            raise AssertionError(f"{len(found)} jobs match {_describe(job, fields)}, want none: {found}")


class FakeClient(_Assertions, Client):
    """A Client that records the jobs that it is asked to enqueue.

    It checks options and encodes payloads as Client does. Any other call raises
    NotImplementedError.
    """

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        calls = _FakeCalls("127.0.0.1:1")
        calls.recorder = self._recorder = _Recorder()
        self._calls = calls


class FakeAsyncClient(_Assertions, _FakeCalls):
    """FakeClient as an AsyncClient."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self.recorder = self._recorder = _Recorder()


def _describe(job: Union[str, type], fields: Dict[str, Any]) -> str:
    name = job if isinstance(job, str) else job.__name__
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in fields.items())})"


