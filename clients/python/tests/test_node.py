"""Tests with a real node, which is killed, too. They need YARD_BIN."""

import asyncio
import collections
import shutil
import ssl
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Counter, Dict, List, Optional, Tuple

import yardmaster
from yardmaster import (AsyncClient, Client, Job, JobFailed, JobNotFound, MessageTooLarge, NewJob, QueueNotFound, Retry,
                        Snooze, StopReason, TLSError, Unauthorized, Worker)

from .fakenode import make_certificate
from .realnode import RealNode, needs_binary

PATIENCE = 30.0  # seconds; timeout of every wait, far more than any should take


@yardmaster.kind("send_mail", queue="mail")
@dataclass
class SendMail(yardmaster.Returns["Sent"]):
    to: str
    weight: float = 0.5


@dataclass
class Sent:
    to: str
    attempt: int


class NodeCase(unittest.TestCase):
    """Has one node for all tests of the class."""

    settings: Dict[str, str] = {}
    node: RealNode

    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.node = RealNode(directory.name, cls.settings)
        cls.addClassCleanup(lambda: cls.node.kill())

    def connect(self) -> Client:
        client = Client(self.node.address, timeout=PATIENCE)
        self.addCleanup(client.close)
        self.node.wait_ready(client)
        return client

    def run_worker(self, worker: Worker) -> None:
        """Run a worker in a thread until the test ends."""
        thread = threading.Thread(target=worker.run)
        thread.start()

        def stop() -> None:
            worker.stop()
            thread.join(PATIENCE)
        self.addCleanup(stop)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)


@needs_binary
class Yard(NodeCase):
    def setUp(self) -> None:
        self.client = self.connect()

    def test_typed_jobs(self) -> None:
        worker = Worker(self.node.address, concurrency=4)

        @worker.job(SendMail)
        async def send(job: Job[SendMail]) -> Sent:
            if job.attempt == 1:
                raise Retry("busy", after=0)
            job.logger.info("sending to %s", job.payload.to)
            job.progress(50, {"weight": job.payload.weight})
            return Sent(job.payload.to, job.attempt)
        self.run_worker(worker)
        self.client.add_queue("mail", exist_ok=True)
        sent = self.client.call(SendMail("ann"), wait=PATIENCE)
        self.assertEqual(sent, Sent("ann", 2))
        with self.assertRaisesRegex(JobFailed, "/to: must be text, not 5") as failed:
            self.client.call("mail", {"to": 5}, "send_mail", wait=PATIENCE)
        self.assertEqual((failed.exception.error["code"], failed.exception.attempts), ("INVALID_JOB_PAYLOAD", 1))
        failed_jobs = [job["jid"] for job in self.client.jobs("mail", "failed", page_size=1)]
        self.assertEqual(failed_jobs, [failed.exception.jid])

        async def with_asyncio() -> List[Any]:
            async with AsyncClient(self.node.address) as client:
                jids = await asyncio.gather(*(client.enqueue(SendMail(f"u{n}")) for n in range(20)))
                return list(await asyncio.gather(*(client.result(jid, PATIENCE, returns=Sent) for jid in jids)))
        self.assertEqual([sent.to for sent in asyncio.run(with_asyncio())], [f"u{n}" for n in range(20)])

    def test_batch_of_ten_thousand(self) -> None:
        self.client.add_queue("batch")
        answers = self.client.enqueue_many(NewJob("batch", n, key=f"job-{n}") for n in range(10_000))
        self.assertEqual([a for a in answers if a.error is not None], [])
        self.assertEqual(len({a.jid for a in answers}), 10_000)
        again = self.client.enqueue_many([NewJob("batch", 7, key="job-7"), NewJob("created"), NewJob("batch", b"x" * (9 << 20))])
        self.assertEqual(again[0].jid, answers[7].jid)
        self.assertEqual(again[1].error, None)
        self.assertIsInstance(again[2].error, MessageTooLarge)
        self.wait_until(lambda: sum(self.client.stats("batch").values()) >= 10_000, "the jobs are accepted")
        self.assertEqual(sum(self.client.stats("batch").values()), 10_000)

    def test_refusals(self) -> None:
        with Client(self.node.address, create_queues=False) as strict, self.assertRaises(QueueNotFound):
            strict.enqueue("missing")
        with self.assertRaises(JobNotFound):
            self.client.get("ready:0190a5b2-0000-7000-8000-000000000001")
        with self.assertRaisesRegex(MessageTooLarge, "message of .* bytes is too large"):
            self.client.enqueue("ready", "x" * (9 << 20))
        worker = Worker(self.node.address, create_queues=False)
        worker.job("missing")(lambda job: None)
        with self.assertRaisesRegex(QueueNotFound, "cannot subscribe to queue 'missing'"):
            worker.run()

    def test_result_too_large(self) -> None:
        worker = Worker(self.node.address)
        worker.job("large")(lambda job: "x" * (9 << 20))
        self.run_worker(worker)
        self.client.add_queue("large", exist_ok=True)
        with self.assertRaisesRegex(JobFailed, "result: message of .* is too large") as failed:
            self.client.call("large", wait=PATIENCE)
        self.assertEqual((failed.exception.error["type"], failed.exception.attempts), ("result_too_large", 1))

    def test_handler_that_ignores_cancellation(self) -> None:
        begun, finish = threading.Event(), threading.Event()
        reasons: List[Tuple[Optional[StopReason], Optional[str]]] = []
        worker = Worker(self.node.address, concurrency=2)

        @worker.job("stubborn")
        def stubborn(job: Job[Any]) -> Any:
            if job.payload == "next":
                return "done"
            begun.set()
            job.cancelled.wait(PATIENCE)
            reasons.append((job.stop_reason, job.cancel_message))
            finish.wait(PATIENCE)
            return "too late"
        self.run_worker(worker)
        self.addCleanup(finish.set)  # before the worker stops
        self.client.add_queue("stubborn", exist_ok=True)
        jid = self.client.enqueue("stubborn")
        self.assertTrue(begun.wait(PATIENCE))
        self.assertEqual(self.client.cancel(jid, "test"), "active")
        with self.assertRaises(JobFailed) as failed:
            self.client.result(jid, PATIENCE)
        self.assertEqual((failed.exception.error["type"], reasons), ("cancelled", [(StopReason.CANCELLED, "test")]))
        self.assertEqual(self.client.call("stubborn", "next", wait=PATIENCE), "done")  # the worker goes on

    def test_deadline(self) -> None:
        reasons: List[Any] = []
        worker = Worker(self.node.address)

        @worker.job("slow")
        async def slow(job: Job[Any]) -> Any:
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                reasons.append((job.stop_reason, (job.seconds_left() or 0) < 0.5))
        self.run_worker(worker)
        self.client.add_queue("slow", exist_ok=True)
        with self.assertRaises(JobFailed) as failed:
            self.client.result(self.client.enqueue("slow", timeout=0.3), PATIENCE)
        self.assertEqual((failed.exception.error["type"], reasons), ("timeout", [(StopReason.DEADLINE, True)]))

    def test_capabilities(self) -> None:
        """Snooze and the API work, or are refused clearly if the node is of an older release."""
        attempts: List[int] = []
        worker = Worker(self.node.address)

        @worker.job("snooze")
        def snooze(job: Job[Any]) -> int:
            attempts.append(job.attempt)
            if len(attempts) == 1:
                raise Snooze(0.2)
            return job.attempt
        self.client.add_queue("snooze", exist_ok=True)
        self.run_worker(worker)
        jid = self.client.enqueue("snooze", max_attempts=1)
        self.client.ping()
        connection = self.client._calls._connection
        assert connection is not None
        if "snooze" in connection.capabilities:
            self.assertEqual((self.client.result(jid, PATIENCE), attempts), (1, [1, 1]))
        else:
            with self.assertRaisesRegex(JobFailed, "snoozes no jobs: upgrade it"):
                self.client.result(jid, PATIENCE)
        if "api" not in connection.capabilities:
            with self.assertRaises(yardmaster.NotSupported):
                self.client.retention()
            return
        limit = self.client.set_limit("api", total=20, per_key=2, rate="100/s", open_after=3, within=30)
        self.assertEqual((limit["total"], limit["per_key"], limit["rate"], limit["within_ms"]), (20, 2, "100/s", 30_000))
        self.client.set_queue("snooze", limit=7, limits=["api"], key="params.customer", key_optional=True, fair=True, timeout=60.5)
        queue = self.client.api("queue.show", {"name": "snooze"})
        self.assertEqual((queue["limits"], queue["key"], queue["fair"], queue["timeout_ms"]), (["api"], "params.customer", True, 60_500))
        self.assertEqual(queue["concurrency_limit"], 7)
        with self.assertWarns(DeprecationWarning):
            self.assertEqual(self.client.configure_queue("snooze", concurrency_limit=None)["concurrency_limit"], None)
        for _ in range(2):
            self.client.pause_limit("api")
        self.assertEqual([(limit["name"], limit["paused"]) for limit in self.client.limits()], [("api", True)])
        self.client.resume_limit("api")
        with self.assertRaises(yardmaster.ApiError) as used:
            self.client.remove_limit("api")
        self.assertEqual(used.exception.status, 409)
        self.assertEqual(self.client.limit("api")["queues"][0]["queue"], "snooze")
        self.client.remove_limit("api", force=True)
        self.assertEqual(self.client.add_cron("nightly", "0 0 3 * * *", "snooze", {"a": 1}, "f")["state"], "running")
        self.assertEqual([entry["name"] for entry in self.client.cron_entries()], ["nightly"])
        ticks = self.client.cron_entry("nightly", next=20)["ticks"]
        self.assertEqual([tick["local"][11:] for tick in ticks], ["03:00:00Z"] * 20)
        self.assertEqual(self.client.pause_cron("nightly")["state"], "paused")
        self.client.remove_cron("nightly")
        with self.assertRaises(yardmaster.ApiError) as refused:
            self.client.cron_entry("nightly")
        self.assertEqual(refused.exception.status, 404)
        worker.job("snooze", fn="broken")(lambda job: 1 // 0)
        with self.assertRaises(JobFailed):
            self.client.result(self.client.enqueue("snooze", None, "broken", max_attempts=1), PATIENCE)
        self.wait_until(lambda: bool(list(self.client.dead_letters(queue="snooze"))), "the dead letter is published")
        letters = list(self.client.dead_letters(queue="snooze", page_size=1))
        self.assertEqual([(letter["function"], letter["attempts"]) for letter in letters], [("broken", 1)])
        self.assertEqual([r["result"] for r in self.client.remove_dead_letters([letters[0]["letter"]])], ["removed"])
        self.assertEqual({job["state"] for job in self.client.list_jobs(["snooze"], page_size=1)}, {"completed", "failed"})
        self.assertIn("finished.age", [setting["name"] for setting in self.client.retention()])
        self.assertTrue(self.client.workers(queue="snooze"))
        name = next(w["worker"] for node in self.client.workers(queue="snooze") for w in node.get("workers", []))
        self.assertEqual((self.client.drain_worker(name)["drained"], self.client.resume_worker(name)["drained"]), (True, False))
        with self.assertRaises(yardmaster.ApiError) as unknown:
            self.client.drain_worker("nobody")
        self.assertEqual(unknown.exception.status, 404)

    def test_operations(self) -> None:
        """Jobs that failed are found, and run again with other params."""
        worker = Worker(self.node.address)

        @worker.job("orders", fn="ship")
        def ship(job: Job[Dict[str, int]]) -> int:
            if job.payload["timeout"] < 30:
                raise yardmaster.Fail("too slow", code="TIMEOUT")
            return job.payload["timeout"]
        self.client.add_queue("orders")
        self.run_worker(worker)
        jids = [self.client.enqueue("orders", {"timeout": n}, "ship", meta={"customer": "acme"}) for n in (1, 2, 3, 30)]
        self.assertEqual(self.client.result(jids[3], PATIENCE), 30)
        query = "queue:orders customer:acme error:TIMEOUT"
        self.wait_until(lambda: len(list(self.client.find_jobs(query))) == 3, "the failed jobs are found")
        found = list(self.client.find_jobs(query, sort="created", page_size=1))
        self.assertEqual([(job["jid"], job["state"], job["meta"]) for job in found], [(jid, "failed", {"customer": "acme"}) for jid in jids[:3]])

        async def first() -> str:
            async with AsyncClient(self.node.address) as client:
                async for job in client.find_jobs(query + " sort:created"):
                    return job["jid"]
            return ""
        self.assertEqual(asyncio.run(first()), jids[0])
        self.wait_until(lambda: len(list(self.client.dead_letters(queue="orders"))) == 3, "the dead letters are published")
        preview = self.client.preview_operation("requeue", query, params={"timeout": 40})
        self.assertEqual((preview["matched"], preview["applicable"], preview["states"]), (3, 3, {"failed": 3}))
        self.assertEqual([sample["params"] for sample in preview["sample"]], [{"timeout": 40}] * 3)
        started = self.client.start_operation("requeue", query, params={"timeout": 40}, rate=1, key="ship again")
        self.assertEqual(self.client.start_operation("requeue", query, key="ship again")["id"], started["id"])
        self.assertEqual(self.client.pause_operation(started["id"])["state"], "paused")
        with self.assertRaises(TimeoutError):
            self.client.wait_operation(started["id"], timeout=0.01)
        self.assertEqual(self.client.set_operation_rate(started["id"], 0)["rate"], 0)
        self.assertEqual(self.client.resume_operation(started["id"])["state"], "running")
        done = self.client.wait_operation(started["id"], timeout=PATIENCE)
        self.assertEqual((done["state"], done["changed"], done["matched"], done["expected"]), ("done", 3, 3, 3))
        self.assertEqual([operation["id"] for operation in self.client.operations()], [started["id"]])
        self.wait_until(lambda: len(list(self.client.find_jobs("queue:orders state:completed"))) == 4, "the new jobs have ended")
        with self.assertRaises(yardmaster.ApiError) as ended:
            self.client.cancel_operation(started["id"])
        self.assertEqual(ended.exception.status, 409)

    def test_query_that_is_wrong(self) -> None:
        query = "text:«größe» stat:failed"
        calls: List[Callable[[], object]] = [
            lambda: next(self.client.find_jobs(query)), lambda: self.client.preview_operation("retry", query), lambda: self.client.start_operation("retry", query)]
        for call in calls:
            with self.assertRaisesRegex(yardmaster.InvalidQuery, "stat") as refused:
                call()
            self.assertEqual((refused.exception.status, refused.exception.part_of(query)), (400, "stat"))
            self.assertIn("state", refused.exception.advice)
        with self.assertRaises(yardmaster.ApiError) as nothing:
            self.client.start_operation("cancel", "")
        self.assertNotIsInstance(nothing.exception, yardmaster.InvalidQuery)


@needs_binary
class Kills(NodeCase):
    def test_producer(self) -> None:
        """Every job that producers enqueue while the node is killed is accepted once."""
        client = self.connect()
        client.add_queue("produced")
        with ThreadPoolExecutor(8) as threads:
            one = [threads.submit(client.enqueue, "produced", n, key=f"one-{n}") for n in range(400)]
            many = threads.submit(client.enqueue_many, [NewJob("produced", n, key=f"many-{n}") for n in range(3000)])
            self.wait_until(lambda: one[20].done(), "some jobs are accepted")
            self.node.kill()
            self.node.start()
            jids = [future.result(PATIENCE) for future in one] + [answer.jid for answer in many.result(PATIENCE)]
        self.assertEqual(len(set(jids)), 3400)
        self.assertNotIn(None, jids)
        self.wait_until(lambda: sum(client.stats("produced").values()) >= 3400, "the jobs are ingested")
        self.assertEqual(sum(client.stats("produced").values()), 3400)

    def test_worker(self) -> None:
        """A worker whose node is killed ends its job once: it resumes it, or the job starts again."""
        client, finish = self.connect(), threading.Event()
        runs: Counter[str] = collections.Counter()
        worker = Worker(self.node.address, concurrency=5)

        @worker.job("work", fn="thread")
        def thread(job: Job[Any]) -> str:
            runs[job.id] += 1
            while not finish.wait(0.01):
                job.check()
            return f"fence {job.fence}"

        @worker.job("work", fn="task")
        async def task(job: Job[Any]) -> str:
            runs[job.id] += 1
            while not finish.is_set():
                await asyncio.sleep(0.01)
            return f"fence {job.fence}"
        self.run_worker(worker)
        self.addCleanup(finish.set)  # before the worker stops
        client.add_queue("work", exist_ok=True)
        jids = [client.enqueue("work", None, fn, max_attempts=1) for fn in ("thread", "task", "thread", "task")]
        self.wait_until(lambda: len(runs) == 4, "the jobs run")
        self.node.kill()
        self.node.start()
        self.wait_until(lambda: worker.node is not None and client.stats("work")["active"] == 4, "the jobs are active again")
        finish.set()
        for jid in jids:
            self.assertRegex(client.result(jid, PATIENCE), "fence")
            self.assertEqual(client.get(jid)["runtime"]["attempts_so_far"], 1)
        self.assertEqual(client.stats("work")["completed"], 4)


@needs_binary
@unittest.skipUnless(shutil.which("openssl"), "openssl is needed to generate a certificate")
class Secured(NodeCase):
    cert: str

    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.cert, key = make_certificate(directory.name)
        cls.settings = {"YARD_SERVER_TLS_CERT_FILE": cls.cert, "YARD_SERVER_TLS_KEY_FILE": key, "YARD_SERVER_TOKEN": "secret"}
        super().setUpClass()

    def test_tls_and_token(self) -> None:
        trusted = ssl.create_default_context(cafile=self.cert)
        with Client(self.node.address, tls=trusted, token="secret", timeout=PATIENCE) as client:
            self.node.wait_ready(client)
        with self.assertRaisesRegex(Unauthorized, "refuses the token of this client: check `token`"):
            Client(self.node.address, tls=trusted, token="wrong").ping()
        worker = Worker(self.node.address, tls=trusted)
        worker.job("ready")(lambda job: None)
        with self.assertRaisesRegex(Unauthorized, "requires a token, and this client has none"):
            worker.run()
        with self.assertRaisesRegex(TLSError, "its certificate is not accepted"):
            Client(self.node.address, tls=ssl.create_default_context(), token="secret").ping()
        with self.assertRaisesRegex(TLSError, "its port requires TLS"):
            Client(self.node.address, token="secret").ping()


if __name__ == "__main__":
    unittest.main()
