/** Sends requests to one of several nodes, until one of them answers. */

import * as os from "node:os";
import { Connection, ConnectionSettings, Timing } from "./connection.js";
import { ClosedError, ConnectionLost, DeadlineExceeded, OverhopError, Unavailable } from "./errors.js";
import { Logger, toLogger } from "./log.js";
import { backoff, NodeRotation, Nodes } from "./nodes.js";
import { Fields, T, textsOf } from "./protocol.js";
import { TLSOptions } from "./tls.js";
import { CallOptions, onAbort, Wait, Window } from "./wait.js";

/** How to reach the nodes. */
export interface ConnectOptions {
  /** "host:port" of each node; default: those in OVERHOP_NODES, with commas, or 127.0.0.1:9876. */
  nodes?: Nodes;
  /** A name for people; default: the host's name and the process id. */
  name?: string;
  /** true for TLS with the host's certificate authorities, or how to verify the nodes. */
  tls?: boolean | TLSOptions;
  /** The token that the nodes require. */
  token?: string;
  /** Creates queues that do not exist, when a job is enqueued or a worker starts; default true. Otherwise a missing queue is an error. */
  createQueues?: boolean;
  /** Where messages go; default: warnings to `console`. */
  log?: Logger;
}

/** Returns the settings of all connections of a client or worker. */
export function connectionSettings(options: ConnectOptions, timing: Timing): ConnectionSettings {
  return { name: options.name ?? `${os.hostname()}-${process.pid}`, token: options.token, tls: options.tls, timing };
}

/** A node stops reading at 1024 requests without an answer; the bytes are those of payloads. */
const MAX_UNANSWERED = 1000;
const MAX_UNANSWERED_BYTES = 16 << 20;

const MAX_UNAVAILABLE = 3; // answers of a node, before another is tried
const STABLE_AFTER = 2000; // milliseconds after which a connection has held

export interface RequestOptions {
  /** A repeated request that is refused with one of these codes was carried out at an earlier try. */
  doneCodes?: readonly string[];
  /** The bytes of the user's values in it. */
  size?: number;
  /** The key of a job, for DeadlineExceeded. */
  key?: string;
}

export class Requester {
  readonly #nodes: NodeRotation;
  readonly #settings: ConnectionSettings;
  readonly #log: Required<Logger>;
  readonly #window = new Window(MAX_UNANSWERED, MAX_UNANSWERED_BYTES);
  readonly #open = new Set<Connection>(); // also those to draining nodes
  #connection: Connection | undefined; // for new requests
  #connecting: Promise<Connection> | undefined;
  #connectedAt = 0;
  #failures = 0; // connections in a row that failed or did not hold
  readonly #closing = new AbortController();

  /** Receives pushes other than DRAIN and BYE; and that a connection has ended. */
  onPush: (type: number, fields: Fields) => void = () => undefined;
  onLost: () => void = () => undefined;

  constructor(options: ConnectOptions, timing: Timing, private readonly timeout: number) {
    this.#nodes = new NodeRotation(options.nodes);
    this.#settings = connectionSettings(options, timing);
    this.#log = toLogger(options.log);
  }

  /** The address of the connected node. */
  get node(): string | undefined {
    return this.#connection?.node;
  }

  /** Closes all connections. Pending and later requests throw ClosedError. */
  close(): void {
    this.#closing.abort();
    this.#connection = undefined;
    this.#open.forEach((connection) => connection.close());
  }

  get #closed(): boolean {
    return this.#closing.signal.aborted;
  }

  /** The time that a call has. */
  wait(options: CallOptions, timeout = this.timeout): Wait {
    return new Wait(options, timeout);
  }

  /**
   * Sends a request until a node has answered it, and returns the fields of the answer: none
   * if an earlier try has been carried out.
   */
  async request(type: number, fields: Fields, wait: Wait, options: RequestOptions = {}): Promise<Fields> {
    let last: Error | undefined;
    let sent = 0;
    let unavailable = 0;
    for (;;) {
      let connection: Connection | undefined;
      try {
        connection = await wait.race(this.#ready());
        await this.#window.acquire(options.size ?? 0, wait);
        return await wait.race(this.#exchange(connection, type, fields, options.size ?? 0, () => sent++));
      } catch (err) {
        wait.throwIfAborted();
        if (err instanceof DeadlineExceeded) {
          throw this.#tooLate(last, options.key);
        } else if (err instanceof Unavailable) {
          last = err;
          if (++unavailable % MAX_UNAVAILABLE === 0) {
            this.#retire(connection, []);
            connection?.close(); // calls that wait for it try another node, too
          }
          await wait.sleep(Math.min(Math.max(err.retryAfter, 50), 2000));
        } else if (err instanceof ConnectionLost && !this.#closed && !this.#nodes.allRefuse(err)) {
          last = err;
          if (sent >= 5 && (options.size ?? 0) > 1 << 16) {
            throw new ConnectionLost(`${err.message}; no node accepts this message, it may be too large for them`, { cause: err });
          }
        } else if (err instanceof OverhopError && sent > 1 && options.doneCodes?.includes(err.code)) {
          return err.details;
        } else {
          throw this.#closed && err instanceof ConnectionLost ? closedError() : err;
        }
      }
    }
  }

  #tooLate(last: Error | undefined, key: string | undefined): DeadlineExceeded {
    const reason = last === undefined ? "" : `; the last try failed: ${last.message}`;
    return new DeadlineExceeded(`no node has answered in time${reason}`, { cause: last, key });
  }

  /** Sends a request once. Its place in the window is free when the node has answered, whether the caller waits or not. */
  #exchange(connection: Connection, type: number, fields: Fields, size: number, sent: () => void): Promise<Fields> {
    const answer = connection.request(type, fields);
    void answer.then(() => this.#window.release(size), () => this.#window.release(size));
    if (connection.error === undefined) {
      sent();
    }
    return answer;
  }

  /** Returns a connection that is registered. */
  #ready(): Promise<Connection> {
    if (this.#closed) {
      return Promise.reject(closedError());
    }
    if (this.#connection !== undefined) {
      return Promise.resolve(this.#connection);
    }
    if (this.#connecting === undefined) {
      this.#connecting = this.#connect().finally(() => (this.#connecting = undefined));
      this.#connecting.catch(() => undefined); // the calls that wait for it may have ended
    }
    return this.#connecting;
  }

  /** Connects to the next node, after a pause if the last connection failed. */
  async #connect(): Promise<Connection> {
    if (this.#failures > 0) {
      await this.#sleep(backoff(this.#failures));
    }
    const node = this.#nodes.next();
    let connection: Connection;
    try {
      connection = await Connection.connect(node, this.#settings, {
        onPush: (from, type, fields) => this.#handlePush(from, type, fields),
        onClose: (ended, error) => this.#handleClose(ended, error),
      }, this.#closing.signal);
    } catch (err) {
      this.#failures++;
      this.#log.info("cannot connect to a node", { node, err });
      throw err;
    }
    if (this.#closed) {
      connection.close();
      throw closedError();
    }
    this.#nodes.reached = true;
    this.#open.add(connection);
    this.#connection = connection;
    this.#connectedAt = performance.now();
    return connection;
  }

  /** Waits for some milliseconds, or until the client is closed. */
  #sleep(milliseconds: number): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        forget();
        resolve();
      };
      const timer = setTimeout(end, milliseconds);
      const forget = onAbort(this.#closing.signal, end);
    });
  }

  #handlePush(connection: Connection, type: number, fields: Fields): void {
    if (type === T.DRAIN || type === T.BYE) {
      this.#retire(connection, textsOf(fields["reconnect"])); // what is pending may still be answered
    } else {
      this.onPush(type, fields);
    }
  }

  /** Has new requests use another connection. */
  #retire(connection: Connection | undefined, alternatives: readonly string[]): void {
    if (connection !== undefined && this.#connection === connection) {
      this.#connection = undefined;
      this.#nodes.leave(connection.node, alternatives);
    }
  }

  #handleClose(connection: Connection, error: Error): void {
    this.#open.delete(connection);
    if (this.#connection === connection) {
      this.#connection = undefined;
      this.#failures = performance.now() - this.#connectedAt < STABLE_AFTER ? this.#failures + 1 : 0;
      if (!this.#closed) {
        this.#log.info("lost the connection to a node", { node: connection.node, err: error });
      }
    }
    this.onLost();
  }
}

function closedError(): ClosedError {
  return new ClosedError("the client was closed");
}
