"""Handlers of jobs: how they are registered, and how their results and exceptions are reported."""

from __future__ import annotations

import inspect
import logging
import traceback
import typing
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set, Tuple, TypeVar, Union

from .codec import MAX_DEPTH, MAX_VALUE_DEPTH, Encoded, encode, user_value
from .errors import CancelledError, CodecError, Fail, PayloadError, Retry, Snooze
from .job import Job, valid_utf8
from .protocol import DONE, FAIL, Duration, Fields, milliseconds
from .typed import check_type, from_plain, name_of, resolve, to_plain

log = logging.getLogger("yardmaster")

Handler = Callable[[Job[Any]], Any]
#: Receives a job and the next middleware or the handler; returns what that returns.
Middleware = Callable[[Job[Any], Callable[[Job[Any]], Any]], Any]
AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])
Outcome = Tuple[int, Fields]  # DONE or FAIL, and its payload

# Seconds for which a job without a handler goes back: the shortest and longest time, and its age from which on it fails.
_UNKNOWN_DELAY, _MAX_UNKNOWN_DELAY, _UNKNOWN_GRACE = 5.0, 600.0, 86400.0
_MAX_MESSAGE = 4000  # characters
_MAX_TRACEBACK = 28 << 10  # bytes, so that it fits into the details
_OMISSION = 64  # bytes for the line of excerpt()
_MAX_DETAILS_SIZE = 32 << 10  # bytes of an error's details, so that a FAIL fits into the smallest frame limit


class Registered:
    """A handler, with the type of its jobs' payloads."""

    def __init__(self, handler: Handler, names: Mapping[str, Any]) -> None:
        if not callable(handler):
            raise TypeError(f"the handler is {handler!r}, must be a function that takes a Job")
        self.handler = handler
        self.name = getattr(handler, "__name__", repr(handler))
        self.is_async = is_coroutine_function(handler)
        self.payload_type = _payload_type(handler, self.name, names)

    def with_middleware(self, middleware: List[Middleware]) -> Handler:
        """Return the handler within the middleware of its kind, the first one outermost."""
        call = self.handler
        for around in reversed([m for m in middleware if is_coroutine_function(m) == self.is_async]):
            call = _within(around, call)
        return call


def _within(around: Middleware, inner: Handler) -> Handler:
    return lambda job: around(job, inner)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


def _payload_type(handler: Handler, name: str, names: Mapping[str, Any]) -> Any:
    """Return the P of a handler's parameter that is annotated as Job[P], or Any.

    Annotations as text are resolved in the handler's module and in ``names``.
    Raises TypeError if P cannot be decoded.
    """
    try:
        parameters = [p for p in inspect.signature(handler).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):  # a builtin
        return Any
    annotation = parameters[0].annotation if parameters else inspect.Parameter.empty
    if annotation is inspect.Parameter.empty:
        return Any
    function = inspect.unwrap(handler if inspect.isroutine(handler) else getattr(handler, "__call__"))
    annotation = resolve(annotation, f"handler {name}", getattr(function, "__globals__", {}), names)
    if typing.get_origin(annotation) is not Job:
        if annotation in (Any, Job, object) or isinstance(annotation, TypeVar):
            return Any
        raise TypeError(f"handler {name} takes a {name_of(annotation)}: a handler takes a Job, such as Job[{name_of(annotation)}]")
    payload_type = typing.get_args(annotation)[0]
    try:
        check_type(payload_type)
    except TypeError as e:
        raise TypeError(f"payloads of handler {name}: {e}") from None
    return payload_type


def read_payload(job: Job[Any], handler: Registered) -> None:
    """Replace the payload of a job by the type that its handler takes."""
    job.payload = from_plain(handler.payload_type, job.payload)


# ---------------------------------------------------------------- outcomes


def outcome_of_result(result: object) -> Outcome:
    """Return DONE with a handler's result, or a final FAIL if it cannot be sent."""
    try:
        return DONE, user_value("result", to_plain(result), MAX_VALUE_DEPTH)
    except (CodecError, PayloadError, RecursionError) as e:
        reason = str(e)
        if inspect.iscoroutine(result):
            result.close()
            reason = "the handler has returned a coroutine: make it a coroutine function, by async def"
    except BaseException as e:  # of the result's own methods
        reason = f"a {type(result).__name__} raised {_text_of(e, True)}"
    return fail_message(f"result: {reason}", "bad_result", final=True)


def outcome_of_exception(job: Job[Any], error: BaseException) -> Outcome:
    """Return the FAIL for what a handler has raised."""
    job._error = error
    message = _text_of(error)
    if isinstance(error, CancelledError):
        return fail_message(message, "cancelled")
    if isinstance(error, Retry):
        return fail_message(message, "retry", error.code, error.details, after=error.after)
    if isinstance(error, Snooze):
        return snooze_message(message, error.seconds)
    if isinstance(error, Fail):
        return fail_message(message, "fail", error.code, error.details, final=True)
    _warn("attempt %d of job %s failed", job.attempt, job.id, exc_info=error)
    return fail_message(message, type(error).__name__, details={"traceback": excerpt(_trace_of(error), _MAX_TRACEBACK)})


def outcome_of_loop(job: Job[Any], cancelled: BaseException, error: BaseException) -> Outcome:
    """Return the FAIL for a coroutine that was cancelled because an exception ends the application's event loop.

    asyncio does not tell which task has raised it, and a job that ends its worker must not
    do so for ever: the attempt counts.
    """
    job._error = cancelled
    return fail_message(f"the event loop of the worker was ended by {_text_of(error, True)}: by this job, another one, or the application",
                        type(error).__name__)


def _text_of(error: BaseException, named: bool = False) -> str:
    """Return the text of an exception, after its class if it is ``named``. Its own methods may raise anything."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException as e:
        return f"{name}, whose text cannot be read: its __str__ raised {type(e).__name__}"
    return f"{name}: {text}" if named else text


def _trace_of(error: BaseException) -> str:
    """Return the traceback of an exception, or why there is none."""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException as e:
        return f"the traceback cannot be read: {_text_of(e, True)}"


def _warn(message: str, *args: object, exc_info: Optional[BaseException] = None) -> None:
    """Log a warning, whatever filters and handlers of the application raise."""
    try:
        log.warning(message, *args, exc_info=exc_info)
    except BaseException:
        pass


def excerpt(text: str, size: int) -> str:
    """Return text cut to ``size`` bytes of UTF-8: a line replaces the middle of a longer one."""
    data = text.encode("utf-8", "replace")
    if len(data) <= size:
        return text
    head, tail = data[:size // 4].decode("utf-8", "ignore"), data[size // 4 + _OMISSION - size:].decode("utf-8", "ignore")
    omitted = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n... {omitted} bytes omitted ...\n{tail}"


def outcome_of_payload(job: Job[Any], handler: Registered, error: PayloadError) -> Outcome:
    """Return the final FAIL for a payload that is not of the type that its handler takes."""
    job._error = error
    _warn("job %s fails without another attempt: its payload is no %s: %s", job.id, name_of(handler.payload_type), error)
    return fail_message(f"payload is no {name_of(handler.payload_type)}: {error}", "invalid", "INVALID_JOB_PAYLOAD",
                        {"path": error.path}, final=True)


class UnknownFunctions:
    """Decides what happens to jobs that name a function without a handler."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._logged: Set[Tuple[str, Optional[str]]] = set()  # queues and functions

    def outcome(self, job: Job[Any], handlers: Iterable[Optional[str]]) -> Outcome:
        """Return the FAIL for a job: it goes back for a time that grows, for a worker of a newer release, or fails for good.

        ``handlers`` are the functions of its queue. The first job of each
        function is logged.
        """
        wanted = "names no function" if job.fn is None else f"names the function {job.fn!r}"
        message = f"job of queue {job.queue!r} {wanted}, for which this worker has no handler; it has {', '.join(map(repr, handlers))}"
        if (job.queue, job.fn) not in self._logged:
            self._logged.add((job.queue, job.fn))
            log.warning("%s: add one to every worker of the queue, or use a separate queue for the function; such jobs %s (job %s)", message,
                        "fail without another attempt" if self._fail else "go back for some time", job.id)
        if self._fail:
            return fail_message(message, "handler_not_found", "UNKNOWN_FUNCTION", final=True)
        age = 0.0 if job.created_at is None else (job._sent - job.created_at).total_seconds()
        if age < _UNKNOWN_GRACE:
            return snooze_message(message, min(max(age / 2, _UNKNOWN_DELAY), _MAX_UNKNOWN_DELAY), "UNKNOWN_FUNCTION")
        return fail_message(message, "unknown_function", "UNKNOWN_FUNCTION")


def outcome_of(job: Job[Any], end: Callable[[], Outcome]) -> Outcome:
    """Return what ``end`` returns.

    It reads the handler's own result or exception, which may raise anything;
    that becomes a FAIL, too.
    """
    try:
        return end()
    except BaseException as e:
        _warn("cannot encode the outcome of attempt %d of job %s", job.attempt, job.id, exc_info=e)
        return fail_message(f"the handler's result or exception cannot be read: {_text_of(e, True)}", "bad_end")


def snooze_message(message: str, seconds: float, code: Optional[str] = None) -> Outcome:
    """Return the FAIL by which a job goes back for a time, without counting the attempt."""
    message_type, payload = fail_message(message, "snooze", code)
    del payload["retry"]
    return message_type, {**payload, "snooze_ms": milliseconds(seconds)}


def fail_message(message: str, error_type: str, code: Optional[str] = None, details: Any = None, *, final: bool = False,
                 after: Optional[Duration] = None) -> Outcome:
    """Return FAIL and a payload that every node accepts: text and details are cut to size.

    ``final`` rules out another attempt; ``after`` is the delay before it in
    seconds, or None for the yard's retry policy. It is called where the handler
    runs and encodes the error there, because the details are the handler's
    own objects.
    """
    error: Fields = {"message": valid_utf8(message or error_type)[:_MAX_MESSAGE], "type": valid_utf8(error_type)[:200]}
    if code is not None:
        error["code"] = valid_utf8(_call(str, code))[:200]
    if details is not None:
        field: Dict[str, Union[str, bytes]]
        try:
            field = {**user_value("details", to_plain(details), MAX_VALUE_DEPTH)}
        except BaseException:  # of the codec, or of their own methods
            field = {"details": valid_utf8(_call(repr, details))[:1500]}
        size = len(next(iter(field.values())))
        error.update(field if size <= _MAX_DETAILS_SIZE else {
            "details": f"omitted: {size} bytes, more than the limit of {_MAX_DETAILS_SIZE}"})
    payload: Fields = {"error": Encoded(encode(error, MAX_DEPTH - 2)), "retry": not final}
    if after is not None:
        payload["retry_after_ms"] = milliseconds(after)
    return FAIL, payload


def _call(convert: Callable[[object], str], value: object) -> str:
    """Return the text of a value, or a text that names the exception of its own method."""
    try:
        return convert(value)
    except BaseException as e:
        return f"a {type(value).__name__} that cannot be read: {_text_of(e, True)}"


#: The outcome of a handler whose thread was interrupted by an exception of another thread, before it had one.
INTERRUPTED = fail_message("the thread of the handler was interrupted", "interrupted")
