"""A job that a worker has, as its dispatcher sees it."""

from __future__ import annotations

import time
from typing import Any, Optional

from .codec import Encoded
from .connection import Connection
from .handlers import Outcome
from .job import Job
from .protocol import Fields


class ActiveJob:
    """A job that the worker has, with the state of its lease and outcome."""

    def __init__(self, job: Job[Any], quest: Fields) -> None:
        self.job, self.id, self.token = job, job.id, job._token
        self.beat_interval: float = quest.get("beat_ms", 2000) / 1000  # seconds
        self.lease: float = quest.get("lease_ms", 6000) / 1000         # seconds from each extension
        self.lease_end = time.monotonic() + self.lease                 # unless a node extends it
        job._holds_lease = lambda: time.monotonic() < self.lease_end
        self.connection: Optional[Connection] = None  # the last one used for its QUEST, lease or outcome
        self.acked = False            # a node has answered the ACK, and the handler has started
        self.lease_confirmed = False  # the node of connection has confirmed the lease
        self.transfer: Optional[Connection] = None  # on which the BEAT that moves the lease is not answered yet
        self.outcome: Optional[Outcome] = None  # that no node has answered yet
        self.outcome_losses = 0       # connections lost while its answer was pending
        self.grace_over = False       # cancelled because the worker's grace is over
        self.give_back = False        # to another worker: the handler has ended, or will, only because the worker stops
        self.progress: Optional[Encoded] = None  # the newest, not sent yet
        self.progress_pending = False            # an earlier one has not been answered

    def extend(self, sent: float, answer: Fields, is_first: bool) -> None:
        """Set the end of the lease by a node's answer to an ACK or BEAT that was sent at this monotonic time.

        The first answer, to the ACK, may make the lease shorter than it is in the QUEST. The
        answer of a node of an older release has no length.
        """
        end = sent + (answer["lease_ms"] / 1000 if "lease_ms" in answer else self.lease)
        self.lease_end = end if is_first else max(self.lease_end, end)
