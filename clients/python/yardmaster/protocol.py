"""The messages of Overhop: their types, frames and envelopes, and the values in them.

docs/reference/overhop.md specifies the protocol.
"""

from __future__ import annotations

import json
import re
import struct
from datetime import datetime, timedelta, timezone
from typing import Any, Awaitable, Callable, Dict, List, Optional, Tuple, Union

from .codec import Encoded, decode, encode, parse_json, read_json
from .errors import CodecError, ConnectionLost, OverhopError, refusal

# Message types: requests of a client, answers of a node, pushes of a node.
HELLO, REGISTER, PING, QUEUE, LSQUEUE, SUBSCRIBE, UNSUBSCRIBE, CREDIT, ADDQUEUE = range(1, 10)
STATUS, RMQUEUE, PAUSE, RESUME, ENQUEUE, JOB, RMJOB, LSJOB, QSTATS = range(10, 19)
ACK, NACK, BEAT, PROGRESS, LOG, DONE, FAIL, AWAIT, GOODBYE, CANCEL, RETRYJOB, CLRQUEUE, OBLITERATE, SETQUEUE, SETJOB, \
    CONTENT, API = range(40, 57)
OK, ERR, HI, IDENT, PONG = range(101, 106)
QUEST, RECALL, CREDITS, DRAIN, BYE, JOBEND = range(140, 146)

DELIVERY = "delivery/1"  # name of the protocol extension, in HELLO and HI
CAPABILITY_JSON = "json"        # values of users as JSON, in HELLO and HI
CAPABILITY_CONTENT = "content"  # values of any size by CONTENT
CAPABILITY_API = "api"          # operations of the yard's API by API
CAPABILITY_SNOOZE = "snooze"    # FAIL with snooze_ms
# The last is not a capability: an HTTP server reads a HELLO as the beginning of a request, and this as its end, and answers at once.
CAPABILITIES = [CAPABILITY_JSON, CAPABILITY_CONTENT, CAPABILITY_API, CAPABILITY_SNOOZE, "\r\n\r\n"]

PUSH_RID = "0"           # request id of a push: a message that answers no request
MAX_FRAME = 8 << 20      # bytes; limit of a node that announces none

Fields = Dict[str, Any]  # the payload of a message


def frame(t: int, rid: str, p: Union[Fields, Encoded]) -> bytes:
    """Return a whole frame: four bytes of length, then the envelope.

    ``t`` is the message type, ``rid`` the request id and ``p`` the payload.
    Raises CodecError if the payload cannot be encoded.
    """
    body = encode({"p": p, "rid": rid, "t": t, "v": 2})
    return struct.pack(">I", len(body)) + body


_OTHER_PORTS = {
    b"HTTP": "HTTP, as http.listen of a node does, 4280 by default", b"INFO": "NATS, as nats.listen of a node does, 4222 by default",
    b"SSH-": "SSH",
}


class OtherPort(ValueError):
    """The peer does not speak Overhop: the address of the node names another port."""


def check_size(begin: bytes, most: int) -> int:
    """Return the size of a frame by its first four bytes.

    Raises ValueError if it is 0 or above ``most``, and its subclass OtherPort if the bytes begin another protocol.
    """
    size = int.from_bytes(begin, "big")
    if not 0 < size <= most:
        other = _OTHER_PORTS.get(begin)
        if other is not None:
            raise OtherPort(f"its port speaks {other}: give the address of the worker port, server.port, 9876 by default")
        raise ValueError(f"announced a frame of {size} bytes")
    return size


def parse_envelope(body: Union[bytes, bytearray]) -> Tuple[int, str, Fields]:
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


def error_of(payload: Fields) -> OverhopError:
    """Return the exception for the payload of an ERR."""
    details = payload.get("details")
    if isinstance(details, dict):
        read_json(details, "data")
    return refusal(str(payload.get("code", "")), str(payload.get("msg", "")), details)


def without_none(fields: Fields) -> Fields:
    """Return the fields of a message without those that are None."""
    return {name: value for name, value in fields.items() if value is not None}


# ---------------------------------------------------------------- values


def read_record(record: Fields) -> Fields:
    """Replace the JSON in a job's record, or in a JOBEND, by its values, and return it."""
    read_json(record, "payload", "result")
    if isinstance(record.get("error"), dict):
        read_json(record["error"], "details")
    progress = (record.get("runtime") or {}).get("progress")
    if isinstance(progress, dict):
        read_json(progress, "data")
    return record


async def read_content(call: Callable[[Fields], Awaitable[Fields]], jid: str, value: str) -> Any:
    """Read a job's result or payload in parts and return its value.

    ``call`` sends a CONTENT and returns the answer.
    """
    whole, version = bytearray(), None
    while True:
        part = await call({"jid": jid, "value": value, "offset": len(whole)})
        if part["version"] != (version or part["version"]):
            raise ConnectionLost(f"the {value} of job {jid} has changed while it was read")
        version = part["version"]
        whole += part["data"]
        if len(whole) >= part["size"] or not part["data"]:
            break
    if len(whole) != part["size"]:
        raise ConnectionLost(f"the {value} of job {jid} has {part['size']} bytes, the node sent {len(whole)}")
    return parse_json(whole) if part["encoding"] == "json" else decode(whole)


def only_strings(values: object) -> List[str]:
    """Return the strings in a list from the wire, or an empty list for anything else."""
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


# ---------------------------------------------------------------- times

Duration = Union[float, timedelta]  # seconds, or a timedelta
Moment = Union[datetime, str]       # a datetime with a zone, or RFC 3339 text

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)")


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time, truncated to microseconds.

    Raises ValueError if the text is not such a time.
    """
    match = _RFC3339.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not an RFC 3339 time")
    day, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in "Zz" else zone
    return datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6]:0<6}{zone}")


def parse_optional_time(text: Optional[str]) -> Optional[datetime]:
    """Parse an RFC 3339 time; None stays None."""
    return None if text is None else parse_time(text)


def format_time(moment: Moment) -> str:
    """Return a time as RFC 3339 text. Text is checked and returned unchanged."""
    if isinstance(moment, str):
        parse_time(moment)
        return moment
    if not isinstance(moment, datetime):
        raise TypeError(f"a time is a datetime with its zone, or RFC 3339 text, not the {type(moment).__name__} {moment!r}: "
                        "datetime.now(timezone.utc) + timedelta(minutes=5), for example")
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone: datetime.now(timezone.utc), for example")
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def seconds_of(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def milliseconds(duration: Duration) -> int:
    return max(0, round(seconds_of(duration) * 1000))


def optional_milliseconds(duration: Optional[Duration]) -> Optional[int]:
    return None if duration is None else milliseconds(duration)
