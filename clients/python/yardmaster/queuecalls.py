"""What a client does with queues, and with the connected node."""

from __future__ import annotations

from datetime import datetime
from typing import Dict, List, Optional, Sequence, cast

from . import checks
from .deprecated import deprecated
from .errors import OverhopError
from .protocol import (ADDQUEUE, CLRQUEUE, LSQUEUE, OBLITERATE, PAUSE, PING, QSTATS, QUEUE, RESUME, RMQUEUE, STATUS, Fields,
                       parse_time)
from .records import QueueRecord
from .session import Session


class QueueCalls(Session):
    """Makes and shows queues."""

    async def queues(self) -> List[QueueRecord]:
        """Return all queues by name, including the yard's system queues."""
        return list((await self._call(LSQUEUE, {}))["queues"])

    async def queue(self, name: str) -> Optional[QueueRecord]:
        """Return one queue, or None if it does not exist."""
        return cast(Optional[QueueRecord], await self._call(QUEUE, {"q": name}) or None)

    async def add_queue(self, name: str, *, limit: Optional[int] = None, exist_ok: bool = False) -> None:
        """Create a queue of which at most ``limit`` jobs run at once over all workers; None means no limit.

        Raises OverhopError DUPLICATE_QUEUE if it exists, unless ``exist_ok`` is true.
        """
        request: Fields = {"name": checks.queue_name(name), "config": {"concurrency_limit": checks.integer("limit", limit, 1)}}
        try:
            await self._call(ADDQUEUE, request, done_codes=("DUPLICATE_QUEUE",))
        except OverhopError as e:
            if not exist_ok or e.code != "DUPLICATE_QUEUE":
                raise

    async def remove_queue(self, name: str) -> None:
        """Remove a queue whose jobs have all ended."""
        await self._call(RMQUEUE, {"q": name}, done_codes=("QUEUE_NOT_FOUND",))

    async def clear_queue(self, name: str, statuses: Optional[Sequence[str]] = None) -> int:
        """Remove a queue's jobs, except active ones, and return their number.

        ``statuses`` selects the jobs to remove: None means all, an empty list none.
        """
        if statuses is not None and not statuses:
            return 0
        request: Fields = {"q": name}
        if statuses is not None:
            request["statuses"] = list(statuses)
        return int((await self._call(CLRQUEUE, request))["removed"])

    async def obliterate_queue(self, name: str, *, force: bool = False) -> int:
        """Remove a queue and all its jobs, and return their number; active jobs need ``force``."""
        answer = await self._call(OBLITERATE, {"q": name, "force": force}, done_codes=("QUEUE_NOT_FOUND",))
        return int(answer.get("removed", 0))

    async def pause(self, name: str) -> None:
        """Stop starting jobs of a queue; active ones continue."""
        await self._call(PAUSE, {"q": name}, done_codes=("QUEUE_ALREADY_PAUSED",))

    async def resume(self, name: str) -> None:
        """Start jobs of a paused queue again."""
        await self._call(RESUME, {"q": name}, done_codes=("QUEUE_ALREADY_RUNNING",))

    async def stats(self, name: str) -> Dict[str, int]:
        """Return the number of a queue's new, waiting, delayed, active, completed and failed jobs."""
        return dict((await self._call(QSTATS, {"q": name}))["stats"])

    async def node_status(self) -> Fields:
        """Return the status of the connected node; yard_status() returns the status of the whole yard."""
        return await self._call(STATUS, {})

    @deprecated("node_status(), or yard_status() for the whole yard")
    async def status(self) -> Fields:
        """Return the status of the connected node."""
        return await self.node_status()

    async def ping(self) -> datetime:
        """Return the connected node's time."""
        return parse_time((await self._call(PING, {}))["server_time"])
