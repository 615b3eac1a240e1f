"""Tests of the codec, also with the golden frames of edge/overhop."""

import os
import unittest
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, List

from yardmaster import nodes, protocol
from yardmaster import CodecError, decode, encode

FRAMES = os.path.join(os.path.dirname(__file__), "..", "..", "..", "edge", "overhop", "testdata", "frames")

# Golden frames with sorted keys and the shortest lengths, which frame() reproduces byte for byte.
CANONICAL = set("""ack done enqueue err err-unavailable fail hello hello-delivery hi hi-delivery ident ping pong quest
register subscribe""".split())


class GoldenFrames(unittest.TestCase):
    def test_decode_and_encode(self) -> None:
        count = 0
        for name in sorted(os.listdir(FRAMES)):
            if not name.endswith(".hex") or name.startswith("reject"):
                continue
            with self.subTest(name):
                with open(os.path.join(FRAMES, name), encoding="ascii") as file:
                    golden = bytes.fromhex(file.read())
                self.assertEqual(int.from_bytes(golden[:4], "big"), len(golden) - 4)
                t, rid, p = protocol.parse_envelope(golden[4:])
                encoded = protocol.frame(t, rid, p)
                self.assertEqual(protocol.parse_envelope(encoded[4:]), (t, rid, p))
                if name[:-len(".hex")] in CANONICAL:
                    self.assertEqual(encoded, golden)
                count += 1
        self.assertGreater(count, 15)

    def test_quest(self) -> None:
        with open(os.path.join(FRAMES, "quest.hex"), encoding="ascii") as file:
            t, rid, p = protocol.parse_envelope(bytes.fromhex(file.read())[4:])
        self.assertEqual((t, rid), (protocol.QUEST, "0"))
        self.assertEqual(p["job_payload"], {"n": 1})
        self.assertEqual(p["tok"], bytes.fromhex("00000000000000010000000000000009"))
        self.assertEqual((p["fence"], p["attempt"], p["max_attempts"], p["deadline"]), (42, 1, 5, None))


class Values(unittest.TestCase):
    def test_round_trip(self) -> None:
        edges = [n for bits in (5, 7, 8, 15, 16, 31, 32, 63) for n in (2**bits - 1, -2**bits)]
        edges += [2**bits for bits in (5, 7, 8, 15, 16, 31, 32)] + [-2**bits - 1 for bits in (5, 7, 8, 15, 16, 31, 32)]
        lengths = (0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536)
        for value in (
            None, True, False, *edges, *("x" * n for n in lengths), *(b"\xff" * n for n in lengths),
            *([None] * n for n in lengths), *({str(i): i for i in range(n)} for n in lengths),
            "Überweisung \U0001f600", {"": [{"a": b""}]},
        ):
            decoded = decode(encode(value))
            self.assertEqual(decoded, value)
            self.assertIs(type(decoded), type(value))

    def test_shortest_encoding(self) -> None:
        for value, text in (
            (127, "7f"), (128, "cc80"), (-32, "e0"), (-33, "d0df"), (65536, "ce00010000"), (-32769, "d2ffff7fff"),
            (2**63 - 1, "cf7fffffffffffffff"), (-2**63, "d38000000000000000"), ((1, b"a"), "9201c40161"),
            ({"b": 1, "a": 2}, "82a16102a16201"), (bytearray(b"a"), "c40161"),
        ):
            self.assertEqual(encode(value).hex(), text)

    def test_longer_encodings(self) -> None:
        for text, value in (
            ("cf0000000000000001", 1), ("d3ffffffffffffffff", -1), ("d90161", "a"), ("da000161", "a"), ("db0000000161", "a"),
            ("c6000000016b", b"k"), ("dc000101", [1]), ("dd0000000101", [1]), ("de0001a16101", {"a": 1}),
            ("df00000001a16101", {"a": 1}), ("82a16101a16102", {"a": 2}), ("81d9016101", {"a": 1}),
        ):
            self.assertEqual(decode(bytes.fromhex(text)), value)

    def test_depth(self) -> None:
        nests: List[Callable[[Any], Any]] = [lambda v: [v], lambda v: {"k": v}]
        for nest in nests:
            value = None
            for _ in range(128):
                value = nest(value)
            self.assertEqual(decode(encode(value)), value)
            with self.assertRaisesRegex(CodecError, "too deep"):
                encode(nest(value))
        with self.assertRaisesRegex(CodecError, "too deep"):
            decode(b"\x91" * 100_000 + b"\xc0")

    def test_encode_errors(self) -> None:
        for value, message in (
            (1.5, "no floats"), ({"a": [2.0]}, "no floats"), (2**63, "64 bits"), (-2**63 - 1, "64 bits"),
            ({1: 2}, "must be str"), ("\ud800", "UTF-8"), (object(), "object"), ({"\udfff": 1}, "UTF-8"), ({1, 2}, "set"),
        ):
            with self.assertRaisesRegex(CodecError, message):
                encode(value)

    def test_decode_errors(self) -> None:
        for text, message in (
            ("", "cut off"), ("c1", "reserved"), ("ca00000000", "float"), ("cb0000000000000000", "float"),
            ("d40100", "extension"), ("c7010100", "extension"), ("cf8000000000000000", "64 bits"), ("a1ff", "UTF-8"),
            ("a3eda080", "UTF-8"), ("8101c0", "not text"), ("81c40161c0", "not text"), ("0101", "1 bytes follow"),
            ("a261", "cut off"), ("c405ff", "cut off"), ("cd01", "cut off"), ("92c0", "cut off"), ("81a161", "cut off"),
            ("ddffffffff", "cut off"), ("dfffffffff", "cut off"), ("dbffffffff61", "cut off"), ("81", "cut off"),
        ):
            with self.subTest(text), self.assertRaisesRegex(CodecError, message):
                decode(bytes.fromhex(text))

    def test_envelopes(self) -> None:
        for value in (
            [], 1, {}, {"v": 2, "t": 1, "rid": "", "p": {}}, {"v": 1, "t": 1, "rid": "a", "p": {}},
            {"v": 2, "t": True, "rid": "a", "p": {}}, {"v": 2, "t": 1, "rid": 1, "p": {}}, {"v": 2, "t": 1, "rid": "a", "p": []},
        ):
            with self.assertRaisesRegex(CodecError, "envelope"):
                protocol.parse_envelope(encode(value))
        extended = encode({"v": 2, "t": 1, "rid": "a", "p": {"k": 1}, "more": None})
        self.assertEqual(protocol.parse_envelope(extended), (1, "a", {"k": 1}))


class TimesAndAddresses(unittest.TestCase):
    def test_times(self) -> None:
        at = datetime(2026, 2, 23, 10, 18, 33, 123456, timezone.utc)
        for text in ("2026-02-23T10:18:33.123456Z", "2026-02-23T10:18:33.123456789+00:00", "2026-02-23T12:18:33.123456+02:00"):
            self.assertEqual(protocol.parse_time(text), at)
        self.assertEqual(protocol.parse_time("2026-02-23T10:18:33Z"), at.replace(microsecond=0))
        self.assertIsNone(protocol.parse_optional_time(None))
        with self.assertRaisesRegex(ValueError, "RFC 3339"):
            protocol.parse_time("tomorrow")
        with self.assertRaisesRegex(ValueError, "zone"):
            protocol.format_time(datetime(2026, 1, 1))
        with self.assertRaisesRegex(TypeError, r"a time is a datetime with its zone, or RFC 3339 text, not the float 1e\+18"):
            protocol.format_time(1e18)  # type: ignore[arg-type]
        east = at.astimezone(timezone(timedelta(hours=9)))
        self.assertEqual(protocol.parse_time(protocol.format_time(east)), at)

    def test_addresses(self) -> None:
        for text, expected in (
            ("n1:1", ("n1", 1)), ("n1", ("n1", 9876)), ("[::1]:7", ("::1", 7)), ("[::1]", ("::1", 9876)), ("::1", ("::1", 9876)),
            (":5", ("127.0.0.1", 5)),
        ):
            self.assertEqual(nodes.parse_address(text), expected)
        self.assertEqual(nodes.parse_nodes("a:1, b:2,"), ["a:1", "b:2"])
        for bad in ("n1:0", "n1:99999", "n1:x", ","):
            with self.assertRaises(ValueError):
                nodes.parse_nodes(bad)
        for bad in ("::1:21282", "::1:9876", "a:1:2"):
            with self.assertRaisesRegex(ValueError, r"an IPv6 address is in brackets, such as \[[a:1]*\]:[0-9]*$"):
                nodes.parse_nodes(bad)


if __name__ == "__main__":
    unittest.main()
