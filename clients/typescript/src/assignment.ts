/** A job that a worker has been assigned, from its QUEST until a node has answered its outcome. */

import { Encoded } from "./codec.js";
import { Connection } from "./connection.js";
import { ConnectionLost, JobStopped } from "./errors.js";
import { jobStopped, WORKER_STOPS, Quest, Reports } from "./job.js";
import { Outcome } from "./outcome.js";
import { Fields, T } from "./protocol.js";
import { Subscription } from "./subscriptions.js";
import { Timer } from "./wait.js";

export class Assignment implements Reports {
  readonly #abort = new AbortController();
  #deadline: Timer | undefined;

  /** The connection last used for its QUEST, its lease or its outcome. */
  connection: Connection;
  /** A node has answered the ACK, and the handler has started. */
  acked = false;
  /** The node of `connection` has confirmed the lease. */
  confirmed = false;
  /** The connection on which the BEAT that moves the lease is not answered yet. */
  moving: Connection | undefined;
  /** When the lease ends unless a node extends it, in the time of performance.now. */
  leaseEnd: number;
  /** How the handler has ended, until a node has answered; undefined while it runs. */
  outcome: Outcome | undefined;
  /** The lease is lost for certain, so that no outcome is sent. */
  isVoid = false;
  /** Connections that were lost before they answered the outcome. */
  losses = 0;

  #progress: Encoded | undefined; // the newest, not sent yet
  #progressPending = false;
  #lines: Fields[] = []; // not sent yet
  #flushing = false;

  constructor(readonly quest: Quest, readonly subscription: Subscription, connection: Connection, private readonly current: () => Connection | undefined) {
    this.connection = connection;
    this.leaseEnd = performance.now() + quest.lease;
    if (quest.timeLeft !== undefined && quest.timeLeft < 2 ** 31) {
      this.#deadline = setTimeout(() => this.stop("DEADLINE"), quest.timeLeft);
    }
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Why the job must stop; undefined if it may go on. */
  get stopped(): JobStopped | undefined {
    return this.signal.aborted ? (this.signal.reason as JobStopped) : undefined;
  }

  /**
   * Reports whether the lease is to be extended: until there is an outcome, unless the job
   * must stop. One that is interrupted by the worker's stop keeps it until it is given back.
   */
  get isLeased(): boolean {
    const isRunning = this.outcome === undefined || this.outcome.kind === "interrupted";
    return isRunning && (this.stopped === undefined || this.stopped.code === WORKER_STOPS);
  }

  /** Aborts the job's signal, for a code of the protocol and what a person gave as the reason. */
  stop(code: string, why?: string): void {
    clearTimeout(this.#deadline);
    if (!this.signal.aborted) {
      this.#abort.abort(jobStopped(code, why));
    }
  }

  /** Ends the reports: the handler has returned. */
  end(outcome: Outcome): void {
    clearTimeout(this.#deadline);
    this.flush();
    this.outcome = outcome;
  }

  /** Returns a message about the job. */
  fields(more: Fields = {}): Fields {
    return { jid: this.quest.jid, tok: this.quest.token, ...more };
  }

  progress(fields: Encoded): void {
    this.#progress = fields;
    if (!this.#progressPending) {
      this.#sendProgress();
    }
  }

  log(line: Fields): void {
    this.#lines.push(line);
    if (!this.#flushing) {
      this.#flushing = true;
      setImmediate(() => {
        this.#flushing = false;
        this.flush();
      });
    }
  }

  /** Sends what was reported while there was no connection. */
  flush(): void {
    if (!this.#progressPending) {
      this.#sendProgress();
    }
    this.#sendLines();
  }

  #sendProgress(): void {
    const [connection, progress] = [this.current(), this.#progress];
    if (connection === undefined || progress === undefined || this.outcome !== undefined) {
      return;
    }
    this.#progress = undefined;
    this.#progressPending = true;
    connection.send(T.PROGRESS, progress, (_, error) => {
      this.#progressPending = false;
      if (error instanceof ConnectionLost) {
        this.#progress ??= progress; // the next connection sends it
      } else {
        this.#sendProgress();
      }
    });
  }

  #sendLines(): void {
    const connection = this.current();
    if (connection === undefined || this.outcome !== undefined) {
      return;
    }
    while (this.#lines.length > 0) {
      const lines: Fields[] = [];
      for (let size = 0; lines.length < MAX_LINES && this.#lines.length > 0; ) {
        size += 3 * String(this.#lines[0]!["msg"]).length + 128;
        if (lines.length > 0 && size > connection.maxFrame / 2) {
          break;
        }
        lines.push(this.#lines.shift()!);
      }
      connection.send(T.LOG, this.fields({ lines }));
    }
  }
}

const MAX_LINES = 256; // in one LOG
