/** The codec, also with the golden frames of edge/overhop. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { decode, encode } from "../src/codec.js";
import { CodecError } from "../src/errors.js";
import { parseJSON, writeJSON } from "../src/json.js";
import { Fields, frame, FrameReader, parseEnvelope, T, userField, userValue } from "../src/protocol.js";

const vectors = join(fileURLToPath(import.meta.url), "..", "..", "..", "..", "..", "edge", "overhop", "testdata");

/** Returns the names and bytes of the .hex files of a directory. */
function hexFiles(directory: string): Array<[string, Buffer]> {
  const files = readdirSync(join(vectors, directory)).filter((name) => name.endsWith(".hex")).sort();
  return files.map((name) => [name.slice(0, -".hex".length), Buffer.from(readFileSync(join(vectors, directory, name), "utf8").replace(/\s/g, ""), "hex")]);
}

/** Returns the content of a frame as its .json file has it. */
function content(directory: string, name: string): unknown {
  const text = readFileSync(join(vectors, directory, `${directory === "frames" ? name.replace(/-unsorted$/, "") : name}.json`), "utf8");
  return withBinary(parseJSON(text));
}

function withBinary(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(withBinary);
  }
  if (typeof value !== "object" || value === null) {
    return value;
  }
  const entries = Object.entries(value);
  if (entries.length === 1 && entries[0]![0] === "$bin") {
    return new Uint8Array(Buffer.from(String(entries[0]![1]), "hex"));
  }
  return Object.fromEntries(entries.map(([key, item]) => [key, withBinary(item)]));
}

/** Reads one frame from bytes that arrive in pieces of a size. */
function readFrame(bytes: Buffer, size: number): Uint8Array {
  const reader = new FrameReader();
  for (let at = 0; at < bytes.length; at += size) {
    assert.equal(reader.next(), undefined);
    reader.push(bytes.subarray(at, at + size));
  }
  const body = reader.next();
  assert(body !== undefined);
  assert.equal(reader.next(), undefined);
  return body;
}

test("golden frames are read, and written byte for byte", () => {
  const files = hexFiles("frames");
  assert(files.length > 70);
  for (const [name, golden] of files) {
    const message = parseEnvelope(readFrame(golden, 7));
    assert.deepEqual({ v: 2, t: message.type, rid: message.rid, p: message.fields }, content("frames", name), name);
    const written = frame(message.type, message.rid, message.fields);
    if (name.endsWith("-unsorted")) {
      assert.deepEqual(parseEnvelope(written.subarray(4)), message, name);
    } else {
      assert.equal(Buffer.from(written).toString("hex"), golden.toString("hex"), name);
    }
  }
});

test("frames in other forms are read", () => {
  const files = hexFiles("accept");
  assert(files.length > 10);
  for (const [name, golden] of files) {
    const message = parseEnvelope(readFrame(golden, golden.length));
    assert.deepEqual([message.type, message.rid], [T.QUEUE, "a"], name);
    const expected = content("accept", name) as Fields;
    assert.deepEqual(message.fields, expected["p"], name);
  }
});

test("frames that are not allowed are refused", () => {
  const files = hexFiles("reject");
  assert(files.length > 50);
  for (const [name, bytes] of files) {
    const refused = () => {
      const reader = new FrameReader();
      reader.push(bytes);
      const body = reader.next();
      if (body === undefined) {
        throw new CodecError("the frame is not complete"); // the announced length is above the limit of the node
      }
      parseEnvelope(body);
    };
    assert.throws(refused, CodecError, name);
  }
});

test("values make the round trip", () => {
  const edges = [5, 7, 8, 15, 16, 31, 32, 53].flatMap((bits) => [2 ** bits - 1, 2 ** bits, -(2 ** bits), -(2 ** bits) - 1]);
  const exact = edges.filter(Number.isSafeInteger);
  const lengths = [0, 1, 15, 16, 23, 24, 31, 32, 255, 256, 65535, 65536];
  const values: unknown[] = [
    null, true, false, ...exact, 2n ** 53n, -(2n ** 53n), 2n ** 63n - 1n, -(2n ** 63n),
    ...lengths.map((n) => "x".repeat(n)), ...lengths.map((n) => "ü".repeat(n)),
    ...lengths.map((n) => new Uint8Array(n).fill(255)), ...lengths.map((n) => new Array(n).fill(null)),
    ...[0, 1, 15, 16, 65536].map((n) => Object.fromEntries(Array.from({ length: n }, (_, i) => [`k${i}`, i]))),
    "Überweisung 😀", "\ufeffbom", { "": [{ a: new Uint8Array(0) }] },
  ];
  for (const value of values) {
    assert.deepEqual(decode(encode(value)), value);
  }
});

test("the shortest encoding is written", () => {
  const cases: Array<[unknown, string]> = [
    [127, "7f"], [128, "cc80"], [-32, "e0"], [-33, "d0df"], [65536, "ce00010000"], [-32769, "d2ffff7fff"], [-129, "d1ff7f"],
    [2n ** 63n - 1n, "cf7fffffffffffffff"], [-(2n ** 63n), "d38000000000000000"], [5n, "05"], [-0, "00"],
    [2 ** 60, "cf1000000000000000"], [[1, new Uint8Array([97])], "9201c40161"], [Buffer.from("a"), "c40161"],
    [{ b: 1, a: 2, c: undefined }, "82a16102a16201"], [undefined, "c0"], [[undefined, , 1], "93c0c001"],
    [{ "\uffff": 1, "😀": 2 }, "82a3efbfbf01a4f09f988002"], // by UTF-8, not UTF-16
    [Object.assign(Object.create(null), { a: 1 }), "81a16101"],
  ];
  for (const [value, hex] of cases) {
    assert.equal(Buffer.from(encode(value)).toString("hex"), hex);
  }
});

test("binary is copied, and a key may be called __proto__", () => {
  const bytes = encode({ a: new Uint8Array([1, 2]) });
  const decoded = decode(bytes) as { a: Uint8Array };
  bytes.fill(0);
  assert.deepEqual(decoded.a, new Uint8Array([1, 2]));
  assert.equal(decoded.a.constructor, Uint8Array);
  const pairs = decode(encode(JSON.parse('{"__proto__":{"x":1}}'))) as object;
  assert.deepEqual(Object.keys(pairs), ["__proto__"]);
  assert.equal(Object.getPrototypeOf(pairs), Object.prototype);
  assert.deepEqual(Object.keys(parseJSON('{"__proto__":{"x":1234567890123456}}') as object), ["__proto__"]);
});

test("nesting is limited to 128 levels", () => {
  for (const nest of [(value: unknown) => [value], (value: unknown) => ({ k: value })]) {
    let value: unknown = null;
    for (let i = 0; i < 128; i++) {
      value = nest(value);
    }
    assert.deepEqual(decode(encode(value)), value);
    assert.throws(() => encode(nest(value)), /too deep/);
  }
  assert.throws(() => decode(new Uint8Array(100_000).fill(0x91)), /too deep/);
});

test("what Overhop does not carry is refused", () => {
  const cases: Array<[unknown, RegExp]> = [
    [1.5, /no fractions/], [{ a: [2.5] }, /no fractions/], [NaN, /no fractions/], [2n ** 63n, /64 bits/], [-(2n ** 63n) - 1n, /64 bits/],
    [1e300, /64 bits/], ["\ud800", /lone surrogate/], [{ "a\udfff": 1 }, /lone surrogate/], [new Date(0), /a Date/], [new Map(), /a Map/],
    [() => 1, /a function/], [Symbol("s"), /a symbol/], [new (class Point {})(), /a Point/], [new Uint16Array(1), /a Uint16Array/],
    [new ArrayBuffer(1), /a ArrayBuffer/],
  ];
  for (const [value, message] of cases) {
    assert.throws(() => encode(value), message);
  }
});

test("malformed bytes are refused", () => {
  const cases: Array<[string, RegExp]> = [
    ["", /cut off/], ["c1", /reserved/], ["ca00000000", /float/], ["d40100", /extension/], ["cf8000000000000000", /64 bits/],
    ["a1ff", /UTF-8/], ["a3eda080", /UTF-8/], ["8101c0", /not text/], ["81c40161c0", /not text/], ["0101", /1 bytes follow/],
    ["a261", /cut off/], ["c405ff", /cut off/], ["cd01", /cut off/], ["92c0", /cut off/], ["ddffffffff", /cut off/], ["dbffffffff61", /cut off/],
  ];
  for (const [hex, message] of cases) {
    assert.throws(() => decode(Buffer.from(hex, "hex")), message, hex);
  }
  for (const value of [[], 1, {}, { v: 1, t: 1, rid: "a", p: {} }, { v: 2, t: true, rid: "a", p: {} }, { v: 2, t: 1, rid: "", p: {} }, { v: 2, t: 1, rid: "a", p: [] }]) {
    assert.throws(() => parseEnvelope(encode(value)), /envelope/);
  }
});

test("JSON keeps integers of any size and refuses what it would change", () => {
  const value = { price: 19.99, big: 2n ** 64n, list: [true, null, "ä\u2028", undefined], left: undefined, small: 1e-7, large: 1e21 };
  const text = writeJSON(value, 10);
  assert.equal(text, '{"big":18446744073709551616,"large":1e+21,"list":[true,null,"ä\u2028",null],"price":19.99,"small":1e-7}');
  assert.deepEqual(parseJSON(text), { price: 19.99, big: 2n ** 64n, list: [true, null, "ä\u2028", null], small: 1e-7, large: 1e21 });
  for (const same of ["9007199254740991", "-12345678901234567890", '["1234567890123456\\"",{"a":[]},{},1.5e3,12345678901234567]', " 1234567890123456 "]) {
    const parsed = parseJSON(same);
    assert.deepEqual(parsed, same.includes("-") ? -12345678901234567890n : same.includes("[") ? ['1234567890123456"', { a: [] }, {}, 1500, 12345678901234567n] : Number(same));
  }
  for (const wrong of ["", "{", "[1234567890123456,]", '{"a":1234567890123456', "01234567890123456", "1234567890123456 1", '{1234567890123456:1}', "[1234567890123456}", "-1234567890123456-"]) {
    assert.throws(() => parseJSON(wrong), CodecError, wrong);
  }
  for (const wrong of [NaN, Infinity, { a: new Uint8Array(1) }, new Date(0), ["\ud800"], [[[1]]]]) {
    assert.throws(() => writeJSON(wrong, 2), CodecError);
  }
});

test("a value with fractions or huge integers becomes JSON, others MessagePack", () => {
  assert.deepEqual(Object.keys(userField("result", { n: 2n ** 63n - 1n, b: new Uint8Array(1) }, 10)), ["result"]);
  const field = userField("result", { n: 0.5, big: -(2n ** 70n) }, 10);
  assert.deepEqual(userValue(field, "result"), { n: 0.5, big: -(2n ** 70n) });
  assert.deepEqual(userValue({ result: 1 }, "result"), 1);
  assert.throws(() => userField("result", { n: 0.5, b: new Uint8Array(1) }, 10), /no binary/);
  assert.throws(() => userField("result", { n: NaN }, 10), /NaN/);
});

test("numbers beyond the range of numbers stay what they are", () => {
  assert.deepEqual(parseJSON('{"a":[1e400,-1.5E+0400,1e308,1e-400,0.5e3,"1e400"]}'), { a: ["1e400", "-1.5E+0400", 1e308, 0, 500, "1e400"] });
});
