/**
 * MessagePack as Overhop uses it: nil, bool, integers of signed 64 bits, text, binary,
 * arrays, and maps with text keys. Floats and extension types are refused.
 */

import { CodecError } from "./errors.js";

/** Nesting of arrays and maps that a frame may have, its own two maps included. */
export const MAX_DEPTH = 128;

/** Nesting that a value of the user may have, such as a payload or a result. */
export const MAX_VALUE_DEPTH = 120;

/** A value that is already encoded; the encoder copies it unchanged. */
export class Encoded {
  constructor(readonly bytes: Uint8Array) {}
}

/** A number that Overhop's MessagePack does not carry, and JSON does. */
export class OnlyJSON extends CodecError {}

/**
 * Encodes a value with sorted keys and the shortest lengths.
 *
 * `levels` is how deep arrays and objects may be nested. Throws a CodecError if the value
 * is nested deeper or has a type that Overhop does not carry.
 */
export function encode(value: unknown, levels = MAX_DEPTH): Uint8Array {
  const out = new Writer();
  out.value(value, levels);
  return out.bytes();
}

/**
 * Decodes exactly one value. Integers outside of the safe range of a number become bigints,
 * and the last value of a duplicate key counts.
 *
 * Throws a CodecError if the data is cut off, is followed by more bytes, or holds a type
 * that Overhop does not allow.
 */
export function decode(data: Uint8Array, levels = MAX_DEPTH): unknown {
  const reader = new Reader(data);
  const value = reader.value(levels);
  if (reader.rest > 0) {
    throw new CodecError(`${reader.rest} bytes follow the value`);
  }
  return value;
}

/** Returns what a value is called in an error, such as "a Date". */
export function describe(value: unknown): string {
  if (value === null || typeof value !== "object") {
    return value === undefined ? "undefined" : `a ${typeof value}`;
  }
  const name = (value as { constructor?: { name?: unknown } }).constructor?.name;
  return typeof name === "string" && name !== "" ? `a ${name}` : "an object";
}

/** Reports whether a value is binary, also if it was made in another realm. */
export function isBinary(value: unknown): value is Uint8Array {
  return ArrayBuffer.isView(value) && (value as unknown as Record<symbol, unknown>)[Symbol.toStringTag] === "Uint8Array";
}

/** Reports whether a value is an object literal, not an instance of a class. */
export function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value) || ArrayBuffer.isView(value)) {
    return false;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

/** Sets a property, also one called `__proto__`. */
export function setOwn(target: Record<string, unknown>, key: string, value: unknown): void {
  if (key === "__proto__") {
    Object.defineProperty(target, key, { value, writable: true, enumerable: true, configurable: true });
  } else {
    target[key] = value;
  }
}

/** Returns the keys of an object whose value is not undefined, in the order of their UTF-8. */
export function presentKeys(value: Record<string, unknown>): string[] {
  const keys = Object.keys(value).filter((key) => value[key] !== undefined);
  // The order of UTF-16 differs from that of UTF-8 from the surrogates on.
  return keys.some((key) => /[\ud800-\uffff]/.test(key)) ? keys.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b))) : keys.sort();
}

const LONE_SURROGATE = /\p{Surrogate}/u;

/** Throws a CodecError if a text has a lone surrogate, which UTF-8 cannot encode. */
export function checkText(text: string): void {
  if (LONE_SURROGATE.test(text)) {
    throw new CodecError("text is not valid Unicode: it has a lone surrogate");
  }
}

const INT64_MIN = -(2n ** 63n);
const INT64_MAX = 2n ** 63n - 1n;

class Writer {
  #buffer = Buffer.allocUnsafe(256);
  #length = 0;

  bytes(): Uint8Array {
    return this.#buffer.subarray(0, this.#length);
  }

  /** Makes room for n bytes and returns the offset at which they start. */
  #reserve(n: number): number {
    const start = this.#length;
    this.#length += n;
    if (this.#length > this.#buffer.length) {
      const larger = Buffer.allocUnsafe(Math.max(2 * this.#buffer.length, this.#length));
      this.#buffer.copy(larger, 0, 0, start);
      this.#buffer = larger;
    }
    return start;
  }

  // #reserve may replace #buffer, so it comes first in each of these.

  #byte(b: number): void {
    const start = this.#reserve(1);
    this.#buffer[start] = b;
  }

  #uint(n: number, size: number): void {
    const start = this.#reserve(size);
    this.#buffer.writeUIntBE(n, start, size);
  }

  #int(n: number, size: number): void {
    const start = this.#reserve(size);
    this.#buffer.writeIntBE(n, start, size);
  }

  #copy(bytes: Uint8Array): void {
    const start = this.#reserve(bytes.length);
    this.#buffer.set(bytes, start);
  }

  value(value: unknown, levels: number): void {
    switch (typeof value) {
      case "undefined":
        return this.#byte(0xc0);
      case "boolean":
        return this.#byte(value ? 0xc3 : 0xc2);
      case "number":
        return this.#number(value);
      case "bigint":
        return this.#bigint(value);
      case "string":
        return this.#text(value);
      case "object":
        return this.#object(value, levels);
    }
    throw new CodecError(`Overhop does not carry ${describe(value)}: send null, a boolean, number, bigint, string, Uint8Array, array or plain object`);
  }

  #object(value: object | null, levels: number): void {
    if (value === null) {
      return this.#byte(0xc0);
    }
    if (value instanceof Encoded) {
      return this.#copy(value.bytes);
    }
    if (isBinary(value)) {
      this.#head(value.length, 0, 0, 0xc4, 0xc5, 0xc6);
      return this.#copy(value);
    }
    const isArray = Array.isArray(value);
    if (!isArray && !isPlainObject(value)) {
      throw new CodecError(`Overhop does not carry ${describe(value)}: convert it to a plain object, a string, or a Uint8Array`);
    }
    if (levels === 0) {
      throw new CodecError(`value is nested too deep: at most ${MAX_VALUE_DEPTH}`);
    }
    if (isArray) {
      const { length } = value; // a getter of an item may change it
      this.#head(length, 0x90, 16, 0, 0xdc, 0xdd);
      for (let i = 0; i < length; i++) { // unlike forEach, this visits holes, too
        this.value(value[i], levels - 1);
      }
      return;
    }
    const keys = presentKeys(value);
    this.#head(keys.length, 0x80, 16, 0, 0xde, 0xdf);
    for (const key of keys) {
      this.#text(key);
      this.value(value[key], levels - 1);
    }
  }

  #text(text: string): void {
    const length = Buffer.byteLength(text);
    if (length !== text.length) { // it is not ASCII
      checkText(text);
    }
    this.#head(length, 0xa0, 32, 0xd9, 0xda, 0xdb);
    const start = this.#reserve(length);
    this.#buffer.write(text, start, length, "utf8");
  }

  /**
   * Appends the shortest header for a length: within the first byte below `fixedLimit`, or
   * else after one of the codes in 8, 16 or 32 bits. A code of 0 means that there is none.
   */
  #head(length: number, fixed: number, fixedLimit: number, code8: number, code16: number, code32: number): void {
    if (length < fixedLimit) {
      this.#byte(fixed | length);
    } else if (code8 !== 0 && length < 1 << 8) {
      this.#byte(code8);
      this.#byte(length);
    } else if (length < 1 << 16) {
      this.#byte(code16);
      this.#uint(length, 2);
    } else if (length < 2 ** 32) {
      this.#byte(code32);
      this.#uint(length, 4);
    } else {
      throw new CodecError("value is too long");
    }
  }

  #number(n: number): void {
    if (!Number.isInteger(n)) {
      throw new OnlyJSON(`Overhop's MessagePack has no fractions such as ${n}`);
    }
    if (n >= -32 && n < 128) {
      this.#byte(n & 0xff);
    } else if (n >= 0 && n < 2 ** 32) {
      if (n < 1 << 8) {
        this.#byte(0xcc);
        this.#byte(n);
      } else if (n < 1 << 16) {
        this.#byte(0xcd);
        this.#uint(n, 2);
      } else {
        this.#byte(0xce);
        this.#uint(n, 4);
      }
    } else if (n < 0 && n >= -(2 ** 31)) {
      if (n >= -(1 << 7)) {
        this.#byte(0xd0);
        this.#byte(n & 0xff);
      } else if (n >= -(1 << 15)) {
        this.#byte(0xd1);
        this.#int(n, 2);
      } else {
        this.#byte(0xd2);
        this.#int(n, 4);
      }
    } else {
      this.#wide(BigInt(n));
    }
  }

  #bigint(n: bigint): void {
    if (n >= Number.MIN_SAFE_INTEGER && n <= Number.MAX_SAFE_INTEGER) {
      this.#number(Number(n));
    } else {
      this.#wide(n);
    }
  }

  /** Appends an integer that needs 64 bits. */
  #wide(n: bigint): void {
    if (n < INT64_MIN || n > INT64_MAX) {
      throw new OnlyJSON(`integer ${n} does not fit into signed 64 bits`);
    }
    this.#byte(n < 0n ? 0xd3 : 0xcf);
    const start = this.#reserve(8);
    this.#buffer.writeBigInt64BE(n, start);
  }
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

class Reader {
  readonly #data: Buffer;
  #offset = 0;

  constructor(data: Uint8Array) {
    this.#data = Buffer.from(data.buffer, data.byteOffset, data.length);
  }

  /** The number of bytes that have not been read. */
  get rest(): number {
    return this.#data.length - this.#offset;
  }

  /** Skips n bytes and returns the offset at which they start. */
  #take(n: number): number {
    if (n > this.rest) {
      throw new CodecError("value is cut off");
    }
    const start = this.#offset;
    this.#offset += n;
    return start;
  }

  value(levels: number): unknown {
    const first = this.#byte();
    if (first < 0x80) {
      return first;
    }
    if (first >= 0xe0) {
      return first - 0x100;
    }
    if (first < 0x90) {
      return this.#map(first & 0x0f, levels);
    }
    if (first < 0xa0) {
      return this.#array(first & 0x0f, levels);
    }
    if (first < 0xc0) {
      return this.#text(first & 0x1f);
    }
    switch (first) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4: case 0xc5: case 0xc6:
        return this.#binary(this.#uint(1 << (first - 0xc4)));
      case 0xcc: case 0xcd: case 0xce:
        return this.#uint(1 << (first - 0xcc));
      case 0xcf:
        return this.#uint64();
      case 0xd0:
        return this.#data.readInt8(this.#take(1));
      case 0xd1:
        return this.#data.readInt16BE(this.#take(2));
      case 0xd2:
        return this.#data.readInt32BE(this.#take(4));
      case 0xd3:
        return toNumber(this.#data.readBigInt64BE(this.#take(8)));
      case 0xd9: case 0xda: case 0xdb:
        return this.#text(this.#uint(1 << (first - 0xd9)));
      case 0xdc: case 0xdd:
        return this.#array(this.#uint(2 << (first - 0xdc)), levels);
      case 0xde: case 0xdf:
        return this.#map(this.#uint(2 << (first - 0xde)), levels);
    }
    const kind = first === 0xca || first === 0xcb ? "float" : first === 0xc1 ? "reserved byte" : "extension type";
    throw new CodecError(`${kind} 0x${first.toString(16)} is not allowed in Overhop`);
  }

  #byte(): number {
    return this.#data.readUInt8(this.#take(1));
  }

  #uint(size: number): number {
    return this.#data.readUIntBE(this.#take(size), size);
  }

  #uint64(): number | bigint {
    const n = this.#data.readBigUInt64BE(this.#take(8));
    if (n > INT64_MAX) {
      throw new CodecError("integer does not fit into signed 64 bits");
    }
    return toNumber(n);
  }

  #text(length: number): string {
    const start = this.#take(length);
    if (length < 24) { // keys and short texts, mostly ASCII: faster without the decoder
      let text = "";
      for (let i = start; i < start + length; i++) {
        const unit = this.#data[i] as number;
        if (unit > 0x7f) {
          return this.#decodeText(start, length);
        }
        text += String.fromCharCode(unit);
      }
      return text;
    }
    return this.#decodeText(start, length);
  }

  #decodeText(start: number, length: number): string {
    try {
      return utf8.decode(this.#data.subarray(start, start + length));
    } catch {
      throw new CodecError("text is not UTF-8");
    }
  }

  /** Returns a copy, which does not keep the whole frame in memory. */
  #binary(length: number): Uint8Array {
    const start = this.#take(length);
    return new Uint8Array(this.#data.subarray(start, start + length));
  }

  #array(length: number, levels: number): unknown[] {
    if (levels === 0) {
      throw new CodecError("value is nested too deep");
    }
    const items: unknown[] = []; // not preallocated: the announced length may be false
    for (let i = 0; i < length; i++) {
      items.push(this.value(levels - 1));
    }
    return items;
  }

  #map(length: number, levels: number): Record<string, unknown> {
    if (levels === 0) {
      throw new CodecError("value is nested too deep");
    }
    const pairs: Record<string, unknown> = {};
    for (let i = 0; i < length; i++) {
      const key = this.#key();
      setOwn(pairs, key, this.value(levels - 1));
    }
    return pairs;
  }

  #key(): string {
    const first = this.#byte();
    if (first >= 0xa0 && first < 0xc0) {
      return this.#text(first & 0x1f);
    }
    if (first >= 0xd9 && first <= 0xdb) {
      return this.#text(this.#uint(1 << (first - 0xd9)));
    }
    throw new CodecError("key of a map is not text");
  }
}

/** Returns an integer as a number if that is exact, else as it is. */
function toNumber(n: bigint): number | bigint {
  return n >= Number.MIN_SAFE_INTEGER && n <= Number.MAX_SAFE_INTEGER ? Number(n) : n;
}
