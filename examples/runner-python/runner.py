#!/usr/bin/env python3
"""An RRQ runner in one file for Python 3.9 or later, using only the standard library.

A runner is a process that a node starts. It listens on a loopback socket, receives
requests to run handlers by name, and sends one response to each. Copy this file
and replace the example handlers at its end:

    @handler("mail.send")
    def send(job):
        deliver(job.params["to"])       # an exception fails the attempt
        return {"sent": True}           # the returned value is the result

Requests run concurrently, each in its own thread, up to the pool's max_in_flight.
Python cannot end a thread: a long-running handler should call job.check(), or wait
with job.sleep(), so that it can be cancelled. If it does not stop in time, the node
ends the whole process.
"""

import argparse
import contextlib
import hashlib
import inspect
import ipaddress
import json
import logging
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from datetime import datetime, timezone

VERSION = "2"               # of the protocol
MAX_FRAME = 16 << 20        # bytes of JSON in a frame, both ways
MAX_IN_FLIGHT = 64          # requests of one connection
SOCKET_ENV = "RRQ_RUNNER_TCP_SOCKET"

log = logging.getLogger("runner")


class Retry(Exception):
    """Raised by a handler to request another attempt, after the given seconds or by the retry policy."""

    def __init__(self, after=None, message="Job requested retry"):
        super().__init__(message)
        self.after = after


class AttemptFailed(Exception):
    """Raised by a handler to fail its attempt with a type, code and details.

    As after any other exception, the retry policy decides about another attempt.
    """

    def __init__(self, message, type=None, code=None, details=None):
        super().__init__(message)
        self.type, self.code, self.details = type, code, details


class Stopped(BaseException):
    """Raised in a handler that must stop. It is a BaseException, so 'except Exception' does not catch it."""


class Job:
    """One request, passed to its handler."""

    def __init__(self, request):
        context = request["context"]
        self.request_id = _text(request, "request_id")      # of this run
        self.id = _text(request, "job_id")                  # of the job, the same for all its attempts
        self.function = _text(request, "function_name")
        self.params = request.get("params", {})
        if not isinstance(self.params, dict):
            raise ValueError("params are not an object")
        self.attempt = context["attempt"]                   # from 1
        self.queue = context.get("queue_name")
        self.fence = context.get("fence", 0)                # increases with every run of any job
        self.dispatch_id = context.get("dispatch_id") or ""  # this run in the history of the yard
        self.trace = context.get("trace_context") or {}     # the producer's trace headers
        self.correlation = context.get("correlation_context") or {}
        self.deadline = _time(context.get("deadline"))      # datetime or None
        self._until = float("inf")                          # the same, by the monotonic clock
        if self.deadline:
            self._until = time.monotonic() + (self.deadline - datetime.now(timezone.utc)).total_seconds()
        self._cancelled = threading.Event()

    def cancel(self):
        self._cancelled.set()

    @property
    def cancelled(self):
        return self._cancelled.is_set()

    @property
    def late(self):
        """Whether the deadline has passed."""
        return time.monotonic() >= self._until

    def check(self):
        """Raise Stopped if the handler must stop. Call it regularly."""
        if self.cancelled or self.late:
            raise Stopped

    def sleep(self, seconds):
        """Wait; raise Stopped as soon as the handler must stop."""
        self._cancelled.wait(min(max(seconds, 0), max(self._until - time.monotonic(), 0), threading.TIMEOUT_MAX))
        self.check()


handlers = {}


def handler(name):
    """Return a decorator that registers a handler under a name."""
    def register(function):
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"handler {name!r} is async, and handlers run in threads: "
                            f"register a function that returns asyncio.run({function.__name__}(job))")
        if handlers.setdefault(name, function) is not function:
            raise ValueError(f"two handlers are named {name!r}")
        return function
    return register


def run(job, around=contextlib.nullcontext):
    """Run a job's handler and return the outcome without ids."""
    function = handlers.get(job.function)
    if function is None:
        return _error(f"No handler registered for function '{job.function}'", "handler_not_found")
    try:
        if job.late:
            return _error("Job deadline exceeded", "timeout", status="timeout")
        with around(job):
            return {"status": "success", "result": function(job)}
    except Stopped:
        if job.cancelled:
            return _error("Job cancelled", "cancelled")
        return _error("Job execution timed out", "timeout", status="timeout")
    except Retry as retry:
        return {**_error(str(retry), status="retry"), "retry_after_seconds": retry.after}
    except AttemptFailed as fail:
        return _error(str(fail), fail.type, fail.code, fail.details)
    except BaseException as problem:  # also SystemExit, which would end this thread without a response
        log.exception("handler %s failed: request %s", job.function, job.request_id)
        return _error(str(problem) or type(problem).__name__, type(problem).__name__)


def _error(message, type=None, code=None, details=None, status="error"):
    return {"status": status, "error": {"message": message, "type": type, "code": code, "details": details}}


class Connection:
    """One connection of the node: reads requests and cancels, writes responses."""

    def __init__(self, runner, sock):
        self.runner, self.sock = runner, sock
        self.writing = threading.Lock()
        self.jobs = set()     # running; protected by the runner's lock
        self.threads = set()  # of jobs, until the response is sent; likewise

    def serve(self):
        try:
            with self.sock.makefile("rb") as stream:
                for kind, payload in iter(lambda: read_frame(stream), None):
                    self.take(kind, payload)
        except OSError:
            pass  # the node is gone; its jobs are cancelled below
        except Exception as problem:
            log.error("connection closed after an invalid message: %r", problem)
        with self.runner.lock:
            jobs, threads = set(self.jobs), set(self.threads)
        for job in jobs:
            job.cancel()
        for thread in threads:
            thread.join()  # the node may still read the last responses
        with self.runner.lock:
            self.runner.connections.pop(self, None)
        self.sock.close()

    def take(self, kind, payload):
        if kind == "cancel":
            if payload.get("protocol_version", VERSION) == VERSION:
                self.runner.cancel(payload["job_id"], payload.get("request_id"))
        elif kind != "request":
            raise ValueError(f"unexpected message type {kind!r}")
        elif payload.get("protocol_version", VERSION) != VERSION:
            self.answer(payload["job_id"], payload["request_id"], _error("Unsupported protocol version"))
        else:
            job = Job(payload)
            if self.given_up():
                self.answer(job.id, job.request_id, _error("Job cancelled", "cancelled"))
            else:
                self.start(job)

    def given_up(self):
        """Whether the node has closed its side before its request was read. Another runner may have run the job since then, if this one was stopped (SIGSTOP) and continued."""
        try:
            return self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except OSError:
            return False  # there is nothing to read yet

    def start(self, job):
        thread = threading.Thread(target=self.work, args=(job,), name=job.request_id, daemon=True)
        with self.runner.lock:
            full = len(self.jobs) >= MAX_IN_FLIGHT
            if not full:
                thread.start()  # cannot end before the lock is released
                self.jobs.add(job)
                self.threads.add(thread)
                if self.runner.stopping:
                    job.cancel()
        if full:
            self.answer(job.id, job.request_id, _error("Runner busy: too many in-flight requests"))

    def work(self, job):
        outcome = run(job, self.runner.around)
        with self.runner.lock:
            self.jobs.remove(job)  # before the response, after which the node may send the next request
        self.answer(job.id, job.request_id, outcome)
        with self.runner.lock:
            self.threads.remove(threading.current_thread())

    def answer(self, job_id, request_id, outcome):
        """Send an outcome. One that does not fit into a frame is sent as an error, so that the node need not wait for the deadline."""
        ids = {"job_id": job_id, "request_id": request_id}
        try:
            frame = to_frame({**outcome, **ids})
        except (TypeError, ValueError, RecursionError) as problem:
            frame = to_frame({**_error(f"Result cannot be sent: {problem}"), **ids})
        try:
            with self.writing:
                self.sock.sendall(frame)
        except OSError:
            pass  # the node is gone; the job will run again


def read_frame(stream):
    """Return the next message as (type, payload), or None at the end of the connection."""
    header = stream.read(4)
    if not header:
        return None  # end of the connection
    size, = struct.unpack(">I", header) if len(header) == 4 else (0,)
    if not 0 < size <= MAX_FRAME:
        raise ValueError(f"frame has {size} bytes; must be 1 to {MAX_FRAME}")
    body = stream.read(size)
    if len(body) < size:
        raise ConnectionError("connection ended in the middle of a frame")
    message = json.loads(body)
    if not isinstance(message["payload"], dict):
        raise ValueError("message without payload")
    return message["type"], message["payload"]


def to_frame(payload):
    body = json.dumps({"type": "response", "payload": payload}, allow_nan=False, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"{len(body)} bytes; at most {MAX_FRAME}")
    return struct.pack(">I", len(body)) + body


def _text(request, key):
    if not isinstance(request[key], str):
        raise ValueError(f"{key} is not a string")
    return request[key]


def _time(text):
    """Parse an RFC 3339 time with any number of fractional digits, which Python 3.9 does not support."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", text)
    if not found:
        raise ValueError(f"deadline {text!r} is not RFC 3339")
    second, fraction, zone = found.groups(default="0")
    return datetime.fromisoformat(f"{second}.{fraction:0<6.6}{'+00:00' if zone == 'Z' else zone}")


class Runner:
    """Accepts connections until stopping is set and the listener is closed. Every handler runs within around(job)."""

    def __init__(self, around=contextlib.nullcontext):
        self.around = around
        self.lock = threading.Lock()
        self.connections = {}  # thread by connection
        self.stopping = False

    def cancel(self, job_id, request_id=None):
        """Cancel a job of any connection: a cancel arrives on a separate one."""
        with self.lock:
            for job in (job for connection in self.connections for job in connection.jobs):
                if job.request_id == request_id if request_id else job.id == job_id:
                    job.cancel()

    def serve(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                if self.stopping:
                    return
                raise
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(self, sock)
            thread = threading.Thread(target=connection.serve, daemon=True)
            with self.lock:
                self.connections[connection] = thread
            thread.start()

    def finish(self):
        """Cancel the running jobs, and return when their responses are sent."""
        with self.lock:
            connections = dict(self.connections)
            for connection in connections:
                for job in connection.jobs:
                    job.cancel()
                try:
                    connection.sock.shutdown(socket.SHUT_RD)
                except OSError:
                    pass  # already closed
        for thread in connections.values():
            thread.join()


def loopback(text):
    """Parse host:port. The host must be a loopback address, because the protocol has no authentication."""
    host, _, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"socket {text!r} is not host:port, such as 127.0.0.1:9000") from None
    if not address.is_loopback:
        raise ValueError(f"socket {text} is not on the loopback interface; use 127.0.0.1")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"socket {text!r} needs a port from 1 to 65535")
    return address, int(port)


def main(argv=None, around=contextlib.nullcontext):
    """Serve the registered handlers until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="RRQ runner, usually started by a runner pool.")
    parser.add_argument("--tcp-socket", default=os.environ.get(SOCKET_ENV, ""), metavar="HOST:PORT",
                        help=f"loopback address to listen on; default ${SOCKET_ENV}")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if not arguments.tcp_socket:
        parser.error("no socket given; start this from a runner pool, or with --tcp-socket 127.0.0.1:9000")
    try:
        address, port = loopback(arguments.tcp_socket)
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        listener = socket.create_server((str(address), port), family=family, backlog=128)
    except (ValueError, OSError) as problem:
        parser.error(str(problem))
    runner = Runner(around)

    def stop(*_):
        runner.stopping = True
        listener.close()  # makes accept fail

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    runner.serve(listener)
    runner.finish()


# ---- Replace these handlers. They are the same as in examples/runner/demo, one for each way in which a job can end.

def param(job, name, kind, otherwise):
    value = job.params.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, kind):
        raise AttemptFailed(f"params of {job.function}: {name} is {value!r}", type="params")
    return value


@handler("echo")
def echo(job):
    return job.params


@handler("sleep")
def sleep(job):
    job.sleep(param(job, "ms", int, 0) / 1000)
    return job.params


@handler("fail")
def fail(job):
    raise AttemptFailed(param(job, "message", str, "failed as asked"), type="demo")


@handler("retry")
def retry(job):
    times, after = param(job, "times", int, 0), param(job, "after", (int, float), None)
    if job.attempt <= times:
        raise Retry(after)
    return {"attempt": job.attempt}


@handler("crash")
def crash(job):
    times, dispatch = param(job, "times", int, 0), job.dispatch_id.partition("#")[2]
    if times and dispatch.isdigit() and int(dispatch) > times:
        return job.params
    os._exit(param(job, "code", int, 1))


@handler("hang")
def hang(job):
    threading.Event().wait()  # ignores cancellation; only the end of the process stops it


@handler("big")
def big(job):
    size = param(job, "bytes", int, 0)
    if not 0 <= size <= 2 * MAX_FRAME:
        raise AttemptFailed(f"bytes is {size}; must be 0 to {2 * MAX_FRAME}", type="params")
    return "x" * size


@handler("hash")
def hash_text(job):
    text = param(job, "text", str, "").encode()
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


@contextlib.contextmanager
def witness(job):
    """Append the start and the end of a request to the file YARD_WITNESS, which tests compare with the state of the yard."""
    if not os.environ.get("YARD_WITNESS"):
        yield
        return
    file = os.open(os.environ["YARD_WITNESS"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(file, f"{job.dispatch_id} {job.id} {job.attempt} {job.fence}\n".encode())
        os.fsync(file)
        try:
            yield
        finally:
            os.write(file, f"end {job.dispatch_id}\n".encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    sys.exit(main(around=witness))
