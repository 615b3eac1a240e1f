"""The blocking client."""

from __future__ import annotations

import functools
import ssl
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Iterator, Optional, Type, TypeVar, overload

from .aio import AsyncClient
from .nodes import Nodes
from .waits import BlockingWaits, iterate_blocking, run_blocking

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec, Unpack

    from .newjob import JobOptions
    from .typed import Returns

    P = ParamSpec("P")

T = TypeVar("T")
Self = TypeVar("Self", bound="Client")


class BlockingCalls(AsyncClient):
    """An AsyncClient whose calls block."""

    _waits = BlockingWaits()
    _call_depth = 3  # beyond the method of Client


def _blocking(call: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Client, P], T]:
    """Return a method that makes a call of AsyncClient and blocks until it returns."""
    @functools.wraps(call)
    def method(client: Client, /, *args: P.args, **options: P.kwargs) -> T:
        return run_blocking(call(client._calls, *args, **options))
    return method


def _iterating(call: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """Return a method that iterates over what a call of AsyncClient yields."""
    @functools.wraps(call)
    def method(client: Client, /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        return iterate_blocking(call(client._calls, *args, **options))
    return method


class Client:
    """Enqueues jobs, waits for their results, and manages queues.

        with Client(["10.0.0.1:9876", "10.0.0.2:9876"]) as client:
            jid = client.enqueue("mail", {"to": "ann"})
            print(client.result(jid, timeout=30))

    ``nodes`` and ``name`` are as for a Worker. A client connects to one node on
    first use, and to the next one if the connection is lost or the node drains.
    Requests that were pending on a lost connection are sent again. ``timeout``
    is the total time of a call in seconds; after that the call raises the last
    error: ConnectionLost, TimeoutError, or Unavailable. All calls raise
    OverhopError if a node refuses the request. With ``create_queues`` a queue that
    does not exist is created when a job is enqueued into it.

    A client may be shared by threads. A forked child opens its own connection.
    Each call is the one of AsyncClient, made to block.
    """

    def __init__(self, nodes: Nodes = None, *, name: Optional[str] = None, tls: Optional[ssl.SSLContext] = None,
                 token: Optional[str] = None, timeout: float = 30.0, create_queues: bool = True) -> None:
        self._calls: AsyncClient = BlockingCalls(nodes, name=name, tls=tls, token=token, timeout=timeout, create_queues=create_queues)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; pending and later calls raise ConnectionLost."""
        self._calls._close()

    # -- jobs

    enqueue = _blocking(AsyncClient.enqueue)
    enqueue_many = _blocking(AsyncClient.enqueue_many)

    @overload
    def call(self, job: Returns[T], *, wait: Optional[float] = None, **options: Unpack[JobOptions]) -> T: ...
    @overload
    def call(self, job: Any, payload: Any = None, fn: Optional[str] = None, *, wait: Optional[float] = None,
             **options: Unpack[JobOptions]) -> Any: ...
    @overload
    def call(self, job: Any, payload: Any = None, fn: Optional[str] = None, *, wait: Optional[float] = None, returns: Type[T],
             **options: Unpack[JobOptions]) -> T: ...

    @functools.wraps(AsyncClient.call)
    def call(self, job: Any, payload: Any = None, fn: Optional[str] = None, *, wait: Optional[float] = None, returns: Any = Any,
             **options: Unpack[JobOptions]) -> Any:
        return run_blocking(self._calls.call(job, payload, fn, wait=wait, returns=returns, **options))

    @overload
    def result(self, jid: str, timeout: Optional[float] = None) -> Any: ...
    @overload
    def result(self, jid: str, timeout: Optional[float] = None, *, returns: Type[T]) -> T: ...

    @functools.wraps(AsyncClient.result)
    def result(self, jid: str, timeout: Optional[float] = None, *, returns: Any = Any) -> Any:
        return run_blocking(self._calls.result(jid, timeout, returns=returns))

    payload = _blocking(AsyncClient.payload)
    get = _blocking(AsyncClient.get)
    list_jobs = _iterating(AsyncClient.list_jobs)
    find_jobs = _iterating(AsyncClient.find_jobs)
    cancel = _blocking(AsyncClient.cancel)
    retry = _blocking(AsyncClient.retry)
    set_job = _blocking(AsyncClient.set_job)
    remove = _blocking(AsyncClient.remove)

    # -- queues and the connected node

    queues = _blocking(AsyncClient.queues)
    queue = _blocking(AsyncClient.queue)
    add_queue = _blocking(AsyncClient.add_queue)
    set_queue = _blocking(AsyncClient.set_queue)
    remove_queue = _blocking(AsyncClient.remove_queue)
    clear_queue = _blocking(AsyncClient.clear_queue)
    obliterate_queue = _blocking(AsyncClient.obliterate_queue)
    pause = _blocking(AsyncClient.pause)
    resume = _blocking(AsyncClient.resume)
    stats = _blocking(AsyncClient.stats)
    node_status = _blocking(AsyncClient.node_status)
    ping = _blocking(AsyncClient.ping)

    # -- the yard's API

    api = _blocking(AsyncClient.api)
    explain = _blocking(AsyncClient.explain)
    job_log = _blocking(AsyncClient.job_log)
    job_errors = _blocking(AsyncClient.job_errors)
    workers = _blocking(AsyncClient.workers)
    drain_worker = _blocking(AsyncClient.drain_worker)
    resume_worker = _blocking(AsyncClient.resume_worker)
    yard_status = _blocking(AsyncClient.yard_status)
    dead_letters = _iterating(AsyncClient.dead_letters)
    dead_letter = _blocking(AsyncClient.dead_letter)
    requeue_dead_letters = _blocking(AsyncClient.requeue_dead_letters)
    remove_dead_letters = _blocking(AsyncClient.remove_dead_letters)
    cron_entries = _iterating(AsyncClient.cron_entries)
    cron_entry = _blocking(AsyncClient.cron_entry)
    add_cron = _blocking(AsyncClient.add_cron)
    remove_cron = _blocking(AsyncClient.remove_cron)
    pause_cron = _blocking(AsyncClient.pause_cron)
    resume_cron = _blocking(AsyncClient.resume_cron)
    run_cron = _blocking(AsyncClient.run_cron)
    limits = _iterating(AsyncClient.limits)
    limit = _blocking(AsyncClient.limit)
    set_limit = _blocking(AsyncClient.set_limit)
    pause_limit = _blocking(AsyncClient.pause_limit)
    resume_limit = _blocking(AsyncClient.resume_limit)
    remove_limit = _blocking(AsyncClient.remove_limit)
    preview_operation = _blocking(AsyncClient.preview_operation)
    start_operation = _blocking(AsyncClient.start_operation)
    operation = _blocking(AsyncClient.operation)
    wait_operation = _blocking(AsyncClient.wait_operation)
    operations = _iterating(AsyncClient.operations)
    pause_operation = _blocking(AsyncClient.pause_operation)
    resume_operation = _blocking(AsyncClient.resume_operation)
    cancel_operation = _blocking(AsyncClient.cancel_operation)
    set_operation_rate = _blocking(AsyncClient.set_operation_rate)
    set_schema = _blocking(AsyncClient.set_schema)
    remove_schema = _blocking(AsyncClient.remove_schema)
    retention = _blocking(AsyncClient.retention)
    set_retention = _blocking(AsyncClient.set_retention)

    # -- earlier names, which the next release removes

    job = _blocking(AsyncClient.job)
    jobs = _iterating(AsyncClient.jobs)
    jobs_page = _blocking(AsyncClient.jobs_page)
    search_jobs = _iterating(AsyncClient.search_jobs)
    configure_queue = _blocking(AsyncClient.configure_queue)
    status = _blocking(AsyncClient.status)
