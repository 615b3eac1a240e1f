"""What a worker does at its nodes: it subscribes, acknowledges jobs, extends their leases and reports outcomes."""

from __future__ import annotations

import logging
import math
import random
import time
from typing import Any, Dict, List, Optional, Set

from .activejob import ActiveJob
from .calls import CallLoop
from .codec import Encoded, encode
from .connection import Connection, Settings
from .errors import CancelledError, CodecError, ConnectionLost, MessageTooLarge, OverhopError, TLSError
from .executor import Executor
from .handlers import Outcome, Registered, UnknownFunctions, fail_message
from .job import Job
from .largepayload import read_large
from .nodes import NodeRotation, backoff, retry_delay
from .protocol import ACK, BEAT, BYE, CAPABILITY_SNOOZE, CREDITS, DRAIN, GOODBYE, NACK, QUEST, RECALL, Fields, only_strings
from .reports import Reports
from .subscriptions import PERMANENT, Subscriptions

log = logging.getLogger("yardmaster")

_CANCEL_TIMEOUT = 2.0   # seconds that handlers have after they are cancelled at the end of the grace
_GOODBYE_TIMEOUT = 3.0  # seconds that a node has to answer the last GOODBYE, after the outcomes before it
_MAX_BEAT_JOBS = 256    # jobs in one BEAT
_MOVE_TIME = 1.0        # seconds for which a job with an ended lease may move to another node
_LEASE_RETRY_DELAY = 0.3  # seconds before an ACK or BEAT that was answered UNAVAILABLE is repeated
_LARGE_RESULT = 1 << 16  # bytes of a result that may be too large for the nodes, if they close the connection


class Dispatcher:
    """Connects a worker's handlers to one of several nodes.

    The thread of ``loop`` owns the state and makes all calls; other threads post
    them to the loop. Handlers call only ``node``.
    """

    def __init__(self, loop: CallLoop, nodes: NodeRotation, settings: Settings, *, create_queues: bool, grace: float,
                 fail_unknown: bool) -> None:
        self._loop, self._nodes, self._settings = loop, nodes, settings
        self._grace, self._unknown = grace, UnknownFunctions(fail_unknown)
        self.subscriptions = Subscriptions(loop, create_queues, lambda connection: self._switch_node(connection, []))
        self.executor = Executor(lambda *ended: loop.post(self._on_handler_returned, *ended),
                                 lambda job: read_large(job, lambda: self._connection))
        self.stopped = False         # the worker is to return
        self.error: Optional[Exception] = None  # which it raises then
        self._stopping = False       # begin_stop() was called: take no more jobs
        self._goodbye_sent = False   # the last GOODBYE was sent
        self._jobs: Dict[bytes, ActiveJob] = {}  # by token, until a node has answered their outcome
        self._connection: Optional[Connection] = None  # jobs and outcomes use this one; None while reconnecting
        self._reports = Reports(loop, self._jobs, lambda: self._connection)
        self._connecting: Optional[Connection] = None
        self._draining: Set[Connection] = set()  # to draining nodes, until all jobs have moved to _connection
        self._reconnect_scheduled = False
        self._connect_attempts = 0       # since a connection held for 2 s
        self._connected_at = math.inf    # monotonic time of the last success; inf once a reconnect is scheduled
        self._beat_scheduled = False     # a BEAT follows for jobs that the node answered UNAVAILABLE
        self._lost: Optional[Connection] = None  # the last connection that was lost
        self._lost_at = math.inf                 # when that was, in monotonic time

    @property
    def node(self) -> Optional[str]:
        """The address of the connected node; None while the worker reconnects."""
        connection = self._connection
        return connection.node if connection is not None else None

    def start(self) -> None:
        """Connect, and begin to extend leases."""
        self._connect()
        self._loop.call_later(0.5, self._beat_periodically)
        self.executor.watch_loop(self._loop, self._lose_event_loop)

    def _lose_event_loop(self) -> None:
        """Give back the jobs whose handlers are coroutines, and stop with an error."""
        self.error = RuntimeError("the event loop in which the handlers run has ended: the worker takes no more jobs")
        log.error("%s", self.error)
        for job in self._jobs.values():
            unfinished = job.outcome is None and (not job.acked or job.job._on_cancel is not None)  # not started, or a task
            job.give_back = job.give_back or unfinished
        self.begin_stop("the event loop of its handlers has ended")
        self._finish_stop_if_done()

    # -- connections

    def _connect(self) -> None:
        self._reconnect_scheduled = False
        self._connecting = Connection(
            self._nodes.next(), self._settings,
            lambda connection: self._loop.post(self._on_connected, connection),
            lambda connection, message_type, payload: self._loop.post(self._on_push, connection, message_type, payload),
            lambda connection, error: self._loop.post(self._on_disconnected, connection, error))

    def _schedule_reconnect(self) -> None:
        """Connect to the next node after a delay that grows until a connection has held for 2 seconds."""
        if self._connecting is not None or self._reconnect_scheduled:
            return
        if time.monotonic() - self._connected_at > 2.0:
            self._connect_attempts = 0
        self._connect_attempts += 1
        self._connected_at, self._reconnect_scheduled = math.inf, True
        self._loop.call_later(backoff(self._connect_attempts), self._connect)

    def _on_connected(self, connection: Connection) -> None:
        """Make a new connection the current one: move all jobs to its node, then subscribe.

        The node answers in order, and leases end: messages about jobs come first.
        """
        if connection is not self._connecting:
            connection.close()
            return
        if self._connection is not None:
            self._draining.add(self._connection)
        self._connection, self._connecting, self._nodes.reached = connection, None, True
        self._connected_at = time.monotonic()
        self.subscriptions.reset(connection)
        for job in list(self._jobs.values()):
            job.lease_confirmed = False
            if job.outcome is not None:
                self._send_outcome(job)
            elif not job.acked:
                self._send_ack(connection, job)
            self._reports.send_progress(job)
        self._send_beats()
        self.subscriptions.subscribe(connection)
        self._close_drained()
        self._finish_stop_if_done()

    def _on_disconnected(self, connection: Connection, error: Exception) -> None:
        """Reconnect, unless the worker has stopped or another connection is current.

        Raises an error that no other try would change, and thereby ends run().
        """
        self._draining.discard(connection)
        if self.stopped:
            return
        if isinstance(error, OverhopError) and error.code in PERMANENT or isinstance(error, TLSError) and self._nodes.all_refuse(error.node):
            raise error
        if connection is self._connecting:
            log.warning("cannot connect to node %s: %s", connection.node, error)
            self._connecting = None
            self._schedule_reconnect()
        elif connection is self._connection:
            self._connection, self._lost, self._lost_at = None, connection, time.monotonic()
            self.subscriptions.reset(None)
            if self._stopping and not self._jobs:
                self.stopped = True
                return
            log.warning("lost the connection to node %s: %s", connection.node, error)
            self._schedule_reconnect()
            self._loop.call_later(_MOVE_TIME, self._stop_expired, connection)
        for job in list(self._jobs.values()):
            if job.connection is connection and self._connection is not None:  # last used the draining node
                self._repeat_message(self._connection, job)

    def _switch_node(self, connection: Connection, alternatives: Any) -> None:
        """Connect to another node, as this one drains; keep its connection until the jobs have moved.

        ``alternatives`` are the addresses in the node's DRAIN, which are tried first.
        """
        self.subscriptions.forget_requests()
        self._nodes.avoided = connection.node
        self._nodes.preferred = [node for node in only_strings(alternatives) if node != connection.node]
        random.shuffle(self._nodes.preferred)
        self._schedule_reconnect()

    def _close_drained(self) -> None:
        """Close the connections to draining nodes if the current node has confirmed every lease."""
        if all(job.lease_confirmed and job.connection is self._connection for job in self._leased_jobs()):
            for connection in self._draining:
                connection.close()

    def _leased_jobs(self) -> List[ActiveJob]:
        """Return the jobs whose leases must be extended.

        Jobs with an outcome and cancelled jobs are left out, except jobs cancelled
        at the end of the grace, which keep their leases until they are given back.
        """
        return [job for job in self._jobs.values()
                if job.outcome is None and (job.grace_over or not job.job.cancelled.is_set())]

    # -- pushes

    def _on_push(self, connection: Connection, message_type: int, payload: Fields) -> None:
        """Handle a message that the node sends without a request."""
        if message_type == QUEST:
            try:
                self._accept_job(connection, payload)
            except (KeyError, TypeError, ValueError) as e:
                log.error("node %s sent an invalid QUEST: %r", connection.node, e)
                connection.close()
        elif message_type == RECALL:
            job = self._jobs.get(payload.get("tok", b""))
            if job is not None and job.connection is connection:  # not from a node that the job has left
                job.job._cancel(str(payload.get("reason")), payload.get("msg"))
        elif message_type == CREDITS:
            self.subscriptions.on_credits(connection, payload)
        elif message_type == DRAIN and connection is self._connection and not self._stopping:
            log.info("node %s drains: %s", connection.node, payload.get("reason"))
            self._switch_node(connection, payload.get("reconnect"))
        elif message_type == BYE:
            log.info("node %s closes the connection: %s %s", connection.node, payload.get("code"), payload.get("msg"))

    def _accept_job(self, connection: Connection, quest: Fields) -> None:
        """Acknowledge the job in a QUEST; its handler starts when the node has answered."""
        subscription = self.subscriptions.by_queue[quest["q"]]
        if connection is self._connection:
            subscription.credits = max(0, subscription.credits - 1)
        duplicate = self._jobs.get(quest["tok"])
        if duplicate is not None:  # the node does not know whether the first QUEST arrived
            duplicate.connection = connection
            if duplicate.outcome is None:
                self._send_ack(connection, duplicate)
            else:
                self._send_outcome(duplicate)
            if connection is self._connection:
                self.subscriptions.grant_credits(connection, subscription)
            return
        job = ActiveJob(Job(self._reports, quest), quest)
        if self._stopping:
            connection.send(NACK, {"jid": job.id, "tok": job.token, "reason": "worker stops"})
            return
        for other in self._jobs.values():
            if other.id == job.id and other.outcome is None:
                other.job._cancel("SUPERSEDED")  # the yard has assigned the same job again
        self._jobs[job.token] = job
        subscription.running += 1
        self._send_ack(connection, job)

    def _start_handler(self, job: ActiveJob) -> None:
        """Start a handler, now that a node has answered the ACK: until then, another worker may have the job, if this process was stopped."""
        subscription = self.subscriptions.by_queue[job.job.queue]
        handler = subscription.handler_of(job.job.fn)
        if handler is None:
            self._on_handler_returned(job.job, None, self._unknown.outcome(job.job, subscription.handlers))
        else:
            self.executor.start(job.job, handler)

    def _forget_unstarted(self, job: ActiveJob) -> None:
        """Forget a job whose handler has not started, and use its credit for another."""
        self._jobs.pop(job.token, None)
        subscription = self.subscriptions.by_queue[job.job.queue]
        subscription.running -= 1
        if self._connection is not None:
            self.subscriptions.grant_credits(self._connection, subscription)
        self._close_drained()
        self._finish_stop_if_done()

    # -- leases

    def _stop_expired(self, lost: Connection) -> None:
        """Stop the jobs whose leases have ended since the connection was lost: they may run elsewhere.

        They are kept for a moment, as another node may continue the leases of one that hung.
        """
        if self._connection is not None or self._lost is not lost or self.stopped:
            return
        now = time.monotonic()
        if now - self._lost_at >= _MOVE_TIME:
            for job in [job for job in self._leased_jobs() if job.lease_end <= now]:
                log.warning("the lease of job %s has ended, and no node was reached", job.id)
                if job.acked:
                    job.job._cancel("LEASE_LOST")
                else:
                    self._forget_unstarted(job)
        self._loop.call_later(_LEASE_RETRY_DELAY, self._stop_expired, lost)

    def _send_ack(self, connection: Connection, job: ActiveJob) -> None:
        job.connection, sent = connection, time.monotonic()
        connection.send(ACK, {"jid": job.id, "tok": job.token},
                        lambda answer, error: self._loop.post(self._on_lease_answer, connection, job, answer, error, sent))

    def _on_lease_answer(self, connection: Connection, job: ActiveJob, answer: Fields, error: Optional[Exception],
                         sent: float) -> None:
        """Handle the answer to an ACK, or the answer for one job of a BEAT, that was sent at this monotonic time."""
        if (job.connection is not connection or job.outcome is not None or isinstance(error, ConnectionLost)
                or self._jobs.get(job.token) is not job):
            return
        if error is None:
            is_first, job.acked, job.lease_confirmed = not job.acked, True, True
            job.extend(sent, answer, is_first)
            if is_first and not job.give_back:
                self._start_handler(job)
            self._close_drained()
        elif isinstance(error, OverhopError) and error.code == "UNAVAILABLE":
            if job.acked:
                job.lease_confirmed = False
                self._schedule_beat()
            else:
                self._loop.call_later(_LEASE_RETRY_DELAY, self._repeat_message, connection, job)
        elif not job.acked:
            log.info("job %s is not started, because the node has given it up: %s", job.id, error)
            self._forget_unstarted(job)
        else:
            log.warning("lost the lease of job %s: %s", job.id, error)
            job.job._cancel(error.code if isinstance(error, OverhopError) else str(error))

    def _repeat_message(self, connection: Connection, job: ActiveJob) -> None:
        """Send a job's outcome, BEAT or ACK again if the connection is still the current one."""
        if connection is not self._connection or self._jobs.get(job.token) is not job:
            return
        if job.outcome is not None:
            self._send_outcome(job)
        elif job.acked:
            self._send_beats()
        else:
            self._send_ack(connection, job)

    def _beat_periodically(self) -> None:
        """Send BEATs at the shortest interval that a job asks for, or every second."""
        self._send_beats()
        self._loop.call_later(min([job.beat_interval for job in self._jobs.values()] or [1.0]), self._beat_periodically)

    def _send_beats(self) -> None:
        """Extend all leases; on a new connection, a BEAT moves the leases to its node.

        A BEAT does not wait for the answer to the last one, which may be delayed
        by the answer to a DONE before it. Only a job whose move to the node is
        pending is left out.
        """
        connection = self._connection
        if connection is None:
            return
        jobs: List[ActiveJob] = []
        entries: List[Encoded] = []
        size = 0  # bytes of the entries in the answer, which are up to 64 bytes longer than in the request
        for job in self._leased_jobs():
            if not job.acked or job.transfer is connection:
                continue
            job.lease_confirmed = job.lease_confirmed and job.connection is connection
            job.connection, job.transfer = connection, None if job.lease_confirmed else connection
            entry = Encoded(encode({"jid": job.id, "tok": job.token}))
            if entries and (len(entries) == _MAX_BEAT_JOBS or size + len(entry) + 64 > connection.max_frame // 2):
                self._send_beat(connection, jobs, entries)
                jobs, entries, size = [], [], 0
            jobs.append(job)
            entries.append(entry)
            size += len(entry) + 64
        if entries:
            self._send_beat(connection, jobs, entries)

    def _send_beat(self, connection: Connection, jobs: List[ActiveJob], entries: List[Encoded]) -> None:
        sent = time.monotonic()
        connection.send(BEAT, {"jobs": entries},
                        lambda answer, error: self._loop.post(self._on_beat_answer, connection, jobs, answer, error, sent))

    def _schedule_beat(self) -> None:
        if not self._beat_scheduled:
            self._beat_scheduled = True
            self._loop.call_later(_LEASE_RETRY_DELAY, self._send_scheduled_beat)

    def _send_scheduled_beat(self) -> None:
        self._beat_scheduled = False
        self._send_beats()

    def _on_beat_answer(self, connection: Connection, jobs: List[ActiveJob], answer: Fields,
                        error: Optional[Exception], sent: float) -> None:
        """Handle the answer to a BEAT, which has one entry for each of the jobs."""
        for job in jobs:
            if job.transfer is connection:
                job.transfer = None
        if isinstance(error, OverhopError):
            log.warning("node %s refused a BEAT: %s", connection.node, error)
        for job, entry in zip(jobs, answer.get("jobs", [])):
            self._on_lease_answer(connection, job, entry, None if entry.get("ok") else OverhopError(str(entry.get("code"))), sent)

    # -- handlers and outcomes

    def _on_handler_returned(self, returned: Job[Any], handler: Optional[Registered], outcome: Optional[Outcome]) -> None:
        """Send the outcome of a job, or keep the job to give it back if it ended because the worker stops.

        No outcome means that the handler was not called, because the lease had ended
        since the ACK was answered: the job is acknowledged again.
        """
        if handler is not None:
            self.executor.ended(handler)
        job = self._jobs.get(returned._token)
        if outcome is None and job is not None and job.job is returned:
            job.acked = job.lease_confirmed = False
            if self._connection is not None:  # else the next one sends it
                self._send_ack(self._connection, job)
            return
        self.subscriptions.by_queue[returned.queue].running -= 1
        if job is None or job.job is not returned:
            return  # already given back
        if returned._interrupted or job.grace_over and isinstance(returned._error, CancelledError):
            job.give_back = True
            self._finish_stop_if_done()
            return
        job.outcome = outcome
        self._send_outcome(job)

    def _send_outcome(self, job: ActiveJob) -> None:
        """Send a job's outcome with the credits for the next; its token makes repeating it safe.

        Without a connection, the outcome is sent on the next one.
        """
        connection, subscription = self._connection, self.subscriptions.by_queue[job.job.queue]
        if connection is None or job.outcome is None:
            return
        message_type, payload = job.outcome
        if job.outcome_losses >= 5 and len(payload.get("result", payload.get("result_json", b""))) > _LARGE_RESULT:
            message_type, payload = job.outcome = fail_message(
                "no node accepts a result of this size", "result_too_large", final=True)
        if "snooze_ms" in payload and CAPABILITY_SNOOZE not in connection.capabilities:
            message_type, payload = job.outcome = fail_message(
                f"the handler asks to be snoozed for {payload['snooze_ms'] / 1000:g} s, but node {connection.node_name}, of an older "
                "release, snoozes no jobs: upgrade it, or raise Retry", "snooze_not_supported")
        payload = {**payload, "jid": job.id, "tok": job.token}
        credits = 0 if self._stopping or subscription.sid is None else subscription.take_credits()
        if credits:
            payload["credits"] = credits
        job.connection = connection
        try:
            connection.send(message_type, payload, lambda _, error: self._loop.post(self._on_outcome_answer, connection, job, error))
        except CodecError as e:
            subscription.credits -= credits
            kind = "result_too_large" if isinstance(e, MessageTooLarge) else "bad_result"
            job.outcome = fail_message(f"result: {e}", kind, final=True)
            self._send_outcome(job)

    def _on_outcome_answer(self, connection: Connection, job: ActiveJob, error: Optional[Exception]) -> None:
        """Forget a job whose outcome a node has answered; repeat an outcome without a definite answer."""
        if isinstance(error, ConnectionLost):
            job.outcome_losses += 1
            return  # _on_connected sends it again
        if isinstance(error, OverhopError) and error.code == "UNAVAILABLE":
            self._loop.call_later(retry_delay(error), self._repeat_message, connection, job)
            return
        if error is not None:
            log.warning("the outcome of job %s was refused: %s", job.id, error)
        self._jobs.pop(job.token, None)
        self._close_drained()
        self._finish_stop_if_done()

    # -- stopping

    def begin_stop(self, reason: str) -> None:
        """Take no more jobs, and let the running ones finish within the grace."""
        if self._stopping:
            return
        log.info("worker stops (%s) with %d unfinished jobs", reason, len(self._jobs))
        self._stopping = self.subscriptions.closed = True
        if not self._jobs:
            self._finish_stop()
            return
        if self._connection is not None:
            self._connection.send(GOODBYE, {"reason": reason, "drain": True})
        self._loop.call_later(self._grace, self._on_grace_over)
        self._finish_stop_if_done()  # those that remain may have ended already

    def _on_grace_over(self) -> None:
        """Cancel the running jobs; their handlers have _CANCEL_TIMEOUT to return a result or raise an exception."""
        for job in self._leased_jobs():
            job.grace_over = True
            job.job._cancel("SHUTDOWN")
        self._loop.call_later(_CANCEL_TIMEOUT, self._finish_stop)

    def _finish_stop_if_done(self) -> None:
        """Finish stopping once all remaining jobs are to be given back and there is a node to give them to."""
        can_finish = self._connection is not None or not self._jobs
        if self._stopping and can_finish and all(job.give_back for job in self._jobs.values()):
            self._finish_stop()

    def _finish_stop(self) -> None:
        """Send the last GOODBYE, by which the remaining jobs are given back without counting their attempt."""
        if self._goodbye_sent:
            return
        self._goodbye_sent = True
        for job in self._jobs.values():
            log.warning("job %s did not end in time and is given back", job.id)
        self._jobs.clear()
        connections = [c for c in (self._connection, *self._draining) if c is not None]
        for connection in connections:
            connection.send(GOODBYE, {"reason": "worker stops", "drain": False})
        # _on_disconnected may set stopped earlier, when the node closes the connection.
        self._loop.call_later(_GOODBYE_TIMEOUT if connections else 0, self._set_stopped)

    def _set_stopped(self) -> None:
        self.stopped = True

    def shut_down(self) -> None:
        """Close all connections, and end the threads for handlers. Jobs that remain because of an error are given back."""
        self.stopped = True
        give_back = bool(self._jobs) and not self._goodbye_sent
        for connection in (self._connection, self._connecting, *self._draining):
            if connection is None:
                continue
            if give_back and connection is not self._connecting:
                connection.send(GOODBYE, {"reason": "worker ends by an error", "drain": False})
            connection.close()
            if give_back:
                connection.join(_GOODBYE_TIMEOUT)
        self.executor.shut_down()
