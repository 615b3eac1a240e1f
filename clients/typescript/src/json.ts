/** JSON that keeps integers of any size: as bigints where a number would change them. */

import { checkText, describe, isBinary, isPlainObject, MAX_VALUE_DEPTH, presentKeys, setOwn } from "./codec.js";
import { CodecError } from "./errors.js";

/**
 * Returns the JSON of a value. `levels` is how deep arrays and objects may be nested.
 *
 * Unlike JSON.stringify it writes bigints as numbers, and throws a CodecError instead of
 * changing a value silently.
 */
export function writeJSON(value: unknown, levels: number): string {
  switch (typeof value) {
    case "undefined":
      return "null";
    case "boolean":
    case "bigint":
      return String(value);
    case "number":
      if (!Number.isFinite(value)) {
        throw new CodecError(`JSON has no ${value}`);
      }
      return String(value);
    case "string":
      checkText(value);
      return JSON.stringify(value);
  }
  if (value === null) {
    return "null";
  }
  if (isBinary(value)) {
    throw new CodecError("a value with fractions or integers beyond 64 bits is sent as JSON, which has no binary: send one of them as text");
  }
  const isArray = Array.isArray(value);
  if (!isArray && !isPlainObject(value)) {
    throw new CodecError(`JSON has no ${describe(value).replace(/^an? /, "")}: convert it to a plain object or a string`);
  }
  if (levels === 0) {
    throw new CodecError(`value is nested too deep: at most ${MAX_VALUE_DEPTH}`);
  }
  if (isArray) {
    return `[${Array.from(value, (item) => writeJSON(item, levels - 1)).join(",")}]`;
  }
  return `{${presentKeys(value).map((key) => `${writeJSON(key, 0)}:${writeJSON(value[key], levels - 1)}`).join(",")}}`;
}

/**
 * Parses JSON. A number without fraction and exponent that a number cannot hold exactly
 * becomes a bigint, and one beyond the range of numbers, such as 1e400, its text. Throws a
 * CodecError if the text is not JSON.
 */
export function parseJSON(text: string): unknown {
  try {
    return /\d{16}|\d[eE]\+?0*\d{3}/.test(text) ? new Parser(text).whole() : JSON.parse(text);
  } catch (err) {
    throw err instanceof CodecError ? err : new CodecError(`invalid JSON: ${(err as Error).message}`);
  }
}

const TOKEN = /[ \t\n\r]*(?:([{}[\]:,]|true|false|null)|("(?:[^"\\]|\\.)*")|(-?\d[\d.eE+-]*))/y;
const MAX_JSON_DEPTH = 1000;

class Parser {
  readonly #text: string;
  #offset = 0;
  #token = "";

  constructor(text: string) {
    this.#text = text;
  }

  whole(): unknown {
    this.#next();
    const value = this.#value(MAX_JSON_DEPTH);
    if (this.#text.slice(this.#offset).trim() !== "") {
      throw this.#unexpected();
    }
    return value;
  }

  #unexpected(): CodecError {
    return new CodecError(`invalid JSON at offset ${this.#offset}`);
  }

  /** Reads the next token. */
  #next(): string {
    TOKEN.lastIndex = this.#offset;
    const match = TOKEN.exec(this.#text);
    if (match === null) {
      throw this.#unexpected();
    }
    this.#offset = TOKEN.lastIndex;
    return (this.#token = match[1] ?? match[2] ?? match[3] ?? "");
  }

  /** Parses the value that begins with the current token. */
  #value(levels: number): unknown {
    if (levels === 0) {
      throw new CodecError("JSON is nested too deep");
    }
    switch (this.#token) {
      case "{":
        return this.#object(levels);
      case "[":
        return this.#array(levels);
    }
    if (/^-?\d+$/.test(this.#token)) {
      const n = JSON.parse(this.#token) as number; // refuses leading zeros
      return Number.isSafeInteger(n) ? n : BigInt(this.#token);
    }
    const value: unknown = JSON.parse(this.#token);
    return value === Infinity || value === -Infinity ? this.#token : value;
  }

  #object(levels: number): unknown {
    const object: Record<string, unknown> = {};
    if (this.#next() === "}") {
      return object;
    }
    for (;;) {
      const key: unknown = this.#token.startsWith('"') ? JSON.parse(this.#token) : undefined;
      if (typeof key !== "string" || this.#next() !== ":") {
        throw this.#unexpected();
      }
      this.#next();
      setOwn(object, key, this.#value(levels - 1));
      if (this.#next() === "}") {
        return object;
      }
      this.#comma();
    }
  }

  #array(levels: number): unknown {
    const items: unknown[] = [];
    if (this.#next() === "]") {
      return items;
    }
    for (;;) {
      items.push(this.#value(levels - 1));
      if (this.#next() === "]") {
        return items;
      }
      this.#comma();
    }
  }

  /** Skips the current token, which must be a comma. */
  #comma(): void {
    if (this.#token !== ",") {
      throw this.#unexpected();
    }
    this.#next();
  }
}
