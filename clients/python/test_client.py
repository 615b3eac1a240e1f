"""Producers beside a node that drops lines, cannot yet, drains and refuses."""

import os
import unittest
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

from fakenode import PATIENCE, FakeNode
from yardmaster import (AWAIT, CANCEL, CLRQUEUE, DRAIN, ENQUEUE, JOB, JOBEND, LSJOB, LSQUEUE, PAUSE, QSTATS, RMQUEUE, STATUS, Client,
                        CodecError, ConnectionLost, JobFailed, OverhopError)

JID = "q:0190a5b2-0000-7000-8000-000000000001"


class ClientCase(unittest.TestCase):
    def setUp(self):
        self.node = FakeNode()
        self.addCleanup(self.node.close)
        self.client = Client(self.node.address, timeout=PATIENCE)
        self.addCleanup(self.client.close)
        self.threads = ThreadPoolExecutor(16)
        self.addCleanup(self.threads.shutdown)

    def ask(self, call, *args, **options):
        """Calls from another thread; gives what will come of it."""
        return self.threads.submit(call, *args, **options)


class Jobs(ClientCase):
    def test_repeated_under_its_key(self):
        asked = self.ask(self.client.enqueue, "q", {"n": 2**63 - 1, "b": b"\xff"})
        line = self.node.line()
        _, first = line.want(ENQUEUE)
        line.drop()
        line = self.node.line()
        rid, second = line.want(ENQUEUE)
        self.assertEqual(second, first)
        self.assertEqual(first["job_payload"], {"n": 2**63 - 1, "b": b"\xff"})
        line.refuse(rid, "UNAVAILABLE", retry_after_ms=50)
        self.assertEqual(line.take(ENQUEUE, {"jid": JID}), first)
        self.assertEqual(asked.result(PATIENCE), JID)

    def test_options(self):
        asked = self.ask(self.client.enqueue, "q", None, "resize", at=datetime(2030, 1, 1, tzinfo=timezone.utc), max_attempts=3,
                         retry_interval=1.5, timeout=60, priority=9, key="order-1", unique_key="u", unique_ttl=10,
                         rate_limit_key="r", rate_limit=0.5, trace={"a": "b"})
        p = self.node.line().take(ENQUEUE, {"jid": JID})
        self.assertEqual(p, {
            "q": "q", "job_payload": None, "fn": "resize", "scheduled_at": "2030-01-01T00:00:00.000000+00:00", "max_attempts": 3,
            "retry_interval_ms": 1500, "timeout_ms": 60_000, "priority": 9, "key": "order-1", "unique_key": "u",
            "unique_ttl_ms": 10_000, "rate_limit_key": "r", "rate_limit_ms": 500, "trace": {"a": "b"},
        })
        asked.result(PATIENCE)

    def test_debounced_under_a_minted_key(self):
        asked = self.ask(self.client.enqueue, "q", debounce_key="d", debounce=2)
        p = self.node.line().take(ENQUEUE, {"jid": JID})
        self.assertRegex(p.pop("key"), "^auto-[0-9a-f]{32}$")  # a UUID would be taken for the job's own
        self.assertEqual(p, {"q": "q", "job_payload": None, "debounce_key": "d", "debounce_ms": 2000})
        asked.result(PATIENCE)

    def test_options_that_do_not_go_together(self):
        for wrong, options in (
            ("key is empty", {"key": ""}),
            ("go together", {"rate_limit_key": "r"}), ("go together", {"debounce": 1}),
            ("more than 0", {"debounce_key": "d", "debounce": 0}),
            ("does not go with", {"debounce_key": "d", "debounce": 1, "delay": 1}),
            ("does not go with", {"debounce_key": "d", "debounce": 1, "rate_limit_key": "r", "rate_limit": 1}),
        ):
            with self.subTest(options), self.assertRaisesRegex(ValueError, wrong):
                self.client.enqueue("q", **options)

    def test_refused(self):
        asked = self.ask(self.client.enqueue, "nope")
        line = self.node.line()
        rid, _ = line.want(ENQUEUE)
        line.refuse(rid, "QUEUE_NOT_FOUND")
        with self.assertRaises(OverhopError) as refused:
            asked.result(PATIENCE)
        self.assertEqual(refused.exception.code, "QUEUE_NOT_FOUND")
        for bad in (1.5, "x" * (9 << 20)):
            with self.assertRaises(CodecError):
                self.client.enqueue("q", bad)
        with self.assertRaisesRegex(ValueError, "not both"):
            self.client.enqueue("q", at="2030-01-01T00:00:00Z", delay=1)
        with self.assertRaisesRegex(ValueError, "zone"):
            self.client.enqueue("q", at=datetime(2030, 1, 1))

    def test_too_large_for_the_nodes(self):
        asked = self.ask(self.client.enqueue, "q", b"x" * 100_000)
        for _ in range(5):
            line = self.node.line()
            line.want(ENQUEUE)
            line.drop()
        with self.assertRaisesRegex(ConnectionLost, "too large"):
            asked.result(PATIENCE)

    def test_result_over_two_lines(self):
        asked = self.ask(self.client.result, JID, timeout=PATIENCE)
        line = self.node.line()
        line.take(AWAIT, {"pending": True})
        line.drop()
        line = self.node.line()
        self.assertEqual(line.take(AWAIT, {"pending": True})["jid"], JID)
        line.push(JOBEND, {"jid": JID, "status": "completed", "attempts": 1, "result": {"a": b"b"}, "error": None})
        self.assertEqual(asked.result(PATIENCE), {"a": b"b"})
        self.assertEqual(self.client._waiting, {})

    def test_end_before_its_answer(self):
        asked = self.ask(self.client.result, JID)
        line = self.node.line()
        rid, _ = line.want(AWAIT)
        line.push(JOBEND, {"jid": JID, "status": "failed", "attempts": 2, "result": None, "error": {"message": "no", "code": "X"}})
        line.ok(rid, {"pending": True})
        with self.assertRaisesRegex(JobFailed, "after 2 attempts: no") as failed:
            asked.result(PATIENCE)
        self.assertEqual((failed.exception.attempts, failed.exception.error["code"]), (2, "X"))

    def test_result_too_large_for_a_frame(self):
        asked = self.ask(self.client.result, JID)
        self.node.line().take(AWAIT, {"status": "completed", "attempts": 1, "result": None, "omitted": ["payload", "result"]})
        with self.assertRaisesRegex(OverhopError, "RESPONSE_TOO_LARGE"):
            asked.result(PATIENCE)

    def test_removed_while_awaited(self):
        asked = self.ask(self.client.result, JID)
        line = self.node.line()
        line.take(AWAIT, {"pending": True})
        line.push(JOBEND, {"jid": JID, "status": "failed", "attempts": 0, "result": None,
                           "error": {"type": "removed", "message": "gone"}})
        with self.assertRaisesRegex(JobFailed, "was removed before it ended") as failed:
            asked.result(PATIENCE)
        self.assertEqual(failed.exception.error["type"], "removed")

    def test_clear_of_no_status_clears_nothing(self):
        nobody = Client("127.0.0.1:1", timeout=0.1)
        self.assertEqual(nobody.clear_queue("q", []), 0)
        asked = self.ask(self.client.clear_queue, "q", ["failed"])
        self.assertEqual(self.node.line().take(CLRQUEUE, {"removed": 3}), {"q": "q", "statuses": ["failed"]})
        self.assertEqual(asked.result(PATIENCE), 3)

    def test_result_not_in_time(self):
        asked = self.ask(self.client.result, JID, timeout=0.1)
        self.assertLessEqual(self.node.line().take(AWAIT, {"pending": True})["timeout_ms"], 100)
        with self.assertRaisesRegex(TimeoutError, "has not ended"):
            asked.result(PATIENCE)

    def test_many_waits(self):
        asked = self.ask(self.client.result, JID)
        line = self.node.line()
        rid, _ = line.want(AWAIT)
        line.refuse(rid, "RATE_LIMITED")
        line.take(AWAIT, {"status": "completed", "result": 5, "runtime": {"attempts_so_far": 1}})
        self.assertEqual(asked.result(PATIENCE), 5)

    def test_unknown_at_first(self):
        asked = self.ask(self.client.result, JID)
        line = self.node.line()
        rid, _ = line.want(AWAIT)
        line.refuse(rid, "JOB_NOT_FOUND")
        line.take(AWAIT, {"status": "completed", "result": 5, "runtime": {"attempts_so_far": 1}})
        self.assertEqual(asked.result(PATIENCE), 5)

    def test_threads_share_a_line(self):
        asked = [self.ask(self.client.enqueue, "q", n) for n in range(16)]
        line = self.node.line()
        got = {}
        for _ in asked:
            rid, p = line.want(ENQUEUE)
            got[rid] = p["job_payload"]
        for rid, n in reversed(list(got.items())):  # answers find their request by its id
            line.ok(rid, {"jid": f"q:{n}"})
        self.assertEqual([a.result(PATIENCE) for a in asked], [f"q:{n}" for n in range(16)])


class Lines(ClientCase):
    def test_drain_moves_on(self):
        other = FakeNode()
        self.addCleanup(other.close)
        asked = self.ask(self.client.job, JID)
        line = self.node.line()
        rid, _ = line.want(JOB)
        line.push(DRAIN, {"reason": "node stops", "reconnect": [other.address]})
        line.ok(rid, {})
        self.assertIsNone(asked.result(PATIENCE))
        asked = self.ask(self.client.status)
        other.line().take(STATUS, {"application": {}})
        self.assertEqual(asked.result(PATIENCE), {"application": {}})

    def test_done_the_first_time(self):
        for t, call, code in (
            (PAUSE, self.client.pause, "QUEUE_ALREADY_PAUSED"), (RMQUEUE, self.client.remove_queue, "QUEUE_NOT_FOUND"),
            (CANCEL, self.client.cancel, "JOB_ALREADY_TERMINAL"),
        ):
            with self.subTest(code):
                asked = self.ask(call, "q")
                line = self.node.line()
                line.want(t)
                line.drop()
                line = self.node.line()
                rid, _ = line.want(t)
                line.refuse(rid, code)
                asked.result(PATIENCE)
                asked = self.ask(call, "q")  # but not if it was asked once
                rid, _ = line.want(t)
                line.refuse(rid, code)
                with self.assertRaises(OverhopError):
                    asked.result(PATIENCE)
                line.drop()

    def test_nobody_there(self):
        dead = FakeNode()
        dead.close()
        with self.assertRaises(ConnectionLost):
            Client(dead.address, timeout=1).ping()
        both = Client([dead.address, self.node.address], timeout=PATIENCE)
        self.addCleanup(both.close)
        asked = self.ask(both.queues)
        self.node.line().take(LSQUEUE, {"queues": []})
        self.assertEqual(asked.result(PATIENCE), [])

    def test_token(self):
        node = FakeNode(token="secret")
        self.addCleanup(node.close)
        with self.assertRaises(OverhopError) as refused:
            Client(node.address, token="wrong").ping()
        self.assertEqual(refused.exception.code, "UNAUTHORIZED")

    @unittest.skipUnless(hasattr(os, "fork"), "this system does not fork")
    def test_forked_child_connects_anew(self):
        asked = self.ask(self.client.stats, "q")
        line = self.node.line()
        line.take(QSTATS, {"stats": {"new": 1}})
        asked.result(PATIENCE)
        heard, bell = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(bell)
                good = self.client.stats("q") == {"new": 2}
                os.read(heard, 1)
                os._exit(0 if good else 1)
            finally:
                os._exit(2)
        os.close(heard)
        try:
            self.node.line().take(QSTATS, {"stats": {"new": 2}})
            self.client.close()
            line.closed()  # the child does not keep it open
        finally:
            os.close(bell)
            self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_close_ends_calls(self):
        asked = self.ask(self.client.stats, "q")
        self.node.line().want(QSTATS)
        self.client.close()
        with self.assertRaises(ConnectionLost):
            asked.result(PATIENCE)

    def test_large_frames_both_ways(self):
        big = b"\x00" * (6 << 20)
        asked = self.ask(self.client.jobs, "q", "x" * (1 << 20))
        p = self.node.line().take(LSJOB, {"jobs": [{"payload": big}]})
        self.assertEqual(len(p["status"]), 1 << 20)
        self.assertEqual(asked.result(PATIENCE), [{"payload": big}])

    def test_garbage_ends_a_line(self):
        for bytes_ in (b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
            asked = self.ask(self.client.status)
            line = self.node.line()
            line.want(STATUS)
            line.sock.sendall(bytes_)
            line.closed()
            line = self.node.line()
            line.take(STATUS, {"fine": True})
            self.assertEqual(asked.result(PATIENCE), {"fine": True})
            line.drop()


if __name__ == "__main__":
    unittest.main()
