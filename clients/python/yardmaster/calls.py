"""Calls that one thread makes in turn: those that other threads post, and timers."""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import time
from typing import Any, Callable, List, Optional, Tuple

Call = Callable[..., None]


class CallLoop:
    """Makes calls one after another; timers go by the monotonic clock."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Tuple[Call, Tuple[Any, ...]]] = queue.SimpleQueue()
        self._timers: List[Tuple[float, int, Call, Tuple[Any, ...]]] = []  # a heap
        self._timer_numbers = itertools.count()  # keeps timers of the same time in order
        self._pid: Optional[int] = None  # of the process that runs the loop

    def post(self, call: Call, *args: Any) -> None:
        """Have the loop's thread make a call. May be used from any thread of its process."""
        if self._pid not in (None, os.getpid()):
            raise RuntimeError(f"the worker runs in process {self._pid}, not in this fork of it: use it from there")
        self._posted.put((call, args))

    def call_later(self, seconds: float, call: Call, *args: Any) -> None:
        """Make a call after some seconds. Used by the loop's thread only."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._timer_numbers), call, args))

    def run_while(self, condition: Callable[[], bool]) -> None:
        """Make calls in this thread as long as a condition holds."""
        self._pid = os.getpid()
        while condition():
            self._run_next()

    def _run_next(self) -> None:
        """Make the call of a timer that is due, or else wait for a posted call or the next timer."""
        wait = self._timers[0][0] - time.monotonic() if self._timers else 1.0
        if wait <= 0:
            _, _, call, args = heapq.heappop(self._timers)
        else:
            try:
                call, args = self._posted.get(timeout=wait)
            except queue.Empty:
                return
        call(*args)
