"""The subscriptions of a worker: what it asks of its node about queues, and the credits it grants."""

from __future__ import annotations

import collections
import logging
from typing import Callable, Deque, Dict, Optional, Tuple

from .calls import CallLoop
from .connection import Connection
from .errors import ConnectionLost, OverhopError, refusal
from .handlers import Registered
from .nodes import retry_delay
from .protocol import ADDQUEUE, CREDIT, SUBSCRIBE, Fields

log = logging.getLogger("yardmaster")

# Codes that no other node would answer differently, now or later.
PERMANENT = {
    "PROTOCOL_VIOLATION", "UNAUTHORIZED", "NOT_IMPLEMENTED", "QUEUE_NOT_FOUND", "INVALID_QUEUE_NAME",
    "SYSTEM_QUEUE_FORBIDDEN", "DUPLICATE_SUBSCRIPTION",
}
_MAX_QUEUE_REQUESTS = 64  # SUBSCRIBEs and ADDQUEUEs that wait for answers at a time
_REFUSED_QUEUE_DELAY = 5.0  # seconds before a SUBSCRIBE that was refused, as with too many subscriptions, is repeated


class Subscription:
    """A queue's handlers, and the credits that the node holds for it."""

    def __init__(self, queue_name: str, concurrency: int) -> None:
        self.queue_name, self.concurrency = queue_name, concurrency
        self.handlers: Dict[Optional[str], Registered] = {}  # by function; None: any other function, or none
        self.sid: Optional[str] = None  # of the subscription on the current connection; None: not subscribed
        self.refusal = ""  # code of the last refusal on the current connection
        self.running = 0  # jobs whose handler has not returned
        self.credits = 0  # unused ones, as the node counts them

    def handler_of(self, fn: Optional[str]) -> Optional[Registered]:
        """Return the handler of jobs that name a function, or None if there is none."""
        return self.handlers.get(fn) or self.handlers.get(None)

    def take_credits(self) -> int:
        """Return the credits to grant now so that the node can fill all free slots, and count them as granted."""
        credits = max(0, self.concurrency - self.running - self.credits)
        self.credits += credits
        return credits


class Subscriptions:
    """Subscribes to the queues of a worker at its current node.

    The thread of ``loop`` makes all calls. ``leave`` is called when the node is
    found to drain.
    """

    def __init__(self, loop: CallLoop, create_queues: bool, leave: Callable[[Connection], None]) -> None:
        self._loop, self._create_queues, self._leave = loop, create_queues, leave
        self.by_queue: Dict[str, Subscription] = {}
        self.closed = False  # the worker stops: subscribe to nothing, and grant no credits
        self._connection: Optional[Connection] = None  # the current one; None while reconnecting
        # SUBSCRIBEs and ADDQUEUEs to be sent on _connection, and how many have been sent and not answered.
        self._queue_requests: Deque[Tuple[Callable[[Connection, Subscription], None], Subscription]] = collections.deque()
        self._queue_requests_sent = 0

    def reset(self, connection: Optional[Connection]) -> None:
        """Take note of another connection, which has no subscriptions yet, or of the lack of one."""
        self._connection = connection
        self._queue_requests.clear()
        for subscription in self.by_queue.values():
            subscription.sid, subscription.credits, subscription.refusal = None, 0, ""

    def subscribe(self, connection: Connection) -> None:
        """Subscribe to all queues."""
        self._queue_requests = collections.deque((self._subscribe, s) for s in self.by_queue.values())
        self._queue_requests_sent = 0
        self._send_queue_requests(connection)

    def forget_requests(self) -> None:
        """Send no more requests on the current connection, whose node drains."""
        self._queue_requests.clear()

    def _send_queue_requests(self, connection: Connection) -> None:
        """Send the next requests about queues, with at most _MAX_QUEUE_REQUESTS unanswered.

        There may be a thousand queues, and a BEAT must not wait for all of them.
        """
        while self._queue_requests and self._queue_requests_sent < _MAX_QUEUE_REQUESTS and not self.closed:
            send, subscription = self._queue_requests.popleft()
            self._queue_requests_sent += 1
            send(connection, subscription)

    def _subscribe(self, connection: Connection, subscription: Subscription) -> None:
        subscription.credits = 0  # credits of an earlier subscription are void
        connection.send(SUBSCRIBE, {"q": subscription.queue_name, "credits": subscription.take_credits()},
                        lambda answer, error: self._loop.post(self._on_subscribed, connection, subscription, answer, error))

    def _on_subscribed(self, connection: Connection, subscription: Subscription, answer: Fields,
                       error: Optional[Exception]) -> None:
        """Handle the answer to SUBSCRIBE: create a missing queue, leave a draining node, or try again later.

        Raises the error, and thereby ends run(), if trying again is useless.
        """
        if connection is not self._connection or isinstance(error, ConnectionLost):
            return
        self._queue_requests_sent -= 1
        if not isinstance(error, OverhopError):
            subscription.sid = answer.get("sid")
            self.grant_credits(connection, subscription)  # for handlers that have returned since SUBSCRIBE
            if not self._queue_requests_sent and all(s.sid is not None for s in self.by_queue.values()):
                log.info("subscribed to %d queues at node %s (%s)", len(self.by_queue), connection.node_name, connection.node)
        elif error.code == "QUEUE_NOT_FOUND" and self._create_queues:
            self._queue_requests.append((self._create_queue, subscription))
        elif error.code == "DRAINING":
            self._leave(connection)
        elif error.code in PERMANENT:
            raise _queue_error("subscribe to", subscription, error)
        else:
            self._subscribe_later(connection, subscription, error)
        self._send_queue_requests(connection)

    def _create_queue(self, connection: Connection, subscription: Subscription) -> None:
        connection.send(ADDQUEUE, {"name": subscription.queue_name},
                        lambda _, error: self._loop.post(self._on_queue_created, connection, subscription, error))

    def _on_queue_created(self, connection: Connection, subscription: Subscription, error: Optional[Exception]) -> None:
        """Subscribe to a queue that was created, at once or, if the yard is unavailable, later."""
        if connection is not self._connection or isinstance(error, ConnectionLost):
            return
        self._queue_requests_sent -= 1
        if not isinstance(error, OverhopError) or error.code == "DUPLICATE_QUEUE":
            self._queue_requests.append((self._subscribe, subscription))
        elif error.code == "UNAVAILABLE":
            self._subscribe_later(connection, subscription, error)
        else:
            raise _queue_error("create", subscription, error)
        self._send_queue_requests(connection)

    def _subscribe_later(self, connection: Connection, subscription: Subscription, error: OverhopError) -> None:
        """Subscribe to a queue again after a refusal; log it unless the last one was the same."""
        if error.code != subscription.refusal:
            subscription.refusal = error.code
            log.warning("cannot subscribe to queue %s at node %s, trying again: %s", subscription.queue_name, connection.node, error)
        delay = retry_delay(error) if error.code == "UNAVAILABLE" else _REFUSED_QUEUE_DELAY
        self._loop.call_later(delay, self._resubscribe, connection, subscription)

    def _resubscribe(self, connection: Connection, subscription: Subscription) -> None:
        if connection is self._connection:
            self._queue_requests.append((self._subscribe, subscription))
            self._send_queue_requests(connection)

    def on_credits(self, connection: Connection, payload: Fields) -> None:
        """Take over the node's credit count after a CREDITS, and grant what is missing."""
        for subscription in self.by_queue.values():
            if connection is not self._connection or subscription.sid is None or subscription.sid != payload.get("sid"):
                continue
            if payload.get("reason") == "RESTORED":
                subscription.credits += 1
            else:  # STALLED, or the subscription has ended
                subscription.credits = 0
            self.grant_credits(connection, subscription)

    def grant_credits(self, connection: Connection, subscription: Subscription) -> None:
        if subscription.sid is None or self.closed:  # the answer to SUBSCRIBE grants them
            return
        credits = subscription.take_credits()
        if credits:
            connection.send(CREDIT, {"sid": subscription.sid, "credits": credits},
                            lambda _, error: self._loop.post(self._on_credits_granted, connection, subscription, error))

    def _on_credits_granted(self, connection: Connection, subscription: Subscription, error: Optional[Exception]) -> None:
        if isinstance(error, OverhopError) and error.code == "SUBSCRIPTION_NOT_FOUND":
            log.warning("subscription to %s was lost, subscribing again", subscription.queue_name)
            self._loop.call_later(1.0, self._resubscribe, connection, subscription)


def _queue_error(act: str, subscription: Subscription, error: OverhopError) -> OverhopError:
    """Return a node's refusal with the queue and what the worker asked for."""
    return refusal(error.code, f"cannot {act} queue {subscription.queue_name!r}: {error.msg}", error.details)
