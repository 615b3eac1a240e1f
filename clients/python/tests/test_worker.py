"""Tests of Worker with a node that closes connections, loses leases, drains and refuses."""

import logging
import math
import os
import signal
import threading
import time
import unittest
import unittest.mock
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from .fakenode import PATIENCE, FakeNode, NodeConnection, Payload
from yardmaster import CancelledError, Fail, Handler, Job, OverhopError, Retry, Worker
from yardmaster.protocol import (ACK, ADDQUEUE, BEAT, CONTENT, CREDIT, CREDITS, DONE, DRAIN, FAIL, GOODBYE, LOG, NACK, PROGRESS, RECALL,
                                 SUBSCRIBE)

SID = "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d"


class WorkerCase(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("yardmaster").setLevel(logging.CRITICAL)
        for timeout in ("_GOODBYE_TIMEOUT", "_CANCEL_TIMEOUT"):  # the test may have closed the node, or not have answered
            patch = unittest.mock.patch(f"yardmaster.dispatcher.{timeout}", 0.2)
            patch.start()
            self.addCleanup(patch.stop)
        self.node = FakeNode()
        self.addCleanup(self.node.close)

    def start(self, handler: Handler, nodes: Optional[List[str]] = None, concurrency: int = 1, queues: Sequence[str] = ("q",),
              **options: Any) -> Worker:
        """Run a worker of the queues in a thread and return it; self.error is what run() raises."""
        options.setdefault("grace", 1)
        worker = Worker(nodes or [self.node.address], **options)
        for name in queues:
            worker.job(name, concurrency=concurrency)(handler)
        self.error: Optional[Exception] = None

        def run() -> None:
            try:
                worker.run()
            except Exception as e:
                self.error = e
        thread = threading.Thread(target=run)
        thread.start()

        def stop() -> None:
            worker.stop()
            self.node.close()
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive(), "run() does not return")
        self.addCleanup(stop)
        self.thread = thread
        return worker

    def accept_subscriber(self, node: Optional[FakeNode] = None, credits: int = 1) -> NodeConnection:
        connection = (node or self.node).accept()
        self.answer_subscribe(connection, credits)
        return connection

    def answer_subscribe(self, connection: NodeConnection, credits: int = 1) -> None:
        self.assertEqual(connection.answer(SUBSCRIBE, {"sid": SID}), {"q": "q", "credits": credits})


class Outcomes(WorkerCase):
    def test_result(self) -> None:
        self.start(lambda job: {"n": job.payload, "fence": job.fence, "tags": job.tags, "meta": job.meta})
        connection = self.accept_subscriber()
        token = connection.push_quest(SID, 7, tags=["t"], meta={"m": "v"})
        self.assertEqual(connection.answer(ACK)["tok"], token)
        p = connection.answer(DONE, {"status": "completed"})
        self.assertEqual((p["tok"], p["result"], p["credits"]), (token, {"n": 7, "fence": 7, "tags": ["t"], "meta": {"m": "v"}}, 1))

    def test_floats(self) -> None:
        def handler(job: Job[Any]) -> Any:
            job.progress(50, data=0.25)
            if job.payload["price"] > 1:
                raise Fail("too much", details=0.5)
            return {"price": job.payload["price"] / 2}
        self.start(handler)
        connection = self.accept_subscriber()
        for price, end, key, value in ((0.5, DONE, "result_json", b'{"price":0.25}'), (1.5, FAIL, "details_json", b"0.5")):
            connection.push_quest(SID, int(price) + 1, job_payload_json=b'{"price":%.1f}' % price)
            connection.answer(ACK)
            self.assertEqual(connection.answer(PROGRESS)["data_json"], b"0.25")
            p = connection.answer(end, {"status": "completed"})
            self.assertEqual(p.get("error", p)[key], value)

    def test_payload_that_does_not_fit_into_a_frame(self) -> None:
        self.start(lambda job: len(job.payload))
        connection = self.accept_subscriber()
        token = connection.push_quest(SID, job_payload=None, omitted=["job_payload"])
        connection.answer(ACK)
        rid, p = connection.expect(CONTENT)
        self.assertEqual(p["offset"], 0)
        connection.refuse(rid, "UNAVAILABLE", retry_after_ms=10)
        for offset in (0, 2):
            request = connection.answer(CONTENT, {"size": 4, "encoding": "json", "version": "v", "data": b'"xy"'[offset:offset + 2]})
            self.assertEqual((request["value"], request["offset"]), ("payload", offset))
        p = connection.answer(DONE, {"status": "completed"})
        self.assertEqual((p["tok"], p["result"]), (token, 2))
        connection.push_quest(SID, 2, job_payload=None, omitted=["job_payload"])
        connection.answer(ACK)
        rid, _ = connection.expect(CONTENT)
        connection.refuse(rid, "CONTENT_GONE")
        p = connection.answer(FAIL, {"status": "failed"})
        self.assertIn("CONTENT_GONE", p["error"]["message"])


    def test_failures(self) -> None:
        def handler(job: Job[Any]) -> Any:
            if job.payload == 1:
                raise ValueError("broken \ud800")
            if job.payload == 2:
                raise Retry("later", after=1.5, code="BUSY")
            if job.payload == 3:
                raise Fail("never", code="GONE", details={"a": 1})
            if job.payload == 4:
                return [1.5, b""]
            if job.payload == 5:
                raise SystemExit(3)
            return b"x" * (9 << 20)
        self.start(handler)
        connection = self.accept_subscriber()
        outcomes: List[Tuple[int, Payload]] = [
            (1, {"retry": True, "error": {"type": "ValueError", "message": "broken ?"}}),
            (2, {"retry": True, "retry_after_ms": 1500, "error": {"type": "retry", "message": "later", "code": "BUSY"}}),
            (3, {"retry": False, "error": {"type": "fail", "message": "never", "code": "GONE", "details": {"a": 1}}}),
            (4, {"retry": False, "error": {"type": "bad_result"}}),
            (5, {"retry": True, "error": {"type": "SystemExit"}}),
            (6, {"retry": False, "error": {"type": "result_too_large"}}),
        ]
        for n, expected in outcomes:
            with self.subTest(n):
                connection.push_quest(SID, n)
                connection.answer(ACK)
                p = connection.answer(FAIL, {"status": "failed"})
                self.assertEqual(p["credits"], 1)
                for key, value in expected.items():
                    actual = {k: p[key].get(k) for k in value} if key == "error" else p[key]
                    self.assertEqual(actual, value)

    def test_unreadable_results_and_exceptions(self) -> None:
        class Bad(Exception):
            def __str__(self) -> str:
                raise KeyboardInterrupt

        class Inconsistent(Dict[str, int]):
            def items(self) -> Any:
                raise KeyError("a")

        def handler(job: Job[Any]) -> Any:
            if job.payload <= 4:
                raise Retry("later", after=(math.inf, math.nan, 1e17, -1)[job.payload - 1])
            if job.payload == 5:
                raise Bad
            if job.payload == 6:
                return Inconsistent(a=1)
            raise Fail("much", details="x" * (9 << 20))
        self.start(handler)
        connection = self.accept_subscriber()
        for n, expected in enumerate(["ValueError"] * 4 + ["Bad", "bad_result", "fail"], 1):
            with self.subTest(n):
                connection.push_quest(SID, n, beat_ms=60_000)
                connection.answer(ACK)
                self.assertEqual(connection.answer(FAIL)["error"]["type"], expected)

    def test_oversized_progress_is_dropped(self) -> None:
        def handler(job: Job[Any]) -> None:
            job.progress(1, "x" * (9 << 20))
            job.log("y" * (9 << 20))
        self.start(handler)
        connection = self.accept_subscriber()
        connection.push_quest(SID, beat_ms=60_000)
        connection.answer(ACK)
        self.assertEqual(len(connection.answer(LOG)["lines"][0]["msg"]), 2048)
        connection.answer(DONE)

    def test_function_without_handler(self) -> None:
        worker = self.start(lambda job: "any")
        with self.assertRaisesRegex(ValueError, "already"):
            worker.job("q")(lambda job: None)
        worker.job("q", fn="resize")(lambda job: "resized")
        del worker._subscriptions["q"].handlers[None]
        connection = self.accept_subscriber()
        connection.push_quest(SID, 1, fn="resize")
        connection.answer(ACK)
        self.assertEqual(connection.answer(DONE)["result"], "resized")
        node = datetime(2001, 1, 1, tzinfo=timezone.utc)  # not this machine's clock
        with self.assertLogs("yardmaster", "WARNING") as logged:
            cases: List[Tuple[Optional[str], float, float]] = [("other", 0, 5), ("other", 600, 300), (None, 7200, 600), (None, 90_000, 0)]
            for n, (fn, age, delay) in enumerate(cases, 2):
                connection.push_quest(SID, n, fn=fn, created_at=(node - timedelta(seconds=age)).isoformat(), lease_ms=6000,
                                      lease_until=(node + timedelta(seconds=6)).isoformat())
                connection.answer(ACK)
                p = connection.answer(FAIL)
                self.assertEqual(p["error"]["code"], "UNKNOWN_FUNCTION")
                self.assertAlmostEqual(p.get("snooze_ms", 0) / 1000, delay, delta=5)
                self.assertEqual(p.get("retry"), None if delay else True)
        self.assertEqual(len(logged.output), 2)  # one of each function
        self.assertRegex(logged.output[0], "job of queue 'q' names the function 'other', for which this worker has no handler; it has 'resize': .*"
                         "go back for some time")
        self.assertRegex(p["error"]["message"], "names no function")

    def test_function_without_handler_may_fail_for_good(self) -> None:
        worker = self.start(lambda job: "any", fail_unknown=True)
        del worker._subscriptions["q"].handlers[None]
        connection = self.accept_subscriber()
        with self.assertLogs("yardmaster", "WARNING"):
            connection.push_quest(SID, fn="other")
            connection.answer(ACK)
            p = connection.answer(FAIL)
        self.assertEqual((p["error"]["type"], p["retry"], p.get("retry_after_ms")), ("handler_not_found", False, None))

    def test_progress_and_log(self) -> None:
        release = threading.Event()

        def handler(job: Job[Any]) -> Any:
            job.log("half", level="warn")
            job.progress(50, {"rows": 5})
            release.wait(PATIENCE)
            with self.assertRaises(ValueError):
                job.progress(101)
        self.addCleanup(release.set)
        self.start(handler)
        connection = self.accept_subscriber()
        connection.push_quest(SID, beat_ms=60_000)
        connection.answer(ACK)
        lines = connection.answer(LOG)["lines"]
        self.assertEqual([(x["level"], x["msg"]) for x in lines], [("warn", "half")])
        p = connection.answer(PROGRESS)
        self.assertEqual((p["percent"], p["data"]), (50, {"rows": 5}))
        release.set()
        self.assertIsNone(connection.answer(DONE)["result"])


class Leases(WorkerCase):
    def test_connection_lost_before_done_is_answered(self) -> None:
        ran = []

        def handler(job: Job[Any]) -> str:
            ran.append(job.id)
            return "once"
        self.start(handler)
        connection = self.accept_subscriber()
        token = connection.push_quest(SID)
        connection.answer(ACK)
        connection.expect(DONE)
        connection.close()
        connection = self.node.accept()
        p = connection.answer(DONE, {"status": "completed", "dup": True})
        self.assertEqual((p["tok"], p["result"], len(ran)), (token, "once", 1))
        self.assertNotIn("credits", p)
        self.answer_subscribe(connection)  # one credit: the handler has returned

    def test_beats_do_not_wait_for_answers(self) -> None:
        finish = threading.Event()
        self.addCleanup(finish.set)
        self.start(lambda job: job.payload == 1 or finish.wait(PATIENCE), concurrency=2)
        connection = self.accept_subscriber(credits=2)
        token = connection.push_quest(SID, 2)
        connection.answer(ACK)
        connection.push_quest(SID, 1)
        seen: List[int] = []
        while seen.count(BEAT) < 3:  # a DONE that commits slowly delays all answers after it
            t, rid, p = connection.read()
            if t == ACK:
                connection.send_ok(rid, {})
            elif DONE in seen and t == BEAT:
                self.assertIn(token, [j["tok"] for j in p["jobs"]])
                seen.append(t)
            elif t == DONE:
                seen.append(t)

    def test_many_jobs_are_split_into_beats(self) -> None:
        finish = threading.Event()
        self.addCleanup(finish.set)
        self.start(lambda job: finish.wait(PATIENCE), concurrency=3)
        with unittest.mock.patch("yardmaster.dispatcher._MAX_BEAT_JOBS", 2):
            connection = self.accept_subscriber(credits=3)
            for n in range(3):
                connection.push_quest(SID, n + 1, beat_ms=60_000)
            for _ in range(3):
                connection.answer(ACK)
            sizes = [len(connection.answer(BEAT, {"jobs": [{"ok": True}] * 2})["jobs"]) for _ in range(2)]
        self.assertEqual(sizes, [2, 1])

    def test_resumed_on_another_node(self) -> None:
        other = FakeNode()
        self.addCleanup(other.close)
        finish = threading.Event()
        self.addCleanup(finish.set)
        ran = []

        def handler(job: Job[Any]) -> Any:
            ran.append(job.attempt)
            finish.wait(PATIENCE)
            return "kept"
        self.start(handler, [self.node.address])
        connection = self.accept_subscriber()
        token = connection.push_quest(SID)
        connection.answer(ACK)
        self.assertEqual(connection.answer(BEAT, {"jobs": [{"ok": True}]})["jobs"][0]["tok"], token)
        connection.push(DRAIN, {"reason": "node stops", "reconnect": [other.address]})
        second = other.accept()
        beat = second.answer(BEAT, {"jobs": [{"ok": False, "code": "UNAVAILABLE"}]})  # the worker must repeat it
        self.answer_subscribe(second, credits=0)
        connection.push(RECALL, {"jid": beat["jobs"][0]["jid"], "tok": token, "reason": "SUPERSEDED", "grace_ms": 0})
        self.assertEqual(second.answer(BEAT, {"jobs": [{"ok": True}]}), beat)
        connection.wait_closed()  # closed by the worker, whose jobs have all moved
        finish.set()
        while True:
            t, rid, p = second.read()
            if t == DONE:
                break
            second.send_ok(rid, {"jobs": [{"ok": True}]})
        second.send_ok(rid, {"status": "completed"})
        self.assertEqual((p["tok"], p["result"], p["credits"], ran), (token, "kept", 1, [1]))

    def test_unanswered_ack_is_repeated(self) -> None:
        finish = threading.Event()
        self.addCleanup(finish.set)
        self.start(lambda job: finish.wait(PATIENCE))
        connection = self.accept_subscriber()
        token = connection.push_quest(SID)
        connection.expect(ACK)
        connection.close()
        connection = self.node.accept()
        rid, p = connection.expect(ACK)
        self.answer_subscribe(connection, credits=0)
        connection.refuse(rid, "UNAVAILABLE", retry_after_ms=100)
        self.assertEqual(p["tok"], token)
        connection.answer(ACK)
        finish.set()
        self.assertEqual(connection.answer(DONE)["tok"], token)

    def test_duplicate_quest_runs_once(self) -> None:
        finish = threading.Event()
        self.addCleanup(finish.set)
        ran = []

        def handler(job: Job[Any]) -> bool:
            ran.append(1)
            return finish.wait(PATIENCE)
        self.start(handler)
        connection = self.accept_subscriber()
        for _ in range(2):
            token = connection.push_quest(SID, beat_ms=60_000)
            self.assertEqual(connection.answer(ACK)["tok"], token)
        finish.set()
        self.assertEqual(connection.answer(DONE)["credits"], 1)
        self.assertEqual(ran, [1])

    def test_lease_lost(self) -> None:
        seen = []

        def handler(job: Job[Any]) -> Any:
            if job.payload == 2:
                return
            job.cancelled.wait(PATIENCE)
            seen.append(job.cancel_reason)
            job.progress(1)
        self.start(handler)
        connection = self.accept_subscriber()
        connection.push_quest(SID)
        connection.answer(ACK)
        connection.answer(BEAT, {"jobs": [{"ok": False, "code": "LEASE_LOST"}]})
        rid, p = connection.expect(FAIL)
        self.assertEqual((p["error"]["type"], seen), ("cancelled", ["LEASE_LOST"]))
        connection.refuse(rid, "LEASE_LOST")
        connection.push_quest(SID, 2)  # the worker accepts the next job
        connection.answer(ACK)
        connection.answer(DONE)

    def test_lease_over(self) -> None:
        ended: List[Tuple[Optional[str], float]] = []
        done = threading.Event()

        def handler(job: Job[Any]) -> None:
            job.cancelled.wait(PATIENCE)
            ended.append((job.cancel_reason, time.monotonic()))
            done.set()
        self.start(handler)
        connection = self.accept_subscriber()
        connection.push_quest(SID, lease_ms=2000, beat_ms=60_000)
        began = time.monotonic()
        connection.answer(ACK)
        self.node.close()  # no node can be reached any more
        connection.close()
        self.assertTrue(done.wait(PATIENCE))
        self.assertEqual(ended[0][0], "LEASE_LOST")
        self.assertGreaterEqual(ended[0][1] - began, 1.9)  # not before the lease has ended

    def test_recall(self) -> None:
        started = threading.Event()

        def handler(job: Job[Any]) -> Any:
            started.set()
            job.cancelled.wait(PATIENCE)
            raise CancelledError(str(job.cancel_reason))
        self.start(handler)
        connection = self.accept_subscriber()
        token = connection.push_quest(SID, beat_ms=60_000)
        jid = connection.answer(ACK)["jid"]
        self.assertTrue(started.wait(PATIENCE))
        connection.push(RECALL, {"jid": jid, "tok": token, "reason": "CANCELLED", "grace_ms": 2000})
        self.assertEqual(connection.answer(FAIL)["error"], {"message": "CANCELLED", "type": "cancelled"})

    def test_unavailable_outcome_is_repeated(self) -> None:
        self.start(lambda job: 1)
        connection = self.accept_subscriber()
        connection.push_quest(SID)
        connection.answer(ACK)
        rid, first = connection.expect(DONE)
        connection.refuse(rid, "UNAVAILABLE", retry_after_ms=50)
        repeated = connection.answer(DONE, {"status": "completed"})
        self.assertEqual(repeated["tok"], first["tok"])
        self.assertNotIn("credits", repeated)


class Credits(WorkerCase):
    def test_stalled(self) -> None:
        self.start(lambda job: 1, concurrency=3)
        connection = self.accept_subscriber(credits=3)
        connection.push(CREDITS, {"sid": SID, "credits": 0, "reason": "STALLED"})
        self.assertEqual(connection.answer(CREDIT), {"sid": SID, "credits": 3})

    def test_job_ends_while_subscribing(self) -> None:
        finish = threading.Event()
        self.addCleanup(finish.set)
        self.start(lambda job: finish.wait(PATIENCE))
        connection = self.accept_subscriber()
        connection.push_quest(SID, beat_ms=60_000)
        connection.answer(ACK)
        connection.close()
        connection = self.node.accept()
        connection.answer(BEAT, {"jobs": [{"ok": True}]})
        rid, p = connection.expect(SUBSCRIBE)
        self.assertEqual(p["credits"], 0)
        finish.set()
        self.assertNotIn("credits", connection.answer(DONE))
        connection.send_ok(rid, {"sid": SID})
        self.assertEqual(connection.answer(CREDIT), {"sid": SID, "credits": 1})

    def test_restored(self) -> None:
        self.start(lambda job: job.cancelled.wait(PATIENCE), concurrency=2)
        connection = self.accept_subscriber(credits=2)
        token = connection.push_quest(SID, beat_ms=60_000)
        jid = connection.answer(ACK)["jid"]
        connection.push(RECALL, {"jid": jid, "tok": token, "reason": "CANCELLED", "grace_ms": 0})
        connection.push(CREDITS, {"sid": SID, "credits": 2, "reason": "RESTORED"})
        rid, p = connection.expect(DONE)
        self.assertNotIn("credits", p)  # the node has all two credits already
        connection.refuse(rid, "LEASE_LOST")


class Subscriptions(WorkerCase):
    def test_create_queues(self) -> None:
        self.start(lambda job: 1)
        connection = self.node.accept()
        rid, _ = connection.expect(SUBSCRIBE)
        connection.refuse(rid, "QUEUE_NOT_FOUND")
        self.assertEqual(connection.answer(ADDQUEUE, {"qid": str(uuid.uuid4())}), {"name": "q"})
        connection.answer(SUBSCRIBE, {"sid": SID})
        connection.push_quest(SID)
        connection.answer(ACK)
        connection.answer(DONE)

    def assert_run_raises(self, code: str) -> None:
        self.thread.join(PATIENCE)
        assert isinstance(self.error, OverhopError), self.error
        self.assertEqual(self.error.code, code)

    def test_missing_queue(self) -> None:
        self.start(lambda job: 1, create_queues=False)
        connection = self.node.accept()
        rid, _ = connection.expect(SUBSCRIBE)
        connection.refuse(rid, "QUEUE_NOT_FOUND")
        self.assert_run_raises("QUEUE_NOT_FOUND")
        self.assertIn("cannot subscribe to queue 'q'", str(self.error))

    def test_many_queues(self) -> None:
        queues = [f"q{n}" for n in range(100)]
        worker = self.start(lambda job: job.queue, queues=queues)
        connection = self.node.accept()
        requests = [connection.expect(SUBSCRIBE) for _ in range(64)]  # at a time, while none is answered
        for rid, p in requests:
            connection.send_ok(rid, {"sid": p["q"]})
        requests += [connection.expect(SUBSCRIBE) for _ in range(36)]
        for rid, p in requests[64:]:
            connection.send_ok(rid, {"sid": p["q"]})
        self.assertEqual([(p["q"], p["credits"]) for _, p in requests], [(name, 1) for name in queues])
        connection.push_quest("q99", q="q99")
        connection.answer(ACK)
        self.assertEqual(connection.answer(DONE)["result"], "q99")
        connection.close()
        connection = self.node.accept()
        for _ in range(64):
            connection.expect(SUBSCRIBE)
        worker.stop()
        connection.expect(GOODBYE)  # not a 65th SUBSCRIBE

    def test_refused_queues_are_tried_again(self) -> None:
        self.start(lambda job: job.queue, queues=["a", "b", "c"], create_queues=True)
        connection = self.node.accept()
        (a, _), (b, _), (c, _) = (connection.expect(SUBSCRIBE) for _ in range(3))
        with self.assertLogs("yardmaster") as logged:
            connection.refuse(a, "QUEUE_NOT_FOUND")
            connection.refuse(b, "UNAVAILABLE", retry_after_ms=50)
            connection.send_ok(c, {"sid": "c"})
            rid, _ = connection.expect(ADDQUEUE)
            connection.refuse(rid, "UNAVAILABLE", retry_after_ms=50)
            for _ in range(2):
                rid, p = connection.expect(SUBSCRIBE)
                connection.send_ok(rid, {"sid": p["q"]})
            for name in "abc":
                connection.push_quest(name, ord(name), q=name)
                connection.answer(ACK)
                self.assertEqual(connection.answer(DONE)["result"], name)
        refused = [line for line in logged.output if "UNAVAILABLE" in line]
        self.assertEqual([("queue a " in line, "queue b " in line) for line in sorted(refused)], [(True, False), (False, True)])

    def test_token(self) -> None:
        node = FakeNode(token="secret")
        self.addCleanup(node.close)
        self.start(lambda job: 1, [node.address], token="wrong")
        self.assert_run_raises("UNAUTHORIZED")
        self.start(lambda job: 1, [node.address], token="secret")
        self.accept_subscriber(node)

    def test_subscribe_refused_by_draining_node(self) -> None:
        other = FakeNode()
        self.addCleanup(other.close)
        self.start(lambda job: 1, [self.node.address])
        connection = self.node.accept()
        rid, _ = connection.expect(SUBSCRIBE)
        connection.refuse(rid, "DRAINING")
        self.node.accept().expect(SUBSCRIBE)  # the only node, so the worker tries it once more

    def test_no_handler(self) -> None:
        with self.assertRaisesRegex(ValueError, "no handler"):
            Worker("127.0.0.1:1").run()


class Stopping(WorkerCase):
    def test_running_jobs_finish(self) -> None:
        finish = threading.Event()
        self.addCleanup(finish.set)
        worker = self.start(lambda job: finish.wait(PATIENCE), concurrency=2)
        connection = self.accept_subscriber(credits=2)
        connection.push_quest(SID, beat_ms=60_000)
        connection.answer(ACK)
        worker.stop()
        self.assertTrue(connection.answer(GOODBYE, {"inflight": 1})["drain"])
        late = connection.push_quest(SID, 2)  # sent before the node received the GOODBYE
        self.assertEqual(connection.answer(NACK)["tok"], late)
        finish.set()
        self.assertNotIn("credits", connection.answer(DONE))
        self.assertFalse(connection.answer(GOODBYE)["drain"])
        connection.close()
        self.thread.join(PATIENCE)
        self.assertIsNone(self.error)

    def test_outcome_after_reconnect(self) -> None:
        finish = threading.Event()
        self.addCleanup(finish.set)
        worker = self.start(lambda job: finish.wait(PATIENCE))
        connection = self.accept_subscriber()
        token = connection.push_quest(SID)
        connection.answer(ACK)
        worker.stop()
        connection.answer(GOODBYE, {"inflight": 1})
        connection.close()
        connection = self.node.accept()  # reconnects without subscribing
        self.assertEqual(connection.answer(BEAT, {"jobs": [{"ok": True}]})["jobs"][0]["tok"], token)
        finish.set()
        while True:
            t, rid, p = connection.read()
            connection.send_ok(rid, {"jobs": [{"ok": True}]})
            if t == DONE:
                break
        self.assertEqual(p["tok"], token)

    def answer_until(self, connection: NodeConnection, message_type: int) -> List[Tuple[int, Payload]]:
        """Answer all messages up to the next one of a type, and return their types and payloads."""
        messages: List[Tuple[int, Payload]] = []
        while not messages or messages[-1][0] != message_type:
            t, rid, p = connection.read()
            connection.send_ok(rid, {"jobs": [{"ok": True} for _ in p.get("jobs", ())]})
            messages.append((t, p))
        return messages

    def test_unfinished_jobs_are_given_back(self) -> None:
        finish, begun = threading.Event(), threading.Semaphore(0)
        self.addCleanup(finish.set)

        def handler(job: Job[Any]) -> Any:
            begun.release()
            job.cancelled.wait(PATIENCE)
            if job.payload == 1:
                job.check()
            if job.payload == 2:
                return "just done"
            if job.payload == 3:
                raise ValueError("cannot stop")
            finish.wait(PATIENCE)
        with unittest.mock.patch("yardmaster.dispatcher._CANCEL_TIMEOUT", 1.0):
            worker = self.start(handler, concurrency=4, grace=0)
            connection = self.accept_subscriber(credits=4)
            tokens = [connection.push_quest(SID, n, beat_ms=100) for n in (1, 2, 3, 4)]
            for _ in tokens:
                connection.answer(ACK)
            for _ in tokens:  # a job that has not begun would be given back at once
                self.assertTrue(begun.acquire(timeout=PATIENCE))
            worker.stop()
            self.assertTrue(self.answer_until(connection, GOODBYE)[-1][1]["drain"])
            messages = self.answer_until(connection, GOODBYE)
        self.assertFalse(messages[-1][1]["drain"])
        outcomes = {p["tok"]: t for t, p in messages if t in (DONE, FAIL)}
        self.assertEqual(outcomes, {tokens[1]: DONE, tokens[2]: FAIL})
        self.assertEqual(self.last_beat_tokens(messages), {tokens[0], tokens[3]})  # leased until they are given back
        finish.set()
        connection.close()
        self.thread.join(PATIENCE)
        self.assertIsNone(self.error)

    def last_beat_tokens(self, messages: List[Tuple[int, Payload]]) -> Set[bytes]:
        """Return the tokens of the jobs in the last BEAT."""
        return {j["tok"] for j in [p for t, p in messages if t == BEAT][-1]["jobs"]}

    def test_stop_returns_once_handlers_have_ended(self) -> None:
        def handler(job: Job[Any]) -> Any:
            job.cancelled.wait(PATIENCE)
            job.check()
        with unittest.mock.patch("yardmaster.dispatcher._CANCEL_TIMEOUT", 10 * PATIENCE):
            worker = self.start(handler, grace=0)
            connection = self.accept_subscriber()
            connection.push_quest(SID)
            connection.answer(ACK)
            worker.stop()
            self.answer_until(connection, GOODBYE)
            messages = self.answer_until(connection, GOODBYE)
        self.assertNotIn(FAIL, [t for t, _ in messages])
        connection.close()
        self.thread.join(PATIENCE)
        self.assertIsNone(self.error)


@unittest.skipUnless(hasattr(os, "fork"), "this system does not fork")
class Forks(WorkerCase):
    def test_job_raises_in_forked_child(self) -> None:
        def handler(job: Job[Any]) -> Any:
            child = os.fork()
            if not child:
                try:
                    job.progress(1)
                except RuntimeError:
                    os._exit(7)
                finally:
                    os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self.start(handler)
        connection = self.accept_subscriber()
        connection.push_quest(SID, beat_ms=60_000)
        connection.answer(ACK)
        self.assertEqual(connection.answer(DONE)["result"], 7)

    def test_signal_ends_forked_child(self) -> None:
        worker = Worker("127.0.0.1:1")
        self.addCleanup(worker._install_signal_handlers())
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, b"!")  # a signal before this point would be lost
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                time.sleep(0.01)
            os._exit(1)
        os.read(reader, 1)
        os.close(reader)
        os.close(writer)
        os.kill(child, signal.SIGTERM)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), -signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
