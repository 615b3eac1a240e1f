"""Reads the payload of an assigned job that does not fit into a frame."""

from __future__ import annotations

from typing import Any, Callable, Optional

from .connection import Connection
from .errors import ConnectionLost, Unavailable
from .job import Job
from .nodes import retry_delay
from .protocol import CONTENT, Fields, read_content
from .waits import BlockingWaits, run_blocking

_TIMEOUT = 65.0  # seconds that a node has to answer a CONTENT


def read_large(job: Job[Any], current: Callable[[], Optional[Connection]]) -> None:
    """Set the payload of a job, over the worker's current connection. Called where its handler is to run."""
    waits = BlockingWaits()

    async def call(request: Fields) -> Fields:
        while True:
            job.check()
            connection, pause = current(), 0.1
            try:
                if connection is not None:
                    return await waits.wait(connection.call(CONTENT, request), _TIMEOUT)
            except ConnectionLost:
                pass  # the worker connects to another node
            except Unavailable as e:
                pause = retry_delay(e)
            job.cancelled.wait(pause)
    job.payload = run_blocking(read_content(call, job.id, "payload"))
