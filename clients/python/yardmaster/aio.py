"""The client for asyncio."""

from __future__ import annotations

from typing import TypeVar

from .jobcalls import JobCalls
from .limitcalls import LimitCalls
from .operationcalls import OperationCalls
from .queuecalls import QueueCalls

Self = TypeVar("Self", bound="AsyncClient")


class AsyncClient(JobCalls, QueueCalls, LimitCalls, OperationCalls):
    """Enqueues jobs, waits for their results, and manages queues, with asyncio.

        async with AsyncClient(["10.0.0.1:9876"]) as client:
            jid = await client.enqueue("mail", {"to": "ann"})
            print(await client.result(jid, timeout=30))

    The arguments and the calls are those of Client. It may be shared by tasks,
    also of several event loops. A call whose task is cancelled may be executed.
    """

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._close()

    async def close(self) -> None:
        """Close the connection; pending and later calls raise ConnectionLost."""
        self._close()
