"""Runs handlers: plain ones in threads, coroutines in an event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sys
import threading
import traceback
from typing import Any, Callable, List, NoReturn, Optional, Set, Tuple

from .calls import CallLoop
from .errors import PayloadError
from .handlers import (INTERRUPTED, Middleware, Outcome, Registered, outcome_of, outcome_of_exception, outcome_of_loop, outcome_of_payload,
                       outcome_of_result, read_payload)
from .job import Job, current_job

log = logging.getLogger("yardmaster")

_LOOP_CHECK = 0.5   # seconds between two looks at the event loop
_END_TIMEOUT = 0.5  # seconds that the executor's own loop has to end after the worker

# Replaces the payload of a job that does not fit into a frame. Blocks.
PayloadReader = Callable[[Job[Any]], None]


class Executor:
    """Runs handlers and passes on how they end.

    ``start`` is called by one thread. ``returned`` receives each job, its handler and its
    outcome, in the thread or event loop in which the handler ran; the outcome is None
    if the lease has ended before, so that the handler was not called. How many run
    at once is up to the caller.
    """

    def __init__(self, returned: Callable[[Job[Any], Registered, Optional[Outcome]], None], read_large: PayloadReader) -> None:
        self._returned, self._read_large = returned, read_large
        self.middleware: List[Middleware] = []
        self.loop: Optional[asyncio.AbstractEventLoop] = None  # the caller's, or one that start_loop() has made
        self._own_loop: Optional[threading.Thread] = None
        self._loop_is_ending = False  # the executor's own loop is to stop
        self._is_cancelled = False    # the task that runs the worker in the caller's loop is
        self._loop_error: Optional[BaseException] = None  # by which the caller's loop ends
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
        """Run the executor's own loop until _end_loop().

        SystemExit and KeyboardInterrupt of a task leave run_forever(), and so does a
        handler that stops the loop: it runs again, so that the others go on and the
        one that awaits the task gets its exception.
        """
        asyncio.set_event_loop(loop)
        try:
            while not self._loop_is_ending:
                try:
                    loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    log.warning("a task of a handler wanted to end the process; the worker goes on", exc_info=True)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def watch_loop(self, calls: CallLoop, lost: Callable[[], None], had_ended: bool = False) -> None:
        """Call ``lost`` once the event loop has ended.

        It must be found so twice, as the caller's loop may be between two calls that run it.
        """
        has_ended = self.loop_has_ended
        if has_ended and had_ended:
            lost()
        else:
            calls.call_later(_LOOP_CHECK, self.watch_loop, calls, lost, has_ended)

    def cancel(self, error: Optional[BaseException]) -> None:
        """Record that the task that runs the worker is cancelled, and the exception that ends the caller's loop."""
        self._is_cancelled, self._loop_error = True, self._loop_error or error

    @property
    def loop_has_ended(self) -> bool:
        """Whether coroutines can no longer run. A loop of the caller's may also be between two calls that run it."""
        if self.loop is None:
            return False
        return self.loop.is_closed() or not (self.loop.is_running() if self._own_loop is None else self._own_loop.is_alive())

    def start(self, job: Job[Any], handler: Registered) -> None:
        """Begin to run a handler."""
        if handler.is_async:
            assert self.loop is not None
            task = _Task(self, job, handler)
            loop = self.loop
            job._on_cancel = lambda: _post(loop, task.cancel)
            if not _post(loop, task.begin):
                job._interrupted = True
                self._returned(job, handler, INTERRUPTED)
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
            self._loop_is_ending = True
            loop.stop()
        self._last = loop.create_task(wait())

    def _run_thread(self) -> None:
        """Run one handler after another in a thread, until None comes."""
        has_work = True
        while has_work:
            try:
                has_work = self._run_next()
            except BaseException:  # raised in this thread by another one, after the handler had returned
                log.warning("the thread of a handler was interrupted; it goes on", exc_info=True)

    def _run_next(self) -> bool:
        """Run the next handler; report whether there was one."""
        work = self._work.get()
        if work is None:
            return False
        job, handler = work
        token = current_job.set(job)
        outcome: Optional[Outcome] = INTERRUPTED
        try:
            outcome = outcome_of(job, lambda: self.run(job, handler)) if job._holds_lease() else None
        finally:
            current_job.reset(token)
            self._returned(job, handler, outcome)
        return True

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
            with _EndOfForks():
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
            with _EndOfForks():
                result = await handler.with_middleware(self.middleware)(job)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and not job.cancelled.is_set():
                await self._await_cancellation()
                if self._loop_error is not None:
                    return outcome_of_loop(job, error, self._loop_error)
                job._interrupted = self._is_cancelled
            return self._async_exception(job, error)
        return outcome_of(job, lambda: outcome_of_result(result))

    async def _await_cancellation(self) -> None:
        """Wait until the task that runs the worker has recorded its cancellation, if all tasks of the loop were cancelled, as by asyncio.run()."""
        for _ in range(5):
            if self._is_cancelled:
                return
            await asyncio.sleep(0)

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
        outcome: Optional[Outcome] = None
        try:
            self._begun = True
            if self._job._holds_lease():
                outcome = await self._executor.run_async(self._job, self._handler)
        except GeneratorExit as error:
            if not self._is_current():  # the coroutine is closed, because its loop has ended
                raise
            outcome = self._executor._async_exception(self._job, error)
        finally:
            self._executor._tasks.discard(self)
        self._executor._returned(self._job, self._handler, outcome)

    def _is_current(self) -> bool:
        """Report whether the loop runs this task.

        Then a GeneratorExit is that of a task which the handler awaited. Python closes the
        coroutines inside of this one with it, and drops what they return.
        """
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:
            return False


class _EndOfForks:
    """A context in which a handler runs. A process that the handler has forked ends where it would leave the context."""

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(self, _: object, error: Optional[BaseException], __: object) -> None:
        if os.getpid() != self._pid:
            _end_process(error)


def _end_process(error: Optional[BaseException]) -> NoReturn:
    """End this process as Python does at the end of a program, or if an exception has ended it."""
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        traceback.print_exception(type(error), error, error.__traceback__)
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> bool:
    """Have an event loop make a call; do nothing and return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False
    return True
