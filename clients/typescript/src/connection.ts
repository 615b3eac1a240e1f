/** A connection to one node: requests are pipelined, pushes go to a listener. */

import * as net from "node:net";
import { Encoded } from "./codec.js";
import { CodecError, ConnectionLost, NotSupported, overhopError, OverhopError } from "./errors.js";
import {
  CAPABILITIES, Capability, DEFAULT_MAX_FRAME, DELIVERY, END_OF_HTTP, Fields, frame, FrameReader, hasJSON, intOf, Message,
  parseEnvelope, PUSH_RID, T, textsOf,
} from "./protocol.js";
import { openSocket, tlsError, TLSOptions } from "./tls.js";
import { onAbort, Timer } from "./wait.js";

/** Times in milliseconds. */
export interface Timing {
  /** To connect and register. */
  readonly connect: number;
  /** Without received bytes, before a PING is sent. */
  readonly ping: number;
  /** That a node may owe an answer and send nothing, before it is probed over another connection. */
  readonly probeAfter: number;
  /** That the probe may take. */
  readonly probe: number;
  /** That a node that is alive may owe an answer and send nothing: more than the longest request takes. */
  readonly silence: number;
}

export const DEFAULT_TIMING: Timing = { connect: 5000, ping: 5000, probeAfter: 6000, probe: 3000, silence: 65_000 };

/**
 * Timing of a worker. Node cannot set TCP_USER_TIMEOUT, so a node that has vanished from the
 * network must be noticed, and left, between a BEAT and the end of the leases 4 s later.
 */
export const WORKER_TIMING: Timing = { ...DEFAULT_TIMING, ping: 2000, probeAfter: 1200, probe: 1500 };

/** What all connections of a client or worker have in common. */
export interface ConnectionSettings {
  readonly name: string;
  readonly token?: string | undefined;
  readonly tls?: boolean | TLSOptions | undefined;
  readonly timing: Timing;
}

export interface ConnectionListener {
  /** Called for each message that answers no request. */
  onPush(connection: Connection, type: number, fields: Fields): void;
  /** Called once when a connection that was registered has ended, after the callbacks of its requests. */
  onClose(connection: Connection, error: Error): void;
}

/** Receives the fields of an answer, or why there is none: an OverhopError or a ConnectionLost. */
export type Done = (fields: Fields, error: OverhopError | ConnectionLost | undefined) => void;

/** A message that exceeds the limit of the node. */
export class FrameTooLarge extends CodecError {
  constructor(node: string, size: number, limit: number) {
    super(`message of ${size} bytes is too large: node ${node} accepts ${limit}`);
  }
}

const WATCH_INTERVAL = 250; // milliseconds

/** What a node must have for a request, beyond the extension. */
const REQUIRED: Readonly<Record<number, Capability>> = { [T.CONTENT]: "content", [T.API]: "api" };

interface Pending {
  readonly type: number;
  readonly done: Done | undefined;
}

export class Connection {
  /** The node's name; "" if it sent none. */
  nodeName = "";
  /** The largest frame that the node takes, in bytes. */
  maxFrame = DEFAULT_MAX_FRAME;

  readonly #socket: net.Socket;
  readonly #reader = new FrameReader();
  readonly #pending = new Map<string, Pending>();
  readonly #capabilities = new Set<string>();
  #lastRid = 0;
  #corked = false;
  #error: Error | undefined; // why the connection has ended
  #registered = false;
  #watch: Timer | undefined;
  #lastTick = 0;
  #lastReceived = 0; // bytes; or the time of the first request, if all before it were answered
  #alive = 0; // when a probe found the node alive
  #probing = false;

  private constructor(
    /** The node's address. */
    readonly node: string,
    private readonly settings: ConnectionSettings,
    private readonly listener: ConnectionListener,
  ) {
    this.#socket = openSocket(node, settings);
  }

  /**
   * Connects to a node and registers there. Throws an OverhopError if the node refuses this
   * client, a TLSError if only one of both uses TLS or a certificate is not accepted, and a
   * ConnectionLost if the node cannot be reached in time or `signal` is aborted first.
   */
  static async connect(node: string, settings: ConnectionSettings, listener: ConnectionListener, signal?: AbortSignal): Promise<Connection> {
    if (signal?.aborted) {
      throw new ConnectionLost(`node ${node}: not connected, because it is not needed any more`);
    }
    const connection = new Connection(node, settings, listener);
    let gaveUp = false; // the client did, not the node
    const giveUp = (reason: string) => {
      gaveUp = true;
      connection.#fail(new Error(reason));
    };
    const timer = setTimeout(() => giveUp(`not connected within ${settings.timing.connect} ms`), settings.timing.connect);
    const forget = signal && onAbort(signal, () => giveUp("it is not needed any more"));
    try {
      await connection.#open();
      await connection.#register();
    } catch (err) {
      connection.#fail(err as Error);
      clearTimeout(timer);
      throw (gaveUp ? undefined : await tlsError(node, settings, connection.#error as Error)) ?? connection.#error;
    } finally {
      clearTimeout(timer);
      forget?.();
    }
    if (connection.#error !== undefined) { // by what came together with the last answer
      throw connection.#error;
    }
    connection.#registered = true;
    connection.#startWatch();
    return connection;
  }

  /** Why the connection has ended; undefined while it has not. */
  get error(): Error | undefined {
    return this.#error;
  }

  has(capability: Capability): boolean {
    return this.#capabilities.has(capability);
  }

  /**
   * Sends a request without waiting for its answer, which `done` receives: in the order of
   * all messages from the node. Throws a CodecError if the fields cannot be encoded or are
   * larger than the node accepts, and NotSupported if the node is too old for them.
   */
  send(type: number, fields: Fields | Encoded, done?: Done): void {
    this.#check(type, fields);
    const rid = String(++this.#lastRid);
    const bytes = frame(type, rid, fields);
    if (bytes.length - 4 > this.maxFrame) {
      throw new FrameTooLarge(this.node, bytes.length - 4, this.maxFrame);
    }
    if (this.#error !== undefined) {
      const lost = asLost(this.node, this.#error);
      queueMicrotask(() => done?.({}, lost));
      return;
    }
    if (this.#pending.size === 0) {
      this.#lastReceived = performance.now();
    }
    this.#pending.set(rid, { type, done });
    this.#write(bytes);
  }

  /** Sends a request and returns the fields of its answer. Throws as {@link send} and its callback do. */
  request(type: number, fields: Fields | Encoded): Promise<Fields> {
    return new Promise((resolve, reject) => {
      this.send(type, fields, (answer, error) => (error === undefined ? resolve(answer) : reject(error)));
    });
  }

  /** Closes the connection once all requests are written. */
  close(): void {
    if (this.#error === undefined) {
      this.#socket.end();
      this.#fail(new ConnectionLost("connection was closed by this client"), true);
    }
  }

  #check(type: number, fields: Fields | Encoded): void {
    const required = REQUIRED[type];
    if (required !== undefined && !this.has(required)) {
      throw new NotSupported(`node ${this.nodeName || this.node}, of an older release, does not have the capability "${required}"`);
    }
    if (!(fields instanceof Encoded) && hasJSON(fields) && type !== T.API && !this.has("json")) {
      throw new CodecError(`node ${this.nodeName || this.node}, of an older release, takes no fractions and no integers beyond 64 bits`);
    }
  }

  /** Writes a frame, together with those of the same turn of the event loop. */
  #write(bytes: Uint8Array): void {
    if (!this.#corked) {
      this.#corked = true;
      this.#socket.cork();
      process.nextTick(() => {
        this.#corked = false;
        this.#socket.uncork();
      });
    }
    this.#socket.write(bytes);
  }

  /** Waits until the socket is connected, and has its frames handled from then on. */
  #open(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#socket.on("error", (err) => this.#fail(explain(err)));
      this.#socket.on("close", () => {
        this.#fail(new Error("the node closed the connection"));
        reject(this.#error);
      });
      this.#socket.on("data", (data) => this.#receive(data));
      this.#socket.on("end", () => this.#socket.destroy());
      this.#socket.once(this.settings.tls ? "secureConnect" : "connect", resolve);
    });
  }

  async #register(): Promise<void> {
    const { name, token } = this.settings;
    const hello: Fields = { client: "yardmaster-typescript", ext: [DELIVERY], caps: [...CAPABILITIES, END_OF_HTTP], name, token };
    const hi = await this.request(T.HELLO, hello);
    if (!textsOf(hi["ext"]).includes(DELIVERY)) {
      throw new OverhopError("NOT_IMPLEMENTED", `node ${this.node} does not support ${DELIVERY}`);
    }
    textsOf(hi["caps"]).forEach((capability) => this.#capabilities.add(capability));
    this.nodeName = String(hi["node"] ?? "");
    this.maxFrame = intOf(hi["max_envelope_size_bytes"], DEFAULT_MAX_FRAME);
    await this.request(T.REGISTER, {});
  }

  /** Returns the refusal of a handshake; that of the token says what to check. */
  #refusal(fields: Fields): OverhopError {
    const error = overhopError(fields);
    if (error.code !== "UNAUTHORIZED") {
      return error;
    }
    const given = this.settings.token === undefined ? "requires a token, and this client has none" : "refuses the token of this client";
    return new OverhopError(error.code, `node ${this.node} ${given}: check \`token\`, which is server.token of the nodes`, error.details);
  }

  #receive(data: Uint8Array): void {
    this.#lastReceived = performance.now();
    this.#reader.push(data);
    try {
      for (let body = this.#reader.next(); body !== undefined && this.#error === undefined; body = this.#reader.next()) {
        this.#handle(parseEnvelope(body));
      }
    } catch (err) {
      this.#fail(err as Error);
    }
  }

  /** Passes a message to the request that it answers, or to the listener. Throws what ends the connection. */
  #handle({ type, rid, fields }: Message): void {
    const request = rid === PUSH_RID ? undefined : this.#pending.get(rid);
    if (request !== undefined) {
      this.#pending.delete(rid);
      if (type === T.ERR) {
        request.done?.({}, this.#registered ? overhopError(fields) : this.#refusal(fields));
      } else if (type === answerTo(request.type)) {
        request.done?.(fields, undefined);
      } else {
        request.done?.({}, new ConnectionLost(`node ${this.node} answered t=${type} to t=${request.type}`));
        throw new CodecError(`answered t=${type} to t=${request.type}`);
      }
    } else if (rid === PUSH_RID && type === T.ERR) {
      throw this.#registered ? overhopError(fields) : this.#refusal(fields);
    } else if (rid === PUSH_RID && type !== T.IDENT) {
      this.listener.onPush(this, type, fields);
    }
  }

  /** Ends the connection: all requests fail, then the listener is called. */
  #fail(error: Error, flush = false): void {
    if (this.#error !== undefined) {
      return;
    }
    this.#error = error instanceof OverhopError || error instanceof ConnectionLost ? error : new ConnectionLost(`node ${this.node}: ${error.message}`, { cause: error });
    clearInterval(this.#watch);
    if (flush) {
      setTimeout(() => this.#socket.destroy(), 1000).unref();
    } else {
      this.#socket.destroy();
    }
    const lost = asLost(this.node, this.#error);
    const pending = [...this.#pending.values()];
    this.#pending.clear();
    for (const { done, type } of pending) {
      done?.({}, type === T.HELLO || type === T.REGISTER ? (this.#error as ConnectionLost) : lost);
    }
    if (this.#registered) {
      this.listener.onClose(this, this.#error);
    }
  }

  #startWatch(): void {
    this.#lastTick = this.#lastReceived = performance.now();
    this.#watch = setInterval(() => {
      const now = performance.now();
      if (now - this.#lastTick > 3 * WATCH_INTERVAL) {
        this.#lastReceived = now; // the program was blocked: what the node sent meanwhile has not been read
      }
      this.#lastTick = now;
      this.#watchSilence(now);
    }, WATCH_INTERVAL);
  }

  /** Sends a PING to a silent node, and ends the connection to one that owes an answer and is gone. */
  #watchSilence(now: number): void {
    const { ping, probeAfter, silence } = this.settings.timing;
    const quiet = now - this.#lastReceived;
    if (this.#pending.size === 0) {
      if (quiet >= ping) {
        this.send(T.PING, {});
      }
    } else if (quiet > silence) {
      this.#fail(new Error(`the node has sent nothing for ${Math.round(quiet)} ms`));
    } else if (quiet > probeAfter && now - this.#alive > probeAfter && !this.#probing) {
      void this.#probe();
    }
  }

  /**
   * Ends the connection if the node answers no HELLO over another one. A node answers in
   * order, so that one slow request looks like a dead node.
   */
  async #probe(): Promise<void> {
    this.#probing = true;
    const since = this.#lastReceived;
    const isAlive = await probe(this.node, this.settings);
    this.#probing = false;
    if (isAlive) {
      this.#alive = performance.now();
    } else if (this.#lastReceived === since) {
      this.#fail(new Error(`the node has sent nothing for ${Math.round(performance.now() - since)} ms and does not answer`));
    }
  }
}

/** Reports whether a node answers a HELLO. Any answer counts, a closed connection too. */
function probe(node: string, settings: ConnectionSettings): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = openSocket(node, settings);
    let connected = false;
    const end = (isAlive: boolean) => {
      clearTimeout(timer);
      socket.destroy();
      resolve(isAlive);
    };
    const timer = setTimeout(() => end(false), settings.timing.probe);
    socket.once(settings.tls ? "secureConnect" : "connect", () => {
      connected = true;
      socket.write(frame(T.HELLO, "1", {}));
    });
    socket.once("data", () => end(true));
    socket.on("error", () => end(connected));
    socket.once("close", () => end(connected));
  });
}

/** Returns the type of the answer to a request that is not refused. */
function answerTo(type: number): number {
  return type === T.HELLO ? T.HI : type === T.PING ? T.PONG : T.OK;
}

function asLost(node: string, error: Error): ConnectionLost {
  return error instanceof ConnectionLost ? error : new ConnectionLost(`node ${node}: ${error.message}`, { cause: error });
}

/** Returns an error of a socket with a message. */
function explain(error: Error & { code?: string; errors?: Error[] }): Error {
  const message = error.message || (error.errors ?? []).map((each) => each.message).join(", ") || error.code || "socket error";
  return new Error(message, { cause: error });
}
