"""The shapes of what nodes answer. A key that does not apply is missing or None."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict


class JobRecord(TypedDict, total=False):
    """A job over Overhop; docs/reference/overhop.md describes the keys."""

    uuid: str
    jid: str
    queue_name: str
    payload: Any
    status: str  # new, waiting, delayed, active, completed or failed
    created_at: str
    execution_start_at: str
    max_attempts: Optional[int]
    retry_interval_ms: Optional[int]
    runtime: Dict[str, Any]
    priority: int
    timeout_ms: Optional[int]
    retry_on_timeout: bool
    fn: str
    key: str
    result: Any
    error: Optional[Dict[str, Any]]
    started_at: Optional[str]
    completed_at: Optional[str]
    worker_id: Optional[str]
    node: Optional[str]
    payload_gone: bool
    result_gone: str


class QueueConfig(TypedDict, total=False):
    """The settings of a queue."""

    concurrency_limit: Optional[int]
    allow_job_overrides: bool


class QueueRecord(TypedDict, total=False):
    """A queue."""

    id: str
    name: str
    state: str  # running or paused
    config: QueueConfig


class ListedJob(TypedDict, total=False):
    """A job as list_jobs(), find_jobs() and explain() show it; docs/reference/api.md describes the keys."""

    id: str
    jid: str
    key: str
    queue: str
    state: str  # new, waiting, delayed, active, completed, failed, cancelled or expired
    function: str
    params: Any
    params_start: str
    payload_bytes: int
    created_at: str
    run_at: str
    started_at: str
    ended_at: str
    priority: int
    attempts: int
    max_attempts: int
    node: str
    worker: str
    reason: str
    error: Dict[str, Any]
    result: Any
    result_bytes: int
    progress: Dict[str, Any]
    dead_letter: int
    tags: List[str]
    meta: Dict[str, str]
    indexed: Dict[str, str]  # find_jobs() only: the params by which the job is found


class LogLine(TypedDict, total=False):
    """A line of a job's log."""

    at: str
    level: str
    stream: str  # log, or stdout or stderr of a runner
    text: str
    record: Dict[str, Any]
    dispatch: int
    attempt: int
    worker: str


class DeadLetter(TypedDict, total=False):
    """A job that has failed for good."""

    letter: int  # its number
    id: str      # of the job
    queue: str
    function: str
    reason: str
    error: Dict[str, Any]
    attempts: int
    accepted_at: str
    failed_at: str
    state: str
    job: Any


class DeadLetterResult(TypedDict, total=False):
    """What happened to a dead letter, or in a dry run would."""

    letter: int
    id: str
    result: str  # retried, enqueued, stale, removed or failed
    job: str
    queue: str
    note: str
    error: str


class CronTick(TypedDict, total=False):
    """A future time of a cron entry."""

    at: str
    local: str  # the same time in the entry's time zone
    note: str   # if clocks change then, such as "skipped hour: runs at 03:00" or "double hour: first"


class CronEntry(TypedDict, total=False):
    """A cron entry."""

    name: str
    schedule: str
    time_zone: str
    queue: str
    job: Dict[str, Any]
    missed: str
    overlap: str
    declared: bool
    state: str  # running, paused or ended
    next: Optional[str]
    upcoming: List[str]
    ticks: List[CronTick]
    last: Optional[str]
    last_job: Optional[str]
    fired: int
    skipped: int
    missed_count: int


class RetentionSetting(TypedDict, total=False):
    """How long one kind of data of ended jobs is kept."""

    name: str   # such as "finished.age"
    value: int  # in unit; 0 means that there is no such bound
    unit: str   # ms, bytes or items
    # "from" is a word of Python: read it as setting["from"]


OperationAction = Literal["retry", "cancel", "remove", "requeue"]


class OperationFailure(TypedDict):
    """A job that an operation could not change."""

    job: str  # its id
    error: str


class Operation(TypedDict, total=False):
    """An action on all jobs that match a query, and how far it is."""

    id: int
    action: OperationAction
    query: str  # with absolute times
    state: Literal["running", "paused", "done", "cancelled"]
    accepted_until: str
    rate: int   # jobs per second; 0 means as fast as the yard takes them
    params: Any
    to: str
    keep_attempts: bool
    expected: int  # number of jobs that matched before the start; missing if they were not all counted
    matched: int   # jobs that it has come to: the sum of the next three
    changed: int
    skipped: int   # they were left as they were
    skipped_by: Dict[str, int]  # number of those by reason; missing if there are none
    failed: int    # the action was refused
    failures: List[OperationFailure]  # operation() only: the first of these
    reached: str      # when the last job was accepted that it has come to
    waiting_for: str  # why it does not go on at present
    actor: str
    door: str
    reason: str
    started_at: str
    updated_at: str
    ended_at: str


class OperationSample(TypedDict, total=False):
    """One of the jobs that match."""

    id: str
    queue: str
    function: str
    state: str
    created_at: str
    error: Dict[str, Any]
    skipped: str  # why the action does not apply
    dead_letter: int
    params: Any   # requeue with params: as the new job would have them
    refused: str  # why the new job would be refused


class OperationPreview(TypedDict, total=False):
    """What an operation would do."""

    action: OperationAction
    query: str  # with absolute times
    matched: int
    at_least: bool   # not all were counted: more may match
    applicable: int  # number of those to which the action applies
    advice: List[str]  # on labels in the query that no job has
    unchecked: int   # number of those whose dead letters may be gone: there was no time to look for all
    states: Dict[str, int]
    skipped: Dict[str, int]  # number of jobs to which the action does not apply, by reason
    sample: List[OperationSample]  # the first jobs
    index: int
