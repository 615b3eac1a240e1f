"""Tests of AsyncClient, of enqueue_many and of the yard's API, with a node that the test scripts."""

import asyncio
import json
import threading
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, List, TypeVar

import yardmaster
from yardmaster import (ApiError, AsyncClient, Client, ConnectionLost, InvalidPayload, NewJob, NotSupported, QueueNotFound, Unavailable)
from yardmaster.pipeline import WINDOW
from yardmaster.protocol import API, AWAIT, ENQUEUE, JOBEND, LSJOB, QSTATS, STATUS

from .fakenode import PATIENCE, FakeNode, NodeConnection

T = TypeVar("T")
JID = "q:0190a5b2-0000-7000-8000-000000000001"


@yardmaster.kind("send_mail", queue="q")
@dataclass
class SendMail:
    to: str


class AsyncCase(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.node = FakeNode()
        self.addCleanup(self.node.close)
        self.client = AsyncClient(self.node.address, timeout=PATIENCE)
        self.addAsyncCleanup(self.client.close)

    async def node_does(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Let the node do something that blocks, in another thread."""
        return await asyncio.get_running_loop().run_in_executor(None, lambda: call(*args, **options))

    def start(self, call: "Awaitable[T]") -> "asyncio.Future[T]":
        return asyncio.ensure_future(call)


class Calls(AsyncCase):
    async def test_many_calls_share_a_connection(self) -> None:
        calls = [self.start(self.client.enqueue("q", n)) for n in range(50)]
        connection = await self.node_does(self.node.accept)

        def answer() -> None:
            requests = [connection.expect(ENQUEUE) for _ in calls]
            for rid, p in reversed(requests):
                connection.send_ok(rid, {"jid": f"q:{p['job_payload']}"})
        await self.node_does(answer)
        self.assertEqual(await asyncio.gather(*calls), [f"q:{n}" for n in range(50)])

    async def test_result_after_reconnect(self) -> None:
        call = self.start(self.client.result(JID, returns=SendMail))
        connection = await self.node_does(self.node.accept)
        await self.node_does(connection.answer, AWAIT, {"pending": True})
        connection.close()
        connection = await self.node_does(self.node.accept)
        await self.node_does(connection.answer, AWAIT, {"pending": True})
        connection.push(JOBEND, {"jid": JID, "status": "completed", "attempts": 1, "result": {"to": "ann"}, "error": None})
        self.assertEqual(await call, SendMail("ann"))

    async def test_cancelled_call_leaves_the_connection(self) -> None:
        first, second = self.start(self.client.stats("q")), self.start(self.client.stats("q"))
        connection = await self.node_does(self.node.accept)
        rids = [(await self.node_does(connection.expect, QSTATS))[0] for _ in range(2)]
        first.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await first
        for rid in rids:
            connection.send_ok(rid, {"stats": {"new": 1}})
        self.assertEqual(await second, {"new": 1})

    async def test_timeout(self) -> None:
        client = AsyncClient(self.node.address, timeout=0.2)
        self.addAsyncCleanup(client.close)
        with self.assertRaisesRegex(TimeoutError, "did not answer within"):
            await client.node_status()
        with self.assertRaises(TimeoutError):
            await client.result(JID, timeout=0.01)

    async def test_closed(self) -> None:
        async with AsyncClient(self.node.address) as client:
            call = self.start(client.node_status())
            await self.node_does((await self.node_does(self.node.accept)).expect, STATUS)
        with self.assertRaises(ConnectionLost):
            await call
        with self.assertRaisesRegex(ConnectionLost, "closed"):
            await client.node_status()

    async def test_pages(self) -> None:
        async def read() -> List[Any]:
            with self.assertWarns(DeprecationWarning):
                jobs = self.client.jobs("q", "failed", page_size=2)
            return [job["jid"] async for job in jobs]
        call = self.start(read())
        connection = await self.node_does(self.node.accept)
        for page, jids in ((1, ["a", "b"]), (2, ["c"])):
            request = await self.node_does(connection.answer, LSJOB, {"jobs": [{"jid": jid} for jid in jids]})
            self.assertEqual(request, {"q": "q", "status": "failed", "page": page, "page_size": 2})
        self.assertEqual(await call, ["a", "b", "c"])

    async def test_delay_depends_on_no_clock(self) -> None:
        call = self.start(self.client.enqueue("q", delay=90))
        connection = await self.node_does(self.node.accept)
        request = await self.node_does(connection.answer, ENQUEUE, {"jid": JID})  # it has answered a PING with 2026-01-01T00:00:00Z
        self.assertEqual(request["delay_ms"], 90_000)
        self.assertRegex(request["scheduled_at"], r"^2026-01-01T00:01:(29|3\d)")  # for nodes of older releases
        await call

    async def test_client_of_several_loops(self) -> None:
        client = self.client

        async def stats() -> Any:
            return await client.stats("q")
        with ThreadPoolExecutor() as threads:
            calls = [threads.submit(asyncio.run, stats()) for _ in range(2)]
            connection = await self.node_does(self.node.accept)
            for _ in calls:
                await self.node_does(connection.answer, QSTATS, {"stats": {"new": 1}})
            self.assertEqual([call.result() for call in calls], [{"new": 1}] * 2)


class Many(unittest.TestCase):
    def setUp(self) -> None:
        self.node = FakeNode()
        self.addCleanup(self.node.close)
        self.client = Client(self.node.address, timeout=PATIENCE)
        self.addCleanup(self.client.close)
        self.threads = ThreadPoolExecutor(2)
        self.addCleanup(self.threads.shutdown)

    def answer(self, connection: NodeConnection, count: int) -> List[str]:
        """Accept ENQUEUEs and return their keys."""
        keys = []
        for _ in range(count):
            rid, p = connection.expect(ENQUEUE)
            keys.append(p["key"])
            connection.send_ok(rid, {"jid": f"q:{p['key']}"})
        return keys

    def test_window(self) -> None:
        future = self.threads.submit(self.client.enqueue_many, [NewJob("q", n, key=str(n)) for n in range(WINDOW + 2)])
        connection = self.node.accept()
        requests = [connection.expect(ENQUEUE) for _ in range(WINDOW)]
        connection.sock.settimeout(0.2)
        with self.assertRaises(OSError):  # the next waits for an answer
            connection.read()
        connection.sock.settimeout(PATIENCE)
        for rid, p in requests:
            connection.send_ok(rid, {"jid": p["key"]})
        self.answer(connection, 2)
        self.assertEqual([answer.jid for answer in future.result(PATIENCE)][:3], ["0", "1", "2"])

    def test_each_has_its_answer(self) -> None:
        client = Client(self.node.address, create_queues=False, timeout=PATIENCE)
        self.addCleanup(client.close)
        future = self.threads.submit(client.enqueue_many, [SendMail("ann"), NewJob("none"), NewJob("q", b"x" * (9 << 20)), SendMail("bob")])
        connection = self.node.accept()
        for _ in range(3):
            rid, p = connection.expect(ENQUEUE)
            if p["q"] == "none":
                connection.refuse(rid, "QUEUE_NOT_FOUND")
            elif p["job_payload"] == {"to": "bob"}:
                connection.refuse(rid, "INVALID_JOB_PAYLOAD", path="/to")
            else:
                connection.send_ok(rid, {"jid": JID})
        first, missing, large, invalid = future.result(PATIENCE)
        self.assertEqual((first.jid, first.error), (JID, None))
        self.assertIsInstance(missing.error, QueueNotFound)
        self.assertIsInstance(large.error, yardmaster.MessageTooLarge)
        assert isinstance(invalid.error, InvalidPayload)
        self.assertEqual(invalid.error.path, "/to")

    def test_rest_is_repeated_elsewhere_under_the_same_keys(self) -> None:
        future = self.threads.submit(self.client.enqueue_many, [NewJob("q", n) for n in range(10)])
        connection = self.node.accept()
        accepted = self.answer(connection, 4)
        lost = [connection.expect(ENQUEUE)[1]["key"] for _ in range(6)]
        connection.close()
        connection = self.node.accept()
        rid, p = connection.expect(ENQUEUE)
        self.assertEqual(p["key"], lost[0])
        connection.refuse(rid, "UNAVAILABLE", retry_after_ms=50)
        rest = [connection.expect(ENQUEUE)[1]["key"] for _ in range(5)]  # sent before the refusal arrived
        self.assertEqual(rest, lost[1:])
        for n in range(2, 7):
            connection.refuse(str(int(rid) + n - 1), "UNAVAILABLE", retry_after_ms=50)
        self.assertEqual(self.answer(connection, 6), lost)
        self.assertEqual([answer.jid for answer in future.result(PATIENCE)], [f"q:{key}" for key in accepted + lost])

    def test_unavailable_until_the_timeout(self) -> None:
        client = Client(self.node.address, timeout=0.5)
        self.addCleanup(client.close)
        many, one = self.threads.submit(client.enqueue_many, [NewJob("q")]), self.threads.submit(client.enqueue, "q")
        connection = self.node.accept()

        def refuse() -> None:
            try:
                while True:
                    rid, _ = connection.expect(ENQUEUE)
                    connection.refuse(rid, "UNAVAILABLE", retry_after_ms=150)
            except (OSError, EOFError):
                pass
        threading.Thread(target=refuse, daemon=True).start()
        error = many.result(PATIENCE)[0].error
        with self.assertRaises(Unavailable) as raised:
            one.result(PATIENCE)
        for e in (error, raised.exception):
            assert isinstance(e, Unavailable)
            self.assertEqual(e.retry_after, 0.15)

    def test_nothing_is_sent_if_a_job_is_wrong(self) -> None:
        with self.assertRaisesRegex(ValueError, "key is ''"):
            self.client.enqueue_many([NewJob("q"), NewJob("q", key="")])
        self.assertEqual(self.client.enqueue_many([]), [])


class Api(AsyncCase):
    async def test_operation(self) -> None:
        call = self.start(self.client.explain(JID))
        connection = await self.node_does(self.node.accept)
        request = await self.node_does(connection.answer, API, {"reply_json": b'{"verdict":"It waits.","n":18446744073709551616}'})
        self.assertEqual((request["op"], json.loads(request["request_json"])), ("job.explain", {"id": JID}))
        self.assertEqual(await call, {"verdict": "It waits.", "n": 2**64})

    async def test_refusal(self) -> None:
        call = self.start(self.client.cron_entry("none"))
        connection = await self.node_does(self.node.accept)
        rid, _ = await self.node_does(connection.expect, API)
        connection.refuse(rid, "API_ERROR", status=404, data_json=b'{"id":1.5}')
        with self.assertRaises(ApiError) as raised:
            await call
        self.assertEqual((raised.exception.status, raised.exception.data), (404, {"id": 1.5}))

    async def test_repeated_removal_was_executed(self) -> None:
        call = self.start(self.client.remove_cron("nightly"))
        connection = await self.node_does(self.node.accept)
        await self.node_does(connection.expect, API)
        connection.close()
        connection = await self.node_does(self.node.accept)
        rid, _ = await self.node_does(connection.expect, API)
        connection.refuse(rid, "API_ERROR", status=404)
        await call

    async def test_schema(self) -> None:
        call = self.start(self.client.set_schema(SendMail, warn=True))
        connection = await self.node_does(self.node.accept)
        request = json.loads((await self.node_does(connection.answer, API, {"reply_json": b'{"version":1}'}))["request_json"])
        self.assertEqual(request, {"queue": "q", "function": "send_mail", "schema": yardmaster.schema(SendMail), "warn": True})
        self.assertEqual(await call, {"version": 1})

    async def test_pages(self) -> None:
        async def read() -> List[Any]:
            return [letter["letter"] async for letter in self.client.dead_letters(queue="q")]
        call = self.start(read())
        connection = await self.node_does(self.node.accept)
        first = await self.node_does(connection.answer, API, {"reply_json": b'{"letters":[{"letter":1}],"next":2,"until":9}'})
        second = await self.node_does(connection.answer, API, {"reply_json": b'{"letters":[{"letter":5}],"until":9}'})
        self.assertEqual(json.loads(first["request_json"]), {"queue": "q", "limit": 100})
        self.assertEqual(json.loads(second["request_json"]), {"queue": "q", "limit": 100, "from": 2, "until": 9})
        self.assertEqual(await call, [1, 5])

    async def test_older_node(self) -> None:
        node = FakeNode(caps=["json"])
        self.addCleanup(node.close)
        async with AsyncClient(node.address, timeout=PATIENCE) as client:
            with self.assertRaisesRegex(NotSupported, "no API over Overhop"):
                await client.retention()


class Clocks(unittest.TestCase):
    def test_only_monotonic_time_decides(self) -> None:
        node = FakeNode()
        self.addCleanup(node.close)
        client = Client(node.address, timeout=PATIENCE)
        self.addCleanup(client.close)
        with ThreadPoolExecutor(1) as threads, unittest.mock.patch("time.time", lambda: 4e9):  # the wall clock jumps
            future = threads.submit(client.result, JID, 5.0)
            connection = node.accept()
            self.assertGreater(connection.answer(AWAIT, {"pending": True})["timeout_ms"], 4000)
            with unittest.mock.patch("time.time", lambda: 0.0):
                connection.push(JOBEND, {"jid": JID, "status": "completed", "result": 1})
                self.assertEqual(future.result(PATIENCE), 1)


if __name__ == "__main__":
    unittest.main()
