"""Workers beside a node that drops lines, forgets, drains and refuses."""

import logging
import math
import os
import signal
import threading
import time
import unittest
import unittest.mock
import uuid

from fakenode import PATIENCE, FakeNode
from yardmaster import (ACK, ADDQUEUE, BEAT, CREDIT, CREDITS, DONE, DRAIN, FAIL, GOODBYE, LOG, NACK, PROGRESS, RECALL,
                        SUBSCRIBE, CancelledError, Fail, OverhopError, Retry, Worker)

SID = "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d"


class WorkerCase(unittest.TestCase):
    def setUp(self):
        logging.getLogger("yardmaster").setLevel(logging.CRITICAL)
        farewell = unittest.mock.patch("yardmaster._FAREWELL", 0.2)  # the node of a test may have gone
        farewell.start()
        self.addCleanup(farewell.stop)
        self.node = FakeNode()
        self.addCleanup(self.node.close)

    def start(self, handler, nodes=None, concurrency=1, **options):
        """A worker of the queue q, running."""
        worker = Worker(nodes or [self.node.address], **{"grace": 1, **options})
        worker.job("q", concurrency=concurrency)(handler)
        self.error = None

        def run():
            try:
                worker.run()
            except Exception as e:
                self.error = e
        thread = threading.Thread(target=run)
        thread.start()

        def stop():
            worker.stop()
            self.node.close()
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive(), "the worker does not stop")
        self.addCleanup(stop)
        self.thread = thread
        return worker

    def subscribed(self, node=None, credits=1):
        line = (node or self.node).line()
        p = line.take(SUBSCRIBE, {"sid": SID})
        self.assertEqual(p, {"q": "q", "credits": credits})
        return line


class Ends(WorkerCase):
    def test_result(self):
        self.start(lambda job: {"n": job.payload, "fence": job.fence})
        line = self.subscribed()
        token = line.quest(SID, 7)
        self.assertEqual(line.take(ACK)["tok"], token)
        p = line.take(DONE, {"status": "completed"})
        self.assertEqual((p["tok"], p["result"], p["credits"]), (token, {"n": 7, "fence": 7}, 1))

    def test_failures(self):
        def handler(job):
            if job.payload == 1:
                raise ValueError("broken \ud800")
            if job.payload == 2:
                raise Retry("later", after=1.5, code="BUSY")
            if job.payload == 3:
                raise Fail("never", code="GONE", details={"a": 1})
            if job.payload == 4:
                return 1.5
            if job.payload == 5:
                raise SystemExit(3)
            return b"x" * (9 << 20)
        self.start(handler)
        line = self.subscribed()
        for n, want in (
            (1, {"retry": True, "error": {"type": "ValueError", "message": "broken ?"}}),
            (2, {"retry": True, "retry_after_ms": 1500, "error": {"type": "retry", "message": "later", "code": "BUSY"}}),
            (3, {"retry": False, "error": {"type": "fail", "message": "never", "code": "GONE", "details": {"a": 1}}}),
            (4, {"retry": False, "error": {"type": "bad_result"}}),
            (5, {"retry": True, "error": {"type": "SystemExit"}}),
            (6, {"retry": False, "error": {"type": "result_too_large"}}),
        ):
            with self.subTest(n):
                line.quest(SID, n)
                line.take(ACK)
                p = line.take(FAIL, {"status": "failed"})
                self.assertEqual(p["credits"], 1)
                for key, value in want.items():
                    got = {k: p[key].get(k) for k in value} if key == "error" else p[key]
                    self.assertEqual(got, value)

    def test_what_cannot_be_read_fails(self):
        class Bad(Exception):
            def __str__(self):
                raise KeyboardInterrupt

        class Moving(dict):
            def __getitem__(self, key):
                raise KeyError(key)

        def handler(job):
            if job.payload <= 4:
                raise Retry("later", after=(math.inf, math.nan, 1e17, -1)[job.payload - 1])
            if job.payload == 5:
                raise Bad
            if job.payload == 6:
                return Moving(a=1)
            raise Fail("much", details="x" * (9 << 20))
        self.start(handler)
        line = self.subscribed()
        for n, want in enumerate(["ValueError"] * 4 + ["bad_end"] * 2 + ["fail"], 1):
            with self.subTest(n):
                line.quest(SID, n, beat_ms=60_000)
                line.take(ACK)
                self.assertEqual(line.take(FAIL)["error"]["type"], want)

    def test_progress_too_large_is_left_out(self):
        self.start(lambda job: job.progress(1, "x" * (9 << 20)) or job.log("y" * (9 << 20)))
        line = self.subscribed()
        line.quest(SID, beat_ms=60_000)
        line.take(ACK)
        self.assertEqual(len(line.take(LOG)["lines"][0]["msg"]), 2048)
        line.take(DONE)

    def test_no_handler_for_function(self):
        worker = self.start(lambda job: "any")
        with self.assertRaisesRegex(ValueError, "already"):
            worker.job("q")(lambda job: None)
        worker.job("q", fn="resize")(lambda job: "resized")
        del worker._queues["q"].handlers[None]
        line = self.subscribed()
        line.quest(SID, 1, fn="resize")
        line.take(ACK)
        self.assertEqual(line.take(DONE)["result"], "resized")
        with self.assertLogs("yardmaster", "WARNING") as logged:
            line.quest(SID, 2, fn="other")
            line.take(ACK)
            p = line.take(FAIL)
        self.assertRegex(logged.output[0], "names the function 'other', for which this worker has no handler")
        self.assertEqual((p["error"]["type"], p["retry"]), ("handler_not_found", False))

    def test_progress_and_log(self):
        told = threading.Event()

        def handler(job):
            job.log("half", level="warn")
            job.progress(50, {"rows": 5})
            told.wait(PATIENCE)
            with self.assertRaises(ValueError):
                job.progress(101)
        self.addCleanup(told.set)
        self.start(handler)
        line = self.subscribed()
        line.quest(SID, beat_ms=60_000)
        line.take(ACK)
        lines = line.take(LOG)["lines"]
        self.assertEqual([(x["level"], x["msg"]) for x in lines], [("warn", "half")])
        p = line.take(PROGRESS)
        self.assertEqual((p["percent"], p["data"]), (50, {"rows": 5}))
        told.set()
        self.assertIsNone(line.take(DONE)["result"])


class Leases(WorkerCase):
    def test_lost_between_done_and_its_answer(self):
        ran = []
        self.start(lambda job: ran.append(job.id) or "once")
        line = self.subscribed()
        token = line.quest(SID)
        line.take(ACK)
        line.want(DONE)
        line.drop()
        line = self.subscribed()  # room for one: the job itself is done
        p = line.take(DONE, {"status": "completed", "dup": True})
        self.assertEqual((p["tok"], p["result"], len(ran)), (token, "once", 1))
        self.assertNotIn("credits", p)

    def test_beats_do_not_wait_for_each_other(self):
        finish = threading.Event()
        self.addCleanup(finish.set)
        self.start(lambda job: job.payload == 1 or finish.wait(PATIENCE), concurrency=2)
        line = self.subscribed(credits=2)
        token = line.quest(SID, 2)
        line.take(ACK)
        line.quest(SID, 1)
        seen = []
        while seen.count(BEAT) < 3:  # a DONE is slow to commit: nothing behind it is answered
            t, rid, p = line.read()
            if t == ACK:
                line.ok(rid, {})
            elif DONE in seen and t == BEAT:
                self.assertIn(token, [j["tok"] for j in p["jobs"]])
                seen.append(t)
            elif t == DONE:
                seen.append(t)

    def test_beats_of_many_jobs_are_cut(self):
        finish = threading.Event()
        self.addCleanup(finish.set)
        self.start(lambda job: finish.wait(PATIENCE), concurrency=3)
        with unittest.mock.patch("yardmaster._MOST_BEATS", 2):
            line = self.subscribed(credits=3)
            for n in range(3):
                line.quest(SID, n + 1, beat_ms=60_000)
            for _ in range(3):
                line.take(ACK)
            sizes = [len(line.take(BEAT, {"jobs": [{"ok": True}] * 2})["jobs"]) for _ in range(2)]
        self.assertEqual(sizes, [2, 1])

    def test_resumed_on_another_node(self):
        other = FakeNode()
        self.addCleanup(other.close)
        finish = threading.Event()
        self.addCleanup(finish.set)
        ran = []

        def handler(job):
            ran.append(job.attempt)
            finish.wait(PATIENCE)
            return "kept"
        self.start(handler, [self.node.address])
        line = self.subscribed()
        token = line.quest(SID)
        line.take(ACK)
        self.assertEqual(line.take(BEAT, {"jobs": [{"ok": True}]})["jobs"][0]["tok"], token)
        line.push(DRAIN, {"reason": "node stops", "reconnect": [other.address]})
        second = self.subscribed(other, credits=0)
        beat = second.take(BEAT, {"jobs": [{"ok": False, "code": "UNAVAILABLE"}]})  # the yard is not ready for it
        line.push(RECALL, {"jid": beat["jobs"][0]["jid"], "tok": token, "reason": "SUPERSEDED", "grace_ms": 0})
        self.assertEqual(second.take(BEAT, {"jobs": [{"ok": True}]}), beat)
        line.closed()  # nothing is left there
        finish.set()
        while True:
            t, rid, p = second.read()
            if t == DONE:
                break
            second.ok(rid, {"jobs": [{"ok": True}]})
        second.ok(rid, {"status": "completed"})
        self.assertEqual((p["tok"], p["result"], p["credits"], ran), (token, "kept", 1, [1]))

    def test_unacknowledged_is_acknowledged_again(self):
        finish = threading.Event()
        self.addCleanup(finish.set)
        self.start(lambda job: finish.wait(PATIENCE))
        line = self.subscribed()
        token = line.quest(SID)
        line.want(ACK)
        line.drop()
        line = self.subscribed(credits=0)
        rid, p = line.want(ACK)
        line.refuse(rid, "UNAVAILABLE", retry_after_ms=100)
        self.assertEqual(p["tok"], token)
        line.take(ACK)
        finish.set()
        self.assertEqual(line.take(DONE)["tok"], token)

    def test_same_quest_twice_runs_once(self):
        finish = threading.Event()
        self.addCleanup(finish.set)
        ran = []
        self.start(lambda job: ran.append(1) or finish.wait(PATIENCE))
        line = self.subscribed()
        for _ in range(2):
            token = line.quest(SID, beat_ms=60_000)
            self.assertEqual(line.take(ACK)["tok"], token)
        finish.set()
        self.assertEqual(line.take(DONE)["credits"], 1)
        self.assertEqual(ran, [1])

    def test_lease_lost(self):
        seen = []

        def handler(job):
            if job.payload == 2:
                return
            job.cancelled.wait(PATIENCE)
            seen.append(job.cancel_reason)
            job.progress(1)
        self.start(handler)
        line = self.subscribed()
        line.quest(SID)
        line.take(ACK)
        line.take(BEAT, {"jobs": [{"ok": False, "code": "LEASE_LOST"}]})
        rid, p = line.want(FAIL)
        self.assertEqual((p["error"]["type"], seen), ("cancelled", ["LEASE_LOST"]))
        line.refuse(rid, "LEASE_LOST")
        line.quest(SID, 2)  # it goes on with the next
        line.take(ACK)
        line.take(DONE)

    def test_recall(self):
        def handler(job):
            job.cancelled.wait(PATIENCE)
            raise CancelledError(job.cancel_reason)
        self.start(handler)
        line = self.subscribed()
        token = line.quest(SID, beat_ms=60_000)
        jid = line.take(ACK)["jid"]
        line.push(RECALL, {"jid": jid, "tok": token, "reason": "CANCELLED", "grace_ms": 2000})
        self.assertEqual(line.take(FAIL)["error"], {"message": "CANCELLED", "type": "cancelled"})

    def test_unavailable_end_is_told_again(self):
        self.start(lambda job: 1)
        line = self.subscribed()
        line.quest(SID)
        line.take(ACK)
        rid, first = line.want(DONE)
        line.refuse(rid, "UNAVAILABLE", retry_after_ms=50)
        again = line.take(DONE, {"status": "completed"})
        self.assertEqual(again["tok"], first["tok"])
        self.assertNotIn("credits", again)


class Credits(WorkerCase):
    def test_stalled(self):
        self.start(lambda job: 1, concurrency=3)
        line = self.subscribed(credits=3)
        line.push(CREDITS, {"sid": SID, "credits": 0, "reason": "STALLED"})
        self.assertEqual(line.take(CREDIT), {"sid": SID, "credits": 3})

    def test_restored(self):
        self.start(lambda job: job.cancelled.wait(PATIENCE), concurrency=2)
        line = self.subscribed(credits=2)
        token = line.quest(SID, beat_ms=60_000)
        jid = line.take(ACK)["jid"]
        line.push(RECALL, {"jid": jid, "tok": token, "reason": "CANCELLED", "grace_ms": 0})
        line.push(CREDITS, {"sid": SID, "credits": 2, "reason": "RESTORED"})
        rid, p = line.want(DONE)
        self.assertNotIn("credits", p)  # the node holds two already
        line.refuse(rid, "LEASE_LOST")


class Setup(WorkerCase):
    def test_makes_queue(self):
        self.start(lambda job: 1, create_queues=True)
        line = self.node.line()
        rid, _ = line.want(SUBSCRIBE)
        line.refuse(rid, "QUEUE_NOT_FOUND")
        self.assertEqual(line.take(ADDQUEUE, {"qid": str(uuid.uuid4())}), {"name": "q"})
        line.take(SUBSCRIBE, {"sid": SID})
        line.quest(SID)
        line.take(ACK)
        line.take(DONE)

    def ends_with(self, code):
        self.thread.join(PATIENCE)
        self.assertIsInstance(self.error, OverhopError)
        self.assertEqual(self.error.code, code)

    def test_missing_queue(self):
        self.start(lambda job: 1)
        line = self.node.line()
        rid, _ = line.want(SUBSCRIBE)
        line.refuse(rid, "QUEUE_NOT_FOUND")
        self.ends_with("QUEUE_NOT_FOUND")

    def test_token(self):
        node = FakeNode(token="secret")
        self.addCleanup(node.close)
        self.start(lambda job: 1, [node.address], token="wrong")
        self.ends_with("UNAUTHORIZED")
        self.start(lambda job: 1, [node.address], token="secret")
        self.subscribed(node)

    def test_draining_node_is_left(self):
        other = FakeNode()
        self.addCleanup(other.close)
        self.start(lambda job: 1, [self.node.address])
        line = self.node.line()
        rid, _ = line.want(SUBSCRIBE)
        line.refuse(rid, "DRAINING")
        self.node.line().want(SUBSCRIBE)  # it has no other, and tries again

    def test_no_handler(self):
        with self.assertRaisesRegex(ValueError, "no handler"):
            Worker("127.0.0.1:1").run()


class Leaving(WorkerCase):
    def test_finishes_what_it_has(self):
        finish = threading.Event()
        self.addCleanup(finish.set)
        worker = self.start(lambda job: finish.wait(PATIENCE), concurrency=2)
        line = self.subscribed(credits=2)
        line.quest(SID, beat_ms=60_000)
        line.take(ACK)
        worker.stop()
        self.assertTrue(line.take(GOODBYE, {"inflight": 1})["drain"])
        late = line.quest(SID, 2)  # crossed the GOODBYE
        self.assertEqual(line.take(NACK)["tok"], late)
        finish.set()
        self.assertNotIn("credits", line.take(DONE))
        self.assertFalse(line.take(GOODBYE)["drain"])
        line.drop()
        self.thread.join(PATIENCE)
        self.assertIsNone(self.error)

    def test_ends_are_told_to_the_last(self):
        finish = threading.Event()
        self.addCleanup(finish.set)
        worker = self.start(lambda job: finish.wait(PATIENCE))
        line = self.subscribed()
        token = line.quest(SID)
        line.take(ACK)
        worker.stop()
        line.take(GOODBYE, {"inflight": 1})
        line.drop()
        line = self.node.line()  # comes back without subscribing
        self.assertEqual(line.take(BEAT, {"jobs": [{"ok": True}]})["jobs"][0]["tok"], token)
        finish.set()
        while True:
            t, rid, p = line.read()
            line.ok(rid, {"jobs": [{"ok": True}]})
            if t == DONE:
                break
        self.assertEqual(p["tok"], token)

    def until(self, line, t):
        """Answers what the worker says, up to its next t; gives all of it."""
        said = []
        while not said or said[-1][0] != t:
            got, rid, p = line.read()
            line.ok(rid, {"jobs": [{"ok": True} for _ in p.get("jobs", ())]})
            said.append((got, p))
        return said

    def test_what_has_not_ended_is_given_back(self):
        finish, begun = threading.Event(), threading.Semaphore(0)
        self.addCleanup(finish.set)

        def handler(job):
            begun.release()
            job.cancelled.wait(PATIENCE)
            if job.payload == 1:
                job.check()
            if job.payload == 2:
                return "just done"
            if job.payload == 3:
                raise ValueError("cannot stop")
            finish.wait(PATIENCE)
        with unittest.mock.patch("yardmaster._LAST_WORD", 1.0):
            worker = self.start(handler, concurrency=4, grace=0)
            line = self.subscribed(credits=4)
            tokens = [line.quest(SID, n, beat_ms=100) for n in (1, 2, 3, 4)]
            for _ in tokens:
                line.take(ACK)
            for _ in tokens:  # what has not begun is given back at once
                self.assertTrue(begun.acquire(timeout=PATIENCE))
            worker.stop()
            self.assertTrue(self.until(line, GOODBYE)[-1][1]["drain"])
            said = self.until(line, GOODBYE)
        self.assertFalse(said[-1][1]["drain"])
        ends = {p["tok"]: t for t, p in said if t in (DONE, FAIL)}
        self.assertEqual(ends, {tokens[1]: DONE, tokens[2]: FAIL})
        self.assertEqual(self.beaten(said), {tokens[0], tokens[3]})  # kept until they are given back
        finish.set()
        line.drop()
        self.thread.join(PATIENCE)
        self.assertIsNone(self.error)

    def beaten(self, said):
        """The jobs in the last BEAT."""
        return {j["tok"] for j in [p for t, p in said if t == BEAT][-1]["jobs"]}

    def test_nothing_is_left_to_wait_for(self):
        def handler(job):
            job.cancelled.wait(PATIENCE)
            job.check()
        with unittest.mock.patch("yardmaster._LAST_WORD", 10 * PATIENCE):
            worker = self.start(handler, grace=0)
            line = self.subscribed()
            line.quest(SID)
            line.take(ACK)
            worker.stop()
            self.until(line, GOODBYE)
            said = self.until(line, GOODBYE)
        self.assertNotIn(FAIL, [t for t, _ in said])
        line.drop()
        self.thread.join(PATIENCE)
        self.assertIsNone(self.error)


@unittest.skipUnless(hasattr(os, "fork"), "this system does not fork")
class Forks(WorkerCase):
    def test_child_of_a_handler_is_told_so(self):
        def handler(job):
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
        line = self.subscribed()
        line.quest(SID, beat_ms=60_000)
        line.take(ACK)
        self.assertEqual(line.take(DONE)["result"], 7)

    def test_child_of_a_handler_hears_signals(self):
        worker = Worker("127.0.0.1:1")
        self.addCleanup(worker._catch_signals())
        heard, bell = os.pipe()
        child = os.fork()
        if not child:
            os.write(bell, b"!")  # Python forgets signals that come before
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                time.sleep(0.01)
            os._exit(1)
        os.read(heard, 1)
        os.close(heard)
        os.close(bell)
        os.kill(child, signal.SIGTERM)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), -signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
