"""Tests of when a worker starts a handler: once a node has answered the ACK, and while the lease lasts."""

from typing import Any, List

from yardmaster import Job
from yardmaster.protocol import ACK, CREDIT, CREDITS, DONE, FAIL, RECALL

from .fakenode import PATIENCE
from .test_worker import SID, WorkerCase


class Starts(WorkerCase):
    """Both kinds of handlers: one in a thread, and one in an event loop."""

    def setUp(self) -> None:
        super().setUp()
        self.ran: List[int] = []

    def handlers(self) -> List[Any]:
        def plain(job: Job[int]) -> None:
            self.ran.append(job.payload)

        async def coroutine(job: Job[int]) -> None:
            self.ran.append(job.payload)
        return [plain, coroutine]

    def each(self, test: Any) -> None:
        """Call a test with a handler of either kind."""
        for handler in self.handlers():
            with self.subTest(handler.__name__):
                self.setUp()
                test(handler)
                self.doCleanups()

    def test_starts_when_acknowledged(self) -> None:
        def test(handler: Any) -> None:
            self.start(handler)
            connection = self.accept_subscriber()
            connection.push_quest(SID, 1)
            rid, _ = connection.expect(ACK)
            connection.push_quest(SID, 2)  # its ACK comes after whatever the worker does with the first
            rid2, _ = connection.expect(ACK)
            self.assertEqual(self.ran, [])
            connection.send_ok(rid, {"lease_ms": 6000})
            connection.answer(DONE)
            connection.send_ok(rid2, {"lease_ms": 6000})
            connection.answer(DONE)
            self.assertEqual(self.ran, [1, 2])
        self.each(test)

    def test_refused(self) -> None:
        """A job that the node has given up is not started or reported, and its credit is used for another."""
        def test(handler: Any) -> None:
            for code in ("ACK_TIMEOUT", "LEASE_LOST", "JOB_NOT_ACTIVE", "OF_A_LATER_RELEASE"):
                self.start(handler)
                connection = self.accept_subscriber()
                connection.push_quest(SID, 1)
                connection.refuse(connection.expect(ACK)[0], code)
                self.assertEqual(connection.answer(CREDIT)["credits"], 1)
                connection.push_quest(SID, 2)
                connection.answer(ACK)
                connection.answer(DONE)
                self.assertEqual(self.ran, [2])
                self.doCleanups()
                self.setUp()
        self.each(test)

    def test_refused_after_stall(self) -> None:
        """A worker that was stopped past the ACK time finds its QUEST, and then that its credits are gone."""
        def test(handler: Any) -> None:
            self.start(handler)
            connection = self.accept_subscriber()
            connection.push_quest(SID, 1)
            connection.push(CREDITS, {"sid": SID, "credits": 0, "reason": "STALLED"})
            connection.refuse(connection.expect(ACK)[0], "ACK_TIMEOUT")
            self.assertEqual(connection.answer(CREDIT)["credits"], 1)
            self.assertEqual(self.ran, [])
        self.each(test)

    def test_recalled_before_start(self) -> None:
        def test(handler: Any) -> None:
            self.start(handler)
            connection = self.accept_subscriber()
            token = connection.push_quest(SID, 1)
            rid, ack = connection.expect(ACK)
            connection.push(RECALL, {"jid": ack["jid"], "tok": token, "reason": "CANCELLED", "grace_ms": 5000})
            connection.send_ok(rid, {"lease_ms": 6000})
            self.assertEqual(connection.answer(FAIL)["error"]["type"], "cancelled")
            self.assertEqual(self.ran, [])
        self.each(test)

    def test_connection_lost_before_answer(self) -> None:
        """The node may have received the ACK or not: the next node decides whether the job starts."""
        def test(handler: Any) -> None:
            for refused in (False, True):
                self.start(handler)
                connection = self.accept_subscriber()
                connection.push_quest(SID, 1)
                connection.expect(ACK)
                connection.close()
                connection = self.node.accept()
                rid, _ = connection.expect(ACK)
                self.assertEqual(self.ran, [])
                if refused:
                    connection.refuse(rid, "LEASE_LOST")
                    self.answer_subscribe(connection, credits=0)
                    self.assertEqual(connection.answer(CREDIT)["credits"], 1)
                    self.assertEqual(self.ran, [])
                else:
                    connection.send_ok(rid, {"lease_ms": 6000})
                    self.answer_subscribe(connection, credits=0)
                    connection.answer(DONE)
                    self.assertEqual(self.ran, [1])
                self.doCleanups()
                self.setUp()
        self.each(test)

    def test_lease_over_before_start(self) -> None:
        """A process that was stopped after the answer, past the end of the lease, asks again."""
        def test(handler: Any) -> None:
            self.start(handler)
            connection = self.accept_subscriber()
            connection.push_quest(SID, 1)
            connection.answer(ACK, {"lease_ms": 0})
            rid, _ = connection.expect(ACK)
            self.assertEqual(self.ran, [])
            connection.send_ok(rid, {"lease_ms": 6000})
            connection.answer(DONE)
            self.assertEqual(self.ran, [1])

            connection.push_quest(SID, 2)
            connection.answer(ACK, {"lease_ms": 0})
            connection.refuse(connection.expect(ACK)[0], "LEASE_LOST")
            self.assertEqual(connection.answer(CREDIT)["credits"], 1)
            self.assertEqual(self.ran, [1])
        self.each(test)

    def test_stops_before_start(self) -> None:
        """A job whose ACK is not answered within the grace is given back, and is not started."""
        def test(handler: Any) -> None:
            worker = self.start(handler, grace=0)
            connection = self.accept_subscriber()
            connection.push_quest(SID, 1)
            connection.expect(ACK)
            worker.stop()
            self.thread.join(PATIENCE)
            self.assertFalse(self.thread.is_alive())
            self.assertEqual(self.ran, [])
        self.each(test)
