"""The exceptions of this package, and those that handlers raise."""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import Any, Dict, Mapping, Optional, Type, Union

MAX_RETRY_AFTER = 366 * 86400  # seconds, of Retry and Snooze


class OverhopError(Exception):
    """A node refused a request.

    ``code`` is stable and meant for programs, ``msg`` is meant for people, and
    ``details`` depends on the code; None means that there are no details. The
    codes that programs react to have a subclass.
    """

    def __init__(self, code: str, msg: str = "", details: Any = None) -> None:
        super().__init__(f"{code}: {msg}" if msg else code)
        self.code, self.msg, self.details = code, msg, details

    def _detail(self, key: str) -> Any:
        return self.details.get(key) if isinstance(self.details, dict) else None

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds after which the node suggests to repeat the request; None if it suggests nothing."""
        milliseconds = self._detail("retry_after_ms")
        return milliseconds / 1000 if isinstance(milliseconds, int) else None


class Unauthorized(OverhopError):
    """The token is missing or wrong."""


class NotSupported(OverhopError):
    """The node, of an older release, does not have what the call needs."""


class QueueNotFound(OverhopError):
    """The queue does not exist; ``add_queue`` creates it."""


class JobNotFound(OverhopError):
    """The yard does not have the job."""


class DuplicateJob(OverhopError):
    """Another job holds the unique key; ``jid`` is its id."""

    @property
    def jid(self) -> str:
        return str(self._detail("jid") or "")


class RateLimited(OverhopError):
    """The rate limit key is held for ``retry_after`` seconds."""


class Unavailable(OverhopError):
    """The yard cannot execute the request at present; repeat it after ``retry_after`` seconds.

    A stream that is full or a lack of a quorum is answered so. The client has
    repeated the request until its timeout.
    """


class InvalidPayload(OverhopError):
    """The job is refused, because an option or its payload is invalid.

    If the payload does not match the function's schema, ``path`` is a JSON
    Pointer to the value; "" is the whole payload.
    """

    @property
    def path(self) -> str:
        return str(self._detail("path") or "")


class ApiError(OverhopError):
    """An operation of the yard's API failed.

    ``status`` is the HTTP status that stands for the kind of the failure, such as
    404 or 409, and ``data`` what the operation adds to it, or None.
    """

    @property
    def status(self) -> int:
        status = self._detail("status")
        return status if isinstance(status, int) else 500

    @property
    def data(self) -> Any:
        return self._detail("data")


class InvalidQuery(ApiError):
    """The query of a request is wrong.

    ``offset`` and ``length`` are those of the part that is wrong, in bytes of its
    UTF-8; the length is 0 at the end of the query. ``problem`` says what is wrong
    with it, and ``advice`` what to write instead.
    """

    @property
    def offset(self) -> int:
        return int(self.data["offset"])

    @property
    def length(self) -> int:
        return int(self.data["length"])

    @property
    def problem(self) -> str:
        return str(self.data["problem"])

    @property
    def advice(self) -> str:
        return str(self.data["advice"])

    def part_of(self, query: str) -> str:
        """Return the part of the query that is wrong."""
        return query.encode()[self.offset:self.offset + self.length].decode(errors="replace")


_CLASSES: Dict[str, Type[OverhopError]] = {
    "UNAUTHORIZED": Unauthorized, "NOT_IMPLEMENTED": NotSupported, "QUEUE_NOT_FOUND": QueueNotFound, "JOB_NOT_FOUND": JobNotFound,
    "DUPLICATE_JOB": DuplicateJob, "RATE_LIMITED": RateLimited, "UNAVAILABLE": Unavailable, "INVALID_JOB_PAYLOAD": InvalidPayload,
    "API_ERROR": ApiError,
}


def refusal(code: str, msg: str = "", details: Any = None) -> OverhopError:
    """Return the exception for a code, in its subclass if it has one."""
    error = _CLASSES.get(code, OverhopError)(code, msg, details)
    if isinstance(error, ApiError) and isinstance(error.data, dict) and error.data.get("reason") == "query":
        return InvalidQuery(code, msg, details)
    return error


class ConnectionLost(OSError):
    """The connection was lost. The node may or may not have executed pending requests."""


class TLSError(ConnectionLost):
    """TLS with a node fails, and would again: the message says what to check.

    The node's certificate is not accepted, or the client's, or only one side uses
    TLS, or the address names another port, such as the one for HTTP. A client or
    worker raises it if it has reached no node so far and each has failed so; later it
    goes on trying, as certificates are replaced one by one.
    """

    def __init__(self, node: str, message: str) -> None:
        super().__init__(f"{node}: {message}")
        self.node = node


class CodecError(ValueError):
    """A value that Overhop cannot carry, or bytes that do not encode a value."""


class MessageTooLarge(CodecError):
    """A message, and so a payload or a result, is larger than the node's frames."""


class PayloadError(ValueError):
    """A value is not of the type that it should have.

    ``path`` is a JSON Pointer to the part of the value that is wrong, "" for the
    whole, and ``problem`` says what is wrong with it.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path, self.problem = path, problem


class JobFailed(Exception):
    """The awaited job failed without another attempt, or was removed.

    ``jid`` is the job's id, ``error`` the error of its last attempt as a dict
    (``error["type"]`` is "removed" for a removed job), and ``attempts`` the
    number of attempts made.
    """

    def __init__(self, jid: str, error: Optional[Mapping[str, Any]], attempts: int) -> None:
        error = dict(error or {})
        if error.get("type") == "removed":
            super().__init__(f"job {jid} was removed before it ended")
        elif error.get("type") == "cancelled":
            reason = error.get("reason") or error.get("message")
            super().__init__(f"job {jid} was cancelled: {reason or 'no reason given'}")
        else:
            super().__init__(f"job {jid} failed after {attempts} attempts: {error.get('message', 'no reason given')}")
        self.jid, self.error, self.attempts = jid, error, attempts


class JobCancelled(JobFailed):
    """The awaited job was cancelled."""

    @property
    def reason(self) -> Optional[str]:
        """What was given to cancel() as the reason, or else what its handler reported; None if that is nothing."""
        return self.error.get("reason") or self.error.get("message") or None


class StopReason(str, enum.Enum):
    """Why a job must stop."""

    CANCELLED = "cancelled"    # the job was cancelled, or its queue removed
    DEADLINE = "deadline"      # the attempt's timeout is over
    LEASE_LOST = "lease lost"  # the job may run elsewhere: its outcome does not count any more
    SHUTDOWN = "shutdown"      # the worker stops, or its node does: the job goes back without counting the attempt

    @classmethod
    def of(cls, code: str) -> StopReason:
        """Return the reason for a code of the protocol."""
        return _STOP_REASONS.get(code, cls.LEASE_LOST)


_STOP_REASONS = {
    "CANCELLED": StopReason.CANCELLED, "QUEUE_REMOVED": StopReason.CANCELLED, "DEADLINE": StopReason.DEADLINE,
    "SHUTDOWN": StopReason.SHUTDOWN,
}


class CancelledError(Exception):
    """Raised in a handler whose job must stop, for ``reason``. Handlers should not catch it."""

    def __init__(self, message: str = "", reason: Optional[StopReason] = None) -> None:
        super().__init__(message)
        self.reason = reason


class Retry(Exception):
    """Raised by a handler to fail this attempt and request another.

    ``after`` is the delay before the next attempt in seconds, at most 366 days: with
    it, the queue's rules of which errors are retried do not count. None leaves both
    to the rules. Raises ValueError if ``after`` is out of range.
    """

    def __init__(self, message: str = "handler asks for a retry", *, after: Union[float, timedelta, None] = None,
                 code: Optional[str] = None, details: Any = None) -> None:
        super().__init__(message)
        self.after = None if after is None else _delay("after", after)
        self.code, self.details = code, details


class Snooze(Exception):
    """Raised by a handler to run the job later, as the same attempt.

    The job goes back and is due after ``seconds``, at most 366 days; 0 is one second,
    so that a job that is not ready does not start again at once. ``message``
    is kept in the job's log only. Needs a node with the capability "snooze"; at
    another the attempt fails. Raises ValueError if ``seconds`` is out of range.
    """

    def __init__(self, seconds: Union[float, timedelta], message: str = "snoozed by its handler") -> None:
        super().__init__(message)
        self.seconds = _delay("seconds", seconds)
        if self.seconds < 0.001:
            self.seconds = 1.0


class Fail(Exception):
    """Raised by a handler to fail the job without another attempt."""

    def __init__(self, message: str, *, code: Optional[str] = None, details: Any = None) -> None:
        super().__init__(message)
        self.code, self.details = code, details


PermanentError = Fail


def _delay(name: str, duration: Union[float, timedelta]) -> float:
    """Return a duration in seconds; raise ValueError unless it is 0 to MAX_RETRY_AFTER."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= seconds <= MAX_RETRY_AFTER:  # NaN fails both comparisons
        raise ValueError(f"{name} is {duration!r}, must be 0 to {MAX_RETRY_AFTER} seconds")
    return seconds
