"""Reports of running handlers: progress and lines of the job's log."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, Optional

from .activejob import ActiveJob
from .calls import CallLoop
from .codec import Encoded
from .connection import Connection
from .errors import CodecError, ConnectionLost, OverhopError
from .job import Job
from .protocol import LOG, PROGRESS

log = logging.getLogger("yardmaster")


class Reports:
    """Sends the reports of a worker's jobs.

    ``jobs`` has the worker's jobs, by token, and ``connection`` returns its current
    connection, if there is one. Both belong to the thread of ``loop``, to which handlers
    post their reports.
    """

    def __init__(self, loop: CallLoop, jobs: Dict[bytes, ActiveJob], connection: Callable[[], Optional[Connection]]) -> None:
        self._loop, self._jobs, self._connection = loop, jobs, connection

    def report_progress(self, job: Job[Any], progress: Encoded) -> None:
        self._loop.post(self._set_progress, job._token, progress)

    def report_log(self, job: Job[Any], lines: Encoded) -> None:
        self._loop.post(self._send_log, job._token, lines)

    def _set_progress(self, token: bytes, progress: Encoded) -> None:
        job = self._jobs.get(token)
        if job is not None:
            job.progress = progress
            if not job.progress_pending:
                self.send_progress(job)

    def send_progress(self, job: ActiveJob) -> None:
        """Send the newest progress of a running job, if there is any, on the current connection."""
        connection, progress = self._connection(), job.progress
        if connection is not None and progress is not None and job.outcome is None:
            job.progress, job.progress_pending = None, True
            try:
                connection.send(PROGRESS, progress, lambda _, error: self._loop.post(self._on_progress_answer, job, progress, error))
            except CodecError as e:
                job.progress_pending = False
                log.warning("dropped progress of job %s: %s", job.id, e)

    def _on_progress_answer(self, job: ActiveJob, progress: Encoded, error: Optional[Exception]) -> None:
        job.progress_pending = False
        if isinstance(error, ConnectionLost):
            job.progress = job.progress or progress
        elif isinstance(error, OverhopError) and error.code == "RESULT_TOO_LARGE":
            log.warning("dropped progress of job %s: %s", job.id, error.msg)
        self.send_progress(job)

    def _send_log(self, token: bytes, lines: Encoded) -> None:
        job = self._jobs.get(token)
        connection = self._connection()
        if connection is not None and job is not None and job.outcome is None:
            connection.send(LOG, lines)
