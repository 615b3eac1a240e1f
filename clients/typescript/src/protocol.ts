/** Messages of the Overhop protocol, version 2, with the extension delivery/1. */

import { decode, encode, Encoded, isPlainObject, OnlyJSON } from "./codec.js";
import { CodecError } from "./errors.js";
import { parseJSON, writeJSON } from "./json.js";

/** Message types by name: requests of a client, answers of a node, pushes of a node. */
export const T = {
  HELLO: 1, REGISTER: 2, PING: 3, QUEUE: 4, LSQUEUE: 5, SUBSCRIBE: 6, UNSUBSCRIBE: 7, CREDIT: 8, ADDQUEUE: 9,
  STATUS: 10, RMQUEUE: 11, PAUSE: 12, RESUME: 13, ENQUEUE: 14, JOB: 15, RMJOB: 16, LSJOB: 17, QSTATS: 18,
  ACK: 40, NACK: 41, BEAT: 42, PROGRESS: 43, LOG: 44, DONE: 45, FAIL: 46, AWAIT: 47, GOODBYE: 48, CANCEL: 49,
  RETRYJOB: 50, CLRQUEUE: 51, OBLITERATE: 52, SETQUEUE: 53, SETJOB: 54, CONTENT: 55, API: 56,
  OK: 101, ERR: 102, HI: 103, IDENT: 104, PONG: 105,
  QUEST: 140, RECALL: 141, CREDITS: 142, DRAIN: 143, BYE: 144, JOBEND: 145,
} as const;

/** The extension of the protocol that delivers jobs under leases. */
export const DELIVERY = "delivery/1";

/** What a client and a node may both have, beyond the extension. */
export type Capability = "json" | "content" | "api" | "snooze";

export const CAPABILITIES: readonly Capability[] = ["json", "content", "api", "snooze"];

/**
 * Sent in HELLO after the capabilities: an HTTP server reads a HELLO as the beginning of a request,
 * and this as its end, and answers at once.
 */
export const END_OF_HTTP = "\r\n\r\n";

/** Thrown if the peer does not speak Overhop: the address of the node names another port. */
export class OtherPort extends CodecError {}

const OTHER_PORTS: Readonly<Record<number, string>> = {
  0x48545450: "HTTP, as http.listen of a node does, 4280 by default",
  0x494e464f: "NATS, as nats.listen of a node does, 4222 by default",
  0x5353482d: "SSH",
};

/** The request id of a push, which answers no request. */
export const PUSH_RID = "0";

/** The largest frame of a node that announces no limit, in bytes. */
export const DEFAULT_MAX_FRAME = 8 << 20;

/** The largest frame of any node, in bytes. */
const MAX_INCOMING_FRAME = 32 << 20;

/** The keys of a message. */
export type Fields = Record<string, unknown>;

export interface Message {
  readonly type: number;
  readonly rid: string;
  readonly fields: Fields;
}

/** Returns a whole frame: four bytes of length, then the envelope. */
export function frame(type: number, rid: string, fields: Fields | Encoded): Uint8Array {
  const body = encode({ v: 2, t: type, rid, p: fields });
  const whole = Buffer.allocUnsafe(4 + body.length);
  whole.writeUInt32BE(body.length, 0);
  whole.set(body, 4);
  return whole;
}

/** Parses a frame without its length. Throws a CodecError if it is not an envelope. */
export function parseEnvelope(body: Uint8Array): Message {
  const envelope = decode(body);
  if (!isPlainObject(envelope) || envelope["v"] !== 2) {
    throw new CodecError("not an envelope: it must be a map with v = 2");
  }
  const { t, rid, p } = envelope;
  // An integer that a number cannot hold is no known type, but is not malformed.
  if ((typeof t !== "number" && typeof t !== "bigint") || typeof rid !== "string" || rid === "" || !isPlainObject(p)) {
    throw new CodecError("not an envelope: it must have t (integer), rid (text, not empty) and p (map)");
  }
  return { type: Number(t), rid, fields: p };
}

/** Splits received bytes into frames. */
export class FrameReader {
  #chunks: Uint8Array[] = [];
  #length = 0;

  push(chunk: Uint8Array): void {
    this.#chunks.push(chunk);
    this.#length += chunk.length;
  }

  /** Returns the payload of the next whole frame, or undefined. Throws a CodecError if its length is not allowed. */
  next(): Uint8Array | undefined {
    if (this.#length < 4) {
      return undefined;
    }
    const first = this.#chunks[0] as Uint8Array;
    if (first.length < 4) {
      this.#join();
      return this.next();
    }
    const size = first[0]! * 2 ** 24 + ((first[1]! << 16) | (first[2]! << 8) | first[3]!);
    if (size === 0 || size > MAX_INCOMING_FRAME) {
      const other = OTHER_PORTS[size];
      if (other !== undefined) {
        throw new OtherPort(`its port speaks ${other}: give the address of the worker port, server.port, 9876 by default`);
      }
      throw new CodecError(`announced a frame of ${size} bytes`);
    }
    if (this.#length < 4 + size) {
      return undefined;
    }
    if (first.length < 4 + size) {
      this.#join();
      return this.next();
    }
    this.#chunks[0] = first.subarray(4 + size);
    this.#length -= 4 + size;
    if (first.length === 4 + size) {
      this.#chunks.shift();
    }
    return first.subarray(4, 4 + size);
  }

  #join(): void {
    this.#chunks = [Buffer.concat(this.#chunks)];
  }
}

/**
 * Returns the field of a message that holds a value of the user: as MessagePack, or, if it
 * has a number that only JSON carries, as JSON under the name with "_json".
 *
 * `levels` is how deep the value may be nested. Throws a CodecError if neither can carry it.
 */
export function userField(name: string, value: unknown, levels: number): Fields {
  try {
    return { [name]: new Encoded(encode(value, levels)) };
  } catch (err) {
    if (!(err instanceof OnlyJSON)) {
      throw err;
    }
    return { [`${name}_json`]: Buffer.from(writeJSON(value, levels)) };
  }
}

/** Reports whether a message has values as JSON, which a node of an older release does not take. */
export function hasJSON(fields: Fields): boolean {
  return Object.keys(fields).some((key) => key.endsWith("_json"));
}

/** Returns the value of the user under a name in a message, in whichever form it was sent. */
export function userValue(fields: Fields, name: string): unknown {
  const json = fields[`${name}_json`];
  return json instanceof Uint8Array ? parseJSON(text(json)) : fields[name];
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Decodes UTF-8. Throws a CodecError if it is malformed. */
export function text(bytes: Uint8Array): string {
  try {
    return utf8.decode(bytes);
  } catch {
    throw new CodecError("text is not UTF-8");
  }
}

/** Returns a map in a message, or an empty one for anything else. */
export function mapOf(value: unknown): Fields {
  return isPlainObject(value) ? value : {};
}

/** Returns the texts in an array of a message, none for anything else. */
export function textsOf(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((item): item is string => typeof item === "string") : [];
}

/** Returns an integer of a message as a number, and another value as a default. */
export function intOf(value: unknown, otherwise = 0): number {
  return typeof value === "number" || typeof value === "bigint" ? Number(value) : otherwise;
}

/** Parses a time in a message, with milliseconds. Returns undefined for nil, a missing or an invalid one. */
export function timeOf(value: unknown): Date | undefined {
  const time = new Date(typeof value === "string" ? value : NaN);
  return Number.isNaN(time.getTime()) ? undefined : time;
}

/** Sends a CONTENT and returns the fields of its answer. */
export type ReadPart = (request: Fields) => Promise<Fields>;

/** Reads a value of a job in parts: its payload or its result, of any size. */
export async function readContent(read: ReadPart, jid: string, value: "payload" | "result"): Promise<unknown> {
  const parts: Uint8Array[] = [];
  let offset = 0;
  let version: unknown;
  for (;;) {
    const part = await read({ jid, value, offset });
    const data = part["data"];
    if (!(data instanceof Uint8Array) || part["version"] !== (version ?? part["version"])) {
      throw new CodecError(`the ${value} of job ${jid} has changed while it was read`);
    }
    version = part["version"];
    parts.push(data);
    offset += data.length;
    const size = intOf(part["size"]);
    if (offset < size && data.length > 0) {
      continue;
    }
    if (offset !== size) {
      throw new CodecError(`the ${value} of job ${jid} has ${size} bytes, the node sent ${offset}`);
    }
    const whole = Buffer.concat(parts);
    return part["encoding"] === "json" ? parseJSON(text(whole)) : decode(whole);
  }
}
