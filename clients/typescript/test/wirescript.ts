/**
 * Reads the conversations of edge/testdata, whose format package test/wirescript describes,
 * and makes both sides' values from them.
 */

import { randomUUID } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Fields } from "../src/protocol.js";

const conversations = join(fileURLToPath(import.meta.url), "..", "..", "..", "..", "..", "edge", "testdata", "conversations");

/** One line: a client, a verb and its arguments. A directive has no client. */
export interface Step {
  readonly line: number;
  readonly client: string;
  readonly verb: string;
  readonly args: string;
}

export interface Script {
  readonly name: string;
  readonly steps: readonly Step[];
}

const DIRECTIVES = ["config", "queue", "name", "after", "yard", "violation"];

/** Reads all conversations. */
export function loadScripts(): Script[] {
  return readdirSync(conversations).filter((name) => name.endsWith(".txt")).sort().map((file) => {
    const steps: Array<{ line: number; client: string; verb: string; args: string }> = [];
    readFileSync(join(conversations, file), "utf8").split("\n").forEach((text, i) => {
      if (/^\s*(#|$)/.test(text)) {
        return;
      }
      if (/^\s/.test(text)) {
        steps.at(-1)!.args += ` ${text.trim()}`;
        return;
      }
      const [first, ...rest] = text.split(" ");
      const [verb, ...args] = rest;
      steps.push(DIRECTIVES.includes(first!)
        ? { line: i + 1, client: "", verb: first!, args: rest.join(" ").trim() }
        : { line: i + 1, client: first!, verb: verb!, args: args.join(" ").trim() });
    });
    return { name: file.replace(/\.txt$/, ""), steps };
  });
}

/** A value that one side sends, or a pattern that the other's matches. */
type Value =
  | { readonly kind: "literal"; readonly value: unknown }
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "var"; readonly name: string }
  | { readonly kind: "any"; readonly of: string }
  | { readonly kind: "raw" }
  | { readonly kind: "array"; readonly items: readonly Value[] }
  | { readonly kind: "map"; readonly pairs: ReadonlyArray<readonly [string, Value]> };

/** A value that is not MessagePack as Overhop has it, which no client can send. */
export class NotSendable extends Error {}

/** Parses one value; the text may have nothing after it. */
export function parseValue(text: string): Value {
  let rest = text;
  const accept = (token: string): boolean => {
    rest = rest.trimStart();
    const found = rest.startsWith(token);
    rest = found ? rest.slice(token.length) : rest;
    return found;
  };
  const expect = (token: string): void => {
    if (!accept(token)) {
      throw new Error(`want ${token} before ${rest}`);
    }
  };
  const match = (pattern: RegExp): string => {
    rest = rest.trimStart();
    const found = pattern.exec(rest)?.[0] ?? "";
    rest = rest.slice(found.length);
    return found;
  };
  const quoted = (): string => JSON.parse(match(/^"(?:[^"\\]|\\.)*"/).replace(/\\x([0-9a-f]{2})/g, "\\u00$1")) as string;
  const value = (): Value => {
    if (accept("{")) {
      const pairs: Array<readonly [string, Value]> = [];
      while (!accept("}")) {
        if (!accept("...")) {
          const key = rest.trimStart().startsWith('"') ? quoted() : match(/^[\w+-]+/);
          expect(":");
          pairs.push([key, value()]);
        }
        accept(",");
      }
      return { kind: "map", pairs };
    }
    if (accept("[")) {
      const items: Value[] = [];
      while (!accept("]")) {
        if (!accept("...")) {
          items.push(value());
        }
        accept(",");
      }
      return { kind: "array", items };
    }
    if (accept("*")) {
      return { kind: "any", of: "nil" };
    }
    if (accept("$")) {
      return { kind: "var", name: match(/^\w+/) };
    }
    if (rest.trimStart().startsWith('"')) {
      return { kind: "text", text: quoted() };
    }
    const word = match(/^[\w+-]+/);
    if (accept("'")) {
      const hex = match(/^[0-9a-f ]*/).replace(/ /g, "");
      expect("'");
      return word === "h" ? { kind: "literal", value: new Uint8Array(Buffer.from(hex, "hex")) } : { kind: "raw" };
    }
    if (accept("(")) {
      const made = call(word);
      expect(")");
      return made;
    }
    return named(word);
  };
  const call = (name: string): Value => {
    switch (name) {
      case "now":
        match(/^[\w+-]*/);
        return { kind: "any", of: "time" };
      case "repeat":
      case "list": {
        const item = value();
        expect(",");
        const count = Number(match(/^\d+/));
        return name === "list" ? { kind: "array", items: new Array<Value>(count).fill(item) } : { kind: "text", text: (item as { text: string }).text.repeat(count) };
      }
      case "nest": {
        let nested: unknown = null;
        for (let n = Number(match(/^\d+/)); n > 0; n--) {
          nested = [nested];
        }
        return { kind: "literal", value: nested };
      }
      case "zeros":
        return { kind: "literal", value: new Uint8Array(Number(match(/^\d+/))) };
    }
    throw new Error(`unknown constructor ${name}()`);
  };
  const parsed = value();
  if (rest.trim() !== "") {
    throw new Error(`${rest} follows the value`);
  }
  return parsed;
}

function named(word: string): Value {
  if (["uuid", "time", "bool", "int", "str", "bin", "array", "map"].includes(word)) {
    return { kind: "any", of: word };
  }
  const literals: Record<string, unknown> = { nil: null, true: true, false: false };
  if (word in literals) {
    return { kind: "literal", value: literals[word] };
  }
  const n = BigInt(word);
  return { kind: "literal", value: Number.isSafeInteger(Number(n)) ? Number(n) : n };
}

/** Variables of a conversation. */
export class Variables {
  readonly #values = new Map<string, unknown>();

  set(name: string, value: unknown): void {
    this.#values.set(name, value);
  }

  /** Makes a value; a pattern becomes any value that it matches, and a variable without value gets one. */
  make(value: Value, key = ""): unknown {
    switch (value.kind) {
      case "literal":
        return value.value;
      case "text":
        return value.text.replace(/\$\{(\w+)\}/g, (_, name: string) => String(this.#values.get(name) ?? randomUUID()));
      case "var":
        if (!this.#values.has(value.name)) {
          this.#values.set(value.name, key === "tok" ? new Uint8Array(Buffer.from(randomUUID().replace(/-/g, ""), "hex")) : key === "jid" ? `q:${randomUUID()}` : randomUUID());
        }
        return this.#values.get(value.name);
      case "any":
        return example(value.of);
      case "raw":
        throw new NotSendable();
      case "array":
        return value.items.map((item) => this.make(item));
      case "map":
        return Object.fromEntries(value.pairs.map(([name, item]) => [name, this.make(item, name)]));
    }
  }

  fields(text: string): Fields {
    return this.make(parseValue(text || "{}")) as Fields;
  }
}

function example(kind: string): unknown {
  const examples: Record<string, unknown> = {
    uuid: randomUUID(), time: "2026-01-01T00:00:00.123456789Z", bool: true, int: 2 ** 40, str: "täxt", bin: new Uint8Array([0, 255]), array: [1], map: { a: 1 }, nil: null,
  };
  return examples[kind];
}
