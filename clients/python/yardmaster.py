"""Overhop workers and producers for Yardmaster, in one file without dependencies.

A worker runs jobs:

    worker = Worker(["10.0.0.1:9876", "10.0.0.2:9876"])

    @worker.job("mail", concurrency=4)
    def send(job):
        return {"sent": job.payload["to"]}

    worker.run()

A producer hands them over:

    with Client(["10.0.0.1:9876", "10.0.0.2:9876"]) as client:
        jid = client.enqueue("mail", {"to": "ann"})
        print(client.result(jid, timeout=30))

Both connect to any node and change over to another when theirs goes. A worker
takes its jobs in hand along: the token of a job, not the connection, proves
that it is the worker's. Values on this wire are None, bool, int (64 bits,
signed), str, bytes, list and dict with str keys; a float is refused, because
the wire has none.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import logging
import math
import os
import queue
import random
import re
import selectors
import signal
import socket
import ssl
import struct
import threading
import time
import traceback
import uuid
import weakref
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple, Type, Union

__all__ = [
    "CancelledError", "Client", "CodecError", "ConnectionLost", "Fail", "Job", "JobFailed", "OverhopError",
    "Retry", "Worker", "decode", "encode",
]

log = logging.getLogger("yardmaster")

# Requests, answers and pushes of the wire, by their numbers.
HELLO, REGISTER, PING, QUEUE, LSQUEUE, SUBSCRIBE, UNSUBSCRIBE, CREDIT, ADDQUEUE = range(1, 10)
STATUS, RMQUEUE, PAUSE, RESUME, ENQUEUE, JOB, RMJOB, LSJOB, QSTATS = range(10, 19)
ACK, NACK, BEAT, PROGRESS, LOG, DONE, FAIL, AWAIT, GOODBYE, CANCEL, RETRYJOB, CLRQUEUE, OBLITERATE = range(40, 53)
OK, ERR, HI, IDENT, PONG = range(101, 106)
QUEST, RECALL, CREDITS, DRAIN, BYE, JOBEND = range(140, 146)

DELIVERY = "delivery/1"  # the extension's name, in HELLO and HI
PUSH_RID = "0"           # the request id of what nobody asked for
MAX_DEPTH = 128          # of nested lists and dicts, the frame's own counted
MAX_FRAME = 8 << 20      # bytes, what a node takes that does not say
DEFAULT_NODES = "127.0.0.1:9876"
NODES_VARIABLE = "OVERHOP_NODES"
DEFAULT_PORT = 9876
_MOST_AFTER = 366 * 86400  # seconds, the longest wait before a next attempt


# ---------------------------------------------------------------- errors


class OverhopError(Exception):
    """A node's refusal. ``code`` is stable and for programs, ``msg`` for people."""

    def __init__(self, code: str, msg: str = "", details: Any = None) -> None:
        super().__init__(f"{code}: {msg}" if msg else code)
        self.code, self.msg, self.details = code, msg, details


class ConnectionLost(OSError):
    """The connection is gone: what became of the requests under way is not known."""


class CodecError(ValueError):
    """A value that this wire does not carry, or bytes that are no such value."""


class JobFailed(Exception):
    """The job that was waited for has failed for good."""

    def __init__(self, jid: str, error: Optional[Dict[str, Any]], attempts: int) -> None:
        error = error or {}
        if error.get("type") == "removed":
            super().__init__(f"job {jid} was removed before it ended")
        else:
            super().__init__(f"job {jid} failed after {attempts} attempts: {error.get('message', 'no reason given')}")
        self.jid, self.error, self.attempts = jid, error, attempts


class CancelledError(Exception):
    """Raised in a handler whose job is to stop; let it pass."""


class Retry(Exception):
    """Raised by a handler: this attempt failed, try again, ``after`` so many seconds."""

    def __init__(self, message: str = "handler asks for a retry", *, after: Optional[float] = None,
                 code: Optional[str] = None, details: Any = None) -> None:
        super().__init__(message)
        if after is not None and not 0 <= _seconds(after) <= _MOST_AFTER:  # not a number is neither
            raise ValueError(f"after is {after!r}, must be 0 to {_MOST_AFTER} seconds")
        self.after, self.code, self.details = after, code, details


class Fail(Exception):
    """Raised by a handler: the job has failed, and no attempt is to follow."""

    def __init__(self, message: str, *, code: Optional[str] = None, details: Any = None) -> None:
        super().__init__(message)
        self.code, self.details = code, details


# ---------------------------------------------------------------- MessagePack


class _Packed(bytes):
    """A value that is encoded already."""


def encode(value: Any, levels: int = MAX_DEPTH) -> bytes:
    """MessagePack for ``value``, with sorted keys and the shortest lengths.

    ``levels`` is how deep it may be nested. Raises CodecError.
    """
    out = bytearray()
    _pack(out, value, levels)
    return bytes(out)


def _pack(out: bytearray, v: Any, levels: int) -> None:
    if v is None:
        out.append(0xC0)
    elif v is True:
        out.append(0xC3)
    elif v is False:
        out.append(0xC2)
    elif isinstance(v, int):
        _pack_int(out, v)
    elif isinstance(v, str):
        _pack_str(out, v)
    elif isinstance(v, _Packed):
        out += v
    elif isinstance(v, (bytes, bytearray, memoryview)):
        body = bytes(v)
        _pack_head(out, len(body), None, 0, 0xC4, 0xC5, 0xC6)
        out += body
    elif isinstance(v, (list, tuple, dict)):
        if levels == 0:
            raise CodecError("value is nested too deep")
        if isinstance(v, dict):
            _pack_dict(out, v, levels - 1)
            return
        items = tuple(v)  # another thread may change the list meanwhile
        _pack_head(out, len(items), 0x90, 16, None, 0xDC, 0xDD)
        for item in items:
            _pack(out, item, levels - 1)
    elif isinstance(v, float):
        raise CodecError(f"this wire has no floats: send {v!r} as text or as a scaled int")
    else:
        raise CodecError(f"this wire does not carry a {type(v).__name__}; send None, bool, int, str, bytes, list or dict")


def _pack_dict(out: bytearray, v: Dict[str, Any], levels: int) -> None:
    keys = list(v)  # another thread may change the dict meanwhile
    for key in keys:
        if not isinstance(key, str):
            raise CodecError(f"keys of a dict must be str, not {type(key).__name__}")
    _pack_head(out, len(keys), 0x80, 16, None, 0xDE, 0xDF)
    for key in sorted(keys):
        _pack_str(out, key)
        _pack(out, v[key], levels)


def _pack_str(out: bytearray, text: str) -> None:
    try:
        body = text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise CodecError(f"text is not UTF-8: {e.reason}") from None
    _pack_head(out, len(body), 0xA0, 32, 0xD9, 0xDA, 0xDB)
    out += body


def _pack_head(out: bytearray, n: int, small: Optional[int], below: int, one: Optional[int], two: int, four: int) -> None:
    """The shortest head for a length; ``small`` holds lengths ``below`` in itself."""
    if small is not None and n < below:
        out.append(small | n)
    elif one is not None and n < 1 << 8:
        out += struct.pack(">BB", one, n)
    elif n < 1 << 16:
        out += struct.pack(">BH", two, n)
    elif n < 1 << 32:
        out += struct.pack(">BI", four, n)
    else:
        raise CodecError("value is too long")


def _pack_int(out: bytearray, v: int) -> None:
    if -32 <= v < 128:
        out.append(v & 0xFF)
    elif v >= 0:
        for kind, form, top in ((0xCC, ">BB", 1 << 8), (0xCD, ">BH", 1 << 16), (0xCE, ">BI", 1 << 32), (0xCF, ">BQ", 1 << 63)):
            if v < top:
                out += struct.pack(form, kind, v)
                return
        raise CodecError(f"int {v} is beyond 64 bits, signed")
    else:
        for kind, form, top in ((0xD0, ">Bb", 1 << 7), (0xD1, ">Bh", 1 << 15), (0xD2, ">Bi", 1 << 31), (0xD3, ">Bq", 1 << 63)):
            if v >= -top:
                out += struct.pack(form, kind, v)
                return
        raise CodecError(f"int {v} is beyond 64 bits, signed")


def decode(data: Union[bytes, bytearray, memoryview], levels: int = MAX_DEPTH) -> Any:
    """The value in ``data``, which must be one allowed value and nothing more.

    Of a repeated key the last value counts. Raises CodecError.
    """
    view = memoryview(data)
    value, end = _unpack(view, 0, levels)
    if end != len(view):
        raise CodecError(f"{len(view) - end} bytes follow the value")
    return value


# The kinds with a length or value behind their first byte, and its form.
_INTS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_BINS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_STRS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_DICTS = {0xDE: ">H", 0xDF: ">I"}


def _unpack(b: memoryview, at: int, levels: int) -> Tuple[Any, int]:
    if at >= len(b):
        raise CodecError("value is cut off")
    first = b[at]
    at += 1
    if first < 0x80:
        return first, at
    if first >= 0xE0:
        return first - 0x100, at
    if first < 0x90:
        return _unpack_dict(b, at, first & 0x0F, levels)
    if first < 0xA0:
        return _unpack_list(b, at, first & 0x0F, levels)
    if first < 0xC0:
        return _unpack_str(b, at, first & 0x1F)
    if first in (0xC0, 0xC2, 0xC3):
        return (None if first == 0xC0 else first == 0xC3), at
    if first in _INTS:
        n, at = _number(b, at, _INTS[first])
        if n > (1 << 63) - 1:
            raise CodecError("int is beyond 64 bits, signed")
        return n, at
    if first in _STRS:
        n, at = _number(b, at, _STRS[first])
        return _unpack_str(b, at, n)
    if first in _BINS:
        n, at = _number(b, at, _BINS[first])
        return bytes(_body(b, at, n)), at + n
    if first in _LISTS:
        n, at = _number(b, at, _LISTS[first])
        return _unpack_list(b, at, n, levels)
    if first in _DICTS:
        n, at = _number(b, at, _DICTS[first])
        return _unpack_dict(b, at, n, levels)
    what = "float" if first in (0xCA, 0xCB) else "reserved byte" if first == 0xC1 else "extension type"
    raise CodecError(f"{what} 0x{first:02x} is not allowed on this wire")


def _number(b: memoryview, at: int, form: str) -> Tuple[int, int]:
    end = at + struct.calcsize(form)
    if end > len(b):
        raise CodecError("value is cut off")
    return struct.unpack_from(form, b, at)[0], end


def _body(b: memoryview, at: int, n: int) -> memoryview:
    if n > len(b) - at:
        raise CodecError("value is cut off")
    return b[at:at + n]


def _unpack_str(b: memoryview, at: int, n: int) -> Tuple[str, int]:
    try:
        return str(_body(b, at, n), "utf-8"), at + n
    except UnicodeDecodeError:
        raise CodecError("text is not UTF-8") from None


def _unpack_list(b: memoryview, at: int, n: int, levels: int) -> Tuple[List[Any], int]:
    if levels == 0:
        raise CodecError("value is nested too deep")
    items: List[Any] = []  # grows with what is there, not with what is announced
    for _ in range(n):
        item, at = _unpack(b, at, levels - 1)
        items.append(item)
    return items, at


def _unpack_dict(b: memoryview, at: int, n: int, levels: int) -> Tuple[Dict[str, Any], int]:
    if levels == 0:
        raise CodecError("value is nested too deep")
    pairs: Dict[str, Any] = {}
    for _ in range(n):
        if at < len(b) and b[at] >> 5 != 5 and b[at] not in _STRS:
            raise CodecError("key of a map is not text")
        key, at = _unpack(b, at, levels)
        pairs[key], at = _unpack(b, at, levels - 1)
    return pairs, at


def frame(t: int, rid: str, p: Union[Dict[str, Any], _Packed]) -> bytes:
    """A whole message: four bytes of length, then the envelope."""
    body = encode({"p": p, "rid": rid, "t": t, "v": 2})
    return struct.pack(">I", len(body)) + body


def parse_envelope(body: Union[bytes, bytearray]) -> Tuple[int, str, Dict[str, Any]]:
    """The type, request id and payload of a frame's body. Raises CodecError."""
    e = decode(body)
    if not isinstance(e, dict) or e.get("v") != 2:
        raise CodecError("not an envelope: it must be a map with v = 2")
    t, rid, p = e.get("t"), e.get("rid"), e.get("p")
    if not isinstance(t, int) or isinstance(t, bool) or not isinstance(rid, str) or not rid or not isinstance(p, dict):
        raise CodecError("not an envelope: it must have t (int), rid (str, not empty) and p (map)")
    return t, rid, p


# ---------------------------------------------------------------- times and addresses

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)")


def parse_time(text: Optional[str]) -> Optional[datetime]:
    """An RFC 3339 time, to the microsecond; None stays None."""
    if text is None:
        return None
    found = _RFC3339.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not an RFC 3339 time")
    day, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone in "Zz" else zone
    return datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6]:0<6}{zone}")


def _format_time(at: Union[datetime, str]) -> str:
    if isinstance(at, str):
        parse_time(at)
        return at
    if at.tzinfo is None:
        raise ValueError("a time needs its zone: datetime.now(timezone.utc), for example")
    return at.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _seconds(d: Union[float, timedelta]) -> float:
    return d.total_seconds() if isinstance(d, timedelta) else float(d)


def _milliseconds(d: Union[float, timedelta]) -> int:
    return max(0, round(_seconds(d) * 1000))


def _window(name: str, key: Optional[str], window: Union[float, timedelta, None]) -> Optional[int]:
    """The milliseconds for which one job holds a key; both are given, or neither."""
    if (key is None) != (window is None):
        raise ValueError(f"{name}_key and {name} (seconds) go together: give both or neither")
    if window is None:
        return None
    if _milliseconds(window) < 1:
        raise ValueError(f"{name} is {window!r}, must be more than 0 seconds")
    return _milliseconds(window)


def _nodes(nodes: Union[str, Sequence[str], None]) -> List[str]:
    """Addresses as a list; None means the environment's, or this machine."""
    if nodes is None:
        nodes = os.environ.get(NODES_VARIABLE) or DEFAULT_NODES
    if isinstance(nodes, str):
        nodes = nodes.split(",")
    found = [n.strip() for n in nodes if n.strip()]
    if not found:
        raise ValueError("no node is named: give nodes=['host:port', ...]")
    for n in found:
        _address(n)
    return found


def _address(node: str) -> Tuple[str, int]:
    host, colon, port = node.rpartition(":")
    if not colon or node.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = node, str(DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{node!r} is no address; it must be host:port, with port 1 to 65535")
    return host.strip("[]") or "127.0.0.1", int(port)


def _backoff(tries: int, most: float = 2.0) -> float:
    """Seconds to wait before another try: doubled each time, half of it by chance."""
    return min(most, 0.05 * 2 ** min(tries, 10)) * random.uniform(0.5, 1)


# ---------------------------------------------------------------- one connection

Then = Callable[[Dict[str, Any], Optional[Exception]], None]

_MOST_IN = 32 << 20  # bytes, the largest frame that any node may be set to
_CONNECT_TIME = 5.0  # seconds for connecting and registering
_QUIET = 5.0         # seconds of silence before a PING asks whether the node is there
_SILENT = 65.0       # seconds without a byte after which it is not: answers come in order, and the one
                     # before the PING's may take a node's request_timeout, 60 s at most
_DEAF = 15.0         # the same while nothing but the PING is to be answered, which takes no time
_UNREACHED = 3.0     # the same for bytes that the node's host does not confirm: with the time between two
                     # BEATs less than a lease, so that jobs in hand come to another node in time
_CHUNK = 64 << 10    # bytes given to the socket at once


class _Settings:
    """What every connection of a Worker or a Client has in common."""

    def __init__(self, name: str, tls: Optional[ssl.SSLContext], token: Optional[str]) -> None:
        self.tls = tls
        self.hello: Dict[str, Any] = {"client": "yardmaster-python", "ext": [DELIVERY], "name": name}
        if token is not None:
            self.hello["token"] = token


_shared: "weakref.WeakSet[Any]" = weakref.WeakSet()  # what a forked child has to put right for itself


def _in_child() -> None:
    for each in list(_shared):
        each._in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class _Connection:
    """One registered connection: requests are pipelined, answers come by callback.

    One thread of its own connects, reads and writes; an SSL socket must not be
    read and written by two. It calls ``up`` once, if it comes so far, ``push``
    for what the node says unasked, and ``down`` once, at the end, when all
    requests under way have been told. Callbacks must not block.
    """

    def __init__(self, node: str, settings: _Settings, up: Callable[["_Connection"], None],
                 push: Callable[["_Connection", int, Dict[str, Any]], None],
                 down: Callable[["_Connection", Exception], None]) -> None:
        self.node, self.name, self.room, self._settings = node, "", MAX_FRAME, settings
        self._up, self._push, self._down = up, push, down
        self._lock = threading.Lock()  # guards the four below
        self._out: collections.deque[bytes] = collections.deque()
        self._pending: Dict[str, Then] = {}
        self._rids = itertools.count(1)
        self._error: Optional[Exception] = None
        self._closing = False
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self.ready = threading.Event()  # set once it is up, or down
        self._in = bytearray()
        self._chunk = memoryview(b"")  # is being written
        self._sock: Optional[socket.socket] = None
        _shared.add(self)
        threading.Thread(target=self._run, name=f"yardmaster {node}", daemon=True).start()

    def send(self, t: int, p: Dict[str, Any], then: Optional[Then] = None) -> None:
        """Sends a request and returns. ``then`` gets the OK's payload, or an error.

        Raises CodecError if the payload cannot be sent at all.
        """
        rid = str(next(self._rids))
        whole = frame(t, rid, p)
        if len(whole) - 4 > self.room:
            raise CodecError(f"message of {len(whole) - 4} bytes, {self.node} takes {self.room}")
        with self._lock:
            error = self._error
            if error is None:
                if then is not None:
                    self._pending[rid] = then
                self._out.append(whole)
        if error is None:
            self._ring()
        elif then is not None:
            then({}, error)

    def call(self, t: int, p: Dict[str, Any], timeout: float) -> Dict[str, Any]:
        """Sends a request and waits for its answer. Raises what the node or the line gives, or TimeoutError."""
        answers: queue.SimpleQueue[Tuple[Dict[str, Any], Optional[Exception]]] = queue.SimpleQueue()
        self.send(t, p, lambda ok, error: answers.put((ok, error)))
        try:
            ok, error = answers.get(timeout=max(timeout, 0.001))
        except queue.Empty:
            raise TimeoutError(f"{self.node} did not answer within {timeout:.1f} s") from None
        if error is not None:
            raise error
        return ok

    def check(self) -> None:
        """Raises why the connection is gone, if it is."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error

    def close(self) -> None:
        """Ends the connection once what waits is written."""
        self._closing = True
        self._ring()

    def _in_child(self) -> None:
        """Lets go of the parent's connection, which would otherwise outlive the parent."""
        if self._sock is not None:
            self._sock.close()

    def _ring(self) -> None:
        try:
            self._bell.send(b"!")
        except OSError:  # it rings already, or nobody is there any more
            pass

    def _run(self) -> None:
        sock: Optional[socket.socket] = None
        try:
            sock = self._sock = self._connect()
            self.ready.set()
            self._up(self)
            self._loop(sock)
            error: Exception = ConnectionLost("connection was closed here")
        except OverhopError as e:
            error = e
        except Exception as e:  # whatever it is, it is this connection's end
            error = e if isinstance(e, ConnectionLost) else ConnectionLost(f"{self.node}: {e or type(e).__name__}")
        if sock is not None:
            sock.close()
        with self._lock:
            self._error = error
            pending, self._pending = self._pending, {}
            self._out.clear()
            self._ear.close()
            self._bell.close()
        self.ready.set()
        for then in pending.values():
            then({}, error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)))
        self._down(self, error)

    def _connect(self) -> socket.socket:
        host, port = _address(self.node)
        sock = socket.create_connection((host, port), timeout=_CONNECT_TIME)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_UNREACHED * 1000))
            if self._settings.tls is not None:
                sock = self._settings.tls.wrap_socket(sock, server_hostname=host)
            hi = self._lockstep(sock, HELLO, self._settings.hello, HI)
            if DELIVERY not in (hi.get("ext") or ()):
                raise OverhopError("NOT_IMPLEMENTED", f"{self.node} does not speak {DELIVERY}")
            self.name = str(hi.get("node") or "")
            self.room = int(hi.get("max_envelope_size_bytes") or MAX_FRAME)
            self._lockstep(sock, REGISTER, {}, OK)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock

    def _lockstep(self, sock: socket.socket, t: int, p: Dict[str, Any], want: int) -> Dict[str, Any]:
        """Sends one request and takes the next frame for its answer; a node that waits may ask for it by IDENT."""
        sock.sendall(frame(t, str(next(self._rids)), p))
        while True:
            for got, _, answer in self._frames():
                if got == ERR:
                    raise _refusal(answer)
                if got == want:
                    return answer
                if got != IDENT:
                    raise ConnectionLost(f"{self.node} answered t={got} to t={t}")
            self._take(sock.recv(_CHUNK))

    def _take(self, data: bytes) -> None:
        if not data:
            raise ConnectionLost(f"{self.node} closed the connection")
        self._in += data

    def _frames(self) -> Iterable[Tuple[int, str, Dict[str, Any]]]:
        """The messages that have come whole."""
        while len(self._in) >= 4:
            size = int.from_bytes(self._in[:4], "big")
            if not 0 < size <= _MOST_IN:
                raise ConnectionLost(f"{self.node} announced a frame of {size} bytes")
            if len(self._in) < 4 + size:
                return
            body = bytes(memoryview(self._in)[4:4 + size])
            del self._in[:4 + size]
            yield parse_envelope(body)

    def _loop(self, sock: socket.socket) -> None:
        heard, asked, limit = time.monotonic(), False, _SILENT
        with selectors.DefaultSelector() as ready:
            ready.register(sock, selectors.EVENT_READ)
            ready.register(self._ear, selectors.EVENT_READ)
            self._hear()
            self._read(sock)  # TLS may hold what select does not see
            while True:
                wants = self._write(sock)
                if self._closing and not wants:
                    return
                ready.modify(sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if wants else 0))
                events = {key.fileobj: mask for key, mask in ready.select(_QUIET / 5)}
                if self._ear in events:
                    self._drain_bell()
                mask = events.get(sock, 0)
                if mask and (self._read(sock) or mask & selectors.EVENT_WRITE):
                    heard, asked = time.monotonic(), False
                quiet = time.monotonic() - heard
                if asked and quiet > limit:
                    raise ConnectionLost(f"{self.node} has been silent for {quiet:.0f} s")
                if quiet > _QUIET and not asked:
                    asked = True
                    with self._lock:
                        limit = _SILENT if self._pending else _DEAF
                    self.send(PING, {})

    def _drain_bell(self) -> None:
        try:
            while self._ear.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _read(self, sock: socket.socket) -> bool:
        """Reads what is there and handles what is whole; false if nothing was."""
        try:
            self._take(sock.recv(4 * _CHUNK))
            while isinstance(sock, ssl.SSLSocket) and sock.pending():
                self._take(sock.recv(4 * _CHUNK))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        self._hear()
        return True

    def _hear(self) -> None:
        for t, rid, p in self._frames():
            if rid == PUSH_RID:
                if t == ERR:
                    raise _refusal(p)
                self._push(self, t, p)
                continue
            with self._lock:
                then = self._pending.pop(rid, None)
            if then is not None:
                then(p, _refusal(p) if t == ERR else None)

    def _write(self, sock: socket.socket) -> bool:
        """Writes until the socket is full; true if more waits.

        A chunk stays the same until it is written, as OpenSSL wants it.
        """
        while True:
            if not self._chunk:
                with self._lock:
                    if not self._out:
                        return False
                    # Small frames together, a large one by slices of itself.
                    batch = [self._out.popleft()]
                    size = len(batch[0])
                    while self._out and size + len(self._out[0]) <= _CHUNK:
                        size += len(self._out[0])
                        batch.append(self._out.popleft())
                self._chunk = memoryview(batch[0] if len(batch) == 1 else b"".join(batch))
            try:
                self._chunk = self._chunk[sock.send(self._chunk[:_CHUNK]):]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return True


def _refusal(p: Dict[str, Any]) -> OverhopError:
    return OverhopError(str(p.get("code", "")), str(p.get("msg", "")), p.get("details"))


def _retry_after(error: OverhopError, otherwise: float = 0.25) -> float:
    """Seconds that a refusal asks to wait."""
    ms = error.details.get("retry_after_ms") if isinstance(error.details, dict) else None
    return min(max(ms / 1000, 0.05), 2.0) if isinstance(ms, int) else otherwise


# ---------------------------------------------------------------- worker


class Job:
    """A job in a handler's hands."""

    def __init__(self, worker: "Worker", quest: Dict[str, Any]) -> None:
        self._worker, self._token = worker, bytes(quest["tok"])
        self.id: str = quest["jid"]  # "<queue>:<uuid>"
        self.queue: str = quest["q"]
        self.fn: Optional[str] = quest.get("fn")  # the function it names, if it does
        self.payload: Any = quest.get("job_payload")
        self.attempt: int = quest["attempt"]  # from 1
        self.max_attempts: Optional[int] = quest.get("max_attempts")  # None: the yard's default
        #: Grows with every job that is given out: hand it to what you write to,
        #: so that it can refuse whoever comes late.
        self.fence: int = quest["fence"]
        self.trace: Dict[str, str] = quest.get("trace") or {}
        self.created_at: Optional[datetime] = parse_time(quest.get("created_at"))
        #: When this attempt is to be over, by the node's clock; None: no limit.
        self.deadline: Optional[datetime] = parse_time(quest.get("deadline"))
        self.redelivered: bool = bool(quest.get("redelivered"))
        #: Set once the job is to stop; ``cancel_reason`` says why.
        self.cancelled = threading.Event()
        self.cancel_reason: Optional[str] = None

        # The worker's own, for the thread that runs it.
        self._beat: float = quest.get("beat_ms", 2000) / 1000
        self._line: Optional[_Connection] = None  # that heard of it last
        self._acked = self._sure = False  # by any node; by the node of _line
        self._moving: Optional[_Connection] = None  # over which a node is being asked to take it on
        self._end: Optional[Tuple[int, Dict[str, Any]]] = None  # how it ended, until a node knows
        self._cut = False       # its time is up, because the worker stops
        self._let_go = False    # its handler has let CancelledError pass
        self._returned = False  # both: to be given back to the yard
        self._losses = 0                          # connections lost while telling it
        self._progress: Optional[_Packed] = None  # the newest, not told yet
        self._telling = False                     # an older one waits for its answer
        self._lines = 0

    def progress(self, percent: Optional[int] = None, data: Any = None) -> None:
        """Tells how far the job is; only the newest is kept. Raises CancelledError if the job is to stop."""
        self.check()
        if percent is not None and (isinstance(percent, bool) or not isinstance(percent, int) or not 0 <= percent <= 100):
            raise ValueError(f"percent is {percent!r}, must be an int from 0 to 100")
        self._worker._post(self._worker._progress, self, self._said(percent=percent, data=data))

    def log(self, message: str, level: str = "info") -> None:
        """Adds a line to the job's log on its node, of which 1000 are kept. Raises CancelledError if it is to stop."""
        self.check()
        self._lines += 1
        if self._lines <= 1000:
            line = {"at": _format_time(datetime.now(timezone.utc)), "level": _clean(str(level))[:64], "msg": _clean(str(message))[:2048]}
            self._worker._post(self._worker._say, self, LOG, self._said(lines=[line]))

    def check(self) -> None:
        """Raises CancelledError if the job is to stop."""
        if self.cancelled.is_set():
            raise CancelledError(f"job {self.id} is to stop: {self.cancel_reason}")

    def _said(self, **fields: Any) -> _Packed:
        """A message about this job, with its token, that has been found to be sendable."""
        p = {key: value for key, value in fields.items() if value is not None}
        return _Packed(encode({**p, "jid": self.id, "tok": self._token}, MAX_DEPTH - 1))

    def _stop(self, reason: str) -> None:
        if not self.cancelled.is_set():
            self.cancel_reason = reason
            self.cancelled.set()


Handler = Callable[[Job], Any]


class _Queue:
    """A queue's handlers and the credits that the node holds for it."""

    def __init__(self, name: str, concurrency: int) -> None:
        self.name, self.concurrency = name, concurrency
        self.handlers: Dict[Optional[str], Handler] = {}
        self.sid: Optional[str] = None  # of the subscription on the present connection
        self.running = 0  # jobs whose handler has not returned
        self.credits = 0  # not used yet, as the node counts them

    def top_up(self) -> int:
        """The credits to give now, so that the node may fill the room there is."""
        n = max(0, self.concurrency - self.running - self.credits)
        self.credits += n
        return n


# Refusals that no other node and no later time would take back.
_PERMANENT = {
    "PROTOCOL_VIOLATION", "UNAUTHORIZED", "NOT_IMPLEMENTED", "QUEUE_NOT_FOUND", "INVALID_QUEUE_NAME",
    "SYSTEM_QUEUE_FORBIDDEN", "DUPLICATE_SUBSCRIPTION",
}
_LAST_WORD = 2.0  # seconds for handlers that are cut short at the end of the grace, at most
_FAREWELL = 3.0   # seconds for a node to answer the last GOODBYE, behind what is still being committed
_MOST_DETAILS = 32 << 10  # bytes of a failure's details: it must fit into the smallest frame there is
_MOST_BEATS = 256  # jobs in one BEAT
_AGAIN = 0.3      # seconds before a node is asked again for what it cannot do yet


class Worker:
    """Runs jobs of some queues, connected to one of several nodes.

    ``nodes`` are "host:port", one of which is chosen by chance; None means
    those in the environment variable OVERHOP_NODES, separated by commas, or
    127.0.0.1:9876. ``concurrency`` is how many jobs of each queue run at once,
    each in a thread of its own. With ``create_queues`` a queue that does not
    exist is made; without, run() raises OverhopError. ``grace`` is how many
    seconds the jobs in hand have once the worker is asked to stop; then they
    are cancelled, and what has not ended two seconds later is given back.

    All its state belongs to the thread that is in run(); the others post to it.
    """

    def __init__(self, nodes: Union[str, Sequence[str], None] = None, *, name: Optional[str] = None,
                 tls: Optional[ssl.SSLContext] = None, token: Optional[str] = None, concurrency: int = 1,
                 create_queues: bool = False, grace: float = 10.0) -> None:
        self._nodes = _nodes(nodes)
        self._settings = _Settings(name or f"{socket.gethostname()}-{os.getpid()}", tls, token)
        self._concurrency, self._create, self._grace = concurrency, create_queues, grace
        self._queues: Dict[str, _Queue] = {}
        self._events: queue.SimpleQueue[Tuple[Callable[..., None], Tuple[Any, ...]]] = queue.SimpleQueue()

        self._pid: Optional[int] = None  # of the process that is in run()

        # From here on run()'s own.
        self._begun = self._leaving = self._parting = self._over = False
        self._jobs: Dict[bytes, Job] = {}  # in hand, by token, until a node knows their end
        self._line: Optional[_Connection] = None     # jobs come and go over this one
        self._former: Set[_Connection] = set()       # to draining nodes, until all jobs have moved
        self._dialing: Optional[_Connection] = None
        self._again = False  # a BEAT is to follow for those of which a node was not sure
        self._turns = random.sample(self._nodes, len(self._nodes))
        self._preferred: List[str] = []    # named by a node that drains
        self._avoid: Optional[str] = None  # the node that drains
        self._tries, self._up_at, self._resting = 0, math.inf, False
        self._timers: List[Tuple[float, int, Callable[..., None], Tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._work: queue.SimpleQueue[Optional[Job]] = queue.SimpleQueue()
        self._threads = 0

    def job(self, queue: str, *, fn: Optional[str] = None, concurrency: Optional[int] = None) -> Callable[[Handler], Handler]:
        """Decorates the handler of a queue's jobs, or of those that name the function ``fn``.

        That is no filter: a worker gets any job of its queues, and one that
        names a function it has no handler for fails for good.

        What it returns is the job's result. An exception fails the attempt,
        and the yard's policy decides what follows; Retry and Fail decide it.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency of {queue!r} is {concurrency}, must be 1 or more")

        def add(handler: Handler) -> Handler:
            q = self._queues.setdefault(queue, _Queue(queue, concurrency or self._concurrency))
            if fn in q.handlers:
                raise ValueError(f"queue {queue!r} has a handler for {fn or 'any function'} already")
            if concurrency is not None:
                q.concurrency = concurrency
            q.handlers[fn] = handler
            return handler
        return add

    @property
    def node(self) -> Optional[str]:
        """The address of the node that it is connected to; None: it is between two."""
        line = self._line
        return line.node if line is not None else None

    def stop(self) -> None:
        """Asks run() to return once the jobs in hand are done; from any thread."""
        self._post(self._leave, "worker stops")

    def run(self) -> None:
        """Works until stop(), SIGTERM or SIGINT, then finishes what is in hand.

        What has not ended when the grace is over is given back to the yard, no
        attempt counted; its handler may still run when this returns, so end
        the program then. A second signal ends the program at once. Raises OverhopError if the
        worker cannot work as it is set up.
        """
        if not self._queues:
            raise ValueError("the worker has no handler: decorate one with @worker.job(queue)")
        if self._begun:
            raise RuntimeError("a worker runs once: make another")
        self._begun, self._pid = True, os.getpid()
        restore = self._catch_signals()
        try:
            self._dial()
            self._later(0.5, self._keep)
            while not self._over:
                self._turn()
        finally:
            restore()
            self._hang_up()

    # -- the loop

    def _post(self, call: Callable[..., None], *args: Any) -> None:
        if self._pid not in (None, os.getpid()):
            raise RuntimeError(f"the worker runs in process {self._pid}, not in this fork of it: tell it from there")
        self._events.put((call, args))

    def _later(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), call, args))

    def _turn(self) -> None:
        """Does what is due, or else what comes next."""
        wait = self._timers[0][0] - time.monotonic() if self._timers else 1.0
        if wait <= 0:
            _, _, call, args = heapq.heappop(self._timers)
        else:
            try:
                call, args = self._events.get(timeout=wait)
            except queue.Empty:
                return
        call(*args)

    def _catch_signals(self) -> Callable[[], None]:
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
        pid = os.getpid()

        def restore() -> None:
            for s, handler in before.items():
                signal.signal(s, handler)

        def asked(number: int, _: Any) -> None:
            for s in before:  # the next one is for the system
                signal.signal(s, signal.SIG_DFL)
            if os.getpid() != pid:  # in a child that a handler has forked
                os.kill(os.getpid(), number)
                return
            self._post(self._leave, signal.Signals(number).name)
        for s in before:
            signal.signal(s, asked)
        return restore

    # -- connections

    def _dial(self) -> None:
        self._resting = False
        self._dialing = _Connection(
            self._next_node(), self._settings,
            lambda c: self._post(self._on_up, c),
            lambda c, t, p: self._post(self._on_push, c, t, p),
            lambda c, e: self._post(self._on_down, c, e))

    def _next_node(self) -> str:
        if self._preferred:
            return self._preferred.pop(0)
        self._turns.append(self._turns.pop(0))
        if self._turns[0] == self._avoid:  # once: it may be back by then
            self._turns.append(self._turns.pop(0))
            self._avoid = None
        return self._turns[0]

    def _redial(self) -> None:
        if self._dialing is not None or self._resting:
            return
        if time.monotonic() - self._up_at > 2.0:  # the last line held: begin anew
            self._tries = 0
        self._tries, self._up_at, self._resting = self._tries + 1, math.inf, True
        self._later(_backoff(self._tries), self._dial)

    def _on_up(self, c: _Connection) -> None:
        if c is not self._dialing:
            c.close()
            return
        if self._line is not None:
            self._former.add(self._line)
        self._line, self._dialing = c, None
        self._up_at = time.monotonic()
        for q in self._queues.values():
            q.sid = None
            if not self._leaving:
                self._subscribe(c, q)
        for j in list(self._jobs.values()):
            j._sure = False
            if j._end is not None:
                self._tell(j)
            elif not j._acked:
                self._ack(c, j)
            self._tell_progress(j)
        self._beat()
        self._settle_former()
        self._part_if_done()

    def _on_down(self, c: _Connection, error: Exception) -> None:
        self._former.discard(c)
        if self._over:
            return
        if isinstance(error, OverhopError) and error.code in _PERMANENT:
            raise error
        if c is self._dialing:
            log.warning("cannot connect to node %s: %s", c.node, error)
            self._dialing = None
            self._redial()
        elif c is self._line:
            self._line = None
            if self._leaving and not self._jobs:
                self._over = True
                return
            log.warning("lost node %s: %s", c.node, error)
            self._redial()
        for j in list(self._jobs.values()):
            if j._line is c and self._line is not None:  # it came over a former line, last thing
                self._hold(self._line, j)

    def _subscribe(self, c: _Connection, q: _Queue) -> None:
        q.credits = 0  # another subscription: nothing of the former counts
        c.send(SUBSCRIBE, {"q": q.name, "credits": q.top_up()},
               lambda ok, error: self._post(self._subscribed, c, q, ok, error))

    def _subscribed(self, c: _Connection, q: _Queue, ok: Dict[str, Any], error: Optional[Exception]) -> None:
        if c is not self._line or isinstance(error, ConnectionLost):
            return
        if not isinstance(error, OverhopError):
            q.sid = ok.get("sid")
            log.info("subscribed to %s at node %s (%s)", q.name, c.name, c.node)
        elif error.code == "QUEUE_NOT_FOUND" and self._create:
            c.send(ADDQUEUE, {"name": q.name}, lambda _, e: self._post(self._created, c, q, e))
        elif error.code == "DRAINING":
            self._move(c, [])
        elif error.code in _PERMANENT:
            raise error
        else:
            self._later(_retry_after(error), self._subscribe_again, c, q)

    def _created(self, c: _Connection, q: _Queue, error: Optional[Exception]) -> None:
        if isinstance(error, OverhopError) and error.code not in ("DUPLICATE_QUEUE", "UNAVAILABLE"):
            raise error
        self._subscribe_again(c, q)

    def _subscribe_again(self, c: _Connection, q: _Queue) -> None:
        if c is self._line and not self._leaving:
            self._subscribe(c, q)

    def _move(self, c: _Connection, nodes: Any) -> None:
        """The node gives out no more jobs: go to another, and keep this line until then."""
        self._avoid = c.node
        self._preferred = [n for n in nodes if isinstance(n, str) and n != c.node] if isinstance(nodes, list) else []
        random.shuffle(self._preferred)
        self._redial()

    def _settle_former(self) -> None:
        """Closes the lines to draining nodes once every job has moved."""
        if all(j._sure and j._line is self._line for j in self._in_hand()):
            for c in self._former:
                c.close()

    def _in_hand(self) -> List[Job]:
        """The jobs whose leases are ours to keep."""
        return [j for j in self._jobs.values() if j._end is None and (j._cut or not j.cancelled.is_set())]

    # -- what a node says

    def _on_push(self, c: _Connection, t: int, p: Dict[str, Any]) -> None:
        if t == QUEST:
            try:
                self._take(c, p)
            except (KeyError, TypeError, ValueError) as e:
                log.error("node %s sent a QUEST that makes no sense: %r", c.node, e)
                c.close()
        elif t == RECALL:
            j = self._jobs.get(p.get("tok", b""))
            if j is not None and j._line is c:  # a node that it has left has no say
                j._stop(str(p.get("reason")))
        elif t == CREDITS:
            self._on_credits(c, p)
        elif t == DRAIN and c is self._line and not self._leaving:
            log.info("node %s drains: %s", c.node, p.get("reason"))
            self._move(c, p.get("reconnect"))
        elif t == BYE:
            log.info("node %s says goodbye: %s %s", c.node, p.get("code"), p.get("msg"))

    def _on_credits(self, c: _Connection, p: Dict[str, Any]) -> None:
        for q in self._queues.values():
            if c is not self._line or q.sid is None or q.sid != p.get("sid"):
                continue
            if p.get("reason") == "RESTORED":
                q.credits += 1
            else:  # STALLED, or the subscription has ended
                q.credits = 0
            self._give(c, q)

    def _give(self, c: _Connection, q: _Queue) -> None:
        n = q.top_up()
        if n and q.sid is not None and not self._leaving:
            c.send(CREDIT, {"sid": q.sid, "credits": n}, lambda _, e: self._post(self._credited, c, q, e))

    def _credited(self, c: _Connection, q: _Queue, error: Optional[Exception]) -> None:
        if isinstance(error, OverhopError) and error.code == "SUBSCRIPTION_NOT_FOUND":
            log.warning("subscription to %s is gone; subscribing again", q.name)
            self._later(1.0, self._subscribe_again, c, q)

    def _take(self, c: _Connection, quest: Dict[str, Any]) -> None:
        q = self._queues[quest["q"]]
        if c is self._line:
            q.credits = max(0, q.credits - 1)
        known = self._jobs.get(quest["tok"])
        if known is not None:  # the node was not sure that we have it
            known._line = c
            if known._end is None:
                self._ack(c, known)
            else:
                self._tell(known)
            if c is self._line:
                self._give(c, q)
            return
        j = Job(self, quest)
        if self._leaving:
            c.send(NACK, {"jid": j.id, "tok": j._token, "reason": "worker stops"})
            return
        for other in self._jobs.values():
            if other.id == j.id and other._end is None:
                other._stop("SUPERSEDED")  # the yard has given up on it
        self._jobs[j._token] = j
        q.running += 1
        self._ack(c, j)
        if self._threads < sum(x.running for x in self._queues.values()):
            self._threads += 1
            threading.Thread(target=self._hands, args=(self._work,), name=f"job {self._threads}", daemon=True).start()
        self._work.put(j)

    # -- leases

    def _ack(self, c: _Connection, j: Job) -> None:
        j._line = c
        c.send(ACK, {"jid": j.id, "tok": j._token}, lambda _, e: self._post(self._answered, c, j, e))

    def _answered(self, c: _Connection, j: Job, error: Optional[Exception]) -> None:
        """What a node says to an ACK, or about one job of a BEAT."""
        if j._line is not c or j._end is not None or isinstance(error, ConnectionLost):
            return
        if error is None:
            j._acked = j._sure = True
            self._settle_former()
        elif isinstance(error, OverhopError) and error.code == "UNAVAILABLE":
            if j._acked:
                j._sure = False
                self._beat_again()
            else:
                self._later(_AGAIN, self._hold, c, j)
        else:
            log.warning("job %s is not ours any more: %s", j.id, error)
            j._stop(error.code if isinstance(error, OverhopError) else str(error))

    def _hold(self, c: _Connection, j: Job) -> None:
        """Asks for a job's lease again, over the present line."""
        if c is not self._line or self._jobs.get(j._token) is not j:
            return
        if j._end is not None:
            self._tell(j)
        elif j._acked:
            self._beat()
        else:
            self._ack(c, j)

    def _keep(self) -> None:
        """Beats as often as the jobs in hand ask for."""
        self._beat()
        self._later(min([j._beat for j in self._jobs.values()] or [1.0]), self._keep)

    def _beat(self) -> None:
        """Extends the leases of the jobs in hand; on a new line it is what moves them there.

        It does not wait for the answer to the last: that may stand behind the
        answer to a DONE which is slow to commit. Only what a node is being
        asked to take on is not asked for twice.
        """
        c = self._line
        if c is None:
            return
        entries, size = [], 0
        for j in self._in_hand():
            if not j._acked or j._moving is c:
                continue
            j._sure = j._sure and j._line is c
            j._line, j._moving = c, None if j._sure else c
            entry = _Packed(encode({"jid": j.id, "tok": j._token}))
            if entries and (len(entries) == _MOST_BEATS or size + len(entry) + 64 > c.room // 2):
                self._send_beat(c, entries)
                entries, size = [], 0
            entries.append((j, entry))
            size += len(entry) + 64  # its answer is so much longer
        if entries:
            self._send_beat(c, entries)

    def _send_beat(self, c: _Connection, entries: List[Tuple[Job, _Packed]]) -> None:
        jobs = [j for j, _ in entries]
        c.send(BEAT, {"jobs": [entry for _, entry in entries]}, lambda ok, e: self._post(self._beaten, c, jobs, ok, e))

    def _beat_again(self) -> None:
        if not self._again:
            self._again = True
            self._later(_AGAIN, self._beat_now)

    def _beat_now(self) -> None:
        self._again = False
        self._beat()

    def _beaten(self, c: _Connection, jobs: List[Job], ok: Dict[str, Any], error: Optional[Exception]) -> None:
        for j in jobs:
            if j._moving is c:
                j._moving = None
        if isinstance(error, OverhopError):
            log.warning("node %s does not take a BEAT: %s", c.node, error)
        for j, answer in zip(jobs, ok.get("jobs", [])):
            self._answered(c, j, None if answer.get("ok") else OverhopError(str(answer.get("code"))))

    # -- what handlers do and say

    def _hands(self, work: "queue.SimpleQueue[Optional[Job]]") -> None:
        """One thread's life: job after job."""
        while True:
            j = work.get()
            if j is None:
                return
            self._post(self._finished, j, self._perform(j))

    def _perform(self, j: Job) -> Tuple[int, Dict[str, Any]]:
        """Runs the handler; how that ended is a DONE or a FAIL, whatever its values do when they are looked at."""
        try:
            return self._attempt(j)
        except BaseException:
            log.warning("the end of attempt %d of job %s cannot be told as it is", j.attempt, j.id, exc_info=True)
            return _failure("what the handler returned or raised cannot be read", "bad_end")

    def _attempt(self, j: Job) -> Tuple[int, Dict[str, Any]]:
        handlers = self._queues[j.queue].handlers
        handler = handlers.get(j.fn) or handlers.get(None)
        if handler is None:
            log.warning("job %s fails for good: it names the function %r, for which this worker has no handler; every worker of "
                        "queue %r must have one, or the function a queue of its own", j.id, j.fn, j.queue)
            return _failure(f"no handler for function {j.fn!r} of queue {j.queue!r}", "handler_not_found", final=True)
        try:
            j.check()
            result = handler(j)
        except CancelledError as e:
            j._let_go = True
            return _failure(str(e), "cancelled")
        except Retry as e:
            return _failure(str(e), "retry", e.code, e.details, after=e.after)
        except Fail as e:
            return _failure(str(e), "fail", e.code, e.details, final=True)
        except BaseException as e:  # also SystemExit: a job must not end its worker
            log.warning("attempt %d of job %s failed", j.attempt, j.id, exc_info=True)
            trace = "".join(traceback.format_exception(type(e), e, e.__traceback__))
            return _failure(str(e), type(e).__name__, details={"traceback": trace[-1500:]})
        try:
            return DONE, {"result": _Packed(encode(result, MAX_DEPTH - 2))}
        except (CodecError, RecursionError) as e:
            return _failure(f"result: {e}", "bad_result", final=True)

    def _finished(self, j: Job, end: Tuple[int, Dict[str, Any]]) -> None:
        self._queues[j.queue].running -= 1
        if self._jobs.get(j._token) is not j:
            return  # it was given back meanwhile
        if j._cut and j._let_go:
            j._returned = True
            self._part_if_done()
            return
        j._end = end
        self._tell(j)

    def _tell(self, j: Job) -> None:
        """Tells a job's end, again on every line until a node has answered: its token makes that safe."""
        c, q = self._line, self._queues[j.queue]
        if c is None or j._end is None:
            return
        t, p = j._end
        if j._losses >= 5 and len(p.get("result", b"")) > 1 << 16:
            t, p = j._end = _failure("no node takes a result of this size", "result_too_large", final=True)
        p = {**p, "jid": j.id, "tok": j._token}
        credits = 0 if self._leaving else q.top_up()
        if credits:
            p["credits"] = credits
        j._line = c
        try:
            c.send(t, p, lambda _, e: self._post(self._told, c, j, e))
        except CodecError as e:
            q.credits -= credits
            j._end = _failure(f"result: {e}", "result_too_large", final=True)
            self._tell(j)

    def _told(self, c: _Connection, j: Job, error: Optional[Exception]) -> None:
        if isinstance(error, ConnectionLost):
            j._losses += 1
            return  # told again over the next line
        if isinstance(error, OverhopError) and error.code == "UNAVAILABLE":
            self._later(_retry_after(error), self._hold, c, j)
            return
        if error is not None:
            log.warning("the end of job %s was refused: %s", j.id, error)
        self._jobs.pop(j._token, None)
        self._settle_former()
        self._part_if_done()

    def _progress(self, j: Job, p: _Packed) -> None:
        j._progress = p
        if not j._telling:
            self._tell_progress(j)

    def _tell_progress(self, j: Job) -> None:
        c, p = self._line, j._progress
        if c is not None and p is not None and j._end is None:
            j._progress, j._telling = None, True
            try:
                c.send(PROGRESS, p, lambda _, e: self._post(self._progressed, j, p, e))
            except CodecError as e:
                j._telling = False
                log.warning("progress of job %s is not kept: %s", j.id, e)

    def _progressed(self, j: Job, p: _Packed, error: Optional[Exception]) -> None:
        j._telling = False
        if isinstance(error, ConnectionLost):
            j._progress = j._progress or p
        elif isinstance(error, OverhopError) and error.code == "RESULT_TOO_LARGE":
            log.warning("progress of job %s is not kept: %s", j.id, error.msg)
        self._tell_progress(j)

    def _say(self, j: Job, t: int, p: _Packed) -> None:
        if self._line is not None and j._end is None:
            self._line.send(t, p)

    # -- leaving

    def _leave(self, why: str) -> None:
        if self._leaving:
            return
        log.info("worker stops (%s) with %d jobs in hand", why, len(self._jobs))
        self._leaving = True
        if not self._jobs:
            self._part()
            return
        if self._line is not None:
            self._line.send(GOODBYE, {"reason": why, "drain": True})
        self._later(self._grace, self._cut_short)

    def _cut_short(self) -> None:
        """The grace is over: what still runs is cancelled, and has a last word."""
        for j in self._in_hand():
            j._cut = True
            j._stop("SHUTDOWN")
        self._later(_LAST_WORD, self._part)

    def _part_if_done(self) -> None:
        """Parts as soon as every job has ended, or is there only to be given back, for which a node must be there."""
        if self._leaving and all(j._returned for j in self._jobs.values()) and (self._line is not None or not self._jobs):
            self._part()

    def _part(self) -> None:
        """Says goodbye for good: the yard takes back at once what is still in hand, and counts no attempt."""
        if self._parting:
            return
        self._parting = True
        for j in self._jobs.values():
            log.warning("job %s has not ended in time, it is given back", j.id)
        self._jobs.clear()
        lines = {self._line, *self._former} - {None}
        for c in lines:
            c.send(GOODBYE, {"reason": "worker stops", "drain": False})
        self._later(_FAREWELL if lines else 0, self._end)  # or earlier, when the node hangs up

    def _end(self) -> None:
        self._over = True

    def _hang_up(self) -> None:
        self._over = True
        for c in {self._line, self._dialing, *self._former} - {None}:
            c.close()
        for _ in range(self._threads):
            self._work.put(None)


def _failure(message: str, type_: str, code: Optional[str] = None, details: Any = None, *, final: bool = False,
             after: Union[float, timedelta, None] = None) -> Tuple[int, Dict[str, Any]]:
    """A FAIL's payload that can surely be sent."""
    error: Dict[str, Any] = {"message": _clean(message or type_)[:1000], "type": _clean(type_)[:200]}
    if code is not None:
        error["code"] = _clean(str(code))[:200]
    if details is not None:
        try:
            error["details"] = _Packed(encode(details, MAX_DEPTH - 3))
        except (CodecError, RecursionError):
            error["details"] = _clean(repr(details))[:1500]
        if len(error["details"]) > _MOST_DETAILS:
            error["details"] = f"left out: {len(error['details'])} bytes, {_MOST_DETAILS} are the most"
    # Encoded here, in the handler's thread: the worker's own never looks at its values.
    p: Dict[str, Any] = {"error": _Packed(encode(error, MAX_DEPTH - 2)), "retry": not final}
    if after is not None:
        p["retry_after_ms"] = _milliseconds(after)
    return FAIL, p


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


# ---------------------------------------------------------------- producer

_Ends = "queue.SimpleQueue[Optional[Dict[str, Any]]]"
_AWAIT_TIME = 60.0  # seconds, the longest single AWAIT
_UNKNOWN = 15.0     # seconds until every node knows an accepted job, if the stream it lies in lost its leader

class Client:
    """Enqueues jobs, waits for their ends, and looks after queues.

    ``nodes`` are as for a Worker. It connects when it is first used and again
    when a connection is lost, to whichever node answers; what was under way is
    asked again there. Each call may take ``timeout`` seconds in all, and then
    raises what was wrong last: ConnectionLost, TimeoutError, or OverhopError
    UNAVAILABLE. Any number of threads may use it; a forked child connects anew.
    """

    def __init__(self, nodes: Union[str, Sequence[str], None] = None, *, name: Optional[str] = None,
                 tls: Optional[ssl.SSLContext] = None, token: Optional[str] = None, timeout: float = 30.0) -> None:
        self._turns = random.sample(_nodes(nodes), len(_nodes(nodes)))
        self._settings = _Settings(name or f"{socket.gethostname()}-{os.getpid()}", tls, token)
        self._timeout, self._closed = timeout, False
        self._in_child()
        _shared.add(self)

    def _in_child(self) -> None:
        """Begins without a connection: a forked child has not inherited its thread."""
        self._lock = threading.Lock()  # guards _closed and the three below
        self._line: Optional[_Connection] = None
        self._preferred: List[str] = []  # named by a node that drains
        self._waiting: Dict[str, List[_Ends]] = {}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; calls under way raise ConnectionLost."""
        with self._lock:
            self._closed, line = True, self._line
        if line is not None:
            line.close()

    # -- jobs

    def enqueue(self, queue: str, payload: Any = None, fn: Optional[str] = None, *,
                at: Union[datetime, str, None] = None, delay: Union[float, timedelta, None] = None,
                max_attempts: Optional[int] = None, retry_interval: Union[float, timedelta, None] = None,
                timeout: Union[float, timedelta, None] = None, priority: Optional[int] = None,
                key: Optional[str] = None, unique_key: Optional[str] = None,
                unique_ttl: Union[float, timedelta, None] = None, rate_limit_key: Optional[str] = None,
                rate_limit: Union[float, timedelta, None] = None, debounce_key: Optional[str] = None,
                debounce: Union[float, timedelta, None] = None, trace: Optional[Dict[str, str]] = None,
                wait: Union[bool, float] = False) -> Any:
        """Hands over a job and returns its id once it is accepted.

        ``fn`` names the function to call. It runs as soon as it can, or not
        before ``at``, or ``delay`` seconds from now; an attempt may take
        ``timeout`` seconds, and the next follows after ``retry_interval``.
        ``priority`` is 0 to 9, 9 first. The same ``key`` in the same queue is
        the same job; without one a fresh one is used, so that a lost answer
        never makes two jobs.

        Three more keys hold for the whole yard. While a ``unique_key`` lives,
        for ``unique_ttl`` seconds, another job with it is refused
        (DUPLICATE_JOB); so is one with a ``rate_limit_key`` for ``rate_limit``
        seconds after the last (RATE_LIMITED). A job with the ``debounce_key``
        of one that has not started replaces it, and starts ``debounce``
        seconds from now. With ``wait`` (True, or for how many seconds) it
        returns the job's result instead, as result() does.
        """
        if at is not None and delay is not None:
            raise ValueError("give at or delay, not both")
        if key == "":
            raise ValueError("key is empty: leave it out to have one minted")
        if debounce_key is not None and (at is not None or delay is not None or rate_limit_key is not None):
            raise ValueError("a debounced job starts when its window ends: debounce_key does not go with at, delay or rate_limit_key")
        if delay is not None:
            at = datetime.now(timezone.utc) + timedelta(seconds=_seconds(delay))
        p: Dict[str, Any] = {
            "q": queue, "job_payload": _Packed(encode(payload, MAX_DEPTH - 2)), "fn": fn,
            "scheduled_at": None if at is None else _format_time(at), "max_attempts": max_attempts,
            "retry_interval_ms": None if retry_interval is None else _milliseconds(retry_interval),
            "timeout_ms": None if timeout is None else _milliseconds(timeout), "priority": priority,
            "key": key if key is not None else f"auto-{uuid.uuid4().hex}", "unique_key": unique_key,
            "unique_ttl_ms": None if unique_ttl is None else _milliseconds(unique_ttl),
            "rate_limit_key": rate_limit_key, "rate_limit_ms": _window("rate_limit", rate_limit_key, rate_limit),
            "debounce_key": debounce_key, "debounce_ms": _window("debounce", debounce_key, debounce), "trace": trace,
        }
        jid = self._call(ENQUEUE, {name: value for name, value in p.items() if value is not None})["jid"]
        if wait is False:
            return jid
        return self.result(jid, None if wait is True else wait)

    def result(self, jid: str, timeout: Optional[float] = None) -> Any:
        """Waits until a job has ended and returns its result.

        Raises JobFailed if it failed, OverhopError RESPONSE_TOO_LARGE if its
        result does not fit into a frame, and TimeoutError if it has not ended
        within ``timeout`` seconds; None waits for ever. A job that no node
        knows is waited for some seconds: it may have been accepted just now.
        """
        end = self._await(jid, math.inf if timeout is None else timeout)
        omitted = end.get("omitted") or ()  # what did not fit into a frame
        if end.get("status") == "completed":
            if "result" in omitted:
                raise OverhopError("RESPONSE_TOO_LARGE", f"job {jid} has completed, its result is too large for the node's frames")
            return end.get("result")
        attempts = end["attempts"] if "attempts" in end else end.get("runtime", {}).get("attempts_so_far", 0)
        error = {"message": "its error is too large for the node's frames"} if "error" in omitted else end.get("error")
        raise JobFailed(jid, error, attempts)

    def job(self, jid: str) -> Optional[Dict[str, Any]]:
        """A job's record; None if the yard does not know it, or this node not yet."""
        return self._call(JOB, {"jid": jid}) or None

    def cancel(self, jid: str, reason: Optional[str] = None) -> str:
        """Cancels a job and returns its status: "active" while its worker is still to stop."""
        p = {"jid": jid} if reason is None else {"jid": jid, "reason": reason}
        ok = self._call(CANCEL, p, already=("JOB_ALREADY_TERMINAL",))
        return str(ok.get("status", "failed"))

    def retry(self, jid: str) -> str:
        """Runs a failed job again, from its first attempt, and returns its status."""
        return str(self._call(RETRYJOB, {"jid": jid})["status"])

    def remove(self, jid: str) -> None:
        """Removes a job that nobody works on."""
        self._call(RMJOB, {"jid": jid}, already=("JOB_NOT_FOUND",))

    def jobs(self, queue: str, status: str, *, page: int = 1, page_size: Optional[int] = None) -> List[Dict[str, Any]]:
        """A page, from 1, of a queue's jobs that are new, waiting, delayed, active, completed or failed; oldest first."""
        p: Dict[str, Any] = {"q": queue, "status": status, "page": page}
        if page_size is not None:
            p["page_size"] = page_size
        return list(self._call(LSJOB, p)["jobs"])

    # -- queues

    def queues(self) -> List[Dict[str, Any]]:
        """All queues, by name, those of the yard itself too."""
        return list(self._call(LSQUEUE, {})["queues"])

    def queue(self, name: str) -> Optional[Dict[str, Any]]:
        """One queue; None if it does not exist."""
        return self._call(QUEUE, {"q": name}) or None

    def add_queue(self, name: str, *, limit: Optional[int] = None, exist_ok: bool = False) -> None:
        """Makes a queue of which at most ``limit`` jobs run at once, over all workers."""
        p = {"name": name, "config": {"concurrency_limit": limit}}
        try:
            self._call(ADDQUEUE, p, already=("DUPLICATE_QUEUE",))
        except OverhopError as e:
            if not exist_ok or e.code != "DUPLICATE_QUEUE":
                raise

    def remove_queue(self, name: str) -> None:
        """Removes a queue whose jobs have all ended."""
        self._call(RMQUEUE, {"q": name}, already=("QUEUE_NOT_FOUND",))

    def clear_queue(self, name: str, statuses: Optional[Sequence[str]] = None) -> int:
        """Removes a queue's jobs, but for active ones, and returns how many.

        ``statuses`` are those to remove; None means all, an empty list none.
        """
        if statuses is not None and not statuses:
            return 0
        return int(self._call(CLRQUEUE, {"q": name} if statuses is None else {"q": name, "statuses": list(statuses)})["removed"])

    def obliterate_queue(self, name: str, *, force: bool = False) -> int:
        """Removes a queue and all its jobs, active ones only by ``force``; returns how many."""
        return int(self._call(OBLITERATE, {"q": name, "force": force}, already=("QUEUE_NOT_FOUND",)).get("removed", 0))

    def pause(self, name: str) -> None:
        """Lets no more jobs of a queue start."""
        self._call(PAUSE, {"q": name}, already=("QUEUE_ALREADY_PAUSED",))

    def resume(self, name: str) -> None:
        """Lets jobs of a paused queue start again."""
        self._call(RESUME, {"q": name}, already=("QUEUE_ALREADY_RUNNING",))

    def stats(self, name: str) -> Dict[str, int]:
        """How many jobs of a queue are new, waiting, delayed, active, completed and failed."""
        return dict(self._call(QSTATS, {"q": name})["stats"])

    # -- nodes

    def status(self) -> Dict[str, Any]:
        """What the node tells of itself."""
        return self._call(STATUS, {})

    def ping(self) -> datetime:
        """The node's time."""
        now = parse_time(self._call(PING, {})["server_time"])
        assert now is not None
        return now

    # -- how

    def _call(self, t: int, p: Dict[str, Any], timeout: Optional[float] = None,
              already: Sequence[str] = ()) -> Dict[str, Any]:
        """Asks until a node has answered.

        What is asked again may have been done the first time: then the codes in
        ``already`` mean that it was, and give {}.
        """
        until = time.monotonic() + (self._timeout if timeout is None else timeout)
        tries = losses = 0
        last: Exception = TimeoutError("no time is left to ask")
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise last
            try:
                return self._connection(left).call(t, p, until - time.monotonic())
            except OverhopError as e:
                if tries and e.code in already:
                    return {}
                if e.code != "UNAVAILABLE":
                    raise
                last, pause = e, _retry_after(e)
            except ConnectionLost as e:
                last, pause = e, _backoff(tries)
                losses += 1
                if self._closed:
                    raise
                if losses >= 5 and len(p.get("job_payload", b"")) > 1 << 16:
                    raise ConnectionLost(f"{e}; no node takes this message, it may be too large for them") from e
            except TimeoutError as e:
                if tries:
                    raise last from e  # why it was asked again says more
                raise
            tries += 1
            time.sleep(min(pause, max(0.0, until - time.monotonic())))

    def _connection(self, left: float) -> _Connection:
        with self._lock:
            if self._closed:
                raise ConnectionLost("client is closed")
            c = self._line
            if c is None:
                if self._preferred:
                    node = self._preferred.pop(0)
                else:
                    self._turns.append(self._turns.pop(0))
                    node = self._turns[0]
                c = self._line = _Connection(node, self._settings, lambda c: None, self._on_push, self._on_down)
        if not c.ready.wait(left):
            raise TimeoutError(f"{c.node} is not connected within {left:.1f} s")
        c.check()
        return c

    def _on_down(self, c: _Connection, error: Exception) -> None:
        with self._lock:
            if self._line is c:
                self._line = None
            waiting = [ends for all_ends in self._waiting.values() for ends in all_ends]
        for ends in waiting:
            ends.put(None)  # whoever waited there asks elsewhere

    def _on_push(self, c: _Connection, t: int, p: Dict[str, Any]) -> None:
        if t == JOBEND:
            with self._lock:
                waiting = list(self._waiting.get(str(p.get("jid")), ()))
            for ends in waiting:
                ends.put(p)
        elif t == DRAIN:  # answers and ends still come over this line, new requests take another
            with self._lock:
                if self._line is c:
                    self._line = None
                    nodes = p.get("reconnect")
                    self._preferred = [n for n in nodes if isinstance(n, str)] if isinstance(nodes, list) else []

    def _await(self, jid: str, timeout: float) -> Dict[str, Any]:
        """How a job has ended: its record, or the JOBEND."""
        until = time.monotonic() + timeout
        ends: _Ends = queue.SimpleQueue()
        with self._lock:
            self._waiting.setdefault(jid, []).append(ends)
        try:
            unknown_until = min(until, time.monotonic() + _UNKNOWN)
            while True:
                left = max(0.0, until - time.monotonic())
                slice_ = min(left, _AWAIT_TIME)
                try:
                    ok = self._call(AWAIT, {"jid": jid, "timeout_ms": _milliseconds(slice_)},
                                    None if left == math.inf else max(left, 1.0))
                except OverhopError as e:
                    if e.code == "JOB_NOT_FOUND" and time.monotonic() < unknown_until:
                        slice_ = 0.1  # this node may not have heard of it yet
                    elif e.code == "RATE_LIMITED":
                        slice_ = 0.25  # too many waits on one connection: look now and then
                    else:
                        raise
                else:
                    if not ok.get("pending"):
                        return ok
                try:
                    end = ends.get(timeout=max(slice_, 0.001))
                except queue.Empty:
                    end = None
                if end is not None:
                    return end
                if time.monotonic() >= until:
                    raise TimeoutError(f"job {jid} has not ended within {timeout:.1f} s")
        finally:
            with self._lock:
                self._waiting[jid].remove(ends)
                if not self._waiting[jid]:
                    del self._waiting[jid]
