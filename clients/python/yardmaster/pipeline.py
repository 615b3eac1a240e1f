"""Sends many requests over one connection without waiting for each answer."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from typing import Dict, List, Optional, Sequence

from .connection import Connection
from .errors import CodecError, ConnectionLost, OverhopError, Unavailable
from .nodes import retry_delay
from .protocol import Fields
from .waits import resolve

WINDOW = 512  # unanswered requests; a node reads no more than 1024 of a connection, which others may share


class Pipeline:
    """Sends requests of one type, at most WINDOW of them unanswered.

    It ends once all are answered, or once the connection is lost or the node is
    unavailable: then it sends no more, and the rest is to be sent again. The
    caller waits for ``done`` and reads the other attributes after that, or
    after abandon().
    """

    def __init__(self, connection: Connection, message_type: int, requests: Sequence[Fields], numbers: Sequence[int]) -> None:
        self._connection, self._message_type, self._requests, self._numbers = connection, message_type, requests, numbers
        self._lock = threading.RLock()  # guards the rest; send() may call back at once
        self._sent = self._unanswered = 0
        self._stopped = False
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.answers: Dict[int, Fields] = {}      # by number of the request
        self.errors: Dict[int, Exception] = {}    # of requests that were refused for good, or cannot be sent
        self.last_error: Optional[Exception] = None  # why it has stopped; None if all are answered
        self.pause: Optional[float] = None        # seconds to wait before the rest is sent again, if the node asks for it

    def run(self) -> None:
        """Begin to send. The connection's thread continues as answers arrive."""
        with self._lock:
            self._send_more()

    def abandon(self) -> None:
        """Send no more, and ignore the answers that are still to come."""
        with self._lock:
            self._stopped = True
            self._unanswered = -1

    def rest(self) -> List[int]:
        """Return the numbers of the requests without a definite answer."""
        with self._lock:
            return [number for number in self._numbers if number not in self.answers and number not in self.errors]

    def _send_more(self) -> None:
        while not self._stopped and self._unanswered < WINDOW and self._sent < len(self._numbers):
            number = self._numbers[self._sent]
            self._sent += 1
            self._unanswered += 1
            try:
                self._connection.send(self._message_type, self._requests[number],
                                      functools.partial(self._receive, number))
            except (CodecError, OverhopError) as e:  # it was not sent
                self._unanswered -= 1
                self.errors[number] = e
        if self._unanswered == 0 and (self._stopped or self._sent == len(self._numbers)):
            resolve(self.done, None)

    def _receive(self, number: int, answer: Fields, error: Optional[Exception]) -> None:
        """Handle an answer, and send the next request."""
        with self._lock:
            if self._unanswered < 0:
                return
            self._unanswered -= 1
            if error is None:
                self.answers[number] = answer
            elif isinstance(error, ConnectionLost):
                self._stopped, self.last_error = True, error
            elif isinstance(error, Unavailable):
                self._stopped, self.last_error = True, error
                self.pause = max(self.pause or 0, retry_delay(error))
            else:
                self.errors[number] = error
            self._send_more()
