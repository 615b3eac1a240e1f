"""The shapes of what nodes answer. A key that does not apply is missing or None."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict


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
    """A job as search_jobs() and explain() show it; docs/reference/api.md describes the keys."""

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
