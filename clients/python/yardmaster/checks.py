"""Checks of what callers give: each returns the value as it is sent, or raises ValueError with what is allowed."""

from __future__ import annotations

import re
import unicodedata
from datetime import timedelta
from typing import Dict, List, Mapping, Optional, Sequence

from .protocol import Duration, milliseconds, seconds_of

MAX_COUNT = 2**32 - 1
MAX_SECONDS = 3650 * 86400  # of a duration
MAX_NAME = 128              # bytes of the name of a queue, and of a key

_QUEUE_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_-]*")


def integer(name: str, value: Optional[int], least: int, most: int = MAX_COUNT) -> Optional[int]:
    """Check an int; None stays None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
        raise ValueError(f"{name} is {value!r}, must be an int from {least} to {most}")
    return value


def duration(name: str, value: Optional[Duration], least: int) -> Optional[int]:
    """Return a duration in milliseconds, ``least`` or more; None stays None."""
    if value is None:
        return None
    is_number = isinstance(value, (int, float, timedelta)) and not isinstance(value, bool)
    if not is_number or not 0 <= seconds_of(value) <= MAX_SECONDS or milliseconds(value) < least:  # NaN fails the comparisons
        raise ValueError(f"{name} is {value!r}, must be {least / 1000:g} to {MAX_SECONDS} seconds, or a timedelta")
    return milliseconds(value)


def seconds(name: str, value: Duration, most: float = MAX_SECONDS) -> float:
    """Return a duration in seconds, 0 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, timedelta)) or not 0 <= seconds_of(value) <= most:
        raise ValueError(f"{name} is {value!r}, must be 0 to {most} seconds, or a timedelta")
    return seconds_of(value)


def queue_name(name: str) -> str:
    """Check the name of a queue for jobs of users."""
    if not isinstance(name, str) or not _QUEUE_NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(f"queue name {name!r} must have 1 to {MAX_NAME} letters, digits, '_' and '-', and begin with a letter or digit")
    return name


def text(name: str, value: Optional[str], most: int, least: int = 1) -> Optional[str]:
    """Check a text by its bytes; None stays None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, must be a str")
    size = len(value.encode("utf-8", "replace"))
    if not least <= size <= most:
        raise ValueError(f"{name} has {size} bytes, must have {least} to {most}")
    return value


def key(name: str, value: Optional[str]) -> Optional[str]:
    """Check a key, which must not be blank; None stays None."""
    if value is not None and isinstance(value, str) and not value.strip():
        raise ValueError(f"{name} is {value!r}: leave it out, or give a text that is not blank")
    return text(name, value, MAX_NAME)


def limit_key(name: str, value: Optional[str]) -> Optional[str]:
    """Check the key under which a job uses a limit; None stays None."""
    if value is not None and any(unicodedata.category(c) == "Cc" for c in text(name, value, MAX_NAME, 0) or ""):
        raise ValueError(f"{name} is {value!r}, must have no control characters")
    return value


def limits(value: Optional[Mapping[str, str]]) -> Optional[Dict[str, str]]:
    """Check the keys of limits by their names; None stays None."""
    checked = texts("limits", value, count=8, name_size=64, value_size=MAX_NAME)
    for name, used_key in (checked or {}).items():
        if not _QUEUE_NAME.fullmatch(name):
            raise ValueError(f"limits has the name {name!r}, must be letters, digits, '_' and '-', and begin with a letter or digit")
        limit_key(f"limits[{name!r}]", used_key)
    return checked


def tags(value: Optional[Sequence[str]]) -> Optional[List[str]]:
    """Check the tags of a job; None stays None."""
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) > 20:
        raise ValueError(f"tags is {value!r}, must be a list of at most 20 texts")
    for number, tag in enumerate(value):
        text(f"tags[{number}]", "" if tag is None else tag, 64)
    return list(value)


def texts(name: str, value: Optional[Mapping[str, str]], *, count: int = MAX_COUNT, name_size: int = MAX_COUNT,
          value_size: int = MAX_COUNT) -> Optional[Dict[str, str]]:
    """Check texts by their names; None stays None."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or len(value) > count:
        raise ValueError(f"{name} is {value!r}, must be a dict of at most {count} texts")
    for entry, content in value.items():
        text(f"a name in {name}", "" if entry is None else entry, name_size)
        if content is None:
            raise ValueError(f"{name}[{entry!r}] is None, must be a str")
        text(f"{name}[{entry!r}]", content, value_size, 0)
    return dict(value)
