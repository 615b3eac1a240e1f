"""Tests of the helpers for users' tests."""

import unittest
from dataclasses import dataclass
from typing import Any, Callable

import yardmaster
from yardmaster import Job, NewJob, PayloadError, Retry, Snooze, Worker
from yardmaster.testing import FakeAsyncClient, FakeClient, perform, run_job


@yardmaster.kind("send_mail", queue="mail")
@dataclass
class SendMail:
    to: str
    copies: int = 1


@dataclass
class Sent:
    to: str
    attempt: int


def make_worker() -> Worker:
    worker = Worker()

    @worker.job(SendMail)
    def send(job: Job[SendMail]) -> Sent:
        job.progress(50, {"to": job.payload.to})
        job.logger.info("sending to %s", job.payload.to)
        if "@" not in job.payload.to:
            raise yardmaster.Fail("no address")
        if job.attempt == 1 and job.payload.copies > 1:
            raise Retry("busy", after=5)
        return Sent(job.payload.to, job.attempt)

    @worker.job("later", queue="mail")
    async def later(job: Job[Any]) -> Any:
        if job.payload == "snooze":
            raise Snooze(30)
        job.log("begun")
        job.check()
        return {"half": 0.5}

    @worker.job("plain")
    def plain(job: Job[Any]) -> Any:
        return job.payload if job.payload != "bad" else object()
    return worker


class Handlers(unittest.TestCase):
    def test_run_job(self) -> None:
        worker = make_worker()
        self.assertEqual(run_job(worker, SendMail("a@b")), {"to": "a@b", "attempt": 1})
        self.assertEqual(run_job(worker, {"to": "a@b"}, queue="mail", fn="send_mail"), {"to": "a@b", "attempt": 1})
        with self.assertRaises(Retry) as retry:
            run_job(worker, SendMail("a@b", 2))
        self.assertEqual(retry.exception.after, 5)
        self.assertEqual(run_job(worker, SendMail("a@b", 2), attempt=2), {"to": "a@b", "attempt": 2})
        with self.assertRaisesRegex(yardmaster.Fail, "no address"):
            run_job(worker, SendMail("ann"))
        with self.assertRaisesRegex(PayloadError, "^/to: must be text, not 5$"):
            run_job(worker, {"to": 5}, queue="mail", fn="send_mail")
        with self.assertRaisesRegex(PayloadError, "result: .*object"):
            run_job(worker, "bad", queue="plain")
        with self.assertRaisesRegex(LookupError, "'other' of queue 'mail'"):
            run_job(worker, 1, queue="mail", fn="other")
        self.assertEqual(run_job(worker, b"\xff", queue="plain"), b"\xff")

    def test_perform(self) -> None:
        worker = make_worker()
        run = perform(worker, SendMail("a@b"))
        self.assertEqual((run.outcome, run.progress, run.log), ("completed", [(50, {"to": "a@b"})], ["sending to a@b"]))
        for payload, fn, outcome, delay in (("snooze", "later", "snooze", 30), ({"to": "a@b", "copies": 2}, "send_mail", "retry", 5),
                                            ({"to": "ann"}, "send_mail", "failed", None), ({}, "send_mail", "failed", None)):
            with self.subTest(payload):
                run = perform(worker, payload, queue="mail", fn=fn)
                self.assertEqual((run.outcome, run.delay), (outcome, delay))
        run = perform(worker, None, queue="mail", fn="later", cancel="DEADLINE")
        self.assertIsInstance(run.error, yardmaster.CancelledError)
        self.assertEqual((run.outcome, run.log), ("cancelled", ["begun"]))

    def test_middleware(self) -> None:
        worker, seen = make_worker(), []

        @worker.middleware
        def outer(job: Job[Any], run: Callable[[Job[Any]], Any]) -> Any:
            seen.append("outer")
            return run(job)

        @worker.middleware
        def inner(job: Job[Any], run: Callable[[Job[Any]], Any]) -> Any:
            seen.append("inner")
            return {"result": run(job)}

        @worker.middleware
        async def around(job: Job[Any], run: Callable[[Job[Any]], Any]) -> Any:
            seen.append("async")
            return await run(job)
        self.assertEqual(run_job(worker, 1, queue="plain"), {"result": 1})
        self.assertEqual(run_job(worker, 1, queue="mail", fn="later"), {"half": 0.5})
        self.assertEqual(seen, ["outer", "inner", "async"])


class AsyncHandlers(unittest.IsolatedAsyncioTestCase):
    async def test_run_job_within_a_loop(self) -> None:
        self.assertEqual(run_job(make_worker(), 1, queue="mail", fn="later"), {"half": 0.5})

    async def test_client(self) -> None:
        async with FakeAsyncClient() as client:
            await client.enqueue(SendMail("ann"), delay=5)
            client.assert_enqueued(SendMail, to="ann")


class Producers(unittest.TestCase):
    def test_assertions(self) -> None:
        client = FakeClient()
        self.assertRegex(client.enqueue(SendMail("ann"), priority=9), "^mail:")
        answers = client.enqueue_many([NewJob("other", {"a": 1.5}), SendMail("bob")])
        self.assertEqual([answer.error for answer in answers], [None, None])
        self.assertEqual(client.assert_enqueued(SendMail, to="ann", count=1)[0].options["priority"], 9)
        client.assert_enqueued(SendMail, count=2)
        client.assert_enqueued("other", a=1.5)
        client.assert_not_enqueued(SendMail, to="cyd")
        with self.assertRaisesRegex(AssertionError, r"0 jobs match SendMail\(to='cyd'\), want at least one"):
            client.assert_enqueued(SendMail, to="cyd")
        with self.assertRaisesRegex(AssertionError, "2 jobs match SendMail.*want none"):
            client.assert_not_enqueued(SendMail)
        with self.assertRaisesRegex(ValueError, "not both"):
            client.enqueue("q", at="2030-01-01T00:00:00Z", delay=1)
        with self.assertRaises(NotImplementedError):
            client.stats("q")


if __name__ == "__main__":
    unittest.main()
