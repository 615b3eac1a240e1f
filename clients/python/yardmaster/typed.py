"""Values of Python types as the plain values that Overhop carries, and back.

A dataclass is a dict of its fields. Enum members are their values, and times, UUIDs
and decimals are text. Type hints decide how a plain value is decoded: None, bool,
int, float, str, bytes, dataclasses, Enum, Literal, Optional and Union, List,
Sequence, Tuple, Set, Dict with str keys, datetime, date, UUID, Decimal, and Any.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import sys
import types
import typing
import uuid
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, Callable, Dict, ForwardRef, Generic, List, Mapping, NamedTuple, Optional, Set, Tuple, Type, TypeVar, Union

from .errors import PayloadError
from .protocol import parse_time

C = TypeVar("C", bound=Type[Any])
R = TypeVar("R")

_UNIONS: Tuple[object, ...] = (Union, getattr(types, "UnionType", Union))  # X | Y has a type of its own since Python 3.10
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SETS = (set, frozenset, collections.abc.Set)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


# ---------------------------------------------------------------- kinds


class Kind(NamedTuple):
    """The function that handles jobs with a payload of a class, and their queue; None if it is not set."""

    function: str
    queue: Optional[str]


def kind(function: str, *, queue: Optional[str] = None) -> Callable[[C], C]:
    """Decorate a payload's class with the function that handles it and, optionally, the queue of its jobs.

        @yardmaster.kind("send_mail", queue="mail")
        @dataclass
        class SendMail:
            to: str

    The class variables ``kind`` and ``queue`` do the same.
    """
    if not function:
        raise ValueError("kind is empty: give the name of a function")

    def mark(cls: C) -> C:
        cls.__yardmaster_kind__ = Kind(function, queue)
        return cls
    return mark


def kind_of(cls: type) -> Optional[Kind]:
    """Return the kind of a payload's class, or None if it has none."""
    own = cls.__dict__.get("__yardmaster_kind__")  # not inherited: another class is another kind
    if isinstance(own, Kind):
        return own
    fields = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    function, queue = (None if name in fields else getattr(cls, name, None) for name in ("kind", "queue"))
    return Kind(function, queue if isinstance(queue, str) else None) if isinstance(function, str) and function else None


def kind_names(cls: type, queue: Optional[str], fn: Optional[str]) -> Tuple[str, str]:
    """Return the queue and the function of jobs with a payload of a class: those that are given, or those of its kind.

    Raises TypeError or ValueError for what is missing.
    """
    own = kind_of(cls)
    if fn is None:
        if own is None:
            raise TypeError(f"{name_of(cls)} has no kind: decorate it with @yardmaster.kind(function, queue=...)")
        fn = own.function
    if queue is None:
        if own is None or own.queue is None:
            raise ValueError(f"no queue for {name_of(cls)}: give queue=, or name it in @yardmaster.kind({fn!r}, queue=...)")
        queue = own.queue
    return queue, fn


class Returns(Generic[R]):
    """A base of payloads' classes that names the type of the result, which call() then decodes and returns.

        @yardmaster.kind("send_mail", queue="mail")
        @dataclass
        class SendMail(yardmaster.Returns[Sent]):
            to: str

        sent = client.call(SendMail(to="ann"))  # a Sent
    """


def result_type(cls: type) -> Any:
    """Return the type of results that a payload's class names, Any if it names none."""
    for parent in cls.__mro__:
        for base in parent.__dict__.get("__orig_bases__", ()):
            if typing.get_origin(base) is Returns:
                result, = typing.get_args(base)
                if isinstance(result, ForwardRef):
                    holder = types.SimpleNamespace(__annotations__={"result": result})
                    result = typing.get_type_hints(holder, vars(sys.modules[parent.__module__]))["result"]
                return result
    return Any


# ---------------------------------------------------------------- encoding


def to_plain(value: Any) -> Any:
    """Return the plain value of a value; what is plain already, or unknown, is returned as it is.

    Raises PayloadError for a time without a zone, and for what is nested too deep.
    """
    try:
        return _to_plain(value)
    except RecursionError:
        raise PayloadError("", "value is nested too deep") from None


def _to_plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, bytes)) or type(value) in (int, float, str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _to_plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, enum.Enum):
        return _to_plain(value.value)
    if isinstance(value, dict):
        return {_to_plain(key): _to_plain(item) for key, item in list(value.items())}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_plain(item) for item in tuple(value)]
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise PayloadError("", f"the time {value} has no zone: use datetime.now(timezone.utc), for example")
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (uuid.UUID, Decimal)):
        return str(value)
    return value


# ---------------------------------------------------------------- decoding


def from_plain(target: Any, value: Any, path: str = "") -> Any:
    """Return a plain value as the type ``target``.

    Unknown keys of a dataclass are ignored, so that a producer may be newer than
    a worker. Raises PayloadError with the path of what is wrong, which begins
    with ``path``, and TypeError for a type that cannot be decoded.
    """
    return _decoder(target)(value, path)


_Decoder = Callable[[Any, str], Any]




def _make_decoder(target: Any) -> _Decoder:
    origin, args = typing.get_origin(target), typing.get_args(target)
    if target in (Any, object) or isinstance(target, TypeVar):
        return lambda value, path: value
    if target is None or target is type(None):
        return functools.partial(_decode_plain, "null", (type(None),))
    if target in _PLAIN:
        return functools.partial(_decode_plain, *_PLAIN[target])
    if target in _TEXT:
        return functools.partial(_decode_text, *_TEXT[target])
    if target is float:
        return _decode_float
    if origin in _UNIONS:
        return functools.partial(_decode_union, args)
    if origin is typing.Literal:
        return functools.partial(_decode_choice, {to_plain(choice): choice for choice in args})
    if isinstance(target, type) and issubclass(target, enum.Enum):
        return functools.partial(_decode_choice, {to_plain(member): member for member in target})
    if dataclasses.is_dataclass(target):
        return functools.partial(_decode_dataclass, target)
    container = origin or target
    if container is tuple and args and args[-1] is not Ellipsis:
        return functools.partial(_decode_tuple, args)
    if container is tuple or container in _LISTS or container in _SETS:
        make: Callable[[List[Any]], Any] = tuple if container is tuple else set if container in (set, collections.abc.Set) else \
            frozenset if container is frozenset else list
        return functools.partial(_decode_list, args[0] if args else Any, make)
    if container in _DICTS:
        if args and args[0] not in (str, Any):
            raise TypeError(f"keys of {target} must be str")
        return functools.partial(_decode_dict, args[1] if args else Any)
    raise TypeError(f"values cannot be decoded as {name_of(target)}: use a dataclass, or Any")


_decoder = functools.lru_cache(maxsize=1024)(_make_decoder)


def _decode_plain(name: str, kinds: Tuple[type, ...], value: Any, path: str) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool) and bool not in kinds:
        raise PayloadError(path, f"must be {name}, not {describe(value)}")
    return value


_PLAIN: Dict[Any, Tuple[str, Tuple[type, ...]]] = {
    bool: ("a boolean", (bool,)), int: ("an integer", (int,)), str: ("text", (str,)), bytes: ("binary", (bytes,)),
}


def _decode_float(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PayloadError(path, f"must be a number, not {describe(value)}")
    return float(value)


def _decode_text(name: str, parse: Callable[[str], Any], value: Any, path: str) -> Any:
    try:
        if isinstance(value, str):
            return parse(value)
    except (ValueError, ArithmeticError):
        pass
    raise PayloadError(path, f"must be {name}, not {describe(value)}")


_TEXT: Dict[Any, Tuple[str, Callable[[str], Any]]] = {
    datetime: ("an RFC 3339 time", parse_time), date: ("a date such as 2026-12-31", date.fromisoformat),
    uuid.UUID: ("a UUID", uuid.UUID), Decimal: ("a decimal number as text", Decimal),
}


def _decode_union(choices: Tuple[Any, ...], value: Any, path: str) -> Any:
    """Decode a value as the first of several types that it fits."""
    if value is None and type(None) in choices:
        return None
    problems: List[PayloadError] = []
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return _decoder(choice)(value, path)
        except PayloadError as e:
            problems.append(e)
    if len(problems) == 1:
        raise problems[0]
    raise PayloadError(path, "fits none of its types: " + "; ".join(str(e) if e.path != path else e.problem for e in problems))


def _decode_choice(choices: Mapping[Any, Any], value: Any, path: str) -> Any:
    for plain, choice in choices.items():
        if plain == value and isinstance(plain, bool) == isinstance(value, bool):
            return choice
    raise PayloadError(path, f"must be one of {', '.join(repr(choice) for choice in choices)}, not {describe(value)}")


def _decode_list(item: Any, make: Callable[[List[Any]], Any], value: Any, path: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise PayloadError(path, f"must be a list, not {describe(value)}")
    decode = _decoder(item)
    return make([decode(part, f"{path}/{n}") for n, part in enumerate(value)])


def _decode_tuple(items: Tuple[Any, ...], value: Any, path: str) -> Tuple[Any, ...]:
    if not isinstance(value, (list, tuple)) or len(value) != len(items):
        raise PayloadError(path, f"must be a list of {len(items)} items, not {describe(value)}")
    return tuple(_decoder(item)(part, f"{path}/{n}") for n, (item, part) in enumerate(zip(items, value)))


def _decode_dict(item: Any, value: Any, path: str) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise PayloadError(path, f"must be a map, not {describe(value)}")
    decode = _decoder(item)
    return {key: decode(part, _join(path, key)) for key, part in value.items()}


def _decode_dataclass(cls: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise PayloadError(path, f"must be a map with the fields of {cls.__name__}, not {describe(value)}")
    values = {}
    for field, hint, required in fields_of(cls):
        if field.name in value:
            values[field.name] = _decoder(hint)(value[field.name], _join(path, field.name))
        elif required:
            raise PayloadError(_join(path, field.name), f"is missing: {cls.__name__} needs it")
    try:
        return cls(**values)
    except (TypeError, ValueError) as e:  # from __post_init__
        raise PayloadError(path, f"{cls.__name__} refuses it: {e}") from e


@functools.lru_cache(maxsize=1024)
def fields_of(cls: Any) -> List[Tuple[dataclasses.Field[Any], Any, bool]]:
    """Return the fields that a dataclass takes, each with its type and whether it is required.

    Raises TypeError if a type's name cannot be resolved.
    """
    hints = type_hints(cls, cls.__name__)
    return [(field, hints[field.name], field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
            for field in dataclasses.fields(cls) if field.init]


def type_hints(annotated: Any, name: str) -> Dict[str, Any]:
    """Return the annotations of a class, with names resolved in its module."""
    try:
        return typing.get_type_hints(annotated)
    except NameError as e:
        raise _unresolved(name, e) from None


def resolve(annotation: Any, name: str, module: Dict[str, Any], names: Mapping[str, Any]) -> Any:
    """Return an annotation as a type, with names resolved in a module and in ``names``; raise TypeError if one is unknown."""
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": annotation}), module, dict(names))["it"]
    except NameError as e:
        raise _unresolved(name, e) from None


def _unresolved(name: str, error: NameError) -> TypeError:
    return TypeError(f"cannot resolve an annotation of {name}: {error}; define the type in its module")


def check_type(target: Any, seen: Optional[Set[Any]] = None) -> None:
    """Raise TypeError if values cannot be decoded as a type."""
    seen = set() if seen is None else seen
    if target in seen:
        return
    seen.add(target)
    _decoder(target)
    if dataclasses.is_dataclass(target):
        for _, hint, _ in fields_of(target):
            check_type(hint, seen)
    elif typing.get_origin(target) is not typing.Literal:
        for part in typing.get_args(target):
            if part is not Ellipsis:
                check_type(part, seen)


def _join(path: str, key: str) -> str:
    """Return the JSON Pointer to a key of what ``path`` points to."""
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def describe(value: Any) -> str:
    """Return what a plain value is, for error messages; text and numbers are shown, cut to size."""
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} items"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def name_of(target: Any) -> str:
    return target.__name__ if isinstance(target, type) else str(target)
