"""A job that is to be enqueued, with all its options."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import datetime, timedelta
from typing import Any, Dict, Optional, Tuple

from .codec import MAX_DEPTH, user_value
from .errors import CodecError
from .protocol import Duration, Fields, Moment, format_time, milliseconds, optional_milliseconds, seconds_of, without_none
from .typed import kind_names, to_plain


@dataclasses.dataclass(frozen=True)
class NewJob:
    """A job for enqueue_many() or call(), with the options of enqueue().

    ``job`` is the name of a queue, and ``payload`` and ``fn`` go with it; or it is
    an instance of a payload's class, whose kind names the function and, unless
    ``queue`` does, the queue.
    """

    job: Any
    payload: Any = None
    fn: Optional[str] = None
    queue: Optional[str] = None
    at: Optional[Moment] = None
    delay: Optional[Duration] = None
    max_attempts: Optional[int] = None
    retry_interval: Optional[Duration] = None
    timeout: Optional[Duration] = None
    retry_on_timeout: Optional[bool] = None
    priority: Optional[int] = None
    key: Optional[str] = None
    unique_key: Optional[str] = None
    unique_ttl: Optional[Duration] = None
    unique_until: Optional[str] = None
    rate_limit_key: Optional[str] = None
    rate_limit: Optional[Duration] = None
    debounce_key: Optional[str] = None
    debounce: Optional[Duration] = None
    trace: Optional[Dict[str, str]] = None

    def request(self, now: Optional[datetime]) -> Fields:
        """Return the payload of an ENQUEUE.

        ``now`` is the node's time, needed if the job has a delay. Without a key
        one is generated, so that the request can be repeated. Raises ValueError
        for options that are missing, exclude each other or are out of range,
        TypeError for a payload's class without a kind, and CodecError.
        """
        self.check()
        queue, fn, payload = self.target()
        at = self.at
        if self.delay is not None:
            assert now is not None
            at = now + timedelta(seconds=seconds_of(self.delay))
        value = user_value("job_payload", payload, MAX_DEPTH - 2)
        if "job_payload_json" in value and not isinstance(payload, dict):
            raise CodecError("a payload with floats or ints beyond 64 bits must be a dict")
        return without_none({
            "q": queue, **value, "fn": fn,
            "scheduled_at": None if at is None else format_time(at), "max_attempts": self.max_attempts,
            "retry_interval_ms": optional_milliseconds(self.retry_interval),
            "timeout_ms": optional_milliseconds(self.timeout), "retry_on_timeout": self.retry_on_timeout, "priority": self.priority,
            "key": self.key if self.key is not None else f"auto-{uuid.uuid4().hex}", "unique_key": self.unique_key,
            "unique_ttl_ms": optional_milliseconds(self.unique_ttl), "unique_until": self.unique_until,
            "rate_limit_key": self.rate_limit_key, "rate_limit_ms": _window("rate_limit", self.rate_limit_key, self.rate_limit),
            "debounce_key": self.debounce_key, "debounce_ms": _window("debounce", self.debounce_key, self.debounce), "trace": self.trace,
        })

    def check(self) -> None:
        """Raise ValueError for options that exclude each other or are out of range."""
        if self.at is not None and self.delay is not None:
            raise ValueError("give at or delay, not both")
        if self.delay is not None and not 0 <= seconds_of(self.delay) < 1e10:  # NaN, too
            raise ValueError(f"delay is {self.delay!r}, must be 0 seconds or more")
        if self.key == "":
            raise ValueError("key is empty: leave it out to have one generated")
        if self.debounce_key is not None and (self.at is not None or self.delay is not None or self.rate_limit_key is not None):
            raise ValueError("a debounced job starts when its window ends: debounce_key does not go with at, delay or rate_limit_key")

    def target(self) -> Tuple[str, Optional[str], Any]:
        """Return the queue, the function and the plain payload."""
        if isinstance(self.job, str):
            if self.queue is not None:
                raise ValueError(f"two queues are named, {self.job!r} and {self.queue!r}: give the first argument or queue")
            return self.job, self.fn, to_plain(self.payload)
        if isinstance(self.job, NewJob):
            raise TypeError("a NewJob is for enqueue_many() and call(): give enqueue() its options themselves")
        cls = type(self.job)
        if self.payload is not None:
            raise ValueError("the first argument is the payload already: leave the second one out")
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"a {cls.__name__} cannot be enqueued: give the name of a queue, or an instance of a dataclass")
        return (*kind_names(cls, self.queue, self.fn), to_plain(self.job))


def _window(name: str, key: Optional[str], window: Optional[Duration]) -> Optional[int]:
    """Return the window of a rate limit or debounce key in milliseconds, or None without one.

    ``name`` is the option's name for error messages. Raises ValueError if only
    one of key and window is given, or if the window is not positive.
    """
    if (key is None) != (window is None):
        raise ValueError(f"{name}_key and {name} (seconds) go together: give both or neither")
    if window is None:
        return None
    if milliseconds(window) < 1:
        raise ValueError(f"{name} is {window!r}, must be more than 0 seconds")
    return milliseconds(window)
