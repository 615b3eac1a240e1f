"""What Client and AsyncClient share: a connection that is replaced, and requests that are repeated."""

from __future__ import annotations

import concurrent.futures
import logging
import math
import ssl
import threading
import time
from datetime import datetime, timedelta
from typing import Dict, List, Optional, Sequence, Tuple, Union

from . import checks
from .connection import Connection, Settings, fork_aware
from .errors import ApiError, ConnectionLost, JobNotFound, MessageTooLarge, OverhopError, RateLimited, TLSError, Unavailable
from .nodes import NodeRotation, Nodes, backoff, retry_delay
from .pipeline import Pipeline
from .protocol import AWAIT, DRAIN, JOBEND, PING, Fields, milliseconds, only_strings, parse_time
from .waits import AsyncioWaits, Waits, resolve

log = logging.getLogger("yardmaster")

# Payload of an awaited job's JOBEND, or None when a connection is lost.
_End = concurrent.futures.Future[Optional[Fields]]
_MAX_AWAIT = 60.0  # seconds, the longest timeout of one AWAIT
# Seconds for which an awaited job may be unknown: if the stream that stores an
# accepted job has lost its leader, other nodes learn of the job that much later.
_UNKNOWN_JOB_TIMEOUT = 15.0
_CLOCK_AGE = 30.0  # seconds for which the node's clock is known after a PING
_LARGE = 1 << 16   # bytes of a payload that may be too large for the nodes, if they close the connection
_MAX_LOSSES = 5    # connections lost by a request with such a payload


class Session:
    """A connection to one of several nodes.

    Its methods are coroutines that wait by ``waits`` only. It may be shared by
    threads and by tasks. A forked child opens its own connection.
    """

    _waits: Waits = AsyncioWaits()
    _call_depth = 2  # frames from a call's warning to the caller

    def __init__(self, nodes: Nodes = None, *, name: Optional[str] = None, tls: Optional[ssl.SSLContext] = None,
                 token: Optional[str] = None, timeout: float = 30.0, create_queues: bool = True) -> None:
        self._nodes = NodeRotation(nodes)
        self._settings = Settings(name, tls, token)
        self._timeout, self._closed, self._create_queues = checks.seconds("timeout", timeout, math.inf), False, create_queues
        self.after_fork()
        fork_aware.add(self)

    def after_fork(self) -> None:
        """Initialize the state that a forked child cannot share: the parent's connection has no thread there."""
        self._lock = threading.Lock()  # guards _closed, _nodes, _connection and _ends
        self._connection: Optional[Connection] = None  # for new requests
        self._nodes.preferred = []
        self._ends: Dict[str, List[_End]] = {}  # what result() calls wait for, by job id
        self._clock: Optional[Tuple[datetime, float]] = None  # a time of the node, and the monotonic time then

    def _close(self) -> None:
        """Close the connection; pending and later calls raise ConnectionLost."""
        with self._lock:
            self._closed, connection = True, self._connection
        if connection is not None:
            connection.close()

    async def _call(self, message_type: int, payload: Fields, timeout: Optional[float] = None,
                    done_codes: Sequence[str] = ()) -> Fields:
        """Send a request until a node answers it, and return the payload of the answer.

        ``timeout`` is the total time in seconds; None means the client's. If a
        repeated request is refused with one of ``done_codes``, an earlier attempt
        has been executed, and the result is an empty dict.
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        attempts = losses = 0
        last_error: Exception = TimeoutError("no time is left for the request")
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise last_error
            try:
                connection = await self._ready_connection(remaining)
                return await self._answer(connection, connection.call(message_type, payload), deadline - time.monotonic())
            except OverhopError as e:
                if attempts and (f"{e.code} {e.status}" if isinstance(e, ApiError) else e.code) in done_codes:
                    return {}
                if not isinstance(e, Unavailable):
                    raise
                last_error, pause = e, retry_delay(e)
            except ConnectionLost as e:
                last_error, pause = e, backoff(attempts)
                losses += 1
                if self._is_final(e):
                    raise
                if losses >= _MAX_LOSSES and _is_large(payload):
                    raise MessageTooLarge(f"{e}; no node accepts this message, it may be too large for them") from e
            except TimeoutError as e:
                if attempts:
                    raise last_error from e  # the reason for repeating says more than the timeout
                raise
            attempts += 1
            await self._waits.sleep(min(pause, max(0.0, deadline - time.monotonic())))

    def _is_final(self, error: Exception) -> bool:
        """Report whether another connection would be of no use after an error."""
        with self._lock:
            return self._closed or isinstance(error, TLSError) and self._nodes.all_refuse(error.node)

    async def _answer(self, connection: Connection, future: concurrent.futures.Future[Fields], timeout: float) -> Fields:
        try:
            return await self._waits.wait(future, timeout)
        except TimeoutError:
            raise TimeoutError(f"{connection.node} did not answer within {timeout:.1f} s") from None

    async def _call_all(self, message_type: int, requests: Sequence[Fields]) -> List[Union[Fields, Exception]]:
        """Send requests, pipelined, until each is answered; return for each the payload of its answer, or its error.

        A request that has no answer within the client's timeout gets the last
        error: then the node may have executed it.
        """
        deadline = time.monotonic() + self._timeout
        outcomes: List[Union[Fields, Exception, None]] = [None] * len(requests)
        rest = list(range(len(requests)))
        last_error: Exception = TimeoutError("no time is left for the request")
        attempts = losses = 0
        while rest and time.monotonic() < deadline:
            pause: Optional[float] = None
            try:
                connection = await self._ready_connection(deadline - time.monotonic())
            except (ConnectionLost, TimeoutError, Unavailable) as e:
                if self._is_final(e):
                    raise
                last_error = e
            else:
                pipeline = Pipeline(connection, message_type, requests, rest)
                pipeline.run()
                try:
                    await self._waits.wait(pipeline.done, deadline - time.monotonic())
                except TimeoutError:
                    last_error = TimeoutError(f"{connection.node} did not answer within {self._timeout:.1f} s")
                finally:
                    pipeline.abandon()
                answered = len(rest)
                for number, answer in pipeline.answers.items():
                    outcomes[number] = answer
                for number, error in pipeline.errors.items():
                    outcomes[number] = error
                rest = pipeline.rest()
                if len(rest) < answered:
                    attempts = losses = 0
                if pipeline.last_error is not None:
                    last_error, pause = pipeline.last_error, pipeline.pause
                    losses += isinstance(last_error, ConnectionLost)
                if self._closed:
                    break
                if losses >= _MAX_LOSSES and rest and _is_large(requests[rest[0]]):
                    outcomes[rest.pop(0)] = MessageTooLarge(f"{last_error}; no node accepts this message, it may be too large for them")
                    losses = 0
            if rest:
                await self._waits.sleep(min(backoff(attempts) if pause is None else pause, max(0.0, deadline - time.monotonic())))
                attempts += 1
        return [last_error if outcome is None else outcome for outcome in outcomes]

    async def _ready_connection(self, timeout: float) -> Connection:
        """Return the current connection, or a new one, once it is registered.

        Raises TimeoutError after ``timeout`` seconds, ConnectionLost, or the
        OverhopError by which the node refused the registration.
        """
        with self._lock:
            if self._closed:
                raise ConnectionLost("client is closed")
            connection = self._connection
            if connection is None:
                connection = self._connection = Connection(
                    self._nodes.next(), self._settings, self._on_connected, self._on_push, self._on_disconnected)
        try:
            await self._waits.wait(connection.ready, timeout)
        except TimeoutError:
            raise TimeoutError(f"{connection.node} is not connected within {timeout:.1f} s") from None
        connection.check()
        return connection

    def _on_connected(self, connection: Connection) -> None:
        self._nodes.reached = True

    def _on_disconnected(self, connection: Connection, error: Exception) -> None:
        """Have the next request connect again. Called in the connection's thread."""
        with self._lock:
            if self._connection is connection:
                self._connection = None
            ends = [end for ends in self._ends.values() for end in ends]
        for end in ends:
            resolve(end, None)  # its result() call sends another AWAIT

    def _on_push(self, connection: Connection, message_type: int, payload: Fields) -> None:
        """Handle a JOBEND or DRAIN. Called in the connection's thread."""
        if message_type == JOBEND:
            with self._lock:
                ends = list(self._ends.get(str(payload.get("jid")), ()))
            for end in ends:
                resolve(end, payload)
        elif message_type == DRAIN:
            # Pending requests and JOBENDs still use this connection, new requests another.
            with self._lock:
                if self._connection is connection:
                    self._connection = None
                    self._nodes.preferred = only_strings(payload.get("reconnect"))

    async def _await(self, jid: str, timeout: float) -> Fields:
        """Wait until a job has ended; return the payload of its JOBEND, or its record if it had ended before."""
        deadline = time.monotonic() + timeout
        unknown_deadline = min(deadline, time.monotonic() + _UNKNOWN_JOB_TIMEOUT)
        refusals = 0
        while True:
            end: _End = concurrent.futures.Future()
            with self._lock:
                self._ends.setdefault(jid, []).append(end)
            try:
                remaining = max(0.0, deadline - time.monotonic())
                wait = min(remaining, _MAX_AWAIT)
                try:
                    answer = await self._call(AWAIT, {"jid": jid, "timeout_ms": milliseconds(wait)},
                                              None if remaining == math.inf else max(remaining, 1.0))
                except JobNotFound:
                    if time.monotonic() >= unknown_deadline:
                        raise
                    wait = 0.1  # this node may not know the job yet
                except RateLimited:
                    refusals += 1
                    wait = min(0.25 * refusals, 2.0)  # too many AWAITs on this connection: poll
                else:
                    if not answer.get("pending"):
                        return answer
                try:
                    ended = await self._waits.wait(end, wait)
                except TimeoutError:
                    ended = None
                if ended is not None:
                    return ended
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"job {jid} has not ended within {timeout:.1f} s")
            finally:
                with self._lock:
                    self._ends[jid].remove(end)
                    if not self._ends[jid]:
                        del self._ends[jid]

    async def _node_time(self) -> datetime:
        """Return the present time by the node's clock, so that this machine's does not count."""
        clock = self._clock
        if clock is None or time.monotonic() - clock[1] > _CLOCK_AGE:
            asked = time.monotonic()
            server_time = parse_time((await self._call(PING, {}))["server_time"])
            clock = self._clock = server_time, (asked + time.monotonic()) / 2
        return clock[0] + timedelta(seconds=time.monotonic() - clock[1])


def _is_large(payload: Fields) -> bool:
    return len(payload.get("job_payload", payload.get("job_payload_json", b""))) > _LARGE
