"""What a client does with jobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, AsyncIterator, Dict, Iterable, List, NamedTuple, Optional, Type, TypeVar, Union, cast, overload

from . import checks
from .deprecated import deprecated
from .errors import JobCancelled, JobFailed, JobNotFound, OverhopError, QueueNotFound, refusal
from .newjob import JobOptions, NewJob
from .protocol import (ADDQUEUE, CANCEL, CONTENT, ENQUEUE, JOB, LSJOB, RETRYJOB, RMJOB, SETJOB, Duration, Fields, Moment, format_time,
                       read_content, read_record, without_none)
from .records import JobRecord
from .session import Session
from .typed import Returns, from_plain, result_type

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

_ENCODED_AT_ONCE = 200  # jobs of enqueue_many


class Enqueued(NamedTuple):
    """The answer to one job of enqueue_many(): its id, or why it was not accepted.

    After ConnectionLost or TimeoutError the job may have been accepted. To repeat
    it safely give it a key.
    """

    jid: Optional[str]
    error: Optional[Exception]


class JobCalls(Session):
    """Enqueues jobs, waits for them, and changes them."""

    async def enqueue(self, job: Any, payload: Any = None, fn: Optional[str] = None, **options: Unpack[JobOptions]) -> str:
        """Enqueue a job and return its id once a node has accepted it.

        ``job`` is the name of a queue, with a ``payload`` and the name of the
        function to call, ``fn``; or an instance of a dataclass whose kind names
        both, as in ``enqueue(SendMail(to="ann"))``.

        The job starts as soon as possible, or not before ``at`` (a datetime with a
        zone, or RFC 3339 text), or ``delay`` seconds after it was accepted.
        If it has not started ``expires_in`` seconds after it was accepted, it ends.
        An attempt may take ``timeout`` seconds, and the next follows after
        ``retry_interval`` seconds; after a timeout only with ``retry_on_timeout``,
        or if the queue has it. ``priority`` is 0 to 9, 9 first. For options that
        are None the yard's defaults apply.

        Jobs with the same ``key`` in the same queue are the same job. By default
        a key is generated, so that a lost answer never makes two jobs. A repeated
        call with the key gets the answer of the first, except after RateLimited,
        and changes nothing, also if another job was named then. The key of
        a job that was removed is refused for some minutes (DUPLICATE_OF_REMOVED).

        The next three keys hold across all queues. Another job with the same
        ``unique_key`` is refused for ``unique_ttl`` seconds, by default six hours, also
        beyond the end of the first but no longer if it has not ended by then; or
        until the first has reached its ``unique_until``, "start" or "end"
        (DuplicateJob), and
        one with the same ``rate_limit_key`` for ``rate_limit`` seconds after the
        last (RateLimited). A job replaces one with the same ``debounce_key``
        that has not started, and starts ``debounce`` seconds from now.

        How many jobs run at once, and how many start in a second, is bounded by
        the limits of the queue and by those in ``limits``, a dict from the name of
        a limit to the key under which the job uses it; "" stands for ``limit_key``,
        which also counts for the queue's limits. ``tags``, a list of texts, and
        ``meta``, a dict of texts, are kept with the job and shown with it.

        A queue that does not exist is created, unless the client has
        ``create_queues=False``: then QueueNotFound is raised. Raises OverhopError if
        the job is refused, CodecError if the payload cannot be sent, and ValueError
        for options that exclude each other or are out of range. After
        ConnectionLost, TimeoutError or Unavailable the job may have been accepted:
        enqueue it again under the same key.
        """
        return await self._enqueue(NewJob(job, payload, fn, **options))

    async def _enqueue(self, job: NewJob) -> str:
        job.check()
        request = job.request(await self._node_time() if job.needs_time else None)
        try:
            answer = await self._call(ENQUEUE, request)
        except QueueNotFound:
            if not self._create_queues:
                raise
            await self._create_queue(request["q"])
            answer = await self._call(ENQUEUE, request)
        return str(answer["jid"])

    async def _create_queue(self, name: str) -> None:
        """Create a queue with default settings, unless it exists."""
        try:
            await self._call(ADDQUEUE, {"name": name}, done_codes=("DUPLICATE_QUEUE",))
        except OverhopError as e:
            if e.code != "DUPLICATE_QUEUE":
                raise

    async def enqueue_many(self, jobs: Iterable[Any]) -> List[Enqueued]:
        """Enqueue any number of jobs without waiting for each answer; return the answers in their order.

        A job is a NewJob, or an instance of a dataclass with a kind. One that is
        refused does not affect the others. Options and payloads are checked
        before any job is sent; what is wrong raises as in enqueue(). Queues that do
        not exist are created as there.
        """
        items = [job if isinstance(job, NewJob) else NewJob(job) for job in jobs]
        for item in items:
            item.check()
        now = await self._node_time() if any(job.needs_time for job in items) else None
        requests: List[Fields] = []
        for item in items:
            requests.append(item.request(now))
            if len(requests) % _ENCODED_AT_ONCE == 0:
                await self._waits.sleep(0)  # let other tasks run
        outcomes = await self._call_all(ENQUEUE, requests)
        if self._create_queues:
            await self._repeat_in_new_queues(requests, outcomes)
        return [Enqueued(None, outcome) if isinstance(outcome, Exception) else Enqueued(str(outcome["jid"]), None) for outcome in outcomes]

    async def _repeat_in_new_queues(self, requests: List[Fields], outcomes: List[Union[Fields, Exception]]) -> None:
        """Create the queues that were missing, and replace the outcomes of their jobs by those of a second try."""
        missing = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, QueueNotFound)]
        failures: Dict[str, Exception] = {}
        for name in sorted({str(requests[number]["q"]) for number in missing}):
            try:
                await self._create_queue(name)
            except (OverhopError, OSError) as e:
                failures[name] = e
        again = [number for number in missing if requests[number]["q"] not in failures]
        for number in missing:
            outcomes[number] = failures.get(requests[number]["q"], outcomes[number])
        for number, outcome in zip(again, await self._call_all(ENQUEUE, [requests[number] for number in again])):
            outcomes[number] = outcome

    @overload
    async def call(self, job: Returns[T], *, wait: Optional[float] = None, **options: Unpack[JobOptions]) -> T: ...
    @overload
    async def call(self, job: Any, payload: Any = None, fn: Optional[str] = None, *, wait: Optional[float] = None,
                   **options: Unpack[JobOptions]) -> Any: ...
    @overload
    async def call(self, job: Any, payload: Any = None, fn: Optional[str] = None, *, wait: Optional[float] = None, returns: Type[T],
                   **options: Unpack[JobOptions]) -> T: ...

    async def call(self, job: Any, payload: Any = None, fn: Optional[str] = None, *, wait: Optional[float] = None, returns: Any = Any,
                   **options: Unpack[JobOptions]) -> Any:
        """Enqueue a job, wait for it and return its result.

        The arguments are those of enqueue(), or a NewJob alone. ``wait`` and
        ``returns`` are ``timeout`` and ``returns`` of result(). Without ``returns``
        the result is decoded as the type that the payload's class names by its
        base Returns.
        """
        if isinstance(job, NewJob) and (payload is not None or fn is not None or options):
            raise ValueError("give the payload, fn and options in the NewJob")
        new = job if isinstance(job, NewJob) else NewJob(job, payload, fn, **options)
        if returns is Any:
            returns = result_type(type(new.job))
        return await self.result(await self._enqueue(new), wait, returns=returns)

    @overload
    async def result(self, jid: str, timeout: Optional[float] = None) -> Any: ...
    @overload
    async def result(self, jid: str, timeout: Optional[float] = None, *, returns: Type[T]) -> T: ...

    async def result(self, jid: str, timeout: Optional[float] = None, *, returns: Any = Any) -> Any:
        """Wait until a job has ended and return its result.

        With ``returns`` the result is decoded as that type, such as a dataclass,
        and PayloadError is raised if it is none. Raises JobFailed if the job
        failed or was removed, its subclass JobCancelled if it was cancelled,
        OverhopError CONTENT_GONE if its result is no longer
        stored, and TimeoutError if it has not ended within ``timeout`` seconds;
        None waits without limit. Raises JobNotFound if the job is still unknown
        after some seconds: a job accepted just now may be unknown to other nodes
        at first.
        """
        end = read_record(await self._await(jid, math.inf if timeout is None else timeout))
        omitted = end.get("omitted") or ()  # fields that do not fit into a frame
        if end.get("status") == "completed":
            if end.get("result_gone"):
                raise refusal("CONTENT_GONE", f"{end['result_gone']}: job {jid} has completed, its result is no longer stored")
            return from_plain(returns, await self._content(jid, "result") if "result" in omitted else end.get("result"))
        attempts = end["attempts"] if "attempts" in end else end.get("runtime", {}).get("attempts_so_far", 0)
        error = {"message": "its error is too large for the node's frames"} if "error" in omitted else end.get("error")
        raise (JobCancelled if (error or {}).get("type") == "cancelled" else JobFailed)(jid, error, attempts)

    async def payload(self, jid: str) -> Any:
        """Return a job's payload, whatever its size.

        Raises OverhopError CONTENT_NOT_FOUND if the job has none, and CONTENT_GONE
        if it is no longer stored: a large one is kept until its job has completed.
        """
        return await self._content(jid, "payload")

    async def _content(self, jid: str, value: str) -> Any:
        """Read a job's result or payload in parts and return its value."""
        async def call(request: Fields) -> Fields:
            return await self._call(CONTENT, request)
        return await read_content(call, jid, value)

    async def get(self, jid: str) -> JobRecord:
        """Return a job's record, or raise JobNotFound if the connected node does not know the job (yet).

        It has the job's ``key``, unless that was a UUID or the job ended so long
        ago that its payload is gone. Raises OverhopError RESPONSE_TOO_LARGE if the
        record does not fit into a frame; result() and payload() read values of any
        size.
        """
        record = await self._record(jid)
        if record is None:
            raise JobNotFound("JOB_NOT_FOUND", f"there is no job {jid}")
        return record

    async def _record(self, jid: str) -> Optional[JobRecord]:
        record = read_record(await self._call(JOB, {"jid": jid}))
        return _job_record(record) if record else None

    @deprecated("get(), which raises JobNotFound")
    async def job(self, jid: str) -> Optional[JobRecord]:
        """Return a job's record, or None if the connected node does not know the job (yet)."""
        return await self._record(jid)

    @deprecated("list_jobs()")
    async def jobs(self, queue: str, status: str, *, page_size: int = 100) -> AsyncIterator[JobRecord]:
        """Iterate over a queue's jobs of one status, oldest first, reading a page at a time.

        ``status`` is new, waiting, delayed, active, completed or failed. A job
        that gets or leaves the status meanwhile may move others between pages:
        list_jobs() has an order that stays.
        """
        page = 1
        while True:
            records = await self._jobs_page(queue, status, page=page, page_size=page_size)
            for record in records:
                yield record
            if len(records) < page_size:
                return
            page += 1

    @deprecated("list_jobs()")
    async def jobs_page(self, queue: str, status: str, *, page: int = 1, page_size: Optional[int] = None) -> List[JobRecord]:
        """Return one page of what jobs() iterates over.

        Pages are numbered from 1; a ``page_size`` of None means the node's default.
        """
        return await self._jobs_page(queue, status, page=page, page_size=page_size)

    async def _jobs_page(self, queue: str, status: str, *, page: int, page_size: Optional[int]) -> List[JobRecord]:
        answer = await self._call(LSJOB, without_none({"q": queue, "status": status, "page": page, "page_size": page_size}))
        return [_job_record(read_record(record)) for record in answer["jobs"]]

    async def cancel(self, jid: str, reason: Optional[str] = None) -> str:
        """Cancel a job and return its status: "active" while its handler has yet to stop."""
        answer = await self._call(CANCEL, without_none({"jid": jid, "reason": reason}), done_codes=("JOB_ALREADY_TERMINAL",))
        return str(answer.get("status", "failed"))

    async def retry(self, jid: str) -> str:
        """Run a failed job again, from its first attempt, and return its status."""
        return str((await self._call(RETRYJOB, {"jid": jid}))["status"])

    async def set_job(self, jid: str, *, priority: Optional[int] = None, at: Optional[Moment] = None,
                      delay: Optional[Duration] = None) -> str:
        """Change a job that has not started, and return its status: "waiting" or "delayed".

        ``priority``, ``at`` and ``delay`` are as for enqueue(); those that are None
        stay as they are. A ``delay`` of 0 starts the job as soon as possible, and
        skips the delay before the next attempt. Raises OverhopError
        JOB_NOT_PENDING if the job runs or has ended, and ValueError for options
        that are missing, exclude each other or are out of range.
        """
        if at is not None and delay is not None:
            raise ValueError("give at or delay, not both")
        if at is None and delay is None and priority is None:
            raise ValueError("nothing to change: give priority, at or delay")
        request = without_none({
            "jid": jid, "priority": checks.integer("priority", priority, 0, 9), "scheduled_at": None if at is None else format_time(at),
            "delay_ms": checks.duration("delay", delay, 0),
        })
        return str((await self._call(SETJOB, request))["status"])

    async def remove(self, jid: str) -> None:
        """Remove a job that is not active."""
        await self._call(RMJOB, {"jid": jid}, done_codes=("JOB_NOT_FOUND",))


def _job_record(record: Fields) -> JobRecord:
    return cast(JobRecord, record)
