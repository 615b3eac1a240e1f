"""Named limits, which bound how many jobs run and how often they start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, AsyncIterator, Mapping, Optional, Sequence, TypedDict, cast

from . import checks
from .apicalls import ApiCalls
from .deprecated import deprecated
from .errors import ApiError
from .protocol import SETQUEUE, Duration, Fields, optional_milliseconds

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LimitSettings(TypedDict, total=False):
    """What a limit bounds. A setting that is left out stays, None resets it."""

    total: Optional[int]              # jobs that run at the same time
    per_key: Optional[int]            # the same, of each key
    rate: Optional[str]               # starts: "100/s", "5/m", "1/h", "3/10s"
    burst: Optional[int]              # starts at once, after a pause
    rate_per_key: Optional[str]       # starts, of each key
    burst_per_key: Optional[int]
    open_after: Optional[int]         # so many failures open the circuit
    within: Optional[Duration]        # in this time
    on: Optional[Sequence[str]]       # types or codes of the errors that count
    half_open: Optional[int]          # how many jobs may probe at the same time
    probe_after: Optional[Duration]   # how long the circuit is open before the first probe


class QueueSettings(TypedDict, total=False):
    """How the jobs of a queue start. A setting that is left out stays, None resets it."""

    limit: Optional[int]              # jobs of the queue that run at the same time, over all workers; None: any number
    concurrency_limit: Optional[int]  # an earlier name of limit
    retry_on_timeout: Optional[bool]  # retry an attempt that exceeds its timeout, unless the job decides
    limits: Optional[Sequence[str]]   # names of limits that all its jobs use
    key: Optional[str]                # where params have the key of a job, such as "params.customer"
    key_optional: Optional[bool]      # accept jobs without a value there
    fair: Optional[bool]              # share the starts among keys
    weights: Mapping[str, Optional[int]]  # jobs of a key that start in each round
    age: Optional[Duration]           # time of waiting that is worth one class of priority
    priority: Optional[int]           # of jobs that give none
    max_attempts: Optional[int]
    timeout: Optional[Duration]


class LimitCalls(ApiCalls):
    """Calls about named limits, and the settings of queues that use them."""

    async def limits(self) -> AsyncIterator[Fields]:
        """Iterate over the limits by name, each with how much of it is used."""
        after = ""
        while True:
            page = await self.api("limit.list", {"after": after})
            for limit in page["limits"]:
                yield limit
            after = page.get("next", "")
            if not after:
                return

    async def limit(self, name: str) -> Fields:
        """Return a limit with the queues, keys and jobs that use it; raise ApiError 404 if there is none."""
        return cast(Fields, await self.api("limit.show", {"name": name}))

    async def set_limit(self, name: str, **settings: Unpack[LimitSettings]) -> Fields:
        """Create a limit, or change it while jobs run: ``set_limit("stripe", total=20, rate="100/s")``."""
        return cast(Fields, await self.api("limit.set", {"name": name, **_in_milliseconds(settings, "within", "probe_after")}))

    async def pause_limit(self, name: str) -> None:
        """Start no job that uses a limit until resume_limit()."""
        await self._change_limit("limit.pause", name)

    async def resume_limit(self, name: str) -> None:
        """Start jobs that use a paused limit again."""
        await self._change_limit("limit.resume", name)

    async def _change_limit(self, operation: str, name: str) -> None:
        """Pause or resume a limit, unless it already is."""
        try:
            await self.api(operation, {"name": name})
        except ApiError as e:
            if e.status != 409:
                raise

    async def remove_limit(self, name: str, *, force: bool = False) -> None:
        """Remove a limit; one that queues use needs ``force``, which takes it from them."""
        await self._operate("limit.remove", {"name": name, "force": force}, done_statuses=(404,))

    async def set_queue(self, name: str, **settings: Unpack[QueueSettings]) -> None:
        """Change settings of an existing queue: ``set_queue("mail", limit=5, limits=["stripe"], timeout=60)``.

        A lowered limit stops no running job. queue() shows a queue, and
        ``api("queue.show", {"name": name})`` all of its settings. Other settings
        than ``limit`` and ``retry_on_timeout`` need the API.
        """
        if settings.keys() <= {"limit", "retry_on_timeout"}:
            await self._call(SETQUEUE, {"q": name, "config": _queue_config(settings)})
        else:
            await self._set_queue(name, settings)

    @deprecated("set_queue()")
    async def configure_queue(self, name: str, **settings: Unpack[QueueSettings]) -> Fields:
        """Change settings of a queue as set_queue() does, and return the queue."""
        return await self._set_queue(name, settings)

    async def _set_queue(self, name: str, settings: QueueSettings) -> Fields:
        """Change settings of a queue over the API and return the queue."""
        changed = _in_milliseconds(_queue_config(settings), "age", "timeout")
        return cast(Fields, await self.api("queue.set", {"name": name, **changed}))


def _queue_config(settings: QueueSettings) -> Fields:
    """Return settings of a queue as the protocol names them; a retry_on_timeout of None leaves it as it is."""
    config: Fields = dict(settings)
    if "limit" in config:
        config["concurrency_limit"] = checks.integer("limit", config.pop("limit"), 1)
    if config.get("retry_on_timeout", False) is None:
        del config["retry_on_timeout"]
    return config


def _in_milliseconds(settings: Mapping[str, Any], *durations: str) -> Fields:
    """Return settings as the API has them: durations as integers under a name with _ms."""
    return {f"{name}_ms" if name in durations else name: optional_milliseconds(value) if name in durations else value
            for name, value in settings.items()}
