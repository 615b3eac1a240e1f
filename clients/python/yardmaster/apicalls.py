"""Operations of the yard's API, which docs/reference/api.md describes."""

from __future__ import annotations

import json
import uuid
from typing import Any, AsyncIterator, List, Mapping, Optional, Sequence, cast

from .codec import parse_json
from .deprecated import deprecated
from .newjob import NewJob
from .protocol import API, Duration, Fields, optional_milliseconds, without_none
from .records import CronEntry, DeadLetter, DeadLetterResult, ListedJob, LogLine, RetentionSetting
from .schemas import schema
from .session import Session
from .typed import kind_names, to_plain


class ApiCalls(Session):
    """Dead letters, cron entries, payload schemas, retention, lists of jobs and workers, and everything else of the API.

    These need a node with the capability "api"; an older one raises NotSupported.
    What the operation refuses raises ApiError.
    """

    async def api(self, operation: str, request: Optional[Mapping[str, Any]] = None, *, timeout: Optional[float] = None) -> Any:
        """Execute an operation by its name, such as "job.list", and return its reply.

        ``request`` and the reply are those of the operation over HTTP and NATS, as
        the reference and the OpenAPI document describe them. ``timeout`` is as in
        Client. After a lost connection the request is sent again: give one that
        makes a job the key of the job.
        """
        return await self._operate(operation, request or {}, timeout)

    async def _operate(self, operation: str, request: Mapping[str, Any], timeout: Optional[float] = None,
                       done_statuses: Sequence[int] = ()) -> Any:
        """Execute an operation; None means that it was repeated and refused with one of ``done_statuses``, so that it is done."""
        text = json.dumps(to_plain(dict(request)), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        answer = await self._call(API, {"op": operation, "request_json": text.encode()}, timeout,
                                  [f"API_ERROR {status}" for status in done_statuses])
        return parse_json(answer["reply_json"]) if answer else None

    # -- jobs

    async def list_jobs(self, queues: Sequence[str] = (), states: Sequence[str] = (), *, function: Optional[str] = None,
                        oldest_first: bool = False, page_size: int = 100) -> AsyncIterator[ListedJob]:
        """Iterate over the jobs of several queues and states, reading a page at a time.

        No queues or states means all; a state is waiting, delayed, active,
        completed, failed, cancelled or expired. Jobs are in the order in which they were
        accepted, the newest first, and none appears twice or is missed because
        another changes its state.
        """
        after = None
        while True:
            page = await self.api("job.list", without_none({
                "queues": list(queues), "states": list(states), "function": function, "order": "oldest" if oldest_first else "newest",
                "limit": page_size, "after": after}))
            for job in page["jobs"]:
                yield job
            after = page.get("next")
            if not after:
                return

    @deprecated("list_jobs()")
    async def search_jobs(self, queues: Sequence[str] = (), states: Sequence[str] = (), *, function: Optional[str] = None,
                          oldest_first: bool = False, page_size: int = 100) -> AsyncIterator[ListedJob]:
        """Iterate over the same jobs as list_jobs()."""
        async for job in self.list_jobs(queues, states, function=function, oldest_first=oldest_first, page_size=page_size):
            yield job

    async def find_jobs(self, query: str = "", *, sort: Optional[str] = None, page_size: int = 100) -> AsyncIterator[ListedJob]:
        """Iterate over the jobs that a query finds, also those that ended days ago, reading a page at a time.

        A query is such as "queue:mail state:failed error:timeout since:1h"; the
        default finds all jobs. ``sort`` is created, ended, -created or -ended, by
        default -created, the newest first. The jobs have no params and results.
        Raises InvalidQuery if the query is wrong.
        """
        cursor = None
        while True:
            page = await self.api("job.find", without_none({"q": query, "sort": sort, "limit": page_size, "cursor": cursor}))
            for job in page["jobs"]:
                yield job
            cursor = page.get("next")
            if not cursor:
                return

    async def explain(self, job: str) -> Fields:
        """Return why a job is where it is, when that will change, and what has happened to it."""
        return cast(Fields, await self.api("job.explain", {"id": job}))

    async def job_log(self, job: str, *, lines: int = 1000) -> List[LogLine]:
        """Return the last lines of a job's log, oldest first."""
        return list((await self.api("job.logs", {"id": job, "lines": lines}))["lines"])

    async def job_errors(self, job: str, *, limit: int = 100) -> List[Fields]:
        """Return the errors that a job's last attempts reported with details, such as a traceback, newest first.

        Each has the fields ``dispatch``, ``at``, ``node`` and ``error``, with its ``message`` and ``details``.
        """
        return list((await self.api("job.errors", {"id": job, "limit": limit}))["errors"])

    async def workers(self, *, queue: Optional[str] = None, node: Optional[str] = None) -> List[Fields]:
        """Return the workers and runners of each node, with what each runs now."""
        return list((await self.api("worker.list", without_none({"queue": queue, "node": node})))["nodes"])

    async def drain_worker(self, worker: str) -> Fields:
        """Give a worker or runner process no more jobs; those that it runs go on.

        ``worker`` is a name or id that workers returns. The drain ends with resume_worker,
        or when the worker connects again or the process is replaced. The reply has the
        number of jobs that it runs, ``running``.
        """
        return cast(Fields, await self.api("worker.drain", {"worker": worker}))

    async def resume_worker(self, worker: str) -> Fields:
        """End the drain of a worker or runner process."""
        return cast(Fields, await self.api("worker.resume", {"worker": worker}))

    async def yard_status(self) -> Fields:
        """Return the state of the yard: members, authority, backlog and readiness."""
        return cast(Fields, await self.api("status"))

    # -- dead letters

    async def dead_letters(self, *, queue: Optional[str] = None, function: Optional[str] = None, error: Optional[str] = None,
                           page_size: int = 100, oldest_first: bool = False) -> AsyncIterator[DeadLetter]:
        """Iterate over the jobs that have failed for good, newest first or ``oldest_first``.

        ``error`` is the type or code of the error, or part of its text.
        """
        request: Fields = without_none({"queue": queue, "function": function, "error": error, "limit": page_size,
                                        "order": "oldest" if oldest_first else None})
        while True:
            page = await self.api("dlq.list", request)
            for letter in page["letters"]:
                yield letter
            if not page.get("next"):
                return
            request.update({"from": page["next"], "until": page["until"]})

    async def dead_letter(self, letter: int) -> DeadLetter:
        """Return one dead letter, with its job as it was enqueued."""
        return cast(DeadLetter, await self.api("dlq.show", {"letters": [letter]}))

    async def requeue_dead_letters(self, letters: Sequence[int] = (), *, queue: Optional[str] = None, function: Optional[str] = None,
                                   error: Optional[str] = None, every: bool = False, to: Optional[str] = None,
                                   keep_attempts: bool = False, dry_run: bool = False) -> List[DeadLetterResult]:
        """Run the jobs of dead letters again and return what happened to each.

        The letters are those with these numbers, or of this queue, function and
        error; ``every`` selects all if nothing else does. ``to`` names another
        queue. With ``keep_attempts`` the attempts so far count.
        """
        return await self._change_dead_letters("dlq.requeue", without_none({
            "letters": list(letters) or None, "queue": queue, "function": function, "error": error, "all": every or None, "to": to,
            "keep_attempts": keep_attempts or None, "dry_run": dry_run or None}))

    async def remove_dead_letters(self, letters: Sequence[int] = (), *, queue: Optional[str] = None, function: Optional[str] = None,
                                  error: Optional[str] = None, every: bool = False, dry_run: bool = False) -> List[DeadLetterResult]:
        """Remove dead letters, selected as by requeue_dead_letters(), and return what happened to each."""
        return await self._change_dead_letters("dlq.remove", without_none({
            "letters": list(letters) or None, "queue": queue, "function": function, "error": error, "all": every or None,
            "dry_run": dry_run or None}))

    async def _change_dead_letters(self, operation: str, request: Fields) -> List[DeadLetterResult]:
        """Execute a change of dead letters part by part."""
        results: List[DeadLetterResult] = []
        while True:
            part = await self.api(operation, request)
            results += part["items"]
            if not part.get("next") or part.get("stopped"):
                return results
            request.update({"from": part["next"], "until": part["until"]})

    # -- cron

    async def cron_entries(self) -> AsyncIterator[CronEntry]:
        """Iterate over the cron entries by name."""
        after = ""
        while True:
            page = await self.api("cron.list", {"after": after})
            for entry in page["entries"]:
                yield entry
                after = entry["name"]
            if not page["more"]:
                return

    async def cron_entry(self, name: str, *, next: Optional[int] = None) -> CronEntry:
        """Return one cron entry; raise ApiError 404 if there is none.

        ``next`` is the number of next times, up to 100 and by default 3, in ``upcoming`` and
        in ``ticks``, which has them in the entry's time zone and notes where clocks change.
        """
        return cast(CronEntry, await self.api("cron.show", without_none({"name": name, "next": next})))

    async def add_cron(self, name: str, schedule: str, job: Any, payload: Any = None, fn: Optional[str] = None, *,
                       time_zone: Optional[str] = None, overlap: Optional[str] = None, missed: Optional[str] = None,
                       replace: bool = False, max_attempts: Optional[int] = None, timeout: Optional[Duration] = None) -> CronEntry:
        """Add a cron entry, which enqueues a job at each time of its schedule.

        ``schedule`` is like "0 0 3 * * *" or "@every 90s", in the ``time_zone``, by
        default UTC. ``job``, ``payload`` and ``fn`` are as for enqueue(); the
        payload must be a dict, or a dataclass with a kind. ``overlap`` "skip" makes no job while
        the last one has not ended, and ``missed`` "once" makes one for all times
        at which the yard was down. ``replace`` allows to change an entry.
        """
        queue, function, params = NewJob(job, payload, fn).target()
        spec = without_none({"function": function, "params": params, "max_attempts": max_attempts,
                             "timeout_ms": optional_milliseconds(timeout)})
        return cast(CronEntry, await self.api("cron.add", without_none({
            "name": name, "schedule": schedule, "queue": queue, "job": spec, "time_zone": time_zone, "overlap": overlap, "missed": missed,
            "replace": replace or None})))

    async def remove_cron(self, name: str) -> None:
        """Remove a cron entry."""
        await self._operate("cron.remove", {"name": name}, done_statuses=(404,))

    async def pause_cron(self, name: str) -> CronEntry:
        """Have a cron entry make no jobs until resume_cron()."""
        return cast(CronEntry, await self.api("cron.pause", {"name": name}))

    async def resume_cron(self, name: str) -> CronEntry:
        """Have a paused cron entry make jobs again."""
        return cast(CronEntry, await self.api("cron.resume", {"name": name}))

    async def run_cron(self, name: str) -> str:
        """Enqueue a cron entry's job now and return its id."""
        answer = await self.api("cron.run", {"name": name, "new_id": f"auto-{uuid.uuid4().hex}"})  # a repetition makes no other job
        return f"{answer['queue']}:{answer['id']}"

    # -- payload schemas

    async def set_schema(self, target: type, *, queue: Optional[str] = None, fn: Optional[str] = None, warn: bool = False) -> Fields:
        """Have the yard check the payloads of a function against the JSON Schema of a type, usually of a dataclass.

        The queue and the function are those of its kind, unless they are given. A
        job with another payload is refused (InvalidPayload) before it is stored;
        with ``warn`` it is accepted and counted.
        """
        queue, fn = kind_names(target, queue, fn)
        return cast(Fields, await self.api("schema.set", {"queue": queue, "function": fn, "schema": schema(target), "warn": warn}))

    async def remove_schema(self, target: type, *, queue: Optional[str] = None, fn: Optional[str] = None) -> None:
        """Remove the schema that set_schema() has set."""
        queue, fn = kind_names(target, queue, fn)
        await self._operate("schema.remove", {"queue": queue, "function": fn}, done_statuses=(404,))

    # -- retention

    async def retention(self, queue: Optional[str] = None) -> List[RetentionSetting]:
        """Return how long the yard, or one queue, keeps what is left of ended jobs."""
        return list((await self.api("retention.show", without_none({"queue": queue})))["settings"])

    async def set_retention(self, change: Mapping[str, Mapping[str, Optional[int]]]) -> List[RetentionSetting]:
        """Change retention settings of the yard and return those in force.

        ``change`` is like ``{"results": {"age_ms": 86400000}}``; None resets a setting.
        """
        return list((await self.api("retention.set", change))["settings"])
