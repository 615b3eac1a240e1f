"""A job, as its handler receives it, and its log."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, Generic, List, MutableMapping, Optional, Protocol, Tuple, TypeVar, cast

from .codec import MAX_DEPTH, MAX_VALUE_DEPTH, Encoded, encode, read_json, user_value
from .errors import CancelledError, StopReason
from .protocol import Fields, format_time, parse_optional_time, parse_time, without_none
from .typed import to_plain

P = TypeVar("P")

_MAX_LOG_LINES, _MAX_LOG_LINE = 1000, 2048  # of an attempt; characters

#: The job whose handler runs in this context; None outside handlers.
current_job: contextvars.ContextVar[Optional[Job[Any]]] = contextvars.ContextVar("yardmaster_job", default=None)


class Reporter(Protocol):
    """Where a job's reports go; may be used from any thread."""

    def report_progress(self, job: Job[Any], progress: Encoded) -> None:
        """Send the payload of a PROGRESS."""
        ...

    def report_log(self, job: Job[Any], lines: Encoded) -> None:
        """Send the payload of a LOG."""
        ...


class Job(Generic[P]):
    """A job, as its handler receives it; ``Job[SendMail]`` has a SendMail as payload.

    Handlers may call its methods from any thread of the worker's process; in a
    forked process ``progress`` and ``log`` raise RuntimeError.
    """

    payload: P

    def __init__(self, reporter: Reporter, quest: Fields) -> None:
        read_json(quest, "job_payload")
        self._reporter, self._token, self._received = reporter, bytes(quest["tok"]), time.monotonic()
        self.id: str = quest["jid"]  # "<queue>:<uuid>"
        self.queue: str = quest["q"]
        self.fn: Optional[str] = quest.get("fn")  # the function that the job names; None if it names none
        self.payload = cast(P, quest.get("job_payload"))
        self._payload_omitted = "job_payload" in (quest.get("omitted") or ())  # it does not fit into a frame
        self.attempt: int = quest["attempt"]  # from 1
        self.max_attempts: Optional[int] = quest.get("max_attempts")  # None: the yard's default
        #: Fencing token, larger for every later assignment. Pass it to the systems
        #: that the job changes, so that they can reject a stale writer.
        self.fence: int = quest["fence"]
        self.trace: Dict[str, str] = quest.get("trace") or {}
        self.tags: List[str] = quest.get("tags") or []
        self.meta: Dict[str, str] = quest.get("meta") or {}
        self.created_at: Optional[datetime] = parse_optional_time(quest.get("created_at"))
        #: End of the time allowed for this attempt, by the node's clock; None: no limit.
        self.deadline: Optional[datetime] = parse_optional_time(quest.get("deadline"))
        self.redelivered: bool = bool(quest.get("redelivered"))
        #: Set once the job must stop; ``stop_reason`` is then the reason,
        #: ``cancel_reason`` its code in the protocol, and ``cancel_message`` what
        #: was given to cancel() as the reason, if anything.
        self.cancelled = threading.Event()
        self.stop_reason: Optional[StopReason] = None
        self.cancel_reason: Optional[str] = None
        self.cancel_message: Optional[str] = None
        self._sent = _sent(quest)
        # Seconds when it was received.
        self._time_left = None if self.deadline is None else (self.deadline - self._sent).total_seconds()
        self._on_cancel: Optional[Callable[[], object]] = None  # interrupts the handler
        self._holds_lease: Callable[[], bool] = lambda: True    # the handler may start
        self._error: Optional[BaseException] = None  # what the handler has raised; written before the worker reads it
        self._interrupted = False  # the handler has ended only because its event loop ends
        self._log_lines = 0

    def progress(self, percent: Optional[int] = None, data: Any = None) -> None:
        """Report the job's progress; only the newest report is kept.

        ``percent`` is 0 to 100, or None. Raises CancelledError if the job must
        stop, ValueError for any other percentage, and CodecError if ``data``
        cannot be encoded.
        """
        self.check()
        if percent is not None and (isinstance(percent, bool) or not isinstance(percent, int) or not 0 <= percent <= 100):
            raise ValueError(f"percent is {percent!r}, must be an int from 0 to 100")
        value = {} if data is None else user_value("data", to_plain(data), MAX_VALUE_DEPTH)
        self._reporter.report_progress(self, self._message({"percent": percent, **value}))

    def log(self, message: str, level: str = "info") -> None:
        """Add a line to the job's log on its node, which keeps 1000 lines of 2048 characters.

        Raises CancelledError if the job must stop.
        """
        self.check()
        self._log_lines += 1
        if self._log_lines <= _MAX_LOG_LINES:
            line = {"at": format_time(datetime.now(timezone.utc)), "level": valid_utf8(str(level))[:64],
                    "msg": valid_utf8(str(message))[:_MAX_LOG_LINE]}
            self._reporter.report_log(self, self._message({"lines": [line]}))

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records go to the job's log, and to the handlers of the logger "yardmaster.job".

        Its records have the attributes ``job_id``, ``queue`` and ``attempt``.
        """
        return _JobLogger(_job_logger, {"job_id": self.id, "queue": self.queue, "attempt": self.attempt, "_yardmaster_job": self})

    def check(self) -> None:
        """Raise CancelledError if the job must stop."""
        if self.cancelled.is_set():
            raise self._cancelled_error()

    def seconds_left(self) -> Optional[float]:
        """Return the seconds that this attempt may still take, at least 0; None means no limit.

        It compares times of the node with each other only, and counts by this
        machine's monotonic clock.
        """
        return None if self._time_left is None else max(0.0, self._time_left - (time.monotonic() - self._received))

    def _message(self, fields: Fields) -> Encoded:
        """Encode a payload about this job in the caller's thread, so that errors are raised there."""
        return Encoded(encode({**without_none(fields), "jid": self.id, "tok": self._token}, MAX_DEPTH - 1))

    def _cancelled_error(self) -> CancelledError:
        why = self.cancel_message or f"{self.cancel_reason}"
        return CancelledError(f"job {self.id} must stop: {why}", self.stop_reason)

    def _cancel(self, code: str, message: Optional[str] = None) -> None:
        """Have the job stop, for the first reason only."""
        if not self.cancelled.is_set():
            self.cancel_reason, self.stop_reason, self.cancel_message = code, StopReason.of(code), message
            self.cancelled.set()
            if self._on_cancel is not None:
                self._on_cancel()


def _sent(quest: Fields) -> datetime:
    """Return when a QUEST was sent, by the node's clock; by this machine's if it has no end of the lease."""
    if quest.get("lease_until") is None or quest.get("lease_ms") is None:
        return datetime.now(timezone.utc)
    return parse_time(quest["lease_until"]) - timedelta(milliseconds=float(quest["lease_ms"]))


def valid_utf8(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


# ---------------------------------------------------------------- logging


class _JobLogger(logging.LoggerAdapter):  # type: ignore[type-arg]  # not a generic class before Python 3.11
    """Adds the job to each record, beside the caller's own ``extra``."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> Tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **(self.extra or {})}}


class JobLogHandler(logging.Handler):
    """Writes log records to the log of the job that is running in their context.

        logging.getLogger("app").addHandler(yardmaster.JobLogHandler())

    Records from outside of handlers are dropped, and so are those of a job that
    must stop, and lines beyond its thousandth. A thread that a handler starts has
    no job in its context, unless it runs in a copy of the handler's
    (``contextvars.copy_context().run``).
    """

    def emit(self, record: logging.LogRecord) -> None:
        job: Optional[Job[Any]] = getattr(record, "_yardmaster_job", None) or current_job.get()
        if job is None or job.cancelled.is_set() or getattr(record, "_yardmaster_logged", False):
            return
        record._yardmaster_logged = True
        try:
            job.log(self.format(record), record.levelname.lower())
        except CancelledError:
            pass
        except Exception:
            self.handleError(record)


_job_logger = logging.getLogger("yardmaster.job")
_job_logger.setLevel(logging.INFO)  # the root logger's default, WARNING, would drop most of a job's log
_job_logger.addHandler(JobLogHandler())
