"""MessagePack as Overhop uses it, and JSON for the numbers that it does not carry.

Payloads, results, progress data and details of errors consist of None, bool, int,
float, str, bytes, list and dict with str keys. A value with a float, or an int
beyond signed 64 bits, travels as JSON: it cannot have bytes, too, and as a payload
it must be a dict.
"""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from typing import Any, Dict, List, Optional, Tuple, Union

from .errors import CodecError

MAX_DEPTH = 128  # nesting of lists and dicts in a message, with its own two dicts
MAX_VALUE_DEPTH = 120  # nesting of a value of the user, such as a payload or a result


class Encoded(bytes):
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
    elif isinstance(value, Encoded):
        out += value
    elif isinstance(value, (bytes, bytearray, memoryview)):
        body = bytes(value)
        _encode_length(out, len(body), None, 0, 0xC4, 0xC5, 0xC6)
        out += body
    elif isinstance(value, (list, tuple, dict)):
        if levels == 0:
            raise CodecError(f"value is nested too deep: at most {MAX_VALUE_DEPTH}")
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


def user_value(name: str, value: Any, levels: int) -> Dict[str, bytes]:
    """Return the field ``name`` of a message, which holds a value of the user.

    It is MessagePack, or, if the value has numbers that only JSON carries, JSON
    under the name with "_json". ``levels`` is how deep lists and dicts may be
    nested. Raises CodecError if neither can carry the value.
    """
    try:
        return {name: Encoded(encode(value, levels))}
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
        raise CodecError(f"value is nested too deep: at most {MAX_VALUE_DEPTH}")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise CodecError(f"keys of a dict must be str, not {type(key).__name__}")
    for item in (value.values() if isinstance(value, dict) else value):
        _check_json(item, levels - 1)


def read_json(message: Dict[str, Any], *names: str) -> None:
    """Replace each field of a message that is present as JSON by its value, under its own name."""
    for name in names:
        text = message.pop(name + "_json", None)
        if text is not None:
            message[name] = parse_json(text)


def parse_json(text: Union[str, bytes]) -> Any:
    """Parse JSON. A number that neither an int nor a float can hold, such as 1e400, is a Decimal."""
    return json.loads(text, parse_int=_parse_int, parse_float=_parse_float)


def _parse_int(digits: str) -> Union[int, Decimal]:
    try:
        return int(digits)
    except ValueError:  # Python limits the number of digits
        return Decimal(digits)


def _parse_float(digits: str) -> Union[float, Decimal]:
    number = float(digits)
    return Decimal(digits) if math.isinf(number) else number
