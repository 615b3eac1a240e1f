"""Tests of coroutine handlers, typed payloads, Snooze, logs, middleware and the reasons to stop."""

import asyncio
import enum
import logging
import os
import re
import signal
import threading
import unittest
import unittest.mock
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Optional, Tuple

import yardmaster
from yardmaster import CancelledError, Job, Snooze, StopReason, Worker
from yardmaster.handlers import excerpt
from yardmaster.protocol import ACK, BEAT, DONE, FAIL, GOODBYE, LOG, RECALL, SUBSCRIBE

from .fakenode import PATIENCE, FakeNode
from .test_worker import SID, WorkerCase


class Size(enum.Enum):
    SMALL = "small"


@yardmaster.kind("resize", queue="q")
@dataclass
class Resize:
    path: str
    size: Size = Size.SMALL


@dataclass
class Resized:
    path: str
    at: Optional[datetime] = None


class Excerpts(unittest.TestCase):
    def test_both_ends_remain(self) -> None:
        text = "Traceback\n" + "  line ä\n" * 10_000 + "ValueError: the last line"
        cut = excerpt(text, 28 << 10)
        self.assertLessEqual(len(cut.encode()), 28 << 10)
        self.assertTrue(cut.startswith("Traceback\n  line ä\n") and cut.endswith("\nValueError: the last line"), cut)
        head, omitted, tail = re.split(r"\n\.\.\. (\d+) bytes omitted \.\.\.\n", cut)
        self.assertEqual(len(head.encode()) + int(omitted) + len(tail.encode()), len(text.encode()))
        self.assertEqual(excerpt("short", 100), "short")


class Coroutines(WorkerCase):
    def test_as_many_at_once_as_allowed(self) -> None:
        events: List[asyncio.Event] = []

        async def handler(job: Job[Any]) -> Any:
            events.append(asyncio.Event())
            if len(events) == 3:
                for event in events:
                    event.set()
            await events[-1].wait()
            return {"n": job.payload, "thread": threading.current_thread().name}
        self.start(handler, concurrency=3)
        connection = self.accept_subscriber(credits=3)
        for n in range(3):
            connection.push_quest(SID, n + 1)
        for _ in range(3):
            connection.answer(ACK)
        results = [connection.answer(DONE) for _ in range(3)]
        self.assertEqual(sorted(p["result"]["n"] for p in results), [1, 2, 3])
        self.assertEqual({p["result"]["thread"] for p in results}, {"yardmaster event loop"})

    def test_task_is_cancelled(self) -> None:
        seen: List[Tuple[Any, ...]] = []
        begun = threading.Semaphore(0)

        async def handler(job: Job[Any]) -> Any:
            begun.release()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append((job.stop_reason, job.cancel_reason, job.cancel_message))
                raise
        self.start(handler)
        connection = self.accept_subscriber()
        for n, code, reason in ((1, "CANCELLED", StopReason.CANCELLED), (2, "DEADLINE", StopReason.DEADLINE),
                                (3, "LEASE_EXPIRED", StopReason.LEASE_LOST), (4, "SHUTDOWN", StopReason.SHUTDOWN)):
            token = connection.push_quest(SID, n, beat_ms=60_000)
            jid = connection.answer(ACK)["jid"]
            self.assertTrue(begun.acquire(timeout=PATIENCE))
            message = {"msg": "customer left"} if code == "CANCELLED" else {}
            connection.push(RECALL, {"jid": jid, "tok": token, "reason": code, "grace_ms": 2000, **message})
            why = message.get("msg")
            self.assertEqual(connection.answer(FAIL)["error"], {"message": f"job {jid} must stop: {why or code}", "type": "cancelled"})
            self.assertEqual(seen.pop(), (reason, code, why))

    def test_recall_before_the_task_begins(self) -> None:
        ran: List[int] = []
        free = threading.Event()
        self.addCleanup(free.set)

        async def handler(job: Job[Any]) -> Any:
            ran.append(job.payload)
            free.wait(PATIENCE)  # blocks the loop, which a handler should not
        self.start(handler, concurrency=2)
        connection = self.accept_subscriber(credits=2)
        connection.push_quest(SID, 1, beat_ms=60_000)
        connection.answer(ACK)
        token = connection.push_quest(SID, 2, beat_ms=60_000)
        jid = connection.answer(ACK)["jid"]
        connection.push(RECALL, {"jid": jid, "tok": token, "reason": "CANCELLED", "grace_ms": 2000})
        connection.push(140, {"jid": "q:bad"})  # an invalid QUEST: the worker closes the connection once it has read the RECALL
        connection.wait_closed()
        free.set()
        connection = self.node.accept()
        outcomes: Dict[bytes, int] = {}
        while len(outcomes) < 2:
            t, rid, p = connection.read()
            if t in (DONE, FAIL):
                outcomes[p["tok"]] = t
            connection.send_ok(rid, {"jobs": [{"ok": True}] * len(p.get("jobs", ())), "sid": SID})
        self.assertEqual((outcomes[token], ran), (FAIL, [1]))

    def test_ignored_cancellation(self) -> None:
        finish, begun = threading.Event(), threading.Semaphore(0)
        self.addCleanup(finish.set)

        async def handler(job: Job[Any]) -> Any:
            begun.release()
            while not finish.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    if job.payload == 1:
                        return "just done"
        with unittest.mock.patch("yardmaster.dispatcher._CANCEL_TIMEOUT", 0.3), unittest.mock.patch("yardmaster.executor._END_TIMEOUT", 0.1):
            worker = self.start(handler, concurrency=2, grace=0)
            connection = self.accept_subscriber(credits=2)
            tokens = [connection.push_quest(SID, n, beat_ms=60_000) for n in (1, 2)]
            for _ in tokens:
                connection.answer(ACK)
                self.assertTrue(begun.acquire(timeout=PATIENCE))
            worker.stop()
            self.assertTrue(connection.answer(GOODBYE)["drain"])
            self.assertEqual(connection.answer(DONE)["tok"], tokens[0])
            self.assertFalse(connection.answer(GOODBYE)["drain"])  # which gives the other job back
            connection.close()
            self.thread.join(PATIENCE)
        self.assertFalse(self.thread.is_alive())

    def test_failures(self) -> None:
        async def handler(job: Job[Any]) -> Any:
            if job.payload == 1:
                raise ValueError("broken")
            if job.payload == 2:
                raise SystemExit(3)
            if job.payload == 3:
                raise asyncio.CancelledError
            await asyncio.sleep(0)
            return object()
        self.start(handler)
        connection = self.accept_subscriber()
        for n, expected in enumerate(("ValueError", "SystemExit", "CancelledError", "bad_result"), 1):
            connection.push_quest(SID, n, beat_ms=60_000)
            connection.answer(ACK)
            self.assertEqual(connection.answer(FAIL)["error"]["type"], expected)


class RunAsync(unittest.IsolatedAsyncioTestCase):
    async def test_in_the_callers_loop(self) -> None:
        node = FakeNode()
        self.addCleanup(node.close)
        worker, loop = Worker(node.address, concurrency=2), asyncio.get_running_loop()

        @worker.job("q", fn="coroutine")
        async def coroutine(job: Job[Any]) -> bool:
            return asyncio.get_running_loop() is loop

        @worker.job("q", fn="plain")
        def plain(job: Job[Any]) -> str:
            return threading.current_thread().name
        run = asyncio.ensure_future(worker.run_async())
        connection = await loop.run_in_executor(None, node.accept)

        def serve() -> List[Any]:
            connection.answer(SUBSCRIBE, {"sid": SID})
            results = []
            for n, fn in enumerate(("coroutine", "plain"), 1):
                connection.push_quest(SID, n, fn=fn, beat_ms=60_000)
                connection.answer(ACK)
                results.append(connection.answer(DONE)["result"])
            return results
        self.assertEqual(await loop.run_in_executor(None, serve), [True, "job 1"])
        run.cancel()
        await loop.run_in_executor(None, connection.answer, GOODBYE)
        connection.close()
        with self.assertRaises(asyncio.CancelledError):
            await run

    async def test_refusal_is_raised(self) -> None:
        node = FakeNode(token="secret")
        self.addCleanup(node.close)
        worker = Worker(node.address, token="wrong")
        worker.job("q")(lambda job: None)
        with self.assertRaises(yardmaster.Unauthorized):
            await worker.run_async()

    @unittest.skipUnless(hasattr(signal, "raise_signal"), "this system has no signals")
    async def test_sigterm(self) -> None:
        node = FakeNode()
        self.addCleanup(node.close)
        worker = Worker(node.address)
        worker.job("q")(lambda job: None)
        run = asyncio.ensure_future(worker.run_async())
        connection = await asyncio.get_running_loop().run_in_executor(None, node.accept)
        await asyncio.get_running_loop().run_in_executor(None, connection.answer, SUBSCRIBE, {"sid": SID})
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.get_running_loop().run_in_executor(None, connection.answer, GOODBYE)
        connection.close()
        await run


class Typed(WorkerCase):
    def start_typed(self, worker: Worker) -> Any:
        thread = threading.Thread(target=worker.run)
        thread.start()
        for cleanup in (lambda: thread.join(PATIENCE), self.node.close, worker.stop):  # in reverse order
            self.addCleanup(cleanup)
        connection = self.node.accept()
        connection.answer(SUBSCRIBE, {"sid": SID})
        return connection

    def test_payload_and_result(self) -> None:
        worker = Worker(self.node.address)

        @worker.job(Resize)
        def resize(job: Job[Resize]) -> Resized:
            assert job.payload.size is Size.SMALL
            return Resized(job.payload.path, datetime(2026, 1, 1, tzinfo=timezone.utc))
        connection = self.start_typed(worker)
        connection.push_quest(SID, 1, fn="resize", job_payload={"path": "/a"})
        connection.answer(ACK)
        self.assertEqual(connection.answer(DONE)["result"], {"path": "/a", "at": "2026-01-01T00:00:00Z"})
        connection.push_quest(SID, 2, fn="resize", job_payload={"path": "/a", "size": "tiny"})
        connection.answer(ACK)
        p = connection.answer(FAIL)
        self.assertEqual((p["retry"], p["error"]["type"], p["error"]["code"], p["error"]["details"]),
                         (False, "invalid", "INVALID_JOB_PAYLOAD", {"path": "/size"}))
        self.assertEqual(p["error"]["message"], "payload is no Resize: /size: must be one of 'small', not 'tiny'")

    def test_registration(self) -> None:
        worker = Worker()

        @dataclass
        class Local:
            n: int

        @worker.job("local", queue="q")
        def local(job: "Job[Local]") -> None: ...
        self.assertIs(worker._subscriptions["q"].handlers["local"].payload_type, Local)

        class Callable_:
            async def __call__(self, job: Job[Resize]) -> None: ...
        worker.job("callable", queue="q")(Callable_())
        self.assertIs(worker._subscriptions["q"].handlers["callable"].payload_type, Resize)
        self.assertTrue(worker._subscriptions["q"].handlers["callable"].is_async)
        worker.job("other")(print)  # a builtin, of whose parameters nothing is known

        def takes_payload(payload: Resize) -> None: ...

        def takes_thread(job: Job[threading.Thread]) -> None: ...

        def unknown(job: "Job[Unknown]") -> None: ...  # type: ignore[name-defined]  # noqa: F821
        handlers: List[Tuple[Callable[..., Any], str]] = [
            (takes_payload, r"a handler takes a Job, such as Job\[Resize\]"), (takes_thread, "cannot be decoded as Thread"),
            (unknown, "name 'Unknown' is not defined"),
        ]
        for handler, message in handlers:
            with self.assertRaisesRegex(TypeError, message):
                worker.job("bad", queue="q")(handler)
        wrong: List[Tuple[Callable[[], Any], str]] = [
            (lambda: worker.job("a", queue="q", fn="b"), "two functions"), (lambda: worker.job(Resized, fn="b"), "no queue for Resized"),
            (lambda: worker.job("a", concurrency=0), "concurrency is 0, must be an int from 1"),
            (lambda: Worker(concurrency=-1), "concurrency is -1"), (lambda: Worker(grace=-1), "grace is -1, must be 0 to"),
            (lambda: worker.job("a b"), "queue name 'a b' must have"),
        ]
        for call, message in wrong:
            with self.assertRaisesRegex(ValueError, message):
                call()
        with self.assertRaisesRegex(TypeError, "Resized has no kind"):
            worker.job(Resized)


class Snoozes(WorkerCase):
    def test_snooze(self) -> None:
        def handler(job: Job[Any]) -> Any:
            raise Snooze(1.5, "not yet")
        self.start(handler)
        connection = self.accept_subscriber()
        connection.push_quest(SID)
        connection.answer(ACK)
        p = connection.answer(FAIL)
        self.assertEqual((p["snooze_ms"], p["error"], "retry" in p, "retry_after_ms" in p),
                         (1500, {"message": "not yet", "type": "snooze"}, False, False))
        self.assertEqual((Snooze(0).seconds, Snooze(timedelta()).seconds, Snooze(0.01).seconds), (1, 1, 0.01))
        for seconds in (-1, float("nan"), 1e9):
            with self.assertRaises(ValueError):
                Snooze(seconds)

    def test_older_node(self) -> None:
        node = FakeNode(caps=["json"])
        self.addCleanup(node.close)

        def handler(job: Job[Any]) -> Any:
            raise Snooze(timedelta(minutes=1))
        self.start(handler, [node.address])
        connection = self.accept_subscriber(node)
        connection.push_quest(SID)
        connection.answer(ACK)
        p = connection.answer(FAIL)
        self.assertEqual((p["retry"], p["error"]["type"], "snooze_ms" in p), (True, "snooze_not_supported", False))
        self.assertIn("snoozed for 60 s, but node fake, of an older release", p["error"]["message"])


class Logs(WorkerCase):
    def test_records_go_to_the_log_of_their_job(self) -> None:
        logger = logging.getLogger("test-handlers")
        logger.propagate, handler = False, yardmaster.JobLogHandler()
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        logger.warning("outside of a job")

        async def coroutine(job: Job[Any]) -> Any:
            logger.warning("in a coroutine %d", job.payload)
            job.logger.info("from %s", "the job", extra={"color": "blue"})

        def plain(job: Job[Any]) -> Any:
            logger.error("in a thread %d", job.payload)
        worker = self.start(coroutine)
        worker.job("q", fn="plain")(plain)
        connection = self.accept_subscriber()
        lines = []
        connection.push_quest(SID, 1, beat_ms=60_000)
        connection.answer(ACK)
        lines += [line for _ in range(2) for line in connection.answer(LOG)["lines"]]
        connection.answer(DONE)
        connection.push_quest(SID, 2, fn="plain", beat_ms=60_000)
        connection.answer(ACK)
        lines += connection.answer(LOG)["lines"]
        connection.answer(DONE)
        self.assertEqual([(line["level"], line["msg"]) for line in lines],
                         [("warning", "in a coroutine 1"), ("info", "from the job"), ("error", "in a thread 2")])

    def test_attributes_of_records(self) -> None:
        def handler(job: Job[Any]) -> Any:
            job.logger.info("x")
        with self.assertLogs("yardmaster.job") as logged:
            self.start(handler)
            connection = self.accept_subscriber()
            connection.push_quest(SID, beat_ms=60_000)
            jid = connection.answer(ACK)["jid"]
            connection.answer(DONE)
        record = logged.records[0].__dict__
        self.assertEqual((record["job_id"], record["queue"], record["attempt"]), (jid, "q", 1))


class Stops(WorkerCase):
    def test_seconds_left_by_the_nodes_clock(self) -> None:
        left: List[Optional[float]] = []
        self.start(lambda job: left.append(job.seconds_left()))
        connection = self.accept_subscriber()
        node = datetime(2001, 1, 1, tzinfo=timezone.utc)  # not this machine's clock
        connection.push_quest(SID, 1, lease_until=(node + timedelta(seconds=6)).isoformat(), deadline=(node + timedelta(seconds=100)).isoformat())
        connection.answer(ACK)
        connection.answer(DONE)
        connection.push_quest(SID, 2)
        connection.answer(ACK)
        connection.answer(DONE)
        first, second = left
        assert first is not None
        self.assertTrue(90 < first <= 100, first)
        self.assertIsNone(second)

    def test_clock_jump(self) -> None:
        finish = threading.Event()
        self.addCleanup(finish.set)
        self.start(lambda job: finish.wait(PATIENCE))
        connection = self.accept_subscriber()
        connection.push_quest(SID)
        connection.answer(ACK)
        with unittest.mock.patch("time.time", lambda: 4e9):
            for _ in range(3):  # the lease is extended as before, and the job runs on
                connection.answer(BEAT, {"jobs": [{"ok": True}]})
        finish.set()
        connection.answer(DONE)

    def test_reason_of_the_exception(self) -> None:
        reasons: List[Any] = []

        def handler(job: Job[Any]) -> Any:
            job.cancelled.wait(PATIENCE)
            try:
                job.progress(1)
            except CancelledError as e:
                reasons.append(e.reason)
                raise
        self.start(handler)
        connection = self.accept_subscriber()
        connection.push_quest(SID)
        connection.answer(ACK)
        connection.answer(BEAT, {"jobs": [{"ok": False, "code": "LEASE_LOST"}]})
        connection.answer(FAIL)
        self.assertEqual(reasons, [StopReason.LEASE_LOST])


if __name__ == "__main__":
    unittest.main()
