"""Tests of Client with a node that closes connections, is unavailable, drains and refuses."""

import math
import os
import unittest
from dataclasses import dataclass
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Tuple

import yardmaster
from .fakenode import PATIENCE, FakeNode, NodeConnection
from yardmaster import Client, CodecError, ConnectionLost, JobCancelled, JobFailed, MessageTooLarge, NewJob, OverhopError, PayloadError, encode
from yardmaster.protocol import (ADDQUEUE, AWAIT, CANCEL, CLRQUEUE, CONTENT, DRAIN, ENQUEUE, JOB, JOBEND, LSJOB, LSQUEUE, PAUSE, QSTATS, RMQUEUE, SETJOB,
                                 SETQUEUE, STATUS)

JID = "q:0190a5b2-0000-7000-8000-000000000001"


@yardmaster.kind("greet", queue="q")
@dataclass
class Greet(yardmaster.Returns["Greeting"]):
    name: str


@yardmaster.kind("greet_again", queue="q")
@dataclass
class Inherited(Greet):
    pass


@dataclass
class Greeting:
    text: str


class OldNames(unittest.TestCase):
    def test_warning_is_at_the_call(self) -> None:
        client = Client("127.0.0.1:1", timeout=0.01)
        self.addCleanup(client.close)
        for name, arguments in (("job", ("q:1",)), ("jobs", ("q", "failed")), ("jobs_page", ("q", "failed")), ("search_jobs", ()), ("configure_queue", ("q",)), ("status", ())):
            with self.subTest(name), self.assertWarnsRegex(DeprecationWarning, rf"^{name}\(\) is deprecated: call ") as warned:
                try:
                    list(getattr(client, name)(*arguments))
                except (OSError, TimeoutError):
                    pass
            self.assertEqual(warned.filename, __file__)


class ClientCase(unittest.TestCase):
    def setUp(self) -> None:
        self.node = FakeNode()
        self.addCleanup(self.node.close)
        self.client = Client(self.node.address, timeout=PATIENCE)
        self.addCleanup(self.client.close)
        self.executor = ThreadPoolExecutor(16)
        self.addCleanup(self.executor.shutdown)

    def submit(self, call: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
        """Call a function in another thread and return its future."""
        return self.executor.submit(call, *args, **options)


class Jobs(ClientCase):
    def test_enqueue_repeats_with_same_key(self) -> None:
        future = self.submit(self.client.enqueue, "q", {"n": 2**63 - 1, "b": b"\xff"})
        connection = self.node.accept()
        _, first = connection.expect(ENQUEUE)
        connection.close()
        connection = self.node.accept()
        rid, second = connection.expect(ENQUEUE)
        self.assertEqual(second, first)
        self.assertEqual(first["job_payload"], {"n": 2**63 - 1, "b": b"\xff"})
        connection.refuse(rid, "UNAVAILABLE", retry_after_ms=50)
        self.assertEqual(connection.answer(ENQUEUE, {"jid": JID}), first)
        self.assertEqual(future.result(PATIENCE), JID)

    def test_enqueue_options(self) -> None:
        future = self.submit(self.client.enqueue, "q", None, "resize", at=datetime(2030, 1, 1, tzinfo=timezone.utc), max_attempts=3,
                         retry_interval=1.5, timeout=60, retry_on_timeout=True, priority=9, key="order-1", unique_key="u", unique_ttl=10,
                         rate_limit_key="r", rate_limit=0.5, trace={"a": "b"})
        p = self.node.accept().answer(ENQUEUE, {"jid": JID})
        self.assertEqual(p, {
            "q": "q", "job_payload": None, "fn": "resize", "scheduled_at": "2030-01-01T00:00:00.000000+00:00", "max_attempts": 3,
            "retry_interval_ms": 1500, "timeout_ms": 60_000, "retry_on_timeout": True, "priority": 9, "key": "order-1", "unique_key": "u",
            "unique_ttl_ms": 10_000, "rate_limit_key": "r", "rate_limit_ms": 500, "trace": {"a": "b"},
        })
        future.result(PATIENCE)

    def test_debounce_with_generated_key(self) -> None:
        future = self.submit(self.client.enqueue, "q", debounce_key="d", debounce=2)
        p = self.node.accept().answer(ENQUEUE, {"jid": JID})
        self.assertRegex(p.pop("key"), "^auto-[0-9a-f]{32}$")  # not a plain UUID, which the node would use as the job's id
        self.assertEqual(p, {"q": "q", "job_payload": None, "debounce_key": "d", "debounce_ms": 2000})
        future.result(PATIENCE)

    def test_limits_tags_meta_and_expiry(self) -> None:
        future = self.submit(self.client.enqueue, "q", key="k", limit_key="acme", limits={"stripe": "", "smtp": "eu"}, tags=("red", "blue"),
                             meta={"order": "7"}, expires_in=timedelta(minutes=1))
        p = self.node.accept().answer(ENQUEUE, {"jid": JID})
        self.assertEqual(p, {
            "q": "q", "job_payload": None, "key": "k", "limit_key": "acme", "limits": {"stripe": "", "smtp": "eu"}, "tags": ["red", "blue"],
            "meta": {"order": "7"}, "expires_in_ms": 60_000,
        })
        future.result(PATIENCE)

    def test_call_takes_the_options_of_enqueue(self) -> None:
        future = self.submit(self.client.call, "q", 1, "f", priority=9, timeout=60, unique_key="u", tags=["a"], key="k", wait=PATIENCE)
        connection = self.node.accept()
        self.assertEqual(connection.answer(ENQUEUE, {"jid": JID}), {
            "q": "q", "job_payload": 1, "fn": "f", "priority": 9, "timeout_ms": 60_000, "unique_key": "u", "tags": ["a"], "key": "k"})
        self.assertLessEqual(connection.answer(AWAIT, {"status": "completed", "result": 7})["timeout_ms"], PATIENCE * 1000)
        self.assertEqual(future.result(PATIENCE), 7)
        with self.assertRaisesRegex(ValueError, "options in the NewJob"):
            self.client.call(NewJob("q"), priority=1)

    def test_call_decodes_the_result_that_the_class_names(self) -> None:
        def greet() -> Greeting:
            return self.client.call(Greet("ann"), wait=PATIENCE, key="k")

        def wrong() -> int:
            return self.client.call(Greet("ann"), wait=PATIENCE)  # type: ignore[return-value]

        def raw() -> Any:
            return self.client.call(Greet("ann"), wait=PATIENCE, returns=object)

        def new() -> Any:
            return self.client.call(NewJob(Inherited("ann")), wait=PATIENCE)
        plain = {"text": "hello ann"}
        future = self.submit(greet)
        connection = self.node.accept()
        for call, want in ((greet, Greeting("hello ann")), (wrong, Greeting("hello ann")), (raw, plain), (new, Greeting("hello ann"))):
            if call is not greet:
                future = self.submit(call)
            self.assertEqual(connection.answer(ENQUEUE, {"jid": JID})["job_payload"], {"name": "ann"})
            connection.answer(AWAIT, {"status": "completed", "result": plain})
            self.assertEqual(future.result(PATIENCE), want)
        future = self.submit(greet)
        connection.answer(ENQUEUE, {"jid": JID})
        connection.answer(AWAIT, {"status": "completed", "result": {"text": 5}})
        with self.assertRaisesRegex(PayloadError, "/text: must be text, not 5"):
            future.result(PATIENCE)

    def test_missing_queue_is_created(self) -> None:
        future = self.submit(self.client.enqueue, "new", 1)
        connection = self.node.accept()
        rid, first = connection.expect(ENQUEUE)
        connection.refuse(rid, "QUEUE_NOT_FOUND")
        rid, p = connection.expect(ADDQUEUE)
        self.assertEqual(p, {"name": "new"})
        connection.refuse(rid, "DUPLICATE_QUEUE")  # another client was faster
        self.assertEqual(connection.answer(ENQUEUE, {"jid": JID}), first)
        self.assertEqual(future.result(PATIENCE), JID)
        future = self.submit(self.client.enqueue, "new", 1)
        rid, _ = connection.expect(ENQUEUE)
        connection.refuse(rid, "QUEUE_NOT_FOUND")
        rid, _ = connection.expect(ADDQUEUE)
        connection.refuse(rid, "INVALID_QUEUE_NAME")
        with self.assertRaisesRegex(OverhopError, "INVALID_QUEUE_NAME"):
            future.result(PATIENCE)

    def test_missing_queues_of_many_jobs_are_created(self) -> None:
        future = self.submit(self.client.enqueue_many, [NewJob(name, n) for n, name in enumerate(["old", "b", "a", "b", "bad"])])
        connection = self.node.accept()
        for rid, p in [connection.expect(ENQUEUE) for _ in range(5)]:
            if p["q"] == "old":
                connection.send_ok(rid, {"jid": "old"})
            else:
                connection.refuse(rid, "QUEUE_NOT_FOUND")
        self.assertEqual([connection.answer(ADDQUEUE)["name"] for _ in range(2)], ["a", "b"])
        rid, _ = connection.expect(ADDQUEUE)
        connection.refuse(rid, "SYSTEM_QUEUE_FORBIDDEN")
        for _ in range(3):
            rid, p = connection.expect(ENQUEUE)
            connection.send_ok(rid, {"jid": f"{p['q']}{p['job_payload']}"})
        answers = future.result(PATIENCE)
        self.assertEqual([answer.jid for answer in answers], ["old", "b1", "a2", "b3", None])
        self.assertRegex(str(answers[4].error), "SYSTEM_QUEUE_FORBIDDEN")

    def test_invalid_options(self) -> None:
        cases: List[Tuple[str, Dict[str, Any]]] = [
            ("key is '': leave it out", {"key": ""}), ("key has 129 bytes, must have 1 to 128", {"key": "x" * 129}),
            ("unique_key is ' '", {"unique_key": " "}), ("go together", {"rate_limit_key": "r"}), ("go together", {"debounce": 1}),
            ("unique_ttl and unique_until need unique_key", {"unique_ttl": 1}), ("'start' or 'end'", {"unique_key": "u", "unique_until": "x"}),
            ("unique_ttl or unique_until, not both", {"unique_key": "u", "unique_until": "end", "unique_ttl": 1}),
            ("debounce is 0, must be 0.001 to 315360000 seconds", {"debounce_key": "d", "debounce": 0}),
            ("delay is -1, must be 0 to", {"delay": -1}), ("must be 0 to", {"delay": timedelta(seconds=-0.5)}),
            ("delay is nan", {"delay": math.nan}), ("delay is 1000000000000", {"delay": 1e12}), ("delay is '5'", {"delay": "5"}),
            ("priority is 10, must be an int from 0 to 9", {"priority": 10}), ("priority is True", {"priority": True}),
            ("max_attempts is 0, must be an int from 1", {"max_attempts": 0}), ("max_attempts is 1.5", {"max_attempts": 1.5}),
            ("timeout is 0, must be 0.001", {"timeout": 0}), ("retry_interval is 0", {"retry_interval": 0}),
            ("expires_in is -1", {"expires_in": -1}), ("fn has 257 bytes", {"fn": "f" * 257}),
            ("limit_key has 129 bytes", {"limit_key": "x" * 129}), ("no control characters", {"limit_key": "a\n"}),
            ("name 'a b'", {"limits": {"a b": ""}}), ("at most 8 texts", {"limits": {f"l{n}": "" for n in range(9)}}),
            ("at most 20 texts", {"tags": "red"}), ("tags.1. has 0 bytes", {"tags": ["a", ""]}), ("at most 20", {"tags": ["a"] * 21}),
            ("a name in meta has 65 bytes", {"meta": {"n" * 65: ""}}), ("meta.'a'. has 513 bytes", {"meta": {"a": "x" * 513}}),
            ("meta.'a'. is 1, must be a str", {"meta": {"a": 1}}), ("trace.'a'. is None", {"trace": {"a": None}}),
            ("does not go with", {"debounce_key": "d", "debounce": 1, "delay": 1}),
            ("does not go with", {"debounce_key": "d", "debounce": 1, "rate_limit_key": "r", "rate_limit": 1}),
        ]
        for wrong, options in cases:
            with self.subTest(options), self.assertRaisesRegex(ValueError, wrong):
                self.client.enqueue("q", **options)
        for name in ("", "a b", "-a", "_system", "x" * 129):
            with self.subTest(name), self.assertRaisesRegex(ValueError, "queue name '.*' must have 1 to 128 letters"):
                self.client.enqueue(name)
        with self.assertRaisesRegex(TypeError, "a job has no option 'prio'; it has queue, at, delay"):
            self.client.enqueue("q", **{"prio": 1})  # type: ignore[arg-type]

    def test_enqueue_refused(self) -> None:
        client = Client(self.node.address, create_queues=False)
        self.addCleanup(client.close)
        future = self.submit(client.enqueue, "nope")
        connection = self.node.accept()
        rid, _ = connection.expect(ENQUEUE)
        connection.refuse(rid, "QUEUE_NOT_FOUND")
        with self.assertRaises(OverhopError) as refused:
            future.result(PATIENCE)
        self.assertEqual(refused.exception.code, "QUEUE_NOT_FOUND")
        for bad in (1.5, {"a": 1.5, "b": b""}, {"a": float("nan")}, {"a": {1: 1.5}}, {"a": [1.5, "\ud800"]}, "x" * (9 << 20)):
            with self.assertRaises(CodecError):
                self.client.enqueue("q", bad)
        with self.assertRaisesRegex(ValueError, "not both"):
            self.client.enqueue("q", at="2030-01-01T00:00:00Z", delay=1)
        with self.assertRaisesRegex(ValueError, "zone"):
            self.client.enqueue("q", at=datetime(2030, 1, 1))

    def test_floats_and_large_ints(self) -> None:
        future = self.submit(self.client.call, "q", {"price": 19.99, "big": 2**64, "b": (True, None, "ä")})
        connection = self.node.accept()
        self.assertEqual(connection.hello["caps"], ["json", "content", "api", "snooze", "\r\n\r\n"])
        request = connection.answer(ENQUEUE, {"jid": JID})
        self.assertNotIn("job_payload", request)
        self.assertEqual(request["job_payload_json"].decode(), '{"b":[true,null,"ä"],"big":18446744073709551616,"price":19.99}')
        connection.answer(AWAIT, {"pending": True})
        connection.push(JOBEND, {"jid": JID, "status": "completed", "attempts": 1, "error": None,
                                 "result_json": b'{"price":0.1,"big":18446744073709551617,"huge":1' + b"0" * 5000 + b"}"})
        result = future.result(PATIENCE)
        self.assertIn(result.pop("huge"), (math.inf, 10**5000))  # Python may limit the digits of an int
        self.assertEqual(result, {"price": 0.1, "big": 2**64 + 1})

    def test_failure_with_json_details(self) -> None:
        future = self.submit(self.client.result, JID, timeout=PATIENCE)
        self.node.accept().answer(AWAIT, {"jid": JID, "status": "failed", "runtime": {"attempts_so_far": 2}, "result": None,
                                          "error": {"message": "no", "code": "E1", "details_json": b'{"after":1.5}'}})
        with self.assertRaises(JobFailed) as failed:
            future.result(PATIENCE)
        self.assertEqual(failed.exception.error, {"message": "no", "code": "E1", "details": {"after": 1.5}})

    def test_reason_of_a_cancellation(self) -> None:
        cases: List[Tuple[Dict[str, Any], Any]] = [
            ({"message": "job must stop", "reason": "customer left"}, "customer left"), ({"message": "customer left"}, "customer left"),
            ({"message": ""}, None),
        ]
        connection: Any = None
        for error, reason in cases:
            future = self.submit(self.client.result, JID, timeout=PATIENCE)
            connection = connection or self.node.accept()
            connection.answer(AWAIT, {"jid": JID, "status": "failed", "result": None, "error": {"type": "cancelled", **error}})
            with self.assertRaisesRegex(JobCancelled, f"was cancelled: {reason or 'no reason given'}") as failed:
                future.result(PATIENCE)
            self.assertEqual(failed.exception.reason, reason)

    def test_payload_too_large_for_all_nodes(self) -> None:
        future = self.submit(self.client.enqueue, "q", b"x" * 100_000)
        for _ in range(5):
            connection = self.node.accept()
            connection.expect(ENQUEUE)
            connection.close()
        with self.assertRaisesRegex(MessageTooLarge, "too large"):
            future.result(PATIENCE)

    def test_result_after_reconnect(self) -> None:
        future = self.submit(self.client.result, JID, timeout=PATIENCE)
        connection = self.node.accept()
        connection.answer(AWAIT, {"pending": True})
        connection.close()
        connection = self.node.accept()
        self.assertEqual(connection.answer(AWAIT, {"pending": True})["jid"], JID)
        connection.push(JOBEND, {"jid": JID, "status": "completed", "attempts": 1, "result": {"a": b"b"}, "error": None})
        self.assertEqual(future.result(PATIENCE), {"a": b"b"})
        self.assertEqual(self.client._calls._ends, {})

    def test_jobend_before_await_answer(self) -> None:
        future = self.submit(self.client.result, JID)
        connection = self.node.accept()
        rid, _ = connection.expect(AWAIT)
        connection.push(JOBEND, {"jid": JID, "status": "failed", "attempts": 2, "result": None, "error": {"message": "no", "code": "X"}})
        connection.send_ok(rid, {"pending": True})
        with self.assertRaisesRegex(JobFailed, "after 2 attempts: no") as failed:
            future.result(PATIENCE)
        self.assertEqual((failed.exception.attempts, failed.exception.error["code"]), (2, "X"))

    def send_parts(self, connection: NodeConnection, value: str, encoding: str, whole: bytes, version: str = "v") -> None:
        """Answer the CONTENTs for a value, four bytes each; the last part has another version if that is given."""
        for offset in range(0, len(whole), 4):
            data, last = whole[offset:offset + 4], offset + 4 >= len(whole)
            request = connection.answer(CONTENT, {"size": len(whole), "encoding": encoding, "data": data, "version": version if last else "v"})
            self.assertEqual(request, {"jid": JID, "value": value, "offset": offset})

    def test_result_too_large_for_a_frame(self) -> None:
        future = self.submit(self.client.result, JID)
        connection = self.node.accept()
        connection.answer(AWAIT, {"status": "completed", "attempts": 1, "result": None, "omitted": ["payload", "result"]})
        self.send_parts(connection, "result", "json", b'{"a":[1.5,18446744073709551616]}')
        self.assertEqual(future.result(PATIENCE), {"a": [1.5, 2**64]})
        future = self.submit(self.client.payload, JID)
        self.send_parts(connection, "payload", "msgpack", encode([b"\xff", "large"]))
        self.assertEqual(future.result(PATIENCE), [b"\xff", "large"])

    def test_content_that_cannot_be_read(self) -> None:
        future = self.submit(self.client.payload, JID)
        connection = self.node.accept()
        self.send_parts(connection, "payload", "json", b'"changed"', "another")
        with self.assertRaisesRegex(ConnectionLost, "has changed"):
            future.result(PATIENCE)
        future = self.submit(self.client.payload, JID)
        connection.answer(CONTENT, {"size": 9, "encoding": "json", "version": "v", "data": b""})
        with self.assertRaisesRegex(ConnectionLost, "has 9 bytes"):
            future.result(PATIENCE)
        future = self.submit(self.client.result, JID)
        connection.answer(AWAIT, {"status": "completed", "attempts": 1, "result": None, "result_gone": "result_evicted"})
        with self.assertRaisesRegex(OverhopError, "CONTENT_GONE: result_evicted"):
            future.result(PATIENCE)
        old = FakeNode(caps=["json"])
        self.addCleanup(old.close)
        with self.assertRaisesRegex(OverhopError, "RESPONSE_TOO_LARGE.*older release"):
            Client(old.address, timeout=PATIENCE).payload(JID)

    def test_job_removed_during_await(self) -> None:
        future = self.submit(self.client.result, JID)
        connection = self.node.accept()
        connection.answer(AWAIT, {"pending": True})
        connection.push(JOBEND, {"jid": JID, "status": "failed", "attempts": 0, "result": None,
                           "error": {"type": "removed", "message": "gone"}})
        with self.assertRaisesRegex(JobFailed, "was removed before it ended") as failed:
            future.result(PATIENCE)
        self.assertEqual(failed.exception.error["type"], "removed")

    def test_clear_queue_with_empty_statuses(self) -> None:
        unconnected = Client("127.0.0.1:1", timeout=0.1)
        self.assertEqual(unconnected.clear_queue("q", []), 0)
        future = self.submit(self.client.clear_queue, "q", ["failed"])
        self.assertEqual(self.node.accept().answer(CLRQUEUE, {"removed": 3}), {"q": "q", "statuses": ["failed"]})
        self.assertEqual(future.result(PATIENCE), 3)

    def test_set_queue(self) -> None:
        connection: Any = None
        for limit in (5, None):
            future = self.submit(self.client.set_queue, "q", limit=limit)
            connection = connection or self.node.accept()
            self.assertEqual(connection.answer(SETQUEUE, {}), {"q": "q", "config": {"concurrency_limit": limit}})
            future.result(PATIENCE)
        future = self.submit(self.client.set_queue, "q", retry_on_timeout=False)
        self.assertEqual(connection.answer(SETQUEUE, {}), {"q": "q", "config": {"retry_on_timeout": False}})
        future.result(PATIENCE)
        for limit in (0, -1):
            with self.assertRaisesRegex(ValueError, "limit"):
                self.client.set_queue("q", limit=limit, fair=True)

    def test_set_job(self) -> None:
        day = datetime(2030, 1, 1, tzinfo=timezone.utc)
        changes: List[Tuple[Dict[str, Any], Dict[str, Any]]] = [
            ({"delay": 0}, {"delay_ms": 0}), ({"delay": timedelta(days=1), "priority": 9}, {"delay_ms": 86_400_000, "priority": 9}),
            ({"at": day}, {"scheduled_at": "2030-01-01T00:00:00.000000+00:00"}), ({"priority": 0}, {"priority": 0}),
        ]
        connection: Any = None
        for options, sent in changes:
            future = self.submit(self.client.set_job, JID, **options)
            connection = connection or self.node.accept()
            self.assertEqual(connection.answer(SETJOB, {"status": "delayed"}), {"jid": JID, **sent})
            self.assertEqual(future.result(PATIENCE), "delayed")
        future = self.submit(self.client.set_job, JID, delay=0)
        rid, _ = connection.expect(SETJOB)
        connection.refuse(rid, "JOB_NOT_PENDING")
        with self.assertRaisesRegex(OverhopError, "JOB_NOT_PENDING"):
            future.result(PATIENCE)
        refused: List[Tuple[str, Dict[str, Any]]] = [
            ("nothing to change", {}), ("not both", {"at": day, "delay": 0}), ("delay is -1", {"delay": -1}),
            ("delay is nan", {"delay": math.nan}), ("0 to 9", {"priority": 10}), ("zone", {"at": datetime(2030, 1, 1)}),
        ]
        for wrong, options in refused:
            with self.subTest(options), self.assertRaisesRegex(ValueError, wrong):
                self.client.set_job(JID, **options)

    def test_result_timeout(self) -> None:
        future = self.submit(self.client.result, JID, timeout=0.1)
        self.assertLessEqual(self.node.accept().answer(AWAIT, {"pending": True})["timeout_ms"], 100)
        with self.assertRaisesRegex(TimeoutError, "has not ended"):
            future.result(PATIENCE)

    def test_await_rate_limited(self) -> None:
        self.check_await_repeated("RATE_LIMITED")

    def test_await_of_job_unknown_at_first(self) -> None:
        self.check_await_repeated("JOB_NOT_FOUND")

    def check_await_repeated(self, code: str) -> None:
        """Checks that the client repeats an AWAIT that is refused with this code."""
        future = self.submit(self.client.result, JID)
        connection = self.node.accept()
        rid, _ = connection.expect(AWAIT)
        connection.refuse(rid, code)
        connection.answer(AWAIT, {"status": "completed", "result": 5, "runtime": {"attempts_so_far": 1}})
        self.assertEqual(future.result(PATIENCE), 5)

    def test_threads_share_a_connection(self) -> None:
        futures = [self.submit(self.client.enqueue, "q", n) for n in range(16)]
        connection = self.node.accept()
        payloads = {}
        for _ in futures:
            rid, p = connection.expect(ENQUEUE)
            payloads[rid] = p["job_payload"]
        for rid, n in reversed(list(payloads.items())):  # answers are matched by request id, not by order
            connection.send_ok(rid, {"jid": f"q:{n}"})
        self.assertEqual([future.result(PATIENCE) for future in futures], [f"q:{n}" for n in range(16)])


class Connections(ClientCase):
    def test_drain_switches_node(self) -> None:
        other = FakeNode()
        self.addCleanup(other.close)
        future = self.submit(self.client.job, JID)
        connection = self.node.accept()
        rid, _ = connection.expect(JOB)
        connection.push(DRAIN, {"reason": "node stops", "reconnect": [other.address]})
        connection.send_ok(rid, {})
        self.assertIsNone(future.result(PATIENCE))
        future = self.submit(self.client.node_status)
        other.accept().answer(STATUS, {"application": {}})
        self.assertEqual(future.result(PATIENCE), {"application": {}})

    def test_repeated_request_was_already_executed(self) -> None:
        calls: List[Tuple[int, Callable[[str], Any], str]] = [
            (PAUSE, self.client.pause, "QUEUE_ALREADY_PAUSED"), (RMQUEUE, self.client.remove_queue, "QUEUE_NOT_FOUND"),
            (CANCEL, self.client.cancel, "JOB_ALREADY_TERMINAL"),
        ]
        for t, call, code in calls:
            with self.subTest(code):
                future = self.submit(call, "q")
                connection = self.node.accept()
                connection.expect(t)
                connection.close()
                connection = self.node.accept()
                rid, _ = connection.expect(t)
                connection.refuse(rid, code)
                future.result(PATIENCE)
                future = self.submit(call, "q")  # a first attempt raises the same code
                rid, _ = connection.expect(t)
                connection.refuse(rid, code)
                with self.assertRaises(OverhopError):
                    future.result(PATIENCE)
                connection.close()

    def test_unreachable_node(self) -> None:
        dead = FakeNode()
        dead.close()
        with self.assertRaises(ConnectionLost):
            Client(dead.address, timeout=1).ping()
        both = Client([dead.address, self.node.address], timeout=PATIENCE)
        self.addCleanup(both.close)
        future = self.submit(both.queues)
        self.node.accept().answer(LSQUEUE, {"queues": []})
        self.assertEqual(future.result(PATIENCE), [])

    def test_token(self) -> None:
        node = FakeNode(token="secret")
        self.addCleanup(node.close)
        with self.assertRaises(OverhopError) as refused:
            Client(node.address, token="wrong").ping()
        self.assertEqual(refused.exception.code, "UNAUTHORIZED")

    @unittest.skipUnless(hasattr(os, "fork"), "this system does not fork")
    def test_forked_child_opens_own_connection(self) -> None:
        future = self.submit(self.client.stats, "q")
        connection = self.node.accept()
        connection.answer(QSTATS, {"stats": {"new": 1}})
        future.result(PATIENCE)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(writer)
                correct = self.client.stats("q") == {"new": 2}
                os.read(reader, 1)
                os._exit(0 if correct else 1)
            finally:
                os._exit(2)
        os.close(reader)
        try:
            self.node.accept().answer(QSTATS, {"stats": {"new": 2}})
            self.client.close()
            connection.wait_closed()  # the child does not hold the socket open
        finally:
            os.close(writer)
            self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_close_fails_pending_calls(self) -> None:
        future = self.submit(self.client.stats, "q")
        self.node.accept().expect(QSTATS)
        self.client.close()
        with self.assertRaises(ConnectionLost):
            future.result(PATIENCE)

    def test_large_frames_both_ways(self) -> None:
        big = b"\x00" * (6 << 20)
        future = self.submit(self.client.jobs_page, "q", "x" * (1 << 20))
        p = self.node.accept().answer(LSJOB, {"jobs": [{"payload": big}]})
        self.assertEqual(len(p["status"]), 1 << 20)
        self.assertEqual(future.result(PATIENCE), [{"payload": big}])

    def test_invalid_bytes_close_connection(self) -> None:
        for data in (b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"HTTP/1.1 400 Bad Request\r\n\r\n"):
            future = self.submit(self.client.node_status)
            connection = self.node.accept()
            connection.expect(STATUS)
            connection.sock.sendall(data)
            connection.wait_closed()
            connection = self.node.accept()
            connection.answer(STATUS, {"ok": True})
            self.assertEqual(future.result(PATIENCE), {"ok": True})
            connection.close()


if __name__ == "__main__":
    unittest.main()
