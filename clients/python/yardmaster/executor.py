"""Runs handlers: plain ones in threads, coroutines in an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any, Callable, List, Optional, Set, Tuple

from .errors import PayloadError
from .handlers import (Middleware, Outcome, Registered, outcome_of, outcome_of_exception, outcome_of_payload, outcome_of_result,
                       read_payload)
from .job import Job, current_job

_END_TIMEOUT = 0.5  # seconds that the executor's own loop has to end after the worker

# Replaces the payload of a job that does not fit into a frame. Blocks.
PayloadReader = Callable[[Job[Any]], None]


class Executor:
    """Runs handlers and passes on how they end.

    ``start`` is called by one thread. ``returned`` receives each job, its handler and its
    outcome, in the thread or event loop in which the handler ran. How many run
    at once is up to the caller.
    """

    def __init__(self, returned: Callable[[Job[Any], Registered, Outcome], None], read_large: PayloadReader) -> None:
        self._returned, self._read_large = returned, read_large
        self.middleware: List[Middleware] = []
        self.loop: Optional[asyncio.AbstractEventLoop] = None  # the caller's, or one that start_loop() has made
        self._own_loop: Optional[threading.Thread] = None
        self._tasks: Set[_Task] = set()  # used in the loop only
        self._work: queue.SimpleQueue[Optional[Tuple[Job[Any], Registered]]] = queue.SimpleQueue()  # None ends a thread
        self._thread_count = 0
        self._running = 0  # handlers that threads have, or will have

    def start_loop(self) -> None:
        """Run an event loop in a thread, unless there is one."""
        if self.loop is None:
            self.loop = loop = asyncio.new_event_loop()
            self._own_loop = threading.Thread(target=self._run_loop, args=(loop,), name="yardmaster event loop", daemon=True)
            self._own_loop.start()

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def start(self, job: Job[Any], handler: Registered) -> None:
        """Begin to run a handler."""
        if handler.is_async:
            assert self.loop is not None
            task = _Task(self, job, handler)
            loop = self.loop
            job._on_cancel = lambda: _post(loop, task.cancel)
            _post(loop, task.begin)
            return
        self._running += 1
        if self._thread_count < self._running:
            self._thread_count += 1
            threading.Thread(target=self._run_thread, name=f"job {self._thread_count}", daemon=True).start()
        self._work.put((job, handler))

    def ended(self, handler: Registered) -> None:
        """Take note that a handler has returned; called by the thread that calls start."""
        if not handler.is_async:
            self._running -= 1

    def shut_down(self) -> None:
        """End the idle threads, and the event loop if it is the executor's own."""
        for _ in range(self._thread_count):
            self._work.put(None)
        if self._own_loop is not None and self.loop is not None:
            _post(self.loop, self._end_loop)
            self._own_loop.join(_END_TIMEOUT)

    def _end_loop(self) -> None:
        """Stop the loop once its tasks have ended. It goes on for tasks that do not end, as a thread does."""
        assert self.loop is not None
        loop = self.loop
        tasks = [t.task for t in self._tasks if t.task is not None]
        for task in tasks:
            task.cancel()

        async def wait() -> None:
            if tasks:
                await asyncio.wait(tasks)
            loop.stop()
        self._last = loop.create_task(wait())

    def _run_thread(self) -> None:
        """Run one handler after another in a thread, until None comes."""
        while True:
            work = self._work.get()
            if work is None:
                return
            job, handler = work
            token = current_job.set(job)
            outcome = outcome_of(job, lambda: self.run(job, handler))
            current_job.reset(token)
            self._returned(job, handler, outcome)

    def run(self, job: Job[Any], handler: Registered) -> Outcome:
        """Run a plain handler in this thread and return its outcome."""
        try:
            job.check()
            if job._payload_omitted:
                self._read_large(job)
            read_payload(job, handler)
        except PayloadError as e:
            return outcome_of_payload(job, handler, e)
        except BaseException as e:
            return outcome_of_exception(job, e)
        try:
            result = handler.with_middleware(self.middleware)(job)
        except BaseException as e:  # including SystemExit: a job must not end its worker
            return outcome_of_exception(job, e)
        return outcome_of_result(result)

    async def run_async(self, job: Job[Any], handler: Registered) -> Outcome:
        """Run a coroutine handler in the current task and return its outcome."""
        current_job.set(job)
        try:
            job.check()
            if job._payload_omitted:
                await asyncio.get_running_loop().run_in_executor(None, self._read_large, job)
            read_payload(job, handler)
        except PayloadError as error:
            payload_error = error
            return outcome_of(job, lambda: outcome_of_payload(job, handler, payload_error))
        except BaseException as error:
            return self._async_exception(job, error)
        try:
            result = await handler.with_middleware(self.middleware)(job)
        except BaseException as error:
            return self._async_exception(job, error)
        return outcome_of(job, lambda: outcome_of_result(result))

    def _async_exception(self, job: Job[Any], error: BaseException) -> Outcome:
        """Return the outcome of an exception; a task that was cancelled because the job must stop has raised CancelledError."""
        if isinstance(error, asyncio.CancelledError) and job.cancelled.is_set():
            error = job._cancelled_error()
        return outcome_of(job, lambda: outcome_of_exception(job, error))


class _Task:
    """A coroutine handler as a task. Its methods are called in the event loop."""

    def __init__(self, executor: Executor, job: Job[Any], handler: Registered) -> None:
        self._executor, self._job, self._handler = executor, job, handler
        self.task: Optional[asyncio.Task[None]] = None
        self._begun = False

    def begin(self) -> None:
        self._executor._tasks.add(self)
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"job {self._job.id}")

    def cancel(self) -> None:
        if self.task is not None and self._begun:  # else _run() finds that the job must stop
            self.task.cancel()

    async def _run(self) -> None:
        try:
            self._begun = True
            outcome = await self._executor.run_async(self._job, self._handler)
        finally:
            self._executor._tasks.discard(self)
        self._executor._returned(self._job, self._handler, outcome)


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have an event loop make a call; do nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        pass
