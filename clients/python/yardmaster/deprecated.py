"""Names of calls that stay for one release."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, Callable, TypeVar

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")


def deprecated(instead: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a call of a client that the next release removes: it warns, and names the call to make instead."""
    def mark(call: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(call)
        def method(*args: P.args, **options: P.kwargs) -> T:
            client: Any = args[0]
            warnings.warn(f"{call.__name__}() is deprecated: call {instead}", DeprecationWarning, stacklevel=client._call_depth)
            return call(*args, **options)
        return method
    return mark
