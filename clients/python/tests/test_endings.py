"""Tests of what handlers return and raise, and of every way in which they, their tasks, threads and loops may end."""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import unittest
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Dict, Iterator, List, Optional, Tuple

from yardmaster import Fail, Job, Retry, Worker
from yardmaster.protocol import ACK, DONE, FAIL, GOODBYE, SUBSCRIBE

from .fakenode import PATIENCE, FakeNode, NodeConnection
from .test_worker import SID, WorkerCase

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class _Text(Exception):
    """Its text raises what it was made with."""

    def __str__(self) -> str:
        raise self.args[0]

    __repr__ = __str__


class _Own(BaseException):
    pass


class _Items(Dict[str, int]):
    def items(self) -> Any:
        raise LookupError("no items")


class _Length(List[int]):
    def __iter__(self) -> Iterator[int]:
        raise SystemExit(4)


@dataclass
class _Property:
    name: str = "a"

    def __getattribute__(self, name: str) -> Any:
        if name == "name":
            raise KeyboardInterrupt
        return super().__getattribute__(name)


def _cyclic() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _chain() -> Exception:
    error = ValueError("0")
    for n in range(5000):
        outer = ValueError(str(n + 1))
        outer.__cause__, error = error, outer
    return error


def _nested(levels: int) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = [value]
    return value


def _itself() -> List[Any]:
    value: List[Any] = []
    value.append(value)
    return value


#: What a handler raises, and the type and a part of the message of its job's error.
RAISED: List[Tuple[Callable[[], BaseException], str, str]] = [
    (lambda: SystemExit(3), "SystemExit", "3"), (SystemExit, "SystemExit", "SystemExit"), (KeyboardInterrupt, "KeyboardInterrupt", ""),
    (lambda: GeneratorExit("g"), "GeneratorExit", "g"), (lambda: _Own("own"), "_Own", "own"), (lambda: MemoryError("m"), "MemoryError", "m"),
    (lambda: RecursionError("r"), "RecursionError", "r"), (lambda: asyncio.CancelledError("c"), "CancelledError", "c"),
    (lambda: _Text(ValueError("v")), "_Text", "_Text, whose text cannot be read: its __str__ raised ValueError"),
    (lambda: _Text(SystemExit(1)), "_Text", "its __str__ raised SystemExit"), (lambda: _Text(_Text(OSError())), "_Text", "its __str__ raised _Text"),
    (_cyclic, "ValueError", "first"), (_chain, "ValueError", "5000"), (lambda: ValueError("x" * (9 << 20)), "ValueError", "xxx"),
    (lambda: ValueError("\ud800\x00"), "ValueError", "?\x00"), (lambda: Fail("f", code=b"\xff", details={1: 2}), "fail", "f"),  # type: ignore[arg-type]
    (lambda: Fail("f", code=_Text(OSError()), details=_Text(OSError())), "fail", "f"),  # type: ignore[arg-type]
    (lambda: Fail("f", details=_Property()), "fail", "f"), (lambda: Fail("f", details=float("nan")), "fail", "f"),
    (lambda: Retry("r", details=_itself()), "retry", "r"), (lambda: Retry(_Text(OSError()), after=1), "retry", "Retry, whose text"),  # type: ignore[arg-type]
]

#: What a handler returns, and a part of the message of its job's error.
RETURNED: List[Tuple[Callable[[], object], str]] = [
    (_itself, "result: value is nested too deep"), (lambda: _nested(121), "result: value is nested too deep: at most 120"), (lambda: float("nan"), "result: value cannot be sent as JSON"),
    (lambda: {"a": float("inf")}, "result: value cannot be sent as JSON"), (lambda: {1: 2}, "result: keys of a dict must be str, not int"),
    (lambda: [b"", 1.5], "result: a value with floats"), (lambda: "\ud800", "result: text is not UTF-8"), (object, "does not carry a object"),
    (_Items, "result: a _Items raised LookupError: no items"), (_Length, "result: a _Length raised SystemExit: 4"),
    (_Property, "result: a _Property raised KeyboardInterrupt: "), (lambda: (n for n in (1, 2)), "does not carry a generator"),
    (lambda: asyncio.sleep(0), "result: the handler has returned a coroutine: make it a coroutine function"),
    (lambda: b"x" * (9 << 20), "result: message of"),
]


class Table(WorkerCase):
    def check(self, kind: str, message: str, number: int, connection: NodeConnection) -> None:
        """Check how job ``number`` fails, and that the next one runs."""
        connection.push_quest(SID, number, beat_ms=60_000)
        connection.answer(ACK)
        error = connection.answer(FAIL)["error"]
        self.assertEqual(error["type"], kind)
        self.assertIn(message, error["message"])
        connection.push_quest(SID, number + 1000, beat_ms=60_000)
        connection.answer(ACK)
        self.assertEqual(connection.answer(DONE)["result"], "good")

    def run_table(self, is_async: bool) -> None:
        cases: List[Tuple[Callable[[], object], str, str]] = [(_raiser(make), kind, message) for make, kind, message in RAISED]
        cases += [(make, "result_too_large" if "message of" in message else "bad_result", message) for make, message in RETURNED]

        def plain(job: Job[Any]) -> Any:
            return "good" if job.payload > 1000 else cases[job.payload - 1][0]()

        async def coroutine(job: Job[Any]) -> Any:
            await asyncio.sleep(0)
            return plain(job)
        worker = self.start(coroutine if is_async else plain)
        worker.middleware(_awaits if is_async else _calls)
        logging.getLogger("yardmaster").addFilter(_bad_filter)
        self.addCleanup(logging.getLogger("yardmaster").removeFilter, _bad_filter)
        logging.getLogger("yardmaster").setLevel(logging.WARNING)
        connection = self.accept_subscriber()
        for number, (_, kind, message) in enumerate(cases, 1):
            with self.subTest(f"{kind}: {message}"):
                self.check(kind, message, number, connection)

    def test_threads(self) -> None:
        self.run_table(False)

    def test_coroutines(self) -> None:
        self.run_table(True)


def _raiser(make: Callable[[], BaseException]) -> Callable[[], object]:
    def do() -> object:
        raise make()
    return do


def _calls(job: Job[Any], run: Callable[[Job[Any]], Any]) -> Any:
    return run(job)


async def _awaits(job: Job[Any], run: Callable[[Job[Any]], Awaitable[Any]]) -> Any:
    return await run(job)


def _bad_filter(record: logging.LogRecord) -> bool:
    """Drop warnings of handlers, by an exception; what else the worker logs is let through."""
    if "attempt" in record.msg:
        raise SystemExit(5)
    return False


class Loops(WorkerCase):
    """The worker's own event loop."""

    def start_async(self, do: Callable[[], Awaitable[object]]) -> NodeConnection:
        async def handler(job: Job[Any]) -> object:
            return "good" if job.payload == 1 else await do()
        self.start(handler)
        return self.accept_subscriber()

    def fails(self, do: Callable[[], Awaitable[object]], kind: str) -> None:
        connection = self.start_async(do)
        for number in (2, 3):
            connection.push_quest(SID, number, beat_ms=60_000)
            connection.answer(ACK)
            self.assertEqual(connection.answer(FAIL)["error"]["type"], kind)
        self.completes(connection)

    def completes(self, connection: NodeConnection) -> None:
        connection.push_quest(SID, 1, beat_ms=60_000)
        connection.answer(ACK)
        self.assertEqual(connection.answer(DONE)["result"], "good")

    def test_exit_of_a_task(self) -> None:
        async def exits() -> object:
            sys.exit(3)

        async def awaits() -> object:
            return await asyncio.create_task(exits())
        self.fails(awaits, "SystemExit")

    def test_generator_exit_of_a_task(self) -> None:
        async def exits() -> object:
            raise GeneratorExit("g")

        async def awaits() -> object:
            return await asyncio.create_task(exits())
        self.fails(awaits, "GeneratorExit")

    def test_interrupt_of_a_gathered_task(self) -> None:
        async def interrupts() -> object:
            raise KeyboardInterrupt

        async def gathers() -> object:
            return await asyncio.gather(interrupts(), asyncio.Event().wait())
        self.fails(gathers, "KeyboardInterrupt")

    def test_exit_of_a_callback(self) -> None:
        async def calls() -> object:
            asyncio.get_running_loop().call_soon(sys.exit, 3)
            await asyncio.sleep(0.01)
            raise ValueError("after")
        self.fails(calls, "ValueError")

    def test_stop(self) -> None:
        async def stops() -> object:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.01)
            raise ValueError("after")
        self.fails(stops, "ValueError")

    def test_close(self) -> None:
        async def closes() -> object:
            asyncio.get_running_loop().close()
            return 1
        self.fails(closes, "RuntimeError")

    def test_cancelled_by_itself(self) -> None:
        async def cancels() -> object:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)
            return 1
        self.fails(cancels, "CancelledError")

    def test_all_tasks_cancelled(self) -> None:
        async def cancels() -> object:
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.sleep(60)
            return 1
        self.fails(cancels, "CancelledError")

    def test_selector_that_fails(self) -> None:
        """A loop that is broken for good ends the worker, and the job goes back."""
        async def breaks() -> object:
            loop = asyncio.get_running_loop()
            loop._selector.select = None  # type: ignore[attr-defined]
            await asyncio.sleep(60)
            return 1
        unraised = threading.excepthook
        threading.excepthook = lambda args: None  # the loop's thread ends by the exception
        self.addCleanup(setattr, threading, "excepthook", unraised)
        connection = self.start_async(breaks)
        connection.push_quest(SID, 2, beat_ms=60_000)
        connection.answer(ACK)
        gives_back(self, connection)
        connection.close()
        self.thread.join(PATIENCE)
        self.assertRegex(str(self.error), "the event loop in which the handlers run has ended")


def gives_back(case: unittest.TestCase, connection: NodeConnection) -> None:
    """Check that a worker says GOODBYE, at last without drain, and that no job ends before."""
    while True:
        t, rid, p = connection.read()
        case.assertNotIn(t, (DONE, FAIL))
        if t == GOODBYE and not p["drain"]:
            return
        connection.send_ok(rid, {"jobs": [{"ok": True}] * len(p.get("jobs", ()))})


class Threads(WorkerCase):
    def test_exception_of_another_thread(self) -> None:
        """An exception that another thread raises in that of a handler fails its job, and the thread goes on."""
        def handler(job: Job[Any]) -> object:
            if job.payload == 1:
                return threading.get_ident()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(SystemExit))
            while True:
                pass
        self.start(handler)
        connection = self.accept_subscriber()
        for number in (2, 3):
            connection.push_quest(SID, number, beat_ms=60_000)
            connection.answer(ACK)
            self.assertEqual(connection.answer(FAIL)["error"]["type"], "SystemExit")
        connection.push_quest(SID, 1, beat_ms=60_000)
        connection.answer(ACK)
        connection.answer(DONE)

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_fork(self) -> None:
        """A copy of the handler in a forked process ends that process, with the code of its SystemExit."""
        def handler(job: Job[Any]) -> object:
            child = os.fork()
            if child == 0:
                sys.exit(job.payload)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        async def coroutine(job: Job[Any]) -> object:
            return handler(job)
        worker = self.start(handler)
        worker.job("q", fn="coroutine")(coroutine)
        worker._dispatcher.executor.start_loop()
        connection = self.accept_subscriber()
        for number, fn in ((7, None), (8, "coroutine")):
            connection.push_quest(SID, number, fn=fn, beat_ms=60_000)
            connection.answer(ACK)
            self.assertEqual(connection.answer(DONE)["result"], number)


class Processes(unittest.TestCase):
    """Processes that end, each with a worker of q whose handler is a coroutine, and one job."""

    def setUp(self) -> None:
        self.node = FakeNode()
        self.addCleanup(self.node.close)

    def run_program(self, program: str) -> Tuple[NodeConnection, "subprocess.Popen[str]"]:
        """Start a program that runs a worker, and assign it a job; answer its ACK."""
        head = f"""
            import asyncio, os, signal, sys, threading, time
            from yardmaster import Worker
            worker = Worker({self.node.address!r}, grace=0.1)
        """
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(program)], cwd=_PACKAGE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        connection = self.node.accept()
        connection.answer(SUBSCRIBE, {"sid": SID})
        connection.push_quest(SID, 1, beat_ms=60_000)
        connection.answer(ACK)
        return connection, process

    def gives_back(self, connection: NodeConnection) -> None:
        """Check that the worker gives its job back, and reports nothing of it."""
        gives_back(self, connection)
        connection.close()

    def test_task_that_exits_in_the_callers_loop(self) -> None:
        """asyncio ends the loop, and asyncio.run() the process. The attempts count, as a job must not end its worker for ever."""
        connection, process = self.run_program("""
            @worker.job("q", concurrency=2)
            async def handler(job):
                async def exits():
                    sys.exit(3)
                return await (asyncio.create_task(exits()) if job.payload == 2 else asyncio.sleep(60))
            asyncio.run(worker.run_async())
        """)
        connection.push_quest(SID, 2, beat_ms=60_000)
        connection.answer(ACK)
        failed: Dict[int, str] = {}
        while len(failed) < 2:
            t, rid, p = connection.read()
            connection.send_ok(rid, {})
            if t == FAIL:
                failed[p["tok"][-1]] = p["error"]["type"]
                self.assertIn("the event loop of the worker was ended by SystemExit: 3", p["error"]["message"])
        connection.answer(GOODBYE)
        connection.close()
        self.assertEqual((failed, process.wait(PATIENCE)), ({1: "SystemExit", 2: "SystemExit"}, 3))

    def test_application_that_ends(self) -> None:
        """asyncio.run() cancels all tasks when its own is done: the jobs go back."""
        connection, process = self.run_program("""
            @worker.job("q")
            async def handler(job):
                begun.set()
                await asyncio.sleep(60)
            async def main():
                global begun
                begun = asyncio.Event()
                task = asyncio.ensure_future(worker.run_async())
                await begun.wait()
            asyncio.run(main())
        """)
        self.gives_back(connection)
        self.assertEqual(process.wait(PATIENCE), 0)

    def test_loop_that_is_left(self) -> None:
        """A loop that runs no more stops the worker, though its process goes on."""
        connection, process = self.run_program("""
            begun = threading.Event()
            @worker.job("q")
            async def handler(job):
                begun.set()
                await asyncio.sleep(60)
            async def main():
                global run
                run = asyncio.ensure_future(worker.run_async())
                while not begun.is_set():
                    await asyncio.sleep(0.01)
            loop = asyncio.new_event_loop()
            loop.run_until_complete(main())
            while "yardmaster worker" in [t.name for t in threading.enumerate()]:
                time.sleep(0.01)
            print("the worker has ended")
        """)
        self.gives_back(connection)
        out, err = process.communicate(timeout=PATIENCE)
        self.assertIn("the worker has ended", out)
        self.assertIn("the event loop in which the handlers run has ended", err)

    @unittest.skipUnless(hasattr(signal, "SIGUSR1"), "this system has no SIGUSR1")
    def test_exit_of_the_main_thread(self) -> None:
        """What the application raises in the thread of run() ends it: jobs go back, and the process ends."""
        for name, code in (("sys.exit(4)", 4), ("raise KeyboardInterrupt", -signal.SIGINT), ("raise MemoryError", 1)):
            with self.subTest(name):
                connection, process = self.run_program(f"""
                    def on_signal(*args):
                        {name}
                    signal.signal(signal.SIGUSR1, on_signal)
                    @worker.job("q")
                    def handler(job):
                        os.kill(os.getpid(), signal.SIGUSR1)
                        time.sleep(60)
                    worker.run()
                """)
                self.gives_back(connection)
                self.assertEqual(process.wait(PATIENCE), code)

    def test_exit_of_the_process(self) -> None:
        """os._exit() ends the process at once: the connection breaks, and the leases end."""
        connection, process = self.run_program("""
            @worker.job("q")
            async def handler(job):
                os._exit(6)
            worker.run()
        """)
        connection.wait_closed()
        self.assertEqual(process.wait(PATIENCE), 6)

    def test_second_thread(self) -> None:
        """A worker in another thread than the main one runs on after the main thread has exited."""
        connection, process = self.run_program("""
            begun = threading.Event()
            @worker.job("q", concurrency=2)
            async def handler(job):
                begun.set()
                if job.payload == 2:
                    worker.stop()
                return job.payload
            threading.Thread(target=worker.run).start()
            begun.wait()
            sys.exit(5)
        """)
        self.assertEqual(connection.answer(DONE)["result"], 1)
        connection.push_quest(SID, 2, beat_ms=60_000)
        connection.answer(ACK)
        seen: List[int] = []
        result: Optional[int] = None
        while GOODBYE not in seen or result is None:
            t, rid, p = connection.read()
            connection.send_ok(rid, {})
            seen.append(t)
            result = p.get("result", result)
        connection.close()
        self.assertEqual((result, process.wait(PATIENCE)), (2, 5))


class Registration(unittest.TestCase):
    def test_handler_that_is_not_callable(self) -> None:
        with self.assertRaisesRegex(TypeError, "the handler is None, must be a function"):
            Worker().job("q")(None)  # type: ignore[type-var]


if __name__ == "__main__":
    unittest.main()
