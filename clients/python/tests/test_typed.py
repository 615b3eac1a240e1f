"""Tests of dataclasses as payloads, of kinds, and of JSON Schemas."""

import enum
import json
import unittest
import uuid
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, ClassVar, Dict, FrozenSet, List, Literal, Optional, Tuple, TypeVar, Union

import yardmaster
from yardmaster import NewJob, PayloadError, from_plain, to_plain
from yardmaster.typed import check_type, kind_of, result_type



T = TypeVar("T")


class Format(enum.Enum):
    TEXT = "text"
    HTML = "html"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Address:
    name: str
    host: str = "example.org"


@yardmaster.kind("send_mail", queue="mail")
@dataclass
class SendMail:
    to: Address
    cc: List[Address] = field(default_factory=list)
    subject: Optional[str] = field(default=None, metadata={"description": "of the mail"})
    format: Format = Format.TEXT
    level: Level = Level.LOW
    headers: Dict[str, str] = field(default_factory=dict)
    at: Optional[datetime] = None
    day: Optional[date] = None
    weight: float = 1.0
    size: Union[int, str] = 0
    point: Tuple[int, str] = (0, "")
    tags: FrozenSet[str] = frozenset()
    mode: Literal["fast", "slow"] = "fast"
    id: Optional[uuid.UUID] = None
    price: Optional[Decimal] = None
    more: Any = None
    blob: Optional[bytes] = None


@dataclass
class Node:
    value: int
    children: "List[Node]" = field(default_factory=list)


@dataclass
class Named:
    kind: ClassVar[str] = "named"
    queue: ClassVar[str] = "names"
    name: str


class Dataclasses(unittest.TestCase):
    def test_round_trip(self) -> None:
        mail = SendMail(
            Address("ann"), [Address("bob", "b.example")], "hello", Format.HTML, Level.HIGH, {"X": "1"},
            datetime(2026, 1, 2, 3, 4, 5, 678, timezone(timedelta(hours=2))), date(2026, 1, 2), 0.5, "big", (1, "a"), frozenset({"x"}),
            "slow", uuid.UUID(int=7), Decimal("19.90"), {"any": [1]}, b"\xff")
        plain = to_plain(mail)
        self.assertEqual((plain["to"], plain["format"], plain["level"], plain["at"], plain["price"]),
                         ({"name": "ann", "host": "example.org"}, "html", 2, "2026-01-02T01:04:05.000678Z", "19.90"))
        self.assertEqual(from_plain(SendMail, plain), mail)
        self.assertEqual(from_plain(Node, to_plain(Node(1, [Node(2)]))), Node(1, [Node(2)]))

    def test_defaults_and_unknown_keys(self) -> None:
        self.assertEqual(from_plain(SendMail, {"to": {"name": "ann"}, "newer": 1}), SendMail(Address("ann")))
        self.assertEqual(from_plain(float, 3), 3.0)
        self.assertEqual(from_plain(Dict[str, List[int]], {"a": [1]}), {"a": [1]})
        self.assertEqual(from_plain(Any, {"a": 1}), {"a": 1})

    def test_errors_name_the_path(self) -> None:
        to = {"name": "ann"}
        cases: List[Tuple[Any, str, str]] = [
            ({}, "/to", "is missing"), ([], "", "must be a map with the fields of SendMail, not a list of 0 items"),
            ({"to": {"name": 5}}, "/to/name", "must be text, not 5"), ({"to": to, "cc": [to, {}]}, "/cc/1/name", "is missing"),
            ({"to": to, "headers": {"a/b~": 1}}, "/headers/a~1b~0", "must be text"), ({"to": to, "format": "pdf"}, "/format", "one of 'text', 'html'"),
            ({"to": to, "level": True}, "/level", "one of 1, 2"), ({"to": to, "at": "tomorrow"}, "/at", "RFC 3339"),
            ({"to": to, "weight": "1"}, "/weight", "a number"), ({"to": to, "size": None}, "/size", "none of its types"),
            ({"to": to, "size": 1.5}, "/size", "an integer, not 1.5; must be text"), ({"to": to, "point": [1]}, "/point", "a list of 2 items"),
            ({"to": to, "tags": "x"}, "/tags", "a list"), ({"to": to, "subject": 1}, "/subject", "text, not 1"),
            ({"to": to, "mode": "medium"}, "/mode", "one of"), ({"to": to, "id": "x"}, "/id", "UUID"), ({"to": to, "price": "x"}, "/price", "decimal"),
            ({"to": None}, "/to", "null"), ({"to": to, "day": "2026-13-01"}, "/day", "a date"), ({"to": to, "blob": "x"}, "/blob", "binary"),
        ]
        for value, path, problem in cases:
            with self.subTest(value), self.assertRaises(PayloadError) as raised:
                from_plain(SendMail, value)
            self.assertEqual(raised.exception.path, path)
            self.assertIn(problem, raised.exception.problem)

    def test_refusal_by_post_init(self) -> None:
        @dataclass
        class Positive:
            n: int

            def __post_init__(self) -> None:
                if self.n < 1:
                    raise ValueError("n must be positive")
        with self.assertRaisesRegex(PayloadError, "/0: Positive refuses it: n must be positive"):
            from_plain(List[Positive], [{"n": 0}])

    def test_result_types(self) -> None:
        @dataclass
        class Counted(yardmaster.Returns[List[int]]):
            n: int = 1

        @dataclass
        class Generic(yardmaster.Returns[T]):
            n: int = 1
        self.assertEqual([result_type(cls) for cls in (Counted, Named, str)], [List[int], Any, Any])
        self.assertEqual(from_plain(result_type(Generic), {"any": 1}), {"any": 1})
        self.assertEqual((to_plain(Counted(2)), from_plain(Counted, {"n": 3})), ({"n": 2}, Counted(3)))

    def test_types_that_cannot_be_decoded(self) -> None:
        @dataclass
        class Bad:
            thread: "unittest.TestCase"
        for target in (Bad, List[Bad], Dict[int, str], complex, Optional[complex]):
            with self.subTest(target), self.assertRaises(TypeError):
                check_type(target)
        with self.assertRaisesRegex(PayloadError, "no zone"):
            to_plain(datetime(2026, 1, 1))


class Kinds(unittest.TestCase):
    def test_kind_of(self) -> None:
        self.assertEqual(kind_of(SendMail), ("send_mail", "mail"))
        self.assertEqual(kind_of(Named), ("named", "names"))
        self.assertIsNone(kind_of(Address))

        @dataclass
        class Field:  # a field of this name is not the kind
            kind: str = "x"
        self.assertIsNone(kind_of(Field))

        class Derived(SendMail):
            pass
        self.assertIsNone(kind_of(Derived))
        with self.assertRaisesRegex(ValueError, "empty"):
            yardmaster.kind("")

    def test_new_jobs(self) -> None:
        request = NewJob(SendMail(Address("ann")), key="k").request(None)
        self.assertEqual((request["q"], request["fn"], request["key"]), ("mail", "send_mail", "k"))
        self.assertEqual(NewJob(Named("x"), queue="other").request(None)["q"], "other")
        self.assertEqual(NewJob(Address("x"), fn="f", queue="q").request(None)["fn"], "f")
        self.assertEqual(NewJob("q", {"a": Format.TEXT}).request(None)["job_payload"], yardmaster.encode({"a": "text"}))
        for job, error in ((NewJob(Address("x")), TypeError), (NewJob(Address("x"), fn="f"), ValueError), (NewJob({"a": 1}), TypeError),
                           (NewJob("q", queue="p"), ValueError), (NewJob(Named("x"), {"a": 1}), ValueError)):
            with self.assertRaises(error):
                job.request(None)


class Schemas(unittest.TestCase):
    def test_schema(self) -> None:
        @dataclass
        class Mail:
            to: Address
            cc: List[Address]
            format: Format = Format.TEXT
            subject: Optional[str] = field(default=None, metadata={"description": "of the mail"})
            at: Optional[datetime] = None
            backup: Optional[Address] = None
            size: Union[int, str] = 0
            headers: Dict[str, int] = field(default_factory=dict)
            point: Tuple[int, float] = (0, 0)
            any: Any = None
        address = {"$ref": "#/$defs/Address"}
        self.assertEqual(yardmaster.schema(Mail), {
            "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Mail", "type": "object",
            "properties": {
                "to": address, "cc": {"type": "array", "items": address}, "format": {"$ref": "#/$defs/Format"},
                "subject": {"type": ["string", "null"], "description": "of the mail"},
                "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
                "backup": {"anyOf": [address, {"type": "null"}]}, "size": {"type": ["integer", "string"]},
                "headers": {"type": "object", "additionalProperties": {"type": "integer"}},
                "point": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "number"}], "items": False, "minItems": 2},
                "any": {},
            },
            "required": ["to", "cc"], "additionalProperties": False,
            "$defs": {
                "Address": {"title": "Address", "type": "object", "properties": {"name": {"type": "string"}, "host": {"type": "string"}},
                            "required": ["name"], "additionalProperties": False},
                "Format": {"enum": ["text", "html"]},
            },
        })

    def test_recursion_and_other_types(self) -> None:
        self.assertEqual(yardmaster.schema(Node)["properties"]["children"], {"type": "array", "items": {"$ref": "#"}})
        self.assertEqual(yardmaster.schema(List[int])["items"], {"type": "integer"})
        json.dumps(yardmaster.schema(Node))
        with self.assertRaisesRegex(TypeError, "bytes has no JSON Schema"):
            yardmaster.schema(SendMail)


if __name__ == "__main__":
    unittest.main()
