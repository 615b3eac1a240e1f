"""JSON Schemas of Python types."""

from __future__ import annotations

import dataclasses
import enum
import typing
import uuid
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Dict, List

from .typed import _DICTS, _LISTS, _SETS, _UNIONS, fields_of, name_of, to_plain

DRAFT = "https://json-schema.org/draft/2020-12/schema"

Schema = Dict[str, Any]


def schema(target: Any) -> Schema:
    """Return the JSON Schema, draft 2020-12, of a type, usually of a payload's dataclass.

    It admits what the type is encoded as: of a dataclass an object with its
    fields, those without a default required, and no other keys. A field's
    ``metadata`` may have a "description". Raises TypeError for types that JSON
    does not have, such as bytes.
    """
    builder = _Builder(target)
    body = builder.dataclass(target) if dataclasses.is_dataclass(target) else builder.of(target)
    result: Schema = {"$schema": DRAFT, **body}
    if builder.definitions:
        result["$defs"] = {name: builder.definitions[name] for name in sorted(builder.definitions)}
    return result


_SIMPLE: Dict[Any, Schema] = {
    bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"}, str: {"type": "string"},
    None: {"type": "null"}, type(None): {"type": "null"}, Any: {}, object: {},
    datetime: {"type": "string", "format": "date-time"}, date: {"type": "string", "format": "date"},
    uuid.UUID: {"type": "string", "format": "uuid"}, Decimal: {"type": "string"},
}


class _Builder:
    """Collects the definitions of the dataclasses and enums below a type."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self.definitions: Dict[str, Schema] = {}
        self._names: Dict[Any, str] = {}

    def of(self, target: Any) -> Schema:
        """Return the schema of a type; a dataclass or an enum is a reference to its definition."""
        try:
            if target in _SIMPLE:
                return dict(_SIMPLE[target])
        except TypeError:  # not hashable
            pass
        origin, args = typing.get_origin(target), typing.get_args(target)
        if origin in _UNIONS:
            return self._union([self.of(choice) for choice in args])
        if origin is typing.Literal:
            return {"enum": [to_plain(choice) for choice in args]}
        if isinstance(target, type) and issubclass(target, enum.Enum):
            return self._reference(target, lambda: {"enum": [to_plain(member) for member in target]})
        if dataclasses.is_dataclass(target):
            return {"$ref": "#"} if target is self._root else self._reference(target, lambda: self.dataclass(target))
        container = origin or target
        if container is tuple and args and args[-1] is not Ellipsis:
            return {"type": "array", "prefixItems": [self.of(item) for item in args], "items": False, "minItems": len(args)}
        if container is tuple or container in _LISTS or container in _SETS:
            items = self.of(args[0]) if args else {}
            unique = {"uniqueItems": True} if container in _SETS else {}
            return {"type": "array", **({"items": items} if items else {}), **unique}
        if container in _DICTS:
            values = self.of(args[1]) if args else {}
            return {"type": "object", **({"additionalProperties": values} if values else {})}
        raise TypeError(f"{name_of(target)} has no JSON Schema")

    def dataclass(self, cls: Any) -> Schema:
        """Return the schema of a dataclass itself."""
        properties: Dict[str, Schema] = {}
        required: List[str] = []
        for field, hint, needed in fields_of(cls):
            properties[field.name] = self.of(hint)
            if "description" in field.metadata:
                properties[field.name]["description"] = str(field.metadata["description"])
            if needed:
                required.append(field.name)
        result: Schema = {"title": cls.__name__, "type": "object", "properties": properties, "additionalProperties": False}
        if required:
            result["required"] = required
        return result

    def _reference(self, target: Any, make: typing.Callable[[], Schema]) -> Schema:
        """Return a reference to the definition of a type, which is made once."""
        if target not in self._names:
            name = target.__name__
            if name in self._names.values():
                name = f"{target.__module__}.{target.__qualname__}"
            self._names[target] = name  # before the definition, which may refer to it
            self.definitions[name] = make()
        return {"$ref": "#/$defs/" + self._names[target].replace("~", "~0").replace("/", "~1")}

    def _union(self, choices: List[Schema]) -> Schema:
        """Return the schema of a union; simple types are joined in one "type"."""
        if all(set(choice) == {"type"} for choice in choices):
            return {"type": [choice["type"] for choice in choices]}
        return {"anyOf": choices}
