"""Operations, which change all jobs that match a query."""

from __future__ import annotations

import math
import time
import uuid
from typing import Any, AsyncIterator, Mapping, Optional, cast

from .apicalls import ApiCalls
from .nodes import backoff
from .protocol import Fields, without_none
from .records import Operation, OperationAction, OperationPreview


class OperationCalls(ApiCalls):
    """Starts, shows and changes operations. The yard carries them out, also if the program ends or a node dies."""

    async def preview_operation(self, action: OperationAction, query: str, *, params: Optional[Mapping[str, Any]] = None,
                                to: Optional[str] = None, keep_attempts: bool = False) -> OperationPreview:
        """Return what an operation would do: how many jobs match, to how many the action applies, and the first ones.

        The arguments are those of start_operation(). Nothing is changed.
        """
        return cast(OperationPreview, await self.api("operation.preview", _request(action, query, params, to, keep_attempts)))

    async def start_operation(self, action: OperationAction, query: str, *, rate: int = 0, params: Optional[Mapping[str, Any]] = None,
                              to: Optional[str] = None, keep_attempts: bool = False, key: Optional[str] = None) -> Operation:
        """Start an operation on all jobs that match a query, as for find_jobs(), and that are accepted by now.

        The action "requeue" runs the jobs of dead letters again; ``params`` is a
        JSON merge patch for their params, in which None removes a key, and ``to``
        another queue. With ``keep_attempts`` the attempts so far count. ``rate``
        is in jobs per second; 0 means as fast as the yard takes them beside its
        other work. A call with the ``key`` of an earlier one starts no second
        operation; by default a key is generated. Raises InvalidQuery if the query
        is wrong, ApiError 400 if it is empty: "id:*" stands for all jobs.
        """
        request = _request(action, query, params, to, keep_attempts)
        return cast(Operation, await self.api("operation.start", {**request, "rate": rate, "key": key or f"auto-{uuid.uuid4().hex}"}))

    async def operation(self, number: int) -> Operation:
        """Return an operation, how far it is, and the first jobs that it could not change; raise ApiError 404 if there is none."""
        return cast(Operation, await self.api("operation.show", {"id": number}))

    async def wait_operation(self, number: int, timeout: Optional[float] = None) -> Operation:
        """Return an operation once it has ended, which may be because it was cancelled.

        Raises TimeoutError if it has not ended within ``timeout`` seconds; None
        waits without limit.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        attempts = 0
        while True:
            operation = await self.operation(number)
            if "ended_at" in operation:
                return operation
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"operation {number} has not ended within {timeout:.1f} s")
            await self._waits.sleep(min(backoff(attempts), left))
            attempts += 1

    async def operations(self) -> AsyncIterator[Operation]:
        """Iterate over the operations that have not ended, and those of the last 7 days, the newest first."""
        after = 0
        while True:
            page = await self.api("operation.list", {"after": after})
            for operation in page["operations"]:
                yield operation
            after = page.get("next", 0)
            if not after:
                return

    async def pause_operation(self, number: int) -> Operation:
        """Have an operation change no more jobs until resume_operation()."""
        return cast(Operation, await self.api("operation.pause", {"id": number}))

    async def resume_operation(self, number: int) -> Operation:
        """Have a paused operation go on where it was."""
        return cast(Operation, await self.api("operation.resume", {"id": number}))

    async def cancel_operation(self, number: int) -> Operation:
        """End an operation. The jobs that it has changed stay changed. Raises ApiError 409 if it is done."""
        return cast(Operation, await self.api("operation.cancel", {"id": number}))

    async def set_operation_rate(self, number: int, rate: int) -> Operation:
        """Change how many jobs per second an operation changes; 0 means as many as the yard takes beside its other work."""
        return cast(Operation, await self.api("operation.set", {"id": number, "rate": rate}))


def _request(action: str, query: str, params: Optional[Mapping[str, Any]], to: Optional[str], keep_attempts: bool) -> Fields:
    return without_none({"action": action, "query": query, "params": params, "to": to, "keep_attempts": keep_attempts})
