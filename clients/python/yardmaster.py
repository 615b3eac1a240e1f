"""Overhop workers and producers for Yardmaster, in one file without dependencies.

A worker runs jobs:

    worker = Worker(["10.0.0.1:9876", "10.0.0.2:9876"])

    @worker.job("mail", concurrency=4)
    def send(job):
        return {"sent": job.payload["to"]}

    worker.run()

A producer enqueues them:

    with Client(["10.0.0.1:9876", "10.0.0.2:9876"]) as client:
        jid = client.enqueue("mail", {"to": "ann"})
        print(client.result(jid, timeout=30))

Both connect to any one of the nodes and switch to another if it fails. A
worker keeps its jobs when it switches, because a job belongs to a worker by its
token and not by its connection.

Payloads, results, progress data and details of errors consist of None, bool, int,
float, str, bytes, list and dict with str keys. A value with a float, or an int
beyond signed 64 bits, travels as JSON: it cannot have bytes, too, and as a payload
it must be a dict.
"""

from __future__ import annotations

import collections
import heapq
import inspect
import itertools
import json
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
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple, Union

__all__ = [
    "CancelledError", "Client", "CodecError", "ConnectionLost", "Fail", "Job", "JobFailed", "OverhopError",
    "Retry", "Worker", "decode", "encode",
]

log = logging.getLogger("yardmaster")

# Message types: requests of a client, answers of a node, pushes of a node.
HELLO, REGISTER, PING, QUEUE, LSQUEUE, SUBSCRIBE, UNSUBSCRIBE, CREDIT, ADDQUEUE = range(1, 10)
STATUS, RMQUEUE, PAUSE, RESUME, ENQUEUE, JOB, RMJOB, LSJOB, QSTATS = range(10, 19)
ACK, NACK, BEAT, PROGRESS, LOG, DONE, FAIL, AWAIT, GOODBYE, CANCEL, RETRYJOB, CLRQUEUE, OBLITERATE, SETQUEUE, SETJOB, \
    CONTENT = range(40, 56)
OK, ERR, HI, IDENT, PONG = range(101, 106)
QUEST, RECALL, CREDITS, DRAIN, BYE, JOBEND = range(140, 146)

DELIVERY = "delivery/1"  # name of the protocol extension, in HELLO and HI
CAPABILITY_JSON = "json"  # values of users as JSON, in HELLO and HI
CAPABILITY_CONTENT = "content"  # values of any size by CONTENT, in HELLO and HI
PUSH_RID = "0"           # request id of a push: a message that answers no request
MAX_DEPTH = 128          # nesting of lists and dicts, including the payload's own dict
MAX_FRAME = 8 << 20      # bytes; limit of a node that announces none
DEFAULT_NODES = "127.0.0.1:9876"
NODES_VARIABLE = "OVERHOP_NODES"
DEFAULT_PORT = 9876
_MAX_RETRY_AFTER = 366 * 86400  # seconds
_UNCHANGED: Any = object()  # a setting that a caller leaves out


# ---------------------------------------------------------------- errors


class OverhopError(Exception):
    """A node refused a request.

    ``code`` is stable and meant for programs, ``msg`` is meant for people, and
    ``details`` depends on the code; None means that there are no details.
    """

    def __init__(self, code: str, msg: str = "", details: Any = None) -> None:
        super().__init__(f"{code}: {msg}" if msg else code)
        self.code, self.msg, self.details = code, msg, details


class ConnectionLost(OSError):
    """The connection was lost. The node may or may not have executed pending requests."""


class CodecError(ValueError):
    """A value that Overhop cannot carry, or bytes that do not encode a value."""


class JobFailed(Exception):
    """The awaited job failed without another attempt, or was removed.

    ``jid`` is the job's id, ``error`` the error of its last attempt as a dict
    (``error["type"]`` is "removed" for a removed job), and ``attempts`` the
    number of attempts made.
    """

    def __init__(self, jid: str, error: Optional[Dict[str, Any]], attempts: int) -> None:
        error = error or {}
        if error.get("type") == "removed":
            super().__init__(f"job {jid} was removed before it ended")
        else:
            super().__init__(f"job {jid} failed after {attempts} attempts: {error.get('message', 'no reason given')}")
        self.jid, self.error, self.attempts = jid, error, attempts


class CancelledError(Exception):
    """Raised in a handler whose job must stop. Handlers should not catch it."""


class Retry(Exception):
    """Raised by a handler to fail this attempt and request another.

    ``after`` is the delay before the next attempt in seconds, at most 366 days;
    None leaves it to the retry policy of the yard. Raises ValueError if
    ``after`` is out of range.
    """

    def __init__(self, message: str = "handler asks for a retry", *, after: Optional[float] = None,
                 code: Optional[str] = None, details: Any = None) -> None:
        super().__init__(message)
        if after is not None and not 0 <= _seconds(after) <= _MAX_RETRY_AFTER:  # NaN fails both comparisons
            raise ValueError(f"after is {after!r}, must be 0 to {_MAX_RETRY_AFTER} seconds")
        self.after, self.code, self.details = after, code, details


class Fail(Exception):
    """Raised by a handler to fail the job without another attempt."""

    def __init__(self, message: str, *, code: Optional[str] = None, details: Any = None) -> None:
        super().__init__(message)
        self.code, self.details = code, details


# ---------------------------------------------------------------- MessagePack


class _Encoded(bytes):
    """A value that is already encoded; the encoder copies it unchanged."""


class _OnlyJSON(CodecError):
    """A number that MessagePack, as used in Overhop, does not carry, and JSON does."""


def encode(value: Any, levels: int = MAX_DEPTH) -> bytes:
    """Encode a value as MessagePack, with sorted keys and the shortest lengths.

    ``levels`` is how deep lists and dicts may be nested. Raises CodecError if
    the value is nested deeper or has a type that Overhop does not carry.
    """
    out = bytearray()
    _encode_value(out, value, levels)
    return bytes(out)


def _encode_value(out: bytearray, value: Any, levels: int) -> None:
    """Append the encoding of a value to ``out``."""
    if value is None:
        out.append(0xC0)
    elif value is True:
        out.append(0xC3)
    elif value is False:
        out.append(0xC2)
    elif isinstance(value, int):
        _encode_int(out, value)
    elif isinstance(value, str):
        _encode_str(out, value)
    elif isinstance(value, _Encoded):
        out += value
    elif isinstance(value, (bytes, bytearray, memoryview)):
        body = bytes(value)
        _encode_length(out, len(body), None, 0, 0xC4, 0xC5, 0xC6)
        out += body
    elif isinstance(value, (list, tuple, dict)):
        if levels == 0:
            raise CodecError("value is nested too deep")
        if isinstance(value, dict):
            _encode_dict(out, value, levels - 1)
            return
        items = tuple(value)  # a snapshot: another thread may change the list
        _encode_length(out, len(items), 0x90, 16, None, 0xDC, 0xDD)
        for item in items:
            _encode_value(out, item, levels - 1)
    elif isinstance(value, float):
        raise _OnlyJSON(f"Overhop's MessagePack has no floats such as {value!r}")
    else:
        raise CodecError(f"Overhop does not carry a {type(value).__name__}; send None, bool, int, str, bytes, list or dict")


def _encode_dict(out: bytearray, value: Dict[str, Any], levels: int) -> None:
    """Append the encoding of a dict, whose values may be nested ``levels`` deep."""
    keys = list(value)  # a snapshot: another thread may change the dict
    for key in keys:
        if not isinstance(key, str):
            raise CodecError(f"keys of a dict must be str, not {type(key).__name__}")
    _encode_length(out, len(keys), 0x80, 16, None, 0xDE, 0xDF)
    for key in sorted(keys):
        _encode_str(out, key)
        _encode_value(out, value[key], levels)


def _encode_str(out: bytearray, text: str) -> None:
    try:
        body = text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise CodecError(f"text is not UTF-8: {e.reason}") from None
    _encode_length(out, len(body), 0xA0, 32, 0xD9, 0xDA, 0xDB)
    out += body


def _encode_length(out: bytearray, length: int, fixed: Optional[int], fixed_limit: int,
                   code8: Optional[int], code16: int, code32: int) -> None:
    """Append the shortest header for a length.

    A length below ``fixed_limit`` is stored in the first byte, ``fixed``;
    otherwise one of the codes is followed by the length in 8, 16 or 32 bits.
    None means that the type has no such form.
    """
    if fixed is not None and length < fixed_limit:
        out.append(fixed | length)
    elif code8 is not None and length < 1 << 8:
        out += struct.pack(">BB", code8, length)
    elif length < 1 << 16:
        out += struct.pack(">BH", code16, length)
    elif length < 1 << 32:
        out += struct.pack(">BI", code32, length)
    else:
        raise CodecError("value is too long")


# Encodings of an int outside -32 to 127: first byte, struct format of the rest,
# lowest value and upper bound (exclusive). The first match is the shortest.
_INT_ENCODINGS = (
    (0xCC, ">BB", 0, 1 << 8), (0xCD, ">BH", 0, 1 << 16), (0xCE, ">BI", 0, 1 << 32), (0xCF, ">BQ", 0, 1 << 63),
    (0xD0, ">Bb", -1 << 7, 0), (0xD1, ">Bh", -1 << 15, 0), (0xD2, ">Bi", -1 << 31, 0), (0xD3, ">Bq", -1 << 63, 0),
)


def _encode_int(out: bytearray, value: int) -> None:
    """Append the shortest encoding of an int."""
    if -32 <= value < 128:
        out.append(value & 0xFF)
        return
    for code, form, low, high in _INT_ENCODINGS:
        if low <= value < high:
            out += struct.pack(form, code, value)
            return
    raise _OnlyJSON(f"int {value} does not fit into signed 64 bits")


def decode(data: Union[bytes, bytearray, memoryview], levels: int = MAX_DEPTH) -> Any:
    """Decode exactly one MessagePack value.

    ``levels`` is how deep lists and dicts may be nested. The last value of a
    duplicate key counts. Raises CodecError if the data is truncated, has bytes
    after the value, or holds a type that Overhop does not allow.
    """
    view = memoryview(data)
    value, end = _decode_value(view, 0, levels)
    if end != len(view):
        raise CodecError(f"{len(view) - end} bytes follow the value")
    return value


# First bytes that a number follows (the int itself, or the length of the value),
# each with the struct format of that number.
_INTS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_BINS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_STRS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_DICTS = {0xDE: ">H", 0xDF: ">I"}


def _decode_value(data: memoryview, offset: int, levels: int) -> Tuple[Any, int]:
    """Return the value at an offset, and the offset after it."""
    if offset >= len(data):
        raise CodecError("value is cut off")
    first = data[offset]
    offset += 1
    if first < 0x80:
        return first, offset
    if first >= 0xE0:
        return first - 0x100, offset
    if first < 0x90:
        return _decode_dict(data, offset, first & 0x0F, levels)
    if first < 0xA0:
        return _decode_list(data, offset, first & 0x0F, levels)
    if first < 0xC0:
        return _decode_str(data, offset, first & 0x1F)
    if first in (0xC0, 0xC2, 0xC3):
        return (None if first == 0xC0 else first == 0xC3), offset
    if first in _INTS:
        number, offset = _decode_number(data, offset, _INTS[first])
        if number >= 1 << 63:
            raise CodecError("int does not fit into signed 64 bits")
        return number, offset
    if first in _STRS:
        length, offset = _decode_number(data, offset, _STRS[first])
        return _decode_str(data, offset, length)
    if first in _BINS:
        length, offset = _decode_number(data, offset, _BINS[first])
        return bytes(_slice(data, offset, length)), offset + length
    if first in _LISTS:
        length, offset = _decode_number(data, offset, _LISTS[first])
        return _decode_list(data, offset, length, levels)
    if first in _DICTS:
        length, offset = _decode_number(data, offset, _DICTS[first])
        return _decode_dict(data, offset, length, levels)
    kind = "float" if first in (0xCA, 0xCB) else "reserved byte" if first == 0xC1 else "extension type"
    raise CodecError(f"{kind} 0x{first:02x} is not allowed in Overhop")


def _decode_number(data: memoryview, offset: int, form: str) -> Tuple[int, int]:
    size = struct.calcsize(form)
    return struct.unpack(form, _slice(data, offset, size))[0], offset + size


def _slice(data: memoryview, offset: int, length: int) -> memoryview:
    if length > len(data) - offset:
        raise CodecError("value is cut off")
    return data[offset:offset + length]


def _decode_str(data: memoryview, offset: int, length: int) -> Tuple[str, int]:
    try:
        return str(_slice(data, offset, length), "utf-8"), offset + length
    except UnicodeDecodeError:
        raise CodecError("text is not UTF-8") from None


def _decode_list(data: memoryview, offset: int, length: int, levels: int) -> Tuple[List[Any], int]:
    """Return the list whose ``length`` items start at an offset, and the offset after it."""
    if levels == 0:
        raise CodecError("value is nested too deep")
    items: List[Any] = []  # not preallocated: the announced length may be false
    for _ in range(length):
        item, offset = _decode_value(data, offset, levels - 1)
        items.append(item)
    return items, offset


def _decode_dict(data: memoryview, offset: int, length: int, levels: int) -> Tuple[Dict[str, Any], int]:
    """Return the dict whose ``length`` pairs start at an offset, and the offset after it."""
    if levels == 0:
        raise CodecError("value is nested too deep")
    pairs: Dict[str, Any] = {}
    for _ in range(length):
        if offset < len(data) and data[offset] >> 5 != 5 and data[offset] not in _STRS:
            raise CodecError("key of a map is not text")
        key, offset = _decode_value(data, offset, levels)
        pairs[key], offset = _decode_value(data, offset, levels - 1)
    return pairs, offset


def _user_value(name: str, value: Any, levels: int) -> Dict[str, bytes]:
    """Return the field ``name`` of a message, which holds a value of the user.

    It is MessagePack, or, if the value has numbers that only JSON carries, JSON
    under the name with "_json". ``levels`` is how deep lists and dicts may be
    nested. Raises CodecError if neither can carry the value.
    """
    try:
        return {name: _Encoded(encode(value, levels))}
    except _OnlyJSON:
        _check_json(value, levels)
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
            return {name + "_json": text.encode("utf-8")}
        except (TypeError, ValueError) as e:  # such as nan, or text that is not UTF-8
            raise CodecError(f"value cannot be sent as JSON: {e}") from None


def _check_json(value: Any, levels: int) -> None:
    """Raise CodecError for what json.dumps changes silently, and for bytes and deep nesting."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise CodecError("a value with floats or large ints is sent as JSON, which has no bytes: send one of them as text")
    if not isinstance(value, (list, tuple, dict)):
        return
    if levels == 0:
        raise CodecError("value is nested too deep")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise CodecError(f"keys of a dict must be str, not {type(key).__name__}")
    for item in (value.values() if isinstance(value, dict) else value):
        _check_json(item, levels - 1)


def _read_json(message: Dict[str, Any], *names: str) -> None:
    """Replace each field of a message that is present as JSON by its value, under its own name."""
    for name in names:
        text = message.pop(name + "_json", None)
        if text is not None:
            message[name] = json.loads(text, parse_int=_parse_int)


def _parse_int(digits: str) -> Union[int, float]:
    try:
        return int(digits)
    except ValueError:  # Python limits the number of digits
        return float(digits)


def _read_record(record: Dict[str, Any]) -> Dict[str, Any]:
    """Replace the JSON in a job's record, or in a JOBEND, by its values, and return it."""
    _read_json(record, "payload", "result")
    if isinstance(record.get("error"), dict):
        _read_json(record["error"], "details")
    progress = (record.get("runtime") or {}).get("progress")
    if isinstance(progress, dict):
        _read_json(progress, "data")
    return record


def _read_content(call: Callable[[Dict[str, Any]], Dict[str, Any]], jid: str, value: str) -> Any:
    """Read a job's result or payload in parts and return its value.

    ``call`` sends a CONTENT and returns the answer.
    """
    whole, version = bytearray(), None
    while True:
        part = call({"jid": jid, "value": value, "offset": len(whole)})
        if part["version"] != (version or part["version"]):
            raise ConnectionLost(f"the {value} of job {jid} has changed while it was read")
        version = part["version"]
        whole += part["data"]
        if len(whole) >= part["size"] or not part["data"]:
            break
    if len(whole) != part["size"]:
        raise ConnectionLost(f"the {value} of job {jid} has {part['size']} bytes, the node sent {len(whole)}")
    return json.loads(whole, parse_int=_parse_int) if part["encoding"] == "json" else decode(whole)


def frame(t: int, rid: str, p: Union[Dict[str, Any], _Encoded]) -> bytes:
    """Return a whole frame: four bytes of length, then the envelope.

    ``t`` is the message type, ``rid`` the request id and ``p`` the payload.
    Raises CodecError if the payload cannot be encoded.
    """
    body = encode({"p": p, "rid": rid, "t": t, "v": 2})
    return struct.pack(">I", len(body)) + body


def parse_envelope(body: Union[bytes, bytearray]) -> Tuple[int, str, Dict[str, Any]]:
    """Return the message type, request id and payload of a frame without its length.

    Raises CodecError if the body is not an envelope.
    """
    envelope = decode(body)
    if not isinstance(envelope, dict) or envelope.get("v") != 2:
        raise CodecError("not an envelope: it must be a map with v = 2")
    t, rid, p = envelope.get("t"), envelope.get("rid"), envelope.get("p")
    if not isinstance(t, int) or isinstance(t, bool) or not isinstance(rid, str) or not rid or not isinstance(p, dict):
        raise CodecError("not an envelope: it must have t (int), rid (str, not empty) and p (map)")
    return t, rid, p


# ---------------------------------------------------------------- times and addresses

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)")


def parse_time(text: Optional[str]) -> Optional[datetime]:
    """Parse an RFC 3339 time, truncated to microseconds. None stays None.

    Raises ValueError if the text is not such a time.
    """
    if text is None:
        return None
    match = _RFC3339.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not an RFC 3339 time")
    day, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in "Zz" else zone
    return datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6]:0<6}{zone}")


def _format_time(moment: Union[datetime, str]) -> str:
    """Return a time as RFC 3339 text. Text is checked and returned unchanged."""
    if isinstance(moment, str):
        parse_time(moment)
        return moment
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone: datetime.now(timezone.utc), for example")
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _seconds(duration: Union[float, timedelta]) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _milliseconds(duration: Union[float, timedelta]) -> int:
    return max(0, round(_seconds(duration) * 1000))


def _optional_milliseconds(duration: Union[float, timedelta, None]) -> Optional[int]:
    return None if duration is None else _milliseconds(duration)


def _window(name: str, key: Optional[str], window: Union[float, timedelta, None]) -> Optional[int]:
    """Return the window of a rate limit or debounce key in milliseconds, or None without one.

    ``name`` is the option's name for error messages. Raises ValueError if only
    one of key and window is given, or if the window is not positive.
    """
    if (key is None) != (window is None):
        raise ValueError(f"{name}_key and {name} (seconds) go together: give both or neither")
    milliseconds = _optional_milliseconds(window)
    if milliseconds is not None and milliseconds < 1:
        raise ValueError(f"{name} is {window!r}, must be more than 0 seconds")
    return milliseconds


def _parse_nodes(nodes: Union[str, Sequence[str], None]) -> List[str]:
    """Return node addresses as a list; None means OVERHOP_NODES, or DEFAULT_NODES without it.

    Raises ValueError if the list is empty or holds an invalid address.
    """
    if nodes is None:
        nodes = os.environ.get(NODES_VARIABLE) or DEFAULT_NODES
    if isinstance(nodes, str):
        nodes = nodes.split(",")
    addresses = [node.strip() for node in nodes if node.strip()]
    if not addresses:
        raise ValueError("no node is named: give nodes=['host:port', ...]")
    for address in addresses:
        _parse_address(address)
    return addresses


def _parse_address(node: str) -> Tuple[str, int]:
    """Return the host and port of "host:port"; the defaults are 127.0.0.1 and DEFAULT_PORT."""
    host, colon, port = node.rpartition(":")
    if not colon or node.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = node, str(DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"invalid node address {node!r}: must be host:port, with a port from 1 to 65535")
    return host.strip("[]") or "127.0.0.1", int(port)


def _backoff(attempt: int) -> float:
    """Return the seconds to wait before the next attempt: exponential up to 2 s, with jitter."""
    return min(2.0, 0.05 * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1)


class _NodeRotation:
    """Selects the node for the next connection; the caller prevents concurrent use."""

    def __init__(self, nodes: Union[str, Sequence[str], None]) -> None:
        addresses = _parse_nodes(nodes)
        self._rotation = random.sample(addresses, len(addresses))
        self.preferred: List[str] = []  # returned first; a draining node names them
        self.avoided: Optional[str] = None  # skipped once; the draining node itself

    def next(self) -> str:
        """Return the address of the next node."""
        if self.preferred:
            return self.preferred.pop(0)
        self._rotation.append(self._rotation.pop(0))
        if self._rotation[0] == self.avoided:  # skip it once only: it may have restarted by the next time
            self._rotation.append(self._rotation.pop(0))
            self.avoided = None
        return self._rotation[0]


def _only_strings(values: Any) -> List[str]:
    """Return the strings in a list from the wire, or an empty list for anything else."""
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


# ---------------------------------------------------------------- connection

# Receives the payload of the answer and None, or a dict without meaning and the error.
_Callback = Callable[[Dict[str, Any], Optional[Exception]], None]

_MAX_INCOMING_FRAME = 32 << 20  # bytes, the largest frame that any node can be configured for
_CONNECT_TIMEOUT = 5.0  # seconds for connecting, and for each read and write until registered
_PING_AFTER = 5.0       # seconds without received bytes before a PING is sent
# Seconds without received bytes after which a node that was sent a PING is given up.
# A node answers in order, and a request before the PING may take the node's
# request_timeout, which is at most 60 s. If only the PING is pending, less is enough.
_BUSY_TIMEOUT = 65.0
_IDLE_TIMEOUT = 15.0
# Seconds after which bytes that the peer's TCP does not acknowledge end the connection.
# Together with the time between two BEATs it is shorter than a lease, so that a
# worker can move its jobs to another node before their leases expire.
_UNACKNOWLEDGED_TIMEOUT = 3.0
_CHUNK_SIZE = 64 << 10  # bytes written to the socket at once


class _Settings:
    """Settings that all connections of a Worker or Client share."""

    def __init__(self, name: Optional[str], tls: Optional[ssl.SSLContext], token: Optional[str]) -> None:
        self.tls = tls
        self.hello: Dict[str, Any] = {
            "client": "yardmaster-python", "ext": [DELIVERY], "caps": [CAPABILITY_JSON, CAPABILITY_CONTENT],
            "name": name or f"{socket.gethostname()}-{os.getpid()}",
        }
        if token is not None:
            self.hello["token"] = token


# Clients and connections; their _after_fork methods are called in a forked child.
_fork_aware: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _after_fork() -> None:
    for instance in list(_fork_aware):
        instance._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Connection:
    """A connection to one node: requests are pipelined, answers go to callbacks.

    The constructor starts a thread that connects, registers, reads and writes;
    one thread does both because an SSL socket must not be used by two. The
    thread calls ``on_connected`` once if the connection is registered,
    ``on_push`` for each push, and ``on_disconnected`` once at the end, after the
    callbacks of all pending requests. Callbacks must not block.
    """

    def __init__(self, node: str, settings: _Settings, on_connected: Callable[["_Connection"], None],
                 on_push: Callable[["_Connection", int, Dict[str, Any]], None],
                 on_disconnected: Callable[["_Connection", Exception], None]) -> None:
        self.node, self._settings = node, settings
        self.node_name = ""         # announced by the node; "" until registered
        self.max_frame = MAX_FRAME  # bytes, announced by the node
        self._takes_json = False    # the node has CAPABILITY_JSON
        self._gives_content = False  # the node has CAPABILITY_CONTENT
        self.ready = threading.Event()  # set once the connection is registered, or has failed
        self._on_connected, self._on_push, self._on_disconnected = on_connected, on_push, on_disconnected
        self._request_ids = itertools.count(1)
        self._closing = False

        self._lock = threading.Lock()  # guards _outgoing, _pending and _error
        self._outgoing: collections.deque[bytes] = collections.deque()  # frames to write
        self._pending: Dict[str, _Callback] = {}  # by request id
        self._error: Optional[Exception] = None   # why the connection ended; None while it has not

        # A byte sent to _wake_sender interrupts select() in the connection's thread.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)

        # Used by the connection's thread only.
        self._received = bytearray()   # bytes that are not yet a whole frame
        self._unsent = memoryview(b"")  # rest of the frames being written
        self._socket: Optional[socket.socket] = None
        _fork_aware.add(self)
        threading.Thread(target=self._run, name=f"yardmaster {node}", daemon=True).start()

    def send(self, message_type: int, payload: Union[Dict[str, Any], _Encoded], callback: Optional[_Callback] = None) -> None:
        """Send a request without waiting for its answer.

        ``callback`` receives the answer in the connection's thread, or in the
        caller's if the connection has already ended. Raises CodecError if the
        payload cannot be encoded or is larger than the node accepts.
        """
        if not self._takes_json and isinstance(payload, dict) and any(key.endswith("_json") for key in payload):
            raise CodecError(f"{self.node} takes no floats and no ints beyond 64 bits")
        if message_type == CONTENT and not self._gives_content:
            raise OverhopError("RESPONSE_TOO_LARGE", f"{self.node}, of an older release, sends no value that does not fit into a frame")
        request_id = str(next(self._request_ids))
        request = frame(message_type, request_id, payload)
        if len(request) - 4 > self.max_frame:
            raise CodecError(f"message of {len(request) - 4} bytes is too large: {self.node} accepts {self.max_frame}")
        with self._lock:
            error = self._error
            if error is None:
                if callback is not None:
                    self._pending[request_id] = callback
                self._outgoing.append(request)
        if error is None:
            self._wake()
        elif callback is not None:
            callback({}, error)

    def call(self, message_type: int, payload: Dict[str, Any], timeout: float) -> Dict[str, Any]:
        """Send a request and return the payload of its answer.

        Raises OverhopError if the node refuses the request, ConnectionLost, or
        TimeoutError if no answer arrives within ``timeout`` seconds.
        """
        answers: queue.SimpleQueue[Tuple[Dict[str, Any], Optional[Exception]]] = queue.SimpleQueue()
        self.send(message_type, payload, lambda answer, error: answers.put((answer, error)))
        try:
            answer, error = answers.get(timeout=max(timeout, 0.001))
        except queue.Empty:
            raise TimeoutError(f"{self.node} did not answer within {timeout:.1f} s") from None
        if error is not None:
            raise error
        return answer

    def check(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error

    def close(self) -> None:
        """Close the connection after all queued requests are written; do not wait for that."""
        self._closing = True
        self._wake()

    def _after_fork(self) -> None:
        """Close the child's duplicate of the socket, which would keep the connection open."""
        if self._socket is not None:
            self._socket.close()

    def _wake(self) -> None:
        try:
            self._wake_sender.send(b"!")
        except OSError:  # the buffer is full, or the thread has ended
            pass

    def _run(self) -> None:
        """Run the connection's thread: connect, serve until an error or close(), report the end."""
        try:
            self._socket = self._connect()
            self.ready.set()
            self._on_connected(self)
            self._serve(self._socket)
            error: Exception = ConnectionLost("connection was closed by this client")
        except OverhopError as e:
            error = e
        except Exception as e:  # any other error ends this connection, too
            error = e if isinstance(e, ConnectionLost) else ConnectionLost(f"{self.node}: {e or type(e).__name__}")
        if self._socket is not None:
            self._socket.close()
        with self._lock:
            self._error = error
            pending, self._pending = self._pending, {}
            self._outgoing.clear()
            self._wake_receiver.close()
            self._wake_sender.close()
        self.ready.set()
        for callback in pending.values():
            callback({}, error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)))
        self._on_disconnected(self, error)

    def _connect(self) -> socket.socket:
        """Connect and register, and return the socket in non-blocking mode."""
        host, port = _parse_address(self.node)
        sock = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_UNACKNOWLEDGED_TIMEOUT * 1000))
            if self._settings.tls is not None:
                sock = self._settings.tls.wrap_socket(sock, server_hostname=host)
            hi = self._handshake(sock, HELLO, self._settings.hello, HI)
            if DELIVERY not in (hi.get("ext") or ()):
                raise OverhopError("NOT_IMPLEMENTED", f"{self.node} does not support {DELIVERY}")
            self.node_name = str(hi.get("node") or "")
            self._takes_json = CAPABILITY_JSON in (hi.get("caps") or ())
            self._gives_content = CAPABILITY_CONTENT in (hi.get("caps") or ())
            self.max_frame = int(hi.get("max_envelope_size_bytes") or MAX_FRAME)
            self._handshake(sock, REGISTER, {}, OK)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock

    def _handshake(self, sock: socket.socket, message_type: int, payload: Dict[str, Any], expected: int) -> Dict[str, Any]:
        """Send one request on the blocking socket and return the payload of its answer.

        An IDENT, by which a node asks for the request, is skipped.
        """
        sock.sendall(frame(message_type, str(next(self._request_ids)), payload))
        while True:
            for received, _, answer in self._whole_frames():
                if received == ERR:
                    raise _overhop_error(answer)
                if received == expected:
                    return answer
                if received != IDENT:
                    raise ConnectionLost(f"{self.node} answered t={received} to t={message_type}")
            self._append_received(sock.recv(_CHUNK_SIZE))

    def _append_received(self, data: bytes) -> None:
        if not data:
            raise ConnectionLost(f"{self.node} closed the connection")
        self._received += data

    def _whole_frames(self) -> Iterable[Tuple[int, str, Dict[str, Any]]]:
        """Remove the whole frames from the received bytes and yield type, request id and payload of each."""
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big")
            if not 0 < size <= _MAX_INCOMING_FRAME:
                raise ConnectionLost(f"{self.node} announced a frame of {size} bytes")
            if len(self._received) < 4 + size:
                return
            body = bytes(memoryview(self._received)[4:4 + size])
            del self._received[:4 + size]
            yield parse_envelope(body)

    def _serve(self, sock: socket.socket) -> None:
        """Read and write until close() is called and all requests are written.

        Raises ConnectionLost if the node closes the connection or is silent for
        too long, and OverhopError if it ends the connection with an error.
        """
        last_received, ping_sent, timeout = time.monotonic(), False, _BUSY_TIMEOUT
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            self._handle_frames()
            self._read(sock)  # TLS may have buffered bytes that select does not report
            while True:
                unwritten = self._write(sock)
                if self._closing and not unwritten:
                    return
                selector.modify(sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if unwritten else 0))
                events = {key.fileobj: mask for key, mask in selector.select(_PING_AFTER / 5)}
                if self._wake_receiver in events:
                    self._drain_wake_receiver()
                mask = events.get(sock, 0)
                if mask and (self._read(sock) or mask & selectors.EVENT_WRITE):
                    last_received, ping_sent = time.monotonic(), False
                silence = time.monotonic() - last_received
                if ping_sent and silence > timeout:
                    raise ConnectionLost(f"{self.node} has been silent for {silence:.0f} s")
                if silence > _PING_AFTER and not ping_sent:
                    ping_sent = True
                    with self._lock:
                        timeout = _BUSY_TIMEOUT if self._pending else _IDLE_TIMEOUT
                    self.send(PING, {})

    def _drain_wake_receiver(self) -> None:
        try:
            while self._wake_receiver.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _read(self, sock: socket.socket) -> bool:
        """Read and handle the available bytes; report whether there were any."""
        try:
            self._append_received(sock.recv(4 * _CHUNK_SIZE))
            while isinstance(sock, ssl.SSLSocket) and sock.pending():
                self._append_received(sock.recv(4 * _CHUNK_SIZE))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        self._handle_frames()
        return True

    def _handle_frames(self) -> None:
        """Pass received pushes to on_push and received answers to their callbacks."""
        for message_type, request_id, payload in self._whole_frames():
            if request_id == PUSH_RID:
                if message_type == ERR:
                    raise _overhop_error(payload)
                self._on_push(self, message_type, payload)
                continue
            with self._lock:
                callback = self._pending.pop(request_id, None)
            if callback is not None:
                callback(payload, _overhop_error(payload) if message_type == ERR else None)

    def _write(self, sock: socket.socket) -> bool:
        """Write until the socket accepts no more; report whether bytes remain.

        After an incomplete write the same bytes are offered again, as OpenSSL
        requires.
        """
        while True:
            if not self._unsent:
                with self._lock:
                    if not self._outgoing:
                        return False
                    # Join small frames up to one chunk; a larger frame is written in slices.
                    batch = [self._outgoing.popleft()]
                    size = len(batch[0])
                    while self._outgoing and size + len(self._outgoing[0]) <= _CHUNK_SIZE:
                        size += len(self._outgoing[0])
                        batch.append(self._outgoing.popleft())
                self._unsent = memoryview(batch[0] if len(batch) == 1 else b"".join(batch))
            try:
                self._unsent = self._unsent[sock.send(self._unsent[:_CHUNK_SIZE]):]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return True


def _overhop_error(payload: Dict[str, Any]) -> OverhopError:
    """Return the exception for the payload of an ERR."""
    return OverhopError(str(payload.get("code", "")), str(payload.get("msg", "")), payload.get("details"))


def _retry_delay(error: OverhopError) -> float:
    """Return the seconds to wait before repeating a refused request, as the node asks or 0.25."""
    milliseconds = error.details.get("retry_after_ms") if isinstance(error.details, dict) else None
    return min(max(milliseconds / 1000, 0.05), 2.0) if isinstance(milliseconds, int) else 0.25


# ---------------------------------------------------------------- worker


class Job:
    """A job, as its handler receives it.

    Handlers may call its methods from any thread of the worker's process; in a
    forked process ``progress`` and ``log`` raise RuntimeError.
    """

    def __init__(self, worker: "Worker", quest: Dict[str, Any]) -> None:
        _read_json(quest, "job_payload")
        self._worker, self._token = worker, bytes(quest["tok"])
        self.id: str = quest["jid"]  # "<queue>:<uuid>"
        self.queue: str = quest["q"]
        self.fn: Optional[str] = quest.get("fn")  # the function that the job names; None if it names none
        self.payload: Any = quest.get("job_payload")
        self._payload_omitted = "job_payload" in (quest.get("omitted") or ())  # it does not fit into a frame
        self.attempt: int = quest["attempt"]  # from 1
        self.max_attempts: Optional[int] = quest.get("max_attempts")  # None: the yard's default
        #: Fencing token, larger for every later assignment. Pass it to the systems
        #: that the job changes, so that they can reject a stale writer.
        self.fence: int = quest["fence"]
        self.trace: Dict[str, str] = quest.get("trace") or {}
        self.created_at: Optional[datetime] = parse_time(quest.get("created_at"))
        #: End of the time allowed for this attempt, by the node's clock; None: no limit.
        self.deadline: Optional[datetime] = parse_time(quest.get("deadline"))
        self.redelivered: bool = bool(quest.get("redelivered"))
        #: Set once the job must stop; ``cancel_reason`` is then the reason.
        self.cancelled = threading.Event()
        self.cancel_reason: Optional[str] = None
        self._log_lines = 0
        self._cancel_raised = False  # the handler raised CancelledError; written before the worker reads it

        # The rest is used by the thread in run() only.
        self._beat_interval: float = quest.get("beat_ms", 2000) / 1000  # seconds
        self._connection: Optional[_Connection] = None  # the last one used for its QUEST, lease or outcome
        self._acked = False            # a node has answered the ACK
        self._lease_confirmed = False  # the node of _connection has confirmed the lease
        self._transfer: Optional[_Connection] = None  # on which the BEAT that moves the lease is not answered yet
        self._outcome: Optional[Tuple[int, Dict[str, Any]]] = None  # a DONE or FAIL that no node has answered yet
        self._outcome_losses = 0       # connections lost while its answer was pending
        self._grace_over = False       # cancelled because the worker's grace is over
        self._give_back = False        # _grace_over is set and the handler raised CancelledError
        self._progress: Optional[_Encoded] = None  # the newest, not sent yet
        self._progress_pending = False             # an earlier one has not been answered

    def progress(self, percent: Optional[int] = None, data: Any = None) -> None:
        """Report the job's progress; only the newest report is kept.

        ``percent`` is 0 to 100, or None. Raises CancelledError if the job must
        stop, ValueError for any other percentage, and CodecError if ``data``
        cannot be encoded.
        """
        self.check()
        if percent is not None and (isinstance(percent, bool) or not isinstance(percent, int) or not 0 <= percent <= 100):
            raise ValueError(f"percent is {percent!r}, must be an int from 0 to 100")
        value = {} if data is None else _user_value("data", data, MAX_DEPTH - 2)
        self._worker._post(self._worker._set_progress, self, self._message(percent=percent, **value))

    def log(self, message: str, level: str = "info") -> None:
        """Add a line to the job's log on its node, which keeps 1000 lines of 2048 characters.

        Raises CancelledError if the job must stop.
        """
        self.check()
        self._log_lines += 1
        if self._log_lines <= 1000:
            line = {"at": _format_time(datetime.now(timezone.utc)), "level": _valid_utf8(str(level))[:64],
                    "msg": _valid_utf8(str(message))[:2048]}
            self._worker._post(self._worker._send_log, self, self._message(lines=[line]))

    def check(self) -> None:
        """Raise CancelledError if the job must stop."""
        if self.cancelled.is_set():
            raise CancelledError(f"job {self.id} must stop: {self.cancel_reason}")

    def _message(self, **fields: Any) -> _Encoded:
        """Encode a payload about this job in the caller's thread, so that errors are raised there."""
        payload = {key: value for key, value in fields.items() if value is not None}
        return _Encoded(encode({**payload, "jid": self.id, "tok": self._token}, MAX_DEPTH - 1))

    def _cancel(self, reason: str) -> None:
        if not self.cancelled.is_set():
            self.cancel_reason = reason
            self.cancelled.set()


Handler = Callable[[Job], Any]


class _Subscription:
    """A queue's handlers, and the credits that the node holds for it."""

    def __init__(self, queue_name: str, concurrency: int) -> None:
        self.queue_name, self.concurrency = queue_name, concurrency
        self.handlers: Dict[Optional[str], Handler] = {}  # by function; None: any other function, or none
        self.sid: Optional[str] = None  # of the subscription on the current connection; None: not subscribed
        self.refusal = ""  # code of the last refusal on the current connection
        self.running = 0  # jobs whose handler has not returned
        self.credits = 0  # unused ones, as the node counts them

    def take_credits(self) -> int:
        """Return the credits to grant now so that the node can fill all free slots, and count them as granted."""
        credits = max(0, self.concurrency - self.running - self.credits)
        self.credits += credits
        return credits


# Codes that no other node would answer differently, now or later.
_PERMANENT = {
    "PROTOCOL_VIOLATION", "UNAUTHORIZED", "NOT_IMPLEMENTED", "QUEUE_NOT_FOUND", "INVALID_QUEUE_NAME",
    "SYSTEM_QUEUE_FORBIDDEN", "DUPLICATE_SUBSCRIPTION",
}
_CANCEL_TIMEOUT = 2.0   # seconds that handlers have after they are cancelled at the end of the grace
_GOODBYE_TIMEOUT = 3.0  # seconds that a node has to answer the last GOODBYE, after the outcomes before it
_MAX_DETAILS_SIZE = 32 << 10  # bytes of an error's details, so that a FAIL fits into the smallest frame limit
_MAX_BEAT_JOBS = 256    # jobs in one BEAT
_MAX_QUEUE_REQUESTS = 64  # SUBSCRIBEs and ADDQUEUEs that wait for answers at a time
_REFUSED_QUEUE_DELAY = 5.0  # seconds before a SUBSCRIBE that was refused, as with too many subscriptions, is repeated
_LEASE_RETRY_DELAY = 0.3  # seconds before an ACK or BEAT that was answered UNAVAILABLE is repeated


class Worker:
    """Runs jobs of its queues, connected to one of several nodes.

    ``nodes`` are "host:port", tried in random order; None means those in the
    environment variable OVERHOP_NODES, separated by commas, or 127.0.0.1:9876.
    ``name`` defaults to host name and process id. ``concurrency`` is how many
    jobs of each queue run at once, each in its own thread. With
    ``create_queues`` missing queues are created; without it, run() raises
    OverhopError for them. ``grace`` is how many seconds running jobs have once
    the worker is asked to stop. Then they are cancelled, and jobs that have not
    ended two seconds later are given back to the yard.

    The thread in run() owns the state and, unless noted otherwise, calls the
    methods with a leading underscore; other threads post calls to it.
    """

    def __init__(self, nodes: Union[str, Sequence[str], None] = None, *, name: Optional[str] = None,
                 tls: Optional[ssl.SSLContext] = None, token: Optional[str] = None, concurrency: int = 1,
                 create_queues: bool = False, grace: float = 10.0) -> None:
        self._nodes = _NodeRotation(nodes)
        self._settings = _Settings(name, tls, token)
        self._concurrency, self._create_queues, self._grace = concurrency, create_queues, grace
        self._subscriptions: Dict[str, _Subscription] = {}  # by queue
        self._events: queue.SimpleQueue[Tuple[Callable[..., None], Tuple[Any, ...]]] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[Optional[Job]] = queue.SimpleQueue()  # None ends a handler thread
        self._pid: Optional[int] = None  # of the process that called run()

        # The rest is changed by the thread in run() only; the node property reads _connection.
        self._started = False       # run() was called
        self._stopping = False      # stop() or a signal was received: take no more jobs
        self._goodbye_sent = False  # the last GOODBYE was sent
        self._stopped = False       # run() returns
        self._jobs: Dict[bytes, Job] = {}  # by token, until a node has answered their outcome
        self._connection: Optional[_Connection] = None  # jobs and outcomes use this one; None while reconnecting
        self._connecting: Optional[_Connection] = None
        self._draining: Set[_Connection] = set()  # to draining nodes, until all jobs have moved to _connection
        # SUBSCRIBEs and ADDQUEUEs to be sent on _connection, and how many have been sent and not answered.
        self._queue_requests: collections.deque[Tuple[Callable[[_Connection, _Subscription], None], _Subscription]] = collections.deque()
        self._queue_requests_sent = 0
        self._reconnect_scheduled = False
        self._connect_attempts = 0       # since a connection held for 2 s
        self._connected_at = math.inf    # monotonic time of the last success; inf once a reconnect is scheduled
        self._beat_scheduled = False     # a BEAT follows for jobs that the node answered UNAVAILABLE
        self._timers: List[Tuple[float, int, Callable[..., None], Tuple[Any, ...]]] = []  # a heap, by monotonic time
        self._timer_numbers = itertools.count()  # keeps timers of the same time in order
        self._thread_count = 0

    def job(self, queue: str, *, fn: Optional[str] = None, concurrency: Optional[int] = None) -> Callable[[Handler], Handler]:
        """Decorate the handler of a queue's jobs, or of those that name the function ``fn``.

        This is not a filter: a worker receives any job of its queues, and a job
        that names a function without a handler fails without another attempt.

        The handler's return value is the job's result. An exception fails the
        attempt, and the yard's retry policy decides about another; Retry and
        Fail override the policy. Raises ValueError if the function has a handler
        already, or if ``concurrency`` is below 1, and TypeError for an async
        handler, which would have to be run by asyncio.run in one that is not.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency of {queue!r} is {concurrency}, must be 1 or more")

        def add(handler: Handler) -> Handler:
            if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):
                name = getattr(handler, "__name__", repr(handler))
                raise TypeError(f"handler {name} of queue {queue!r} is async, and handlers run in threads: "
                                f"register a function that returns asyncio.run({name}(job))")
            subscription = self._subscriptions.setdefault(queue, _Subscription(queue, concurrency or self._concurrency))
            if fn in subscription.handlers:
                raise ValueError(f"queue {queue!r} has a handler for {fn or 'any function'} already")
            if concurrency is not None:
                subscription.concurrency = concurrency
            subscription.handlers[fn] = handler
            return handler
        return add

    @property
    def node(self) -> Optional[str]:
        """The address of the connected node; None while the worker reconnects."""
        connection = self._connection
        return connection.node if connection is not None else None

    def stop(self) -> None:
        """Ask run() to return once the running jobs have ended. May be called from any thread."""
        self._post(self._begin_stop, "worker stops")

    def run(self) -> None:
        """Run jobs until stop(), SIGTERM or SIGINT, then finish the running ones.

        Jobs that have not ended when the grace is over are given back to the
        yard, and their attempt does not count. Their handlers may still run when
        this method returns, so end the program then. A second signal ends the
        program at once. Signals are handled only if this is called in the main
        thread. Raises OverhopError if the nodes refuse the worker or a queue,
        ValueError without a handler, and RuntimeError if it is called twice.
        """
        if not self._subscriptions:
            raise ValueError("the worker has no handler: decorate one with @worker.job(queue)")
        if self._started:
            raise RuntimeError("run() was called before: make another worker")
        self._started, self._pid = True, os.getpid()
        restore_signals = self._install_signal_handlers()
        try:
            self._connect()
            self._call_later(0.5, self._beat_periodically)
            while not self._stopped:
                self._run_next()
        finally:
            restore_signals()
            self._shut_down()

    # -- event loop

    def _post(self, call: Callable[..., None], *args: Any) -> None:
        """Have the thread in run() make a call. May be used from any thread of its process."""
        if self._pid not in (None, os.getpid()):
            raise RuntimeError(f"the worker runs in process {self._pid}, not in this fork of it: use it from there")
        self._events.put((call, args))

    def _call_later(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._timer_numbers), call, args))

    def _run_next(self) -> None:
        """Make the call of a timer that is due, or else wait for a posted call or the next timer."""
        wait = self._timers[0][0] - time.monotonic() if self._timers else 1.0
        if wait <= 0:
            _, _, call, args = heapq.heappop(self._timers)
        else:
            try:
                call, args = self._events.get(timeout=wait)
            except queue.Empty:
                return
        call(*args)

    def _install_signal_handlers(self) -> Callable[[], None]:
        """Handle SIGTERM and SIGINT, and return a function that restores the earlier handlers."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        previous = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
        pid = os.getpid()

        def restore() -> None:
            for s, handler in previous.items():
                signal.signal(s, handler)

        def on_signal(number: int, _: Any) -> None:
            for s in previous:  # a second signal ends the process
                signal.signal(s, signal.SIG_DFL)
            if os.getpid() != pid:  # a child forked by a handler
                os.kill(os.getpid(), number)
                return
            self._post(self._begin_stop, signal.Signals(number).name)
        for s in previous:
            signal.signal(s, on_signal)
        return restore

    # -- connections

    def _connect(self) -> None:
        self._reconnect_scheduled = False
        self._connecting = _Connection(
            self._nodes.next(), self._settings,
            lambda connection: self._post(self._on_connected, connection),
            lambda connection, message_type, payload: self._post(self._on_push, connection, message_type, payload),
            lambda connection, error: self._post(self._on_disconnected, connection, error))

    def _schedule_reconnect(self) -> None:
        """Connect to the next node after a delay that grows until a connection has held for 2 seconds."""
        if self._connecting is not None or self._reconnect_scheduled:
            return
        if time.monotonic() - self._connected_at > 2.0:
            self._connect_attempts = 0
        self._connect_attempts += 1
        self._connected_at, self._reconnect_scheduled = math.inf, True
        self._call_later(_backoff(self._connect_attempts), self._connect)

    def _on_connected(self, connection: _Connection) -> None:
        """Make a new connection the current one: move all jobs to its node, then subscribe.

        The node answers in order, and leases end: messages about jobs come first.
        """
        if connection is not self._connecting:
            connection.close()
            return
        if self._connection is not None:
            self._draining.add(self._connection)
        self._connection, self._connecting = connection, None
        self._connected_at = time.monotonic()
        for subscription in self._subscriptions.values():
            subscription.sid, subscription.credits, subscription.refusal = None, 0, ""
        for job in list(self._jobs.values()):
            job._lease_confirmed = False
            if job._outcome is not None:
                self._send_outcome(job)
            elif not job._acked:
                self._send_ack(connection, job)
            self._send_progress(job)
        self._send_beats()
        self._queue_requests = collections.deque((self._subscribe, s) for s in self._subscriptions.values())
        self._queue_requests_sent = 0
        self._send_queue_requests(connection)
        self._close_drained()
        self._finish_stop_if_done()

    def _on_disconnected(self, connection: _Connection, error: Exception) -> None:
        """Reconnect, unless the worker has stopped or another connection is current.

        Raises a permanent error of the node, and thereby ends run().
        """
        self._draining.discard(connection)
        if self._stopped:
            return
        if isinstance(error, OverhopError) and error.code in _PERMANENT:
            raise error
        if connection is self._connecting:
            log.warning("cannot connect to node %s: %s", connection.node, error)
            self._connecting = None
            self._schedule_reconnect()
        elif connection is self._connection:
            self._connection = None
            if self._stopping and not self._jobs:
                self._stopped = True
                return
            log.warning("lost the connection to node %s: %s", connection.node, error)
            self._schedule_reconnect()
        for job in list(self._jobs.values()):
            if job._connection is connection and self._connection is not None:  # last used the draining node
                self._repeat_message(self._connection, job)

    def _send_queue_requests(self, connection: _Connection) -> None:
        """Send the next requests about queues, with at most _MAX_QUEUE_REQUESTS unanswered.

        There may be a thousand queues, and a BEAT must not wait for all of them.
        """
        while self._queue_requests and self._queue_requests_sent < _MAX_QUEUE_REQUESTS and not self._stopping:
            send, subscription = self._queue_requests.popleft()
            self._queue_requests_sent += 1
            send(connection, subscription)

    def _subscribe(self, connection: _Connection, subscription: _Subscription) -> None:
        subscription.credits = 0  # credits of an earlier subscription are void
        connection.send(SUBSCRIBE, {"q": subscription.queue_name, "credits": subscription.take_credits()},
                        lambda answer, error: self._post(self._on_subscribed, connection, subscription, answer, error))

    def _on_subscribed(self, connection: _Connection, subscription: _Subscription, answer: Dict[str, Any],
                       error: Optional[Exception]) -> None:
        """Handle the answer to SUBSCRIBE: create a missing queue, leave a draining node, or try again later.

        Raises the error, and thereby ends run(), if trying again is useless.
        """
        if connection is not self._connection or isinstance(error, ConnectionLost):
            return
        self._queue_requests_sent -= 1
        if not isinstance(error, OverhopError):
            subscription.sid = answer.get("sid")
            self._grant_credits(connection, subscription)  # for handlers that have returned since SUBSCRIBE
            if not self._queue_requests_sent and all(s.sid is not None for s in self._subscriptions.values()):
                log.info("subscribed to %d queues at node %s (%s)", len(self._subscriptions), connection.node_name, connection.node)
        elif error.code == "QUEUE_NOT_FOUND" and self._create_queues:
            self._queue_requests.append((self._create_queue, subscription))
        elif error.code == "DRAINING":
            self._switch_node(connection, [])
        elif error.code in _PERMANENT:
            raise _queue_error("subscribe to", subscription, error)
        else:
            self._subscribe_later(connection, subscription, error)
        self._send_queue_requests(connection)

    def _create_queue(self, connection: _Connection, subscription: _Subscription) -> None:
        connection.send(ADDQUEUE, {"name": subscription.queue_name},
                        lambda _, error: self._post(self._on_queue_created, connection, subscription, error))

    def _on_queue_created(self, connection: _Connection, subscription: _Subscription, error: Optional[Exception]) -> None:
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

    def _subscribe_later(self, connection: _Connection, subscription: _Subscription, error: OverhopError) -> None:
        """Subscribe to a queue again after a refusal; log it unless the last one was the same."""
        if error.code != subscription.refusal:
            subscription.refusal = error.code
            log.warning("cannot subscribe to queue %s at node %s, trying again: %s", subscription.queue_name, connection.node, error)
        delay = _retry_delay(error) if error.code == "UNAVAILABLE" else _REFUSED_QUEUE_DELAY
        self._call_later(delay, self._resubscribe, connection, subscription)

    def _resubscribe(self, connection: _Connection, subscription: _Subscription) -> None:
        if connection is self._connection:
            self._queue_requests.append((self._subscribe, subscription))
            self._send_queue_requests(connection)

    def _switch_node(self, connection: _Connection, alternatives: Any) -> None:
        """Connect to another node, as this one drains; keep its connection until the jobs have moved.

        ``alternatives`` are the addresses in the node's DRAIN, which are tried first.
        """
        self._queue_requests.clear()
        self._nodes.avoided = connection.node
        self._nodes.preferred = [node for node in _only_strings(alternatives) if node != connection.node]
        random.shuffle(self._nodes.preferred)
        self._schedule_reconnect()

    def _close_drained(self) -> None:
        """Close the connections to draining nodes if the current node has confirmed every lease."""
        if all(job._lease_confirmed and job._connection is self._connection for job in self._leased_jobs()):
            for connection in self._draining:
                connection.close()

    def _leased_jobs(self) -> List[Job]:
        """Return the jobs whose leases must be extended.

        Jobs with an outcome and cancelled jobs are left out, except jobs cancelled
        at the end of the grace, which keep their leases until they are given back.
        """
        return [job for job in self._jobs.values()
                if job._outcome is None and (job._grace_over or not job.cancelled.is_set())]

    # -- pushes

    def _on_push(self, connection: _Connection, message_type: int, payload: Dict[str, Any]) -> None:
        """Handle a message that the node sends without a request."""
        if message_type == QUEST:
            try:
                self._accept_job(connection, payload)
            except (KeyError, TypeError, ValueError) as e:
                log.error("node %s sent an invalid QUEST: %r", connection.node, e)
                connection.close()
        elif message_type == RECALL:
            job = self._jobs.get(payload.get("tok", b""))
            if job is not None and job._connection is connection:  # not from a node that the job has left
                job._cancel(str(payload.get("reason")))
        elif message_type == CREDITS:
            self._on_credits(connection, payload)
        elif message_type == DRAIN and connection is self._connection and not self._stopping:
            log.info("node %s drains: %s", connection.node, payload.get("reason"))
            self._switch_node(connection, payload.get("reconnect"))
        elif message_type == BYE:
            log.info("node %s closes the connection: %s %s", connection.node, payload.get("code"), payload.get("msg"))

    def _on_credits(self, connection: _Connection, payload: Dict[str, Any]) -> None:
        """Take over the node's credit count after a CREDITS, and grant what is missing."""
        for subscription in self._subscriptions.values():
            if connection is not self._connection or subscription.sid is None or subscription.sid != payload.get("sid"):
                continue
            if payload.get("reason") == "RESTORED":
                subscription.credits += 1
            else:  # STALLED, or the subscription has ended
                subscription.credits = 0
            self._grant_credits(connection, subscription)

    def _grant_credits(self, connection: _Connection, subscription: _Subscription) -> None:
        credits = subscription.take_credits()
        if credits and subscription.sid is not None and not self._stopping:
            connection.send(CREDIT, {"sid": subscription.sid, "credits": credits},
                            lambda _, error: self._post(self._on_credits_granted, connection, subscription, error))

    def _on_credits_granted(self, connection: _Connection, subscription: _Subscription, error: Optional[Exception]) -> None:
        if isinstance(error, OverhopError) and error.code == "SUBSCRIPTION_NOT_FOUND":
            log.warning("subscription to %s was lost, subscribing again", subscription.queue_name)
            self._call_later(1.0, self._resubscribe, connection, subscription)

    def _accept_job(self, connection: _Connection, quest: Dict[str, Any]) -> None:
        """Acknowledge the job in a QUEST and pass it to a handler thread."""
        subscription = self._subscriptions[quest["q"]]
        if connection is self._connection:
            subscription.credits = max(0, subscription.credits - 1)
        duplicate = self._jobs.get(quest["tok"])
        if duplicate is not None:  # the node does not know whether the first QUEST arrived
            duplicate._connection = connection
            if duplicate._outcome is None:
                self._send_ack(connection, duplicate)
            else:
                self._send_outcome(duplicate)
            if connection is self._connection:
                self._grant_credits(connection, subscription)
            return
        job = Job(self, quest)
        if self._stopping:
            connection.send(NACK, {"jid": job.id, "tok": job._token, "reason": "worker stops"})
            return
        for other in self._jobs.values():
            if other.id == job.id and other._outcome is None:
                other._cancel("SUPERSEDED")  # the yard has assigned the same job again
        self._jobs[job._token] = job
        subscription.running += 1
        self._send_ack(connection, job)
        if self._thread_count < sum(s.running for s in self._subscriptions.values()):
            self._thread_count += 1
            threading.Thread(target=self._run_handlers, name=f"job {self._thread_count}", daemon=True).start()
        self._work.put(job)

    # -- leases

    def _send_ack(self, connection: _Connection, job: Job) -> None:
        job._connection = connection
        connection.send(ACK, {"jid": job.id, "tok": job._token},
                        lambda _, error: self._post(self._on_lease_answer, connection, job, error))

    def _on_lease_answer(self, connection: _Connection, job: Job, error: Optional[Exception]) -> None:
        """Handle the answer to an ACK, or the answer for one job of a BEAT."""
        if job._connection is not connection or job._outcome is not None or isinstance(error, ConnectionLost):
            return
        if error is None:
            job._acked = job._lease_confirmed = True
            self._close_drained()
        elif isinstance(error, OverhopError) and error.code == "UNAVAILABLE":
            if job._acked:
                job._lease_confirmed = False
                self._schedule_beat()
            else:
                self._call_later(_LEASE_RETRY_DELAY, self._repeat_message, connection, job)
        else:
            log.warning("lost the lease of job %s: %s", job.id, error)
            job._cancel(error.code if isinstance(error, OverhopError) else str(error))

    def _repeat_message(self, connection: _Connection, job: Job) -> None:
        """Send a job's outcome, BEAT or ACK again if the connection is still the current one."""
        if connection is not self._connection or self._jobs.get(job._token) is not job:
            return
        if job._outcome is not None:
            self._send_outcome(job)
        elif job._acked:
            self._send_beats()
        else:
            self._send_ack(connection, job)

    def _beat_periodically(self) -> None:
        """Send BEATs at the shortest interval that a job asks for, or every second."""
        self._send_beats()
        self._call_later(min([job._beat_interval for job in self._jobs.values()] or [1.0]), self._beat_periodically)

    def _send_beats(self) -> None:
        """Extend all leases; on a new connection, a BEAT moves the leases to its node.

        A BEAT does not wait for the answer to the last one, which may be delayed
        by the answer to a DONE before it. Only a job whose move to the node is
        pending is left out.
        """
        connection = self._connection
        if connection is None:
            return
        jobs: List[Job] = []
        entries: List[_Encoded] = []
        size = 0  # bytes of the entries in the answer, which are up to 64 bytes longer than in the request
        for job in self._leased_jobs():
            if not job._acked or job._transfer is connection:
                continue
            job._lease_confirmed = job._lease_confirmed and job._connection is connection
            job._connection, job._transfer = connection, None if job._lease_confirmed else connection
            entry = _Encoded(encode({"jid": job.id, "tok": job._token}))
            if entries and (len(entries) == _MAX_BEAT_JOBS or size + len(entry) + 64 > connection.max_frame // 2):
                self._send_beat(connection, jobs, entries)
                jobs, entries, size = [], [], 0
            jobs.append(job)
            entries.append(entry)
            size += len(entry) + 64
        if entries:
            self._send_beat(connection, jobs, entries)

    def _send_beat(self, connection: _Connection, jobs: List[Job], entries: List[_Encoded]) -> None:
        connection.send(BEAT, {"jobs": entries},
                        lambda answer, error: self._post(self._on_beat_answer, connection, jobs, answer, error))

    def _schedule_beat(self) -> None:
        if not self._beat_scheduled:
            self._beat_scheduled = True
            self._call_later(_LEASE_RETRY_DELAY, self._send_scheduled_beat)

    def _send_scheduled_beat(self) -> None:
        self._beat_scheduled = False
        self._send_beats()

    def _on_beat_answer(self, connection: _Connection, jobs: List[Job], answer: Dict[str, Any],
                        error: Optional[Exception]) -> None:
        """Handle the answer to a BEAT, which has one entry for each of the jobs."""
        for job in jobs:
            if job._transfer is connection:
                job._transfer = None
        if isinstance(error, OverhopError):
            log.warning("node %s refused a BEAT: %s", connection.node, error)
        for job, entry in zip(jobs, answer.get("jobs", [])):
            self._on_lease_answer(connection, job, None if entry.get("ok") else OverhopError(str(entry.get("code"))))

    # -- handlers and outcomes

    def _run_handlers(self) -> None:
        """Run one job after another in a handler thread, until None comes."""
        while True:
            job = self._work.get()
            if job is None:
                return
            self._post(self._on_handler_returned, job, self._run_handler(job))

    def _run_handler(self, job: Job) -> Tuple[int, Dict[str, Any]]:
        """Run the handler of a job in a handler thread and return its DONE or FAIL.

        The result and the exception are the handler's own objects, so that reading
        them may raise anything; that becomes a FAIL, too.
        """
        try:
            return self._call_handler(job)
        except BaseException:
            log.warning("cannot encode the outcome of attempt %d of job %s", job.attempt, job.id, exc_info=True)
            return _fail_message("the handler's result or exception cannot be read", "bad_end")

    def _call_handler(self, job: Job) -> Tuple[int, Dict[str, Any]]:
        """Call the handler of a job in a handler thread and return a DONE or FAIL for how it ended."""
        handlers = self._subscriptions[job.queue].handlers
        handler = handlers.get(job.fn) or handlers.get(None)
        if handler is None:
            log.warning("job %s fails without another attempt: it names the function %r, for which this worker has no handler; "
                        "add one to every worker of queue %r, or use a separate queue for the function",
                        job.id, job.fn, job.queue)
            return _fail_message(f"no handler for function {job.fn!r} of queue {job.queue!r}", "handler_not_found", final=True)
        try:
            job.check()
            if job._payload_omitted:
                job.payload = self._read_payload(job)
            result = handler(job)
        except CancelledError as e:
            job._cancel_raised = True
            return _fail_message(str(e), "cancelled")
        except Retry as e:
            return _fail_message(str(e), "retry", e.code, e.details, after=e.after)
        except Fail as e:
            return _fail_message(str(e), "fail", e.code, e.details, final=True)
        except BaseException as e:  # including SystemExit: a job must not end its worker
            log.warning("attempt %d of job %s failed", job.attempt, job.id, exc_info=True)
            trace = "".join(traceback.format_exception(type(e), e, e.__traceback__))
            return _fail_message(str(e), type(e).__name__, details={"traceback": trace[-1500:]})
        try:
            return DONE, _user_value("result", result, MAX_DEPTH - 2)
        except (CodecError, RecursionError) as e:
            return _fail_message(f"result: {e}", "bad_result", final=True)

    def _read_payload(self, job: Job) -> Any:
        """Read the payload of a job, which does not fit into a frame, in a handler thread."""
        def call(request: Dict[str, Any]) -> Dict[str, Any]:
            while True:
                job.check()
                connection, pause = self._connection, 0.1
                try:
                    if connection is not None:
                        return connection.call(CONTENT, request, _BUSY_TIMEOUT)
                except ConnectionLost:
                    pass  # run() connects to another node
                except OverhopError as e:
                    if e.code != "UNAVAILABLE":
                        raise
                    pause = _retry_delay(e)
                job.cancelled.wait(pause)
        return _read_content(call, job.id, "payload")

    def _on_handler_returned(self, job: Job, outcome: Tuple[int, Dict[str, Any]]) -> None:
        """Send the outcome of a job, or keep the job to give it back if it ended because the worker stops."""
        self._subscriptions[job.queue].running -= 1
        if self._jobs.get(job._token) is not job:
            return  # already given back
        if job._grace_over and job._cancel_raised:
            job._give_back = True
            self._finish_stop_if_done()
            return
        job._outcome = outcome
        self._send_outcome(job)

    def _send_outcome(self, job: Job) -> None:
        """Send a job's outcome with the credits for the next; its token makes repeating it safe.

        Without a connection, the outcome is sent on the next one.
        """
        connection, subscription = self._connection, self._subscriptions[job.queue]
        if connection is None or job._outcome is None:
            return
        message_type, payload = job._outcome
        if job._outcome_losses >= 5 and len(payload.get("result", payload.get("result_json", b""))) > 1 << 16:
            message_type, payload = job._outcome = _fail_message(
                "no node accepts a result of this size", "result_too_large", final=True)
        payload = {**payload, "jid": job.id, "tok": job._token}
        credits = 0 if self._stopping or subscription.sid is None else subscription.take_credits()
        if credits:
            payload["credits"] = credits
        job._connection = connection
        try:
            connection.send(message_type, payload, lambda _, error: self._post(self._on_outcome_answer, connection, job, error))
        except CodecError as e:
            subscription.credits -= credits
            job._outcome = _fail_message(f"result: {e}", "result_too_large", final=True)
            self._send_outcome(job)

    def _on_outcome_answer(self, connection: _Connection, job: Job, error: Optional[Exception]) -> None:
        """Forget a job whose outcome a node has answered; repeat an outcome without a definite answer."""
        if isinstance(error, ConnectionLost):
            job._outcome_losses += 1
            return  # _on_connected sends it again
        if isinstance(error, OverhopError) and error.code == "UNAVAILABLE":
            self._call_later(_retry_delay(error), self._repeat_message, connection, job)
            return
        if error is not None:
            log.warning("the outcome of job %s was refused: %s", job.id, error)
        self._jobs.pop(job._token, None)
        self._close_drained()
        self._finish_stop_if_done()

    def _set_progress(self, job: Job, progress: _Encoded) -> None:
        job._progress = progress
        if not job._progress_pending:
            self._send_progress(job)

    def _send_progress(self, job: Job) -> None:
        """Send the newest progress of a running job, if there is any, on the current connection."""
        connection, progress = self._connection, job._progress
        if connection is not None and progress is not None and job._outcome is None:
            job._progress, job._progress_pending = None, True
            try:
                connection.send(PROGRESS, progress, lambda _, error: self._post(self._on_progress_answer, job, progress, error))
            except CodecError as e:
                job._progress_pending = False
                log.warning("dropped progress of job %s: %s", job.id, e)

    def _on_progress_answer(self, job: Job, progress: _Encoded, error: Optional[Exception]) -> None:
        job._progress_pending = False
        if isinstance(error, ConnectionLost):
            job._progress = job._progress or progress
        elif isinstance(error, OverhopError) and error.code == "RESULT_TOO_LARGE":
            log.warning("dropped progress of job %s: %s", job.id, error.msg)
        self._send_progress(job)

    def _send_log(self, job: Job, lines: _Encoded) -> None:
        if self._connection is not None and job._outcome is None:
            self._connection.send(LOG, lines)

    # -- stopping

    def _begin_stop(self, reason: str) -> None:
        """Take no more jobs, and let the running ones finish within the grace."""
        if self._stopping:
            return
        log.info("worker stops (%s) with %d unfinished jobs", reason, len(self._jobs))
        self._stopping = True
        if not self._jobs:
            self._finish_stop()
            return
        if self._connection is not None:
            self._connection.send(GOODBYE, {"reason": reason, "drain": True})
        self._call_later(self._grace, self._on_grace_over)

    def _on_grace_over(self) -> None:
        """Cancel the running jobs; their handlers have _CANCEL_TIMEOUT to return a result or raise an exception."""
        for job in self._leased_jobs():
            job._grace_over = True
            job._cancel("SHUTDOWN")
        self._call_later(_CANCEL_TIMEOUT, self._finish_stop)

    def _finish_stop_if_done(self) -> None:
        """Finish stopping once all remaining jobs are to be given back and there is a node to give them to."""
        can_finish = self._connection is not None or not self._jobs
        if self._stopping and can_finish and all(job._give_back for job in self._jobs.values()):
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
        # _on_disconnected may set _stopped earlier, when the node closes the connection.
        self._call_later(_GOODBYE_TIMEOUT if connections else 0, self._set_stopped)

    def _set_stopped(self) -> None:
        self._stopped = True

    def _shut_down(self) -> None:
        """Close all connections and end the idle handler threads."""
        self._stopped = True
        for connection in (self._connection, self._connecting, *self._draining):
            if connection is not None:
                connection.close()
        for _ in range(self._thread_count):
            self._work.put(None)


def _queue_error(act: str, subscription: _Subscription, error: OverhopError) -> OverhopError:
    """Return a node's refusal with the queue and what the worker asked for."""
    return OverhopError(error.code, f"cannot {act} queue {subscription.queue_name!r}: {error.msg}", error.details)


def _fail_message(message: str, error_type: str, code: Optional[str] = None, details: Any = None, *, final: bool = False,
                  after: Union[float, timedelta, None] = None) -> Tuple[int, Dict[str, Any]]:
    """Return FAIL and a payload that every node accepts: text and details are cut to size.

    ``final`` rules out another attempt; ``after`` is the delay before it in
    seconds, or None for the yard's retry policy. It is called in the handler's
    thread and encodes the error there, because the details are the handler's
    own objects.
    """
    error: Dict[str, Any] = {"message": _valid_utf8(message or error_type)[:1000], "type": _valid_utf8(error_type)[:200]}
    if code is not None:
        error["code"] = _valid_utf8(str(code))[:200]
    if details is not None:
        try:
            field: Dict[str, Any] = _user_value("details", details, MAX_DEPTH - 3)
        except (CodecError, RecursionError):
            field = {"details": _valid_utf8(repr(details))[:1500]}
        size = len(next(iter(field.values())))
        error.update(field if size <= _MAX_DETAILS_SIZE else {
            "details": f"omitted: {size} bytes, more than the limit of {_MAX_DETAILS_SIZE}"})
    payload: Dict[str, Any] = {"error": _Encoded(encode(error, MAX_DEPTH - 2)), "retry": not final}
    if after is not None:
        payload["retry_after_ms"] = _milliseconds(after)
    return FAIL, payload


def _valid_utf8(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


# ---------------------------------------------------------------- producer

# Payload of an awaited job's JOBEND, or None when a connection is lost.
_End = Optional[Dict[str, Any]]
_MAX_AWAIT = 60.0  # seconds, the longest timeout of one AWAIT
# Seconds for which an awaited job may be unknown: if the stream that stores an
# accepted job has lost its leader, other nodes learn of the job that much later.
_UNKNOWN_JOB_TIMEOUT = 15.0


class Client:
    """Enqueues jobs, waits for their results, and manages queues.

    ``nodes`` and ``name`` are as for a Worker. A client connects to one node on
    first use, and to the next one if the connection is lost or the node drains.
    Requests that were pending on a lost connection are sent again. ``timeout``
    is the total time of a call in seconds; after that the call raises the last
    error: ConnectionLost, TimeoutError, or OverhopError UNAVAILABLE. All calls
    raise OverhopError if a node refuses the request.

    A client may be shared by threads. A forked child opens its own connection.
    """

    def __init__(self, nodes: Union[str, Sequence[str], None] = None, *, name: Optional[str] = None,
                 tls: Optional[ssl.SSLContext] = None, token: Optional[str] = None, timeout: float = 30.0) -> None:
        self._nodes = _NodeRotation(nodes)
        self._settings = _Settings(name, tls, token)
        self._timeout, self._closed = timeout, False
        self._after_fork()
        _fork_aware.add(self)

    def _after_fork(self) -> None:
        """Initialize the state that a forked child cannot share: the parent's connection has no thread there."""
        self._lock = threading.Lock()  # guards _closed, _nodes, _connection and _end_queues
        self._connection: Optional[_Connection] = None  # for new requests
        self._nodes.preferred = []
        self._end_queues: Dict[str, List[queue.SimpleQueue[_End]]] = {}  # of result() calls, by job id

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; pending and later calls raise ConnectionLost."""
        with self._lock:
            self._closed, connection = True, self._connection
        if connection is not None:
            connection.close()

    # -- jobs

    def enqueue(self, queue: str, payload: Any = None, fn: Optional[str] = None, *,
                at: Union[datetime, str, None] = None, delay: Union[float, timedelta, None] = None,
                max_attempts: Optional[int] = None, retry_interval: Union[float, timedelta, None] = None,
                timeout: Union[float, timedelta, None] = None, retry_on_timeout: Optional[bool] = None,
                priority: Optional[int] = None, key: Optional[str] = None, unique_key: Optional[str] = None,
                unique_ttl: Union[float, timedelta, None] = None,
                unique_until: Optional[str] = None, rate_limit_key: Optional[str] = None,
                rate_limit: Union[float, timedelta, None] = None, debounce_key: Optional[str] = None,
                debounce: Union[float, timedelta, None] = None, trace: Optional[Dict[str, str]] = None,
                wait: Union[bool, float] = False) -> Any:
        """Enqueue a job and return its id once a node has accepted it.

        ``fn`` names the function to call. The job starts as soon as possible, or
        not before ``at`` (a datetime with a zone, or RFC 3339 text), or ``delay``
        seconds from now. An attempt may take ``timeout`` seconds, and the next
        follows after ``retry_interval`` seconds; after a timeout only with
        ``retry_on_timeout``, or if the queue has it. ``priority`` is 0 to 9, 9 first.
        For options that are None the yard's defaults apply.

        Jobs with the same ``key`` in the same queue are the same job. By default
        a key is generated, so that a lost answer never makes two jobs. The key of
        a job that was removed is refused for some minutes (DUPLICATE_OF_REMOVED).

        The other keys hold across all queues. Another job with the same
        ``unique_key`` is refused for ``unique_ttl`` seconds, or until the first has
        reached its ``unique_until``, "start" or "end" (DUPLICATE_JOB), and
        one with the same ``rate_limit_key`` for ``rate_limit`` seconds after the
        last (RATE_LIMITED). A job replaces one with the same ``debounce_key``
        that has not started, and starts ``debounce`` seconds from now.

        With ``wait`` (True, or a number of seconds) this waits for the job and
        returns its result, as result() does. Raises OverhopError if the job is
        refused, CodecError if the payload cannot be encoded, and ValueError for
        options that exclude each other or are out of range.
        """
        if at is not None and delay is not None:
            raise ValueError("give at or delay, not both")
        if key == "":
            raise ValueError("key is empty: leave it out to have one generated")
        if debounce_key is not None and (at is not None or delay is not None or rate_limit_key is not None):
            raise ValueError("a debounced job starts when its window ends: debounce_key does not go with at, delay or rate_limit_key")
        if delay is not None:
            if _seconds(delay) < 0:
                raise ValueError(f"delay is {delay!r}, must be 0 seconds or more")
            at = datetime.now(timezone.utc) + timedelta(seconds=_seconds(delay))
        request: Dict[str, Any] = {
            "q": queue, **_user_value("job_payload", payload, MAX_DEPTH - 2), "fn": fn,
            "scheduled_at": None if at is None else _format_time(at), "max_attempts": max_attempts,
            "retry_interval_ms": _optional_milliseconds(retry_interval),
            "timeout_ms": _optional_milliseconds(timeout), "retry_on_timeout": retry_on_timeout, "priority": priority,
            "key": key if key is not None else f"auto-{uuid.uuid4().hex}", "unique_key": unique_key,
            "unique_ttl_ms": _optional_milliseconds(unique_ttl), "unique_until": unique_until,
            "rate_limit_key": rate_limit_key, "rate_limit_ms": _window("rate_limit", rate_limit_key, rate_limit),
            "debounce_key": debounce_key, "debounce_ms": _window("debounce", debounce_key, debounce), "trace": trace,
        }
        if "job_payload_json" in request and not isinstance(payload, dict):
            raise CodecError("a payload with floats or ints beyond 64 bits must be a dict")
        jid = self._call(ENQUEUE, {name: value for name, value in request.items() if value is not None})["jid"]
        if wait is False:
            return jid
        return self.result(jid, None if wait is True else wait)

    def result(self, jid: str, timeout: Optional[float] = None) -> Any:
        """Wait until a job has ended and return its result.

        Raises JobFailed if the job failed or was removed, OverhopError
        CONTENT_GONE if its result is no longer stored, and TimeoutError if it has
        not ended within ``timeout`` seconds; None waits without limit. Raises OverhopError JOB_NOT_FOUND if the job is still
        unknown after some seconds: a job accepted just now may be unknown to
        other nodes at first.
        """
        end = _read_record(self._await(jid, math.inf if timeout is None else timeout))
        omitted = end.get("omitted") or ()  # fields that do not fit into a frame
        if end.get("status") == "completed":
            if end.get("result_gone"):
                raise OverhopError("CONTENT_GONE", f"{end['result_gone']}: job {jid} has completed, its result is no longer stored")
            return self._content(jid, "result") if "result" in omitted else end.get("result")
        attempts = end["attempts"] if "attempts" in end else end.get("runtime", {}).get("attempts_so_far", 0)
        error = {"message": "its error is too large for the node's frames"} if "error" in omitted else end.get("error")
        raise JobFailed(jid, error, attempts)

    def payload(self, jid: str) -> Any:
        """Return a job's payload, whatever its size.

        Raises OverhopError CONTENT_NOT_FOUND if the job has none, and CONTENT_GONE
        if it is no longer stored: a large one is kept until its job has completed.
        """
        return self._content(jid, "payload")

    def _content(self, jid: str, value: str) -> Any:
        """Read a job's result or payload in parts and return its value."""
        return _read_content(lambda request: self._call(CONTENT, request), jid, value)

    def job(self, jid: str) -> Optional[Dict[str, Any]]:
        """Return a job's record, or None if the connected node does not know the job (yet).

        It has the job's ``key``, unless that was a UUID or the job ended so long
        ago that its payload is gone.
        Raises OverhopError RESPONSE_TOO_LARGE if the record does not fit into a
        frame; result() and payload() read values of any size.
        """
        return _read_record(self._call(JOB, {"jid": jid})) or None

    def cancel(self, jid: str, reason: Optional[str] = None) -> str:
        """Cancel a job and return its status: "active" while its handler has yet to stop."""
        request = {"jid": jid} if reason is None else {"jid": jid, "reason": reason}
        answer = self._call(CANCEL, request, done_codes=("JOB_ALREADY_TERMINAL",))
        return str(answer.get("status", "failed"))

    def retry(self, jid: str) -> str:
        """Run a failed job again, from its first attempt, and return its status."""
        return str(self._call(RETRYJOB, {"jid": jid})["status"])

    def set_job(self, jid: str, *, priority: Optional[int] = None, at: Union[datetime, str, None] = None,
                delay: Union[float, timedelta, None] = None) -> str:
        """Change a job that has not started, and return its status: "waiting" or "delayed".

        ``priority``, ``at`` and ``delay`` are as for enqueue(); those that are None
        stay as they are. A ``delay`` of 0 starts the job as soon as possible, and
        skips the delay before the next attempt. Raises OverhopError
        JOB_NOT_PENDING if the job runs or has ended, and ValueError for options
        that are missing, exclude each other or are out of range.
        """
        if at is not None and delay is not None:
            raise ValueError("give at or delay, not both")
        if at is None and delay is None and priority is None:
            raise ValueError("nothing to change: give priority, at or delay")
        if delay is not None and not _seconds(delay) >= 0:  # NaN, too
            raise ValueError(f"delay is {delay!r}, must be 0 seconds or more")
        if priority is not None and not 0 <= priority <= 9:
            raise ValueError(f"priority is {priority!r}, must be 0 to 9")
        request: Dict[str, Any] = {
            "jid": jid, "priority": priority, "scheduled_at": None if at is None else _format_time(at),
            "delay_ms": _optional_milliseconds(delay),
        }
        return str(self._call(SETJOB, {name: value for name, value in request.items() if value is not None})["status"])

    def remove(self, jid: str) -> None:
        """Remove a job that is not active."""
        self._call(RMJOB, {"jid": jid}, done_codes=("JOB_NOT_FOUND",))

    def jobs(self, queue: str, status: str, *, page: int = 1, page_size: Optional[int] = None) -> List[Dict[str, Any]]:
        """Return one page of a queue's jobs of one status, oldest first.

        ``status`` is new, waiting, delayed, active, completed or failed. Pages are
        numbered from 1; a ``page_size`` of None means the node's default.
        """
        request: Dict[str, Any] = {"q": queue, "status": status, "page": page}
        if page_size is not None:
            request["page_size"] = page_size
        return [_read_record(record) for record in self._call(LSJOB, request)["jobs"]]

    # -- queues

    def queues(self) -> List[Dict[str, Any]]:
        """Return all queues by name, including the yard's system queues."""
        return list(self._call(LSQUEUE, {})["queues"])

    def queue(self, name: str) -> Optional[Dict[str, Any]]:
        """Return one queue, or None if it does not exist."""
        return self._call(QUEUE, {"q": name}) or None

    def add_queue(self, name: str, *, limit: Optional[int] = None, exist_ok: bool = False) -> None:
        """Create a queue of which at most ``limit`` jobs run at once over all workers; None means no limit.

        Raises OverhopError DUPLICATE_QUEUE if it exists, unless ``exist_ok`` is true.
        """
        request = {"name": name, "config": {"concurrency_limit": limit}}
        try:
            self._call(ADDQUEUE, request, done_codes=("DUPLICATE_QUEUE",))
        except OverhopError as e:
            if not exist_ok or e.code != "DUPLICATE_QUEUE":
                raise

    def set_queue(self, name: str, *, limit: Optional[int] = _UNCHANGED, retry_on_timeout: Optional[bool] = None) -> None:
        """Change settings of an existing queue; those that are left out stay.

        At most ``limit`` jobs of the queue run at once over all workers; None means
        no limit. A lowered limit stops no running job. With ``retry_on_timeout`` an
        attempt that exceeds its timeout is retried, unless the job decides.
        """
        config: Dict[str, Any] = {} if limit is _UNCHANGED else {"concurrency_limit": limit}
        if retry_on_timeout is not None:
            config["retry_on_timeout"] = retry_on_timeout
        self._call(SETQUEUE, {"q": name, "config": config})

    def remove_queue(self, name: str) -> None:
        """Remove a queue whose jobs have all ended."""
        self._call(RMQUEUE, {"q": name}, done_codes=("QUEUE_NOT_FOUND",))

    def clear_queue(self, name: str, statuses: Optional[Sequence[str]] = None) -> int:
        """Remove a queue's jobs, except active ones, and return their number.

        ``statuses`` selects the jobs to remove: None means all, an empty list none.
        """
        if statuses is not None and not statuses:
            return 0
        request: Dict[str, Any] = {"q": name}
        if statuses is not None:
            request["statuses"] = list(statuses)
        return int(self._call(CLRQUEUE, request)["removed"])

    def obliterate_queue(self, name: str, *, force: bool = False) -> int:
        """Remove a queue and all its jobs, and return their number; active jobs need ``force``."""
        return int(self._call(OBLITERATE, {"q": name, "force": force}, done_codes=("QUEUE_NOT_FOUND",)).get("removed", 0))

    def pause(self, name: str) -> None:
        """Stop starting jobs of a queue; active ones continue."""
        self._call(PAUSE, {"q": name}, done_codes=("QUEUE_ALREADY_PAUSED",))

    def resume(self, name: str) -> None:
        """Start jobs of a paused queue again."""
        self._call(RESUME, {"q": name}, done_codes=("QUEUE_ALREADY_RUNNING",))

    def stats(self, name: str) -> Dict[str, int]:
        """Return the number of a queue's new, waiting, delayed, active, completed and failed jobs."""
        return dict(self._call(QSTATS, {"q": name})["stats"])

    # -- nodes

    def status(self) -> Dict[str, Any]:
        """Return the status of the connected node."""
        return self._call(STATUS, {})

    def ping(self) -> datetime:
        """Return the connected node's time."""
        now = parse_time(self._call(PING, {})["server_time"])
        assert now is not None
        return now

    # -- requests

    def _call(self, message_type: int, payload: Dict[str, Any], timeout: Optional[float] = None,
              done_codes: Sequence[str] = ()) -> Dict[str, Any]:
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
                return self._ready_connection(remaining).call(message_type, payload, deadline - time.monotonic())
            except OverhopError as e:
                if attempts and e.code in done_codes:
                    return {}
                if e.code != "UNAVAILABLE":
                    raise
                last_error, pause = e, _retry_delay(e)
            except ConnectionLost as e:
                last_error, pause = e, _backoff(attempts)
                losses += 1
                if self._closed:
                    raise
                if losses >= 5 and len(payload.get("job_payload", payload.get("job_payload_json", b""))) > 1 << 16:
                    raise ConnectionLost(f"{e}; no node accepts this message, it may be too large for them") from e
            except TimeoutError as e:
                if attempts:
                    raise last_error from e  # the reason for repeating says more than the timeout
                raise
            attempts += 1
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))

    def _ready_connection(self, timeout: float) -> _Connection:
        """Return the current connection, or a new one, once it is registered.

        Raises TimeoutError after ``timeout`` seconds, ConnectionLost, or the
        OverhopError by which the node refused the registration.
        """
        with self._lock:
            if self._closed:
                raise ConnectionLost("client is closed")
            connection = self._connection
            if connection is None:
                connection = self._connection = _Connection(
                    self._nodes.next(), self._settings, lambda connection: None, self._on_push, self._on_disconnected)
        if not connection.ready.wait(timeout):
            raise TimeoutError(f"{connection.node} is not connected within {timeout:.1f} s")
        connection.check()
        return connection

    def _on_disconnected(self, connection: _Connection, error: Exception) -> None:
        """Have the next request connect again. Called in the connection's thread."""
        with self._lock:
            if self._connection is connection:
                self._connection = None
            end_queues = [end_queue for queues in self._end_queues.values() for end_queue in queues]
        for end_queue in end_queues:
            end_queue.put(None)  # its result() call sends another AWAIT

    def _on_push(self, connection: _Connection, message_type: int, payload: Dict[str, Any]) -> None:
        """Handle a JOBEND or DRAIN. Called in the connection's thread."""
        if message_type == JOBEND:
            with self._lock:
                end_queues = list(self._end_queues.get(str(payload.get("jid")), ()))
            for end_queue in end_queues:
                end_queue.put(payload)
        elif message_type == DRAIN:
            # Pending requests and JOBENDs still use this connection, new requests another.
            with self._lock:
                if self._connection is connection:
                    self._connection = None
                    self._nodes.preferred = _only_strings(payload.get("reconnect"))

    def _await(self, jid: str, timeout: float) -> Dict[str, Any]:
        """Wait until a job has ended; return the payload of its JOBEND, or its record if it had ended before."""
        deadline = time.monotonic() + timeout
        unknown_deadline = min(deadline, time.monotonic() + _UNKNOWN_JOB_TIMEOUT)
        end_queue: queue.SimpleQueue[_End] = queue.SimpleQueue()
        with self._lock:
            self._end_queues.setdefault(jid, []).append(end_queue)
        try:
            while True:
                remaining = max(0.0, deadline - time.monotonic())
                wait = min(remaining, _MAX_AWAIT)
                try:
                    answer = self._call(AWAIT, {"jid": jid, "timeout_ms": _milliseconds(wait)},
                                        None if remaining == math.inf else max(remaining, 1.0))
                except OverhopError as e:
                    if e.code == "JOB_NOT_FOUND" and time.monotonic() < unknown_deadline:
                        wait = 0.1  # this node may not know the job yet
                    elif e.code == "RATE_LIMITED":
                        wait = 0.25  # too many AWAITs on this connection: poll
                    else:
                        raise
                else:
                    if not answer.get("pending"):
                        return answer
                try:
                    end = end_queue.get(timeout=max(wait, 0.001))
                except queue.Empty:
                    end = None
                if end is not None:
                    return end
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"job {jid} has not ended within {timeout:.1f} s")
        finally:
            with self._lock:
                self._end_queues[jid].remove(end_queue)
                if not self._end_queues[jid]:
                    del self._end_queues[jid]
