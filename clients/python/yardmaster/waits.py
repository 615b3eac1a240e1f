"""Waiting in threads and in asyncio: the one difference between Client and AsyncClient.

What both do is written once, as coroutines that wait only through a Waits. With
BlockingWaits they block the thread where asyncio would suspend a task, so they
never suspend, and run_blocking() can run them without an event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
import time
from typing import Any, AsyncIterator, Coroutine, Iterator, Optional, Protocol, TypeVar


T = TypeVar("T")


class Waits(Protocol):
    """How a coroutine waits."""

    async def wait(self, future: concurrent.futures.Future[T], timeout: float) -> T:
        """Return the result of a future, which is never cancelled; raise TimeoutError after ``timeout`` seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after some seconds."""
        ...


class BlockingWaits:
    """Blocks the calling thread."""

    async def wait(self, future: concurrent.futures.Future[T], timeout: float) -> T:
        try:
            return future.result(None if timeout == math.inf else min(max(timeout, 0.001), threading.TIMEOUT_MAX))
        except concurrent.futures.TimeoutError:
            raise TimeoutError from None

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class AsyncioWaits:
    """Suspends the running task. A task that is cancelled leaves the future as it is, because others may share it."""

    async def wait(self, future: concurrent.futures.Future[T], timeout: float) -> T:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def on_done(_: concurrent.futures.Future[T]) -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:  # the loop is closed
                pass
        future.add_done_callback(on_done)
        timer = None if timeout == math.inf else loop.call_later(max(timeout, 0.001), wake)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
        if not future.done():
            raise TimeoutError
        return future.result()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits by BlockingWaits, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as e:
        result: T = e.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine that must block has suspended")


def iterate_blocking(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over an asynchronous iterator that waits by BlockingWaits."""
    while True:
        try:
            item = run_blocking(_next(items))
        except StopAsyncIteration:
            return
        yield item


async def _next(items: AsyncIterator[T]) -> T:
    return await items.__anext__()


def resolve(future: concurrent.futures.Future[T], result: T, error: Optional[BaseException] = None) -> None:
    """Set the result of a future, or the error if there is one, unless it has a result."""
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except concurrent.futures.InvalidStateError:
        pass
