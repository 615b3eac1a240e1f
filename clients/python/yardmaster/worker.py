"""Workers: programs that run the jobs of queues."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import ssl
import sys
import threading
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

from . import checks
from .calls import CallLoop
from .connection import Settings
from .dispatcher import Dispatcher
from .handlers import AnyCallable, Middleware, Registered
from .nodes import NodeRotation, Nodes
from .subscriptions import Subscription
from .typed import kind_names


class Worker:
    """Runs jobs of its queues, connected to one of several nodes.

        worker = Worker(["10.0.0.1:9876", "10.0.0.2:9876"])

        @worker.job("send_mail", queue="mail", concurrency=4)
        def send(job: Job[SendMail]) -> Sent:
            return Sent(to=job.payload.to)

        worker.run()

    ``nodes`` are "host:port", tried in random order; None means those in the
    environment variable OVERHOP_NODES, separated by commas, or 127.0.0.1:9876.
    ``name`` defaults to host name and process id. ``concurrency`` is how many
    jobs of each queue run at once: plain handlers in threads, coroutines in an
    event loop. With ``create_queues`` missing queues are created; without it,
    run() raises QueueNotFound for them. ``grace`` is how many seconds running
    jobs have once the worker is asked to stop. Then they are cancelled, and jobs
    that have not ended two seconds later are given back to the yard. A job that
    names a function without a handler goes back, so that one of a newer release
    waits for its worker; with ``fail_unknown`` it fails for good.
    """

    def __init__(self, nodes: Nodes = None, *, name: Optional[str] = None, tls: Optional[ssl.SSLContext] = None,
                 token: Optional[str] = None, concurrency: int = 1, create_queues: bool = True, grace: float = 10.0,
                 fail_unknown: bool = False) -> None:
        self._concurrency = _concurrency(concurrency)
        self._loop = CallLoop()
        self._dispatcher = Dispatcher(self._loop, NodeRotation(nodes), Settings(name, tls, token), create_queues=create_queues,
                                      grace=checks.seconds("grace", grace), fail_unknown=fail_unknown)
        self._started = False

    def job(self, name: Union[str, type], *, queue: Optional[str] = None, fn: Optional[str] = None,
            concurrency: Optional[int] = None) -> Callable[[AnyCallable], AnyCallable]:
        """Decorate the handler of jobs.

        ``job("send_mail", queue="mail")`` handles the jobs of the queue that name
        this function, ``job(SendMail)`` those of a payload's class with a kind,
        and ``job("mail")`` all of a queue that have no handler of their own.
        ``job("mail", fn="send_mail")`` is the same as the first.

        This is not a filter: a worker receives any job of its queues. A job that
        names a function without a handler goes back without counting an attempt:
        for 5 seconds at first, later for half of the time since it was accepted, at
        most 10 minutes. After a day its attempts fail. See also ``fail_unknown``.

        A handler takes the job. If its parameter is annotated as ``Job[T]``, the
        payload is decoded as T, and a payload that is no T fails the job. The
        return value is the job's result. An exception fails the attempt, and the
        yard's retry policy decides about another; Retry, Snooze and Fail override
        the policy. A handler may be a coroutine function.

        Raises ValueError if the function has a handler already, or if the queue's
        name or ``concurrency`` is invalid, and TypeError for a handler that takes
        anything but a job with a payload that can be decoded.
        """
        queue_name, function = _names(name, queue, fn)
        checks.queue_name(queue_name)
        if concurrency is not None:
            _concurrency(concurrency)
        frame = inspect.currentframe()
        names: Mapping[str, Any] = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}

        def add(handler: AnyCallable) -> AnyCallable:
            registered = Registered(handler, names)
            subscription = self._subscriptions.setdefault(queue_name, Subscription(queue_name, concurrency or self._concurrency))
            if function in subscription.handlers:
                raise ValueError(f"queue {queue_name!r} has a handler for {function or 'any function'} already")
            if concurrency is not None:
                subscription.concurrency = concurrency
            subscription.handlers[function] = registered
            return handler
        return add

    def middleware(self, around: Middleware) -> Middleware:
        """Decorate a function that runs around every handler of its kind.

            @worker.middleware
            def timed(job, run):
                begun = time.monotonic()
                try:
                    return run(job)
                finally:
                    print(job.id, time.monotonic() - begun)

        ``run`` is the next middleware or the handler, and what ``around`` returns is
        the result. A coroutine function runs around the handlers that are
        coroutines and awaits ``run(job)``; a plain one runs around the others. The
        first that is added is outermost.
        """
        self._dispatcher.executor.middleware.append(around)
        return around

    @property
    def _subscriptions(self) -> Dict[str, Subscription]:
        return self._dispatcher.subscriptions.by_queue

    @property
    def node(self) -> Optional[str]:
        """The address of the connected node; None while the worker reconnects."""
        return self._dispatcher.node

    def stop(self) -> None:
        """Ask run() to return once the running jobs have ended. May be called from any thread."""
        self._loop.post(self._dispatcher.begin_stop, "worker stops")

    def run(self) -> None:
        """Run jobs until stop(), SIGTERM or SIGINT, then finish the running ones.

        Jobs that have not ended when the grace is over are given back to the
        yard, and their attempt does not count. Their handlers may still run when
        this method returns, so end the program then. A second signal ends the
        program at once. Signals are handled only if this is called in the main
        thread. Handlers that are coroutines run in an event loop of the worker's,
        in another thread. Raises OverhopError if the nodes refuse the worker or a
        queue, ValueError without a handler, and RuntimeError if the worker was run
        before or the event loop has ended.

        What a handler raises fails its job and does not end the worker, also
        SystemExit and KeyboardInterrupt. An exception in this thread, such as one of a
        signal handler of the application, ends it, and its jobs are given back.
        """
        self._begin()
        if self._has_async():
            self._dispatcher.executor.start_loop()
        restore_signals = self._install_signal_handlers()
        try:
            self._run_loop()
        finally:
            restore_signals()

    async def run_async(self) -> None:
        """Run jobs as run() does, with the handlers that are coroutines in the running event loop.

        They may use what belongs to the loop, such as a pool of connections. When
        the task is cancelled, the worker stops as it does at SIGTERM, and then
        asyncio.CancelledError is raised. Signals are handled only in the main
        thread's loop. If the loop ends first, the worker stops, and gives the jobs of
        coroutines back; if an exception ends it, such as SystemExit in a task of a
        handler, these jobs fail.
        """
        self._begin()
        loop = asyncio.get_running_loop()
        self._dispatcher.executor.loop = loop
        ended: asyncio.Future[None] = loop.create_future()

        def run() -> None:
            error: Optional[BaseException] = None
            try:
                self._run_loop()
            except BaseException as e:
                error = e
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(end, error)

        def end(error: Optional[BaseException]) -> None:
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)
        restore_signals = self._install_signal_handlers()
        cancelled: Optional[asyncio.CancelledError] = None
        threading.Thread(target=run, name="yardmaster worker", daemon=True).start()
        try:
            while not ended.done():
                try:
                    await asyncio.shield(ended)
                except asyncio.CancelledError as e:
                    cancelled = e
                if cancelled is not None:
                    self._dispatcher.executor.cancel(sys.exc_info()[1])  # asyncio.run() cancels all tasks while it handles an exception
                    self.stop()
        finally:
            restore_signals()
        if cancelled is not None:
            ended.exception()  # retrieved, so that asyncio does not log it
            raise cancelled
        ended.result()

    def _begin(self) -> None:
        """Raise the error for a worker that cannot be run."""
        if not self._subscriptions:
            raise ValueError("the worker has no handler: decorate one with @worker.job(queue)")
        if self._started:
            raise RuntimeError("the worker was run before: make another one")
        self._started = True

    def _has_async(self) -> bool:
        return any(r.is_async for s in self._subscriptions.values() for r in s.handlers.values())

    def _run_loop(self) -> None:
        """Run the worker in this thread until it has stopped."""
        try:
            self._dispatcher.start()
            self._loop.run_while(lambda: not self._dispatcher.stopped)
        finally:
            self._dispatcher.shut_down()
        if self._dispatcher.error is not None:
            raise self._dispatcher.error

    def _install_signal_handlers(self) -> Callable[[], None]:
        """Handle SIGTERM and SIGINT, and return a function that restores the earlier handlers."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        previous = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
        pid = os.getpid()

        def restore() -> None:
            for s, handler in previous.items():
                signal.signal(s, handler)

        def on_signal(number: int, _: Any) -> None:
            for s in previous:  # a second signal ends the process
                signal.signal(s, signal.SIG_DFL)
            if os.getpid() != pid:  # a child forked by a handler
                os.kill(os.getpid(), number)
                return
            self._loop.post(self._dispatcher.begin_stop, signal.Signals(number).name)
        for s in previous:
            signal.signal(s, on_signal)
        return restore


def _concurrency(value: int) -> int:
    checks.integer("concurrency", value, 1)
    return value


def _names(name: Union[str, type], queue: Optional[str], fn: Optional[str]) -> Tuple[str, Optional[str]]:
    """Return the queue and the function that the arguments of Worker.job() name; None is any function."""
    if isinstance(name, type):
        return kind_names(name, queue, fn)
    if queue is None:
        return name, fn
    if fn is not None:
        raise ValueError(f"two functions are named, {name!r} and {fn!r}: with queue=, the first argument is the function")
    return queue, name
