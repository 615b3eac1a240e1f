/** A node for tests, which answers as the test scripts it, over a real socket. */

import * as net from "node:net";
import * as tls from "node:tls";
import type { TestContext } from "node:test";
import assert from "node:assert/strict";
import { Fields, frame, FrameReader, Message, parseEnvelope, T } from "../src/protocol.js";

/** Timeout of every wait in milliseconds, far more than any should take. */
export const PATIENCE = 10_000;

export const SID = "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d";

export interface FakeOptions {
  /** For TLS: key and cert. */
  tls?: object;
  /** Refuses clients that have another one. */
  token?: string;
  /** Those of HI; default: what the client names. */
  caps?: string[];
  maxFrame?: number;
}

const names = new Map(Object.entries(T).map(([name, type]) => [type as number, name]));

/** Settles as the promise does, and rejects after `patience` milliseconds. */
export async function soon<V>(promise: Promise<V>, what = "what the test waits for", patience = PATIENCE): Promise<V> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => (timer = setTimeout(() => reject(new Error(`${what} has not happened in time`)), patience)));
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** A value that arrives once, and can be awaited before and after. */
export class Gate<V = void> {
  readonly opened: Promise<V>;
  open!: (value: V) => void;

  constructor() {
    this.opened = new Promise((resolve) => (this.open = resolve));
  }
}

/** Values in the order in which they arrive. */
export class Inbox<V> {
  readonly #values: V[] = [];
  readonly #takers: Array<(value: V) => void> = [];

  put(value: V): void {
    const taker = this.#takers.shift();
    if (taker === undefined) {
      this.#values.push(value);
    } else {
      taker(value);
    }
  }

  take(what?: string): Promise<V> {
    const value = this.#values.shift();
    return value !== undefined ? Promise.resolve(value) : soon(new Promise((resolve) => this.#takers.push(resolve)), what);
  }
}

/** A listener on loopback that registers clients and passes their connections to the test. */
export class FakeNode {
  readonly #connections = new Set<NodeConnection>();
  readonly #registered = new Inbox<NodeConnection>();
  #closing: Promise<void> | undefined;

  private constructor(readonly address: string, private readonly server: net.Server) {}

  static async start(t: TestContext, options: FakeOptions = {}): Promise<FakeNode> {
    let node: FakeNode;
    const accept = (socket: net.Socket) => {
      const connection = new NodeConnection(socket);
      node.#connections.add(connection);
      connection.register(options).then((isIn) => isIn && node.#registered.put(connection), () => undefined);
    };
    const server = options.tls ? tls.createServer(options.tls, accept) : net.createServer(accept);
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    node = new FakeNode(`127.0.0.1:${server.address().port}`, server);
    t.after(() => node.close());
    return node;
  }

  /** Returns the next connection that has registered. */
  accept(): Promise<NodeConnection> {
    return this.#registered.take("a connection");
  }

  close(): Promise<void> {
    this.#connections.forEach((connection) => connection.close());
    return (this.#closing ??= new Promise((resolve) => this.server.close(resolve)));
  }
}

/** The node's end of one connection. */
export class NodeConnection {
  /** The fields of HELLO. */
  hello: Fields = {};
  /** The number of messages that have arrived. */
  received = 0;
  readonly #messages = new Inbox<Message | undefined>(); // undefined: the end
  readonly #closed = new Gate();

  constructor(readonly socket: net.Socket) {
    const reader = new FrameReader();
    socket.on("data", (data) => {
      reader.push(data);
      try {
        for (let body = reader.next(); body !== undefined; body = reader.next()) {
          this.received++;
          this.#messages.put(parseEnvelope(body));
        }
      } catch {
        socket.destroy(); // as a node does, without an answer
      }
    });
    socket.setNoDelay(true).on("error", () => undefined);
    socket.on("end", () => socket.destroy());
    socket.on("close", () => {
      this.#closed.open();
      this.#messages.put({ type: -1, rid: "", fields: {} });
    });
  }

  /** Resolves once the client has closed the connection. */
  get closed(): Promise<void> {
    return soon(this.#closed.opened, "the end of the connection");
  }

  /** Answers HELLO and REGISTER, and reports whether the client's token was right. */
  async register(options: FakeOptions): Promise<boolean> {
    const hello = await this.expect(T.HELLO);
    this.hello = hello.fields;
    const caps = options.caps ?? hello.fields["caps"];
    this.send(T.HI, hello.rid, { ext: ["delivery/1"], caps, node: "fake", max_envelope_size_bytes: options.maxFrame ?? 8 << 20 });
    const register = await this.expect(T.REGISTER);
    if (options.token !== undefined && hello.fields["token"] !== options.token) {
      this.refuse(register.rid, "UNAUTHORIZED");
      this.close();
      return false;
    }
    this.send(T.OK, register.rid, { wid: "0190a5b2-0000-4000-8000-000000000000" });
    return true;
  }

  /** Returns the next message; the type is -1 at the end of the connection. */
  read(): Promise<Message> {
    return this.#messages.take("a message from the client") as Promise<Message>;
  }

  /** Returns the next request, which must have the type; PINGs and, unless it is about queues, BEATs are answered and skipped. */
  async expect(type: number): Promise<Message> {
    for (const end = Date.now() + PATIENCE; ; ) {
      const message = await this.read();
      assert(Date.now() < end, `no ${names.get(type)} has come in time`);
      if (message.type === T.PING) {
        this.send(T.PONG, message.rid, { server_time: "2026-01-01T00:00:00Z" });
      } else if (message.type === T.BEAT && [T.ACK, T.LOG, T.PROGRESS, T.DONE, T.FAIL, T.CREDIT].includes(type as 44)) {
        this.send(T.OK, message.rid, allConfirmed(message.fields));
      } else {
        assert.equal(names.get(message.type) ?? message.type, names.get(type), `received ${JSON.stringify(message.fields, jsonable)}`);
        return message;
      }
    }
  }

  /** Answers the next request, which must have the type, and returns its fields. */
  async answer(type: number, fields: Fields = {}): Promise<Fields> {
    const message = await this.expect(type);
    this.send(T.OK, message.rid, fields);
    return message.fields;
  }

  /** Refuses the next request, which must have the type, and returns its fields. */
  async refuseNext(type: number, code: string, details: Fields = {}): Promise<Fields> {
    const message = await this.expect(type);
    this.refuse(message.rid, code, details);
    return message.fields;
  }

  /** Answers all messages up to the next one of a type, and returns them. */
  async answerUntil(type: number): Promise<Message[]> {
    const messages: Message[] = [];
    const end = Date.now() + PATIENCE;
    while (messages.at(-1)?.type !== type) {
      const message = await this.read();
      assert(Date.now() < end, `no ${names.get(type)} has come in time`);
      assert.notEqual(message.type, -1, "the connection has ended");
      this.send(message.type === T.PING ? T.PONG : T.OK, message.rid, message.type === T.BEAT ? allConfirmed(message.fields) : {});
      messages.push(message);
    }
    return messages;
  }

  send(type: number, rid: string, fields: Fields): void {
    this.socket.write(frame(type, rid, fields));
  }

  ok(message: Message, fields: Fields = {}): void {
    this.send(T.OK, message.rid, fields);
  }

  refuse(rid: string, code: string, details: Fields = {}): void {
    this.send(T.ERR, rid, { code, msg: "no", details });
  }

  push(type: number, fields: Fields): void {
    this.send(type, "0", fields);
  }

  /** Assigns job number n, whose payload is n too, and returns its token. */
  quest(n: number, fields: Fields = {}): Uint8Array {
    this.push(T.QUEST, {
      jid: jid(n), q: "q", sid: SID, tok: token(n), fence: n, attempt: 1, max_attempts: null, job_payload: n,
      beat_ms: 200, lease_ms: 6000, deadline: null, redelivered: false, credits: 0, ...fields,
    });
    return token(n);
  }

  close(): void {
    this.socket.destroy();
  }
}

export function jid(n: number): string {
  return `q:0190a5b2-0000-7000-8000-${String(n).padStart(12, "0")}`;
}

export function token(n: number): Uint8Array {
  const bytes = new Uint8Array(16);
  bytes[15] = n;
  return bytes;
}

function allConfirmed(beat: Fields): Fields {
  return { jobs: (beat["jobs"] as Fields[]).map((job) => ({ jid: job["jid"], ok: true })) };
}

export function jsonable(_: string, value: unknown): unknown {
  return typeof value === "bigint" ? String(value) : value instanceof Uint8Array ? Buffer.from(value).toString("hex") : value;
}
