"""A job that is to be enqueued, with all its options."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Tuple, TypedDict

from . import checks
from .codec import MAX_VALUE_DEPTH, user_value
from .errors import CodecError
from .protocol import Duration, Fields, Moment, format_time, seconds_of, without_none
from .typed import kind_names, to_plain

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MAX_FUNCTION = 256  # bytes


class JobOptions(TypedDict, total=False):
    """The options of a job, for enqueue(), call() and NewJob. One that is None counts as left out."""

    queue: Optional[str]              # of a payload's class, in place of that of its kind
    at: Optional[Moment]              # the earliest start; excludes delay
    delay: Optional[Duration]         # the earliest start, from now
    expires_in: Optional[Duration]    # a job that has not started by then ends without an attempt
    priority: Optional[int]           # 0 to 9, 9 first
    max_attempts: Optional[int]
    retry_interval: Optional[Duration]
    timeout: Optional[Duration]       # of an attempt
    retry_on_timeout: Optional[bool]
    key: Optional[str]
    unique_key: Optional[str]
    unique_ttl: Optional[Duration]
    unique_until: Optional[str]       # "start" or "end"
    rate_limit_key: Optional[str]
    rate_limit: Optional[Duration]
    debounce_key: Optional[str]
    debounce: Optional[Duration]
    limit_key: Optional[str]
    limits: Optional[Mapping[str, str]]
    tags: Optional[Sequence[str]]
    meta: Optional[Mapping[str, str]]
    trace: Optional[Mapping[str, str]]


@dataclasses.dataclass(init=False)
class NewJob:
    """A job for enqueue_many() or call(), with the options of enqueue().

    ``job`` is the name of a queue, and ``payload`` and ``fn`` go with it; or it is
    an instance of a payload's class, whose kind names the function and, unless
    ``queue`` does, the queue.
    """

    job: Any
    payload: Any
    fn: Optional[str]
    options: JobOptions

    def __init__(self, job: Any, payload: Any = None, fn: Optional[str] = None, **options: Unpack[JobOptions]) -> None:
        unknown = sorted(options.keys() - JobOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"a job has no option {unknown[0]!r}; it has {', '.join(JobOptions.__annotations__)}")
        self.job, self.payload, self.fn, self.options = job, payload, fn, options

    @property
    def needs_time(self) -> bool:
        """Whether request() needs the node's time."""
        return self.options.get("delay") is not None

    def request(self, now: Optional[datetime]) -> Fields:
        """Return the payload of an ENQUEUE.

        ``now`` is the node's time, needed if the job has a delay: nodes of older
        releases ignore ``delay_ms``. Without a key one is generated, so that the
        request can be repeated. Raises ValueError for options that are missing,
        exclude each other or are out of range, TypeError for a payload's class
        without a kind, and CodecError.
        """
        fields = self.check()
        queue, fn, payload = self.target()
        at, delay = self.options.get("at"), self.options.get("delay")
        if delay is not None:
            assert now is not None
            at = now + timedelta(seconds=seconds_of(delay))
        value = user_value("job_payload", payload, MAX_VALUE_DEPTH)
        if "job_payload_json" in value and not isinstance(payload, dict):
            raise CodecError("a payload with floats or ints beyond 64 bits must be a dict")
        return without_none({
            "q": checks.queue_name(queue), **value, "fn": checks.text("fn", fn, _MAX_FUNCTION, 0),
            "scheduled_at": None if at is None else format_time(at), "delay_ms": checks.duration("delay", delay, 0),
            "key": f"auto-{uuid.uuid4().hex}", **fields,
        })

    def check(self) -> Fields:
        """Return the options, except queue, at and delay, as an ENQUEUE has them.

        Raises ValueError for options that exclude each other or are out of range.
        """
        option = self.options.get
        if option("at") is not None and option("delay") is not None:
            raise ValueError("give at or delay, not both")
        checks.duration("delay", self.options.get("delay"), 0)
        if option("debounce_key") is not None and any(option(name) is not None for name in ("at", "delay", "rate_limit_key")):
            raise ValueError("a debounced job starts when its window ends: debounce_key does not go with at, delay or rate_limit_key")
        if option("unique_ttl") is not None and option("unique_until") is not None:
            raise ValueError("give unique_ttl or unique_until, not both")
        if option("unique_key") is None and (option("unique_ttl") is not None or option("unique_until") is not None):
            raise ValueError("unique_ttl and unique_until need unique_key")
        if option("unique_until") not in (None, "start", "end"):
            raise ValueError(f"unique_until is {option('unique_until')!r}, must be 'start' or 'end'")
        for name in ("rate_limit", "debounce"):
            if (option(f"{name}_key") is None) != (option(name) is None):
                raise ValueError(f"{name}_key and {name} (seconds) go together: give both or neither")
        return _encode(self.options)

    def target(self) -> Tuple[str, Optional[str], Any]:
        """Return the queue, the function and the plain payload."""
        queue = self.options.get("queue")
        if isinstance(self.job, str):
            if queue is not None:
                raise ValueError(f"two queues are named, {self.job!r} and {queue!r}: give the first argument or queue")
            return self.job, self.fn, to_plain(self.payload)
        if isinstance(self.job, NewJob):
            raise TypeError("a NewJob is for enqueue_many() and call(): give enqueue() its options themselves")
        cls = type(self.job)
        if self.payload is not None:
            raise ValueError("the first argument is the payload already: leave the second one out")
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"a {cls.__name__} cannot be enqueued: give the name of a queue, or an instance of a dataclass")
        return (*kind_names(cls, queue, self.fn), to_plain(self.job))


def _encode(options: JobOptions) -> Fields:
    """Return the options that travel by themselves, each checked."""
    return without_none({
        "priority": checks.integer("priority", options.get("priority"), 0, 9),
        "max_attempts": checks.integer("max_attempts", options.get("max_attempts"), 1),
        "retry_interval_ms": checks.duration("retry_interval", options.get("retry_interval"), 1),
        "timeout_ms": checks.duration("timeout", options.get("timeout"), 1), "retry_on_timeout": options.get("retry_on_timeout"),
        "expires_in_ms": checks.duration("expires_in", options.get("expires_in"), 1),
        "key": checks.key("key", options.get("key")),
        "unique_key": checks.key("unique_key", options.get("unique_key")),
        "unique_ttl_ms": checks.duration("unique_ttl", options.get("unique_ttl"), 1), "unique_until": options.get("unique_until"),
        "rate_limit_key": checks.key("rate_limit_key", options.get("rate_limit_key")),
        "rate_limit_ms": checks.duration("rate_limit", options.get("rate_limit"), 1),
        "debounce_key": checks.key("debounce_key", options.get("debounce_key")),
        "debounce_ms": checks.duration("debounce", options.get("debounce"), 1),
        "limit_key": checks.limit_key("limit_key", options.get("limit_key")), "limits": checks.limits(options.get("limits")),
        "tags": checks.tags(options.get("tags")), "meta": checks.texts("meta", options.get("meta"), count=20, name_size=64, value_size=512),
        "trace": checks.texts("trace", options.get("trace")),
    })
