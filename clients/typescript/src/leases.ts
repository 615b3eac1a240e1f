/** The jobs of a worker: their leases are extended, and their outcomes repeated until a node answers. */

import { Assignment } from "./assignment.js";
import { Connection } from "./connection.js";
import { CodecError, ConnectionLost, OverhopError, Unavailable } from "./errors.js";
import { Quest } from "./job.js";
import { Logger } from "./log.js";
import { hasLargeResult, invalidResult, Outcome, report } from "./outcome.js";
import { Fields, intOf, mapOf, T } from "./protocol.js";
import { delayAfter, Subscriptions } from "./subscriptions.js";
import { Timer } from "./wait.js";

const MAX_BEAT_JOBS = 256;
const RETRY_DELAY = 300; // milliseconds before an ACK or BEAT that was answered UNAVAILABLE is repeated
const IDLE_INTERVAL = 1000;
const MIN_INTERVAL = 20;

export class Leases {
  readonly #assignments = new Map<string, Assignment>(); // by token
  #connection: Connection | undefined;
  #timer: Timer | undefined;
  #nextBeat = Infinity;
  #stopping = false;

  /** Called when a job has moved, or is forgotten. */
  onChange: () => void = () => undefined;
  /** Called when a node has answered the ACK of a job, which may start then. */
  onAcked: (job: Assignment) => void = () => undefined;

  constructor(private readonly subscriptions: Subscriptions, private readonly log: Required<Logger>) {}

  /** The connection that jobs and outcomes use; undefined while there is none. */
  get connection(): Connection | undefined {
    return this.#connection;
  }

  get size(): number {
    return this.#assignments.size;
  }

  get all(): Assignment[] {
    return [...this.#assignments.values()];
  }

  find(token: unknown): Assignment | undefined {
    return token instanceof Uint8Array ? this.#assignments.get(keyOf(token)) : undefined;
  }

  /** Sends no further credits. */
  stop(): void {
    this.#stopping = true;
  }

  /** Forgets all jobs: what their handlers return is discarded. */
  clear(): void {
    clearTimeout(this.#timer);
    this.#assignments.clear();
  }

  /** Reports whether every lease is confirmed by the node of the current connection. */
  get haveMoved(): boolean {
    return this.all.every((job) => !job.isLeased || (job.confirmed && job.connection === this.#connection));
  }

  /**
   * Uses a new connection, or none. Leases end, and a node answers in order: messages about
   * jobs are the first that are sent over it.
   */
  use(connection: Connection | undefined): void {
    this.#connection = connection;
    if (connection === undefined) {
      return;
    }
    for (const job of this.all) {
      job.confirmed = false;
      if (job.outcome !== undefined) {
        this.#sendOutcome(job);
      } else if (!job.acked) {
        this.#sendAck(connection, job);
      }
      job.flush();
    }
    this.#beat();
  }

  /** Repeats what was sent about jobs over a connection that has ended, over the current one. */
  leave(ended: Connection): void {
    const jobs = this.all.filter((job) => job.connection === ended);
    if (this.#connection !== undefined) {
      jobs.forEach((job) => this.#repeat(this.#connection as Connection, job));
    }
  }

  /**
   * Acknowledges an assignment, which starts it when the node has answered, and stops earlier ones
   * of the same job, which the yard has given up. Before the answer the job may be another
   * worker's: this process may have been stopped for a while, or its connection may be cut.
   */
  accept(connection: Connection, quest: Quest): void {
    for (const other of this.#assignments.values()) {
      if (other.quest.jid === quest.jid && other.outcome === undefined) {
        other.stop("SUPERSEDED");
      }
    }
    const subscription = this.subscriptions.get(quest.queue)!;
    const job = new Assignment(quest, subscription, connection, () => this.#connection);
    this.#assignments.set(keyOf(quest.token), job);
    this.#sendAck(connection, job);
    this.#schedule(performance.now() + Math.max(quest.beat, MIN_INTERVAL));
  }

  /** Answers a QUEST that has come before: the node does not know whether that one has arrived. */
  acceptAgain(connection: Connection, job: Assignment): void {
    job.connection = connection;
    if (job.outcome === undefined) {
      this.#sendAck(connection, job);
    } else {
      this.#sendOutcome(job);
    }
  }

  #sendAck(connection: Connection, job: Assignment): void {
    job.connection = connection;
    const sent = performance.now();
    connection.send(T.ACK, job.fields(), (answer, error) => this.#handleLease(connection, job, sent, answer, error));
  }

  /**
   * Reports whether the lease that the ACK's answer granted has not ended, so that the handler may
   * start. If it has ended, because the process was stopped for a while, the job is acknowledged
   * again. A job that was given back has no lease.
   */
  holdsLease(job: Assignment): boolean {
    if (this.find(job.quest.token) !== job) {
      return false;
    }
    if (performance.now() < job.leaseEnd) {
      return true;
    }
    job.acked = job.confirmed = false;
    if (this.#connection !== undefined) { // else the next one sends it
      this.#sendAck(this.#connection, job);
    }
    return false;
  }

  /** Handles the answer about a lease: to an ACK, or for one job of a BEAT, sent at that time. */
  #handleLease(connection: Connection, job: Assignment, sent: number, answer: Fields, error: OverhopError | ConnectionLost | undefined): void {
    const isOver = this.find(job.quest.token) !== job || (job.outcome !== undefined && job.outcome.kind !== "interrupted");
    if (job.connection !== connection || error instanceof ConnectionLost || isOver) {
      return;
    }
    if (error === undefined) {
      const isFirst = !job.acked;
      const end = sent + intOf(answer["lease_ms"], job.quest.lease); // a node of an older release does not say it
      job.acked = job.confirmed = true;
      job.leaseEnd = isFirst ? end : Math.max(job.leaseEnd, end);
      if (isFirst) {
        this.onAcked(job);
      }
      this.onChange();
    } else if (error.code === "UNAVAILABLE") {
      job.confirmed = false;
      if (job.acked) {
        this.#schedule(performance.now() + RETRY_DELAY);
      } else {
        setTimeout(() => this.#repeat(connection, job), RETRY_DELAY);
      }
    } else {
      job.isVoid = true;
      this.#lose(job, error.code);
    }
  }

  /** Stops a job whose lease has ended, and forgets one that has not started. */
  #lose(job: Assignment, code: string): void {
    if (!job.acked) {
      this.log.info("job is not started, because the node has given it up", { job: job.quest.jid, code });
      job.stop(code);
      job.subscription.running--;
      this.#forget(job);
      this.subscriptions.grant(job.subscription);
      return;
    }
    this.log.warn("lost the lease of a job", { job: job.quest.jid, code });
    job.stop(code);
    if (job.outcome !== undefined) { // it was interrupted
      this.#forget(job);
    }
  }

  /** Sends an outcome, BEAT or ACK again if the connection is still the current one. */
  #repeat(connection: Connection, job: Assignment): void {
    if (connection !== this.#connection || this.find(job.quest.token) !== job) {
      return;
    }
    if (job.outcome !== undefined && job.outcome.kind !== "interrupted") {
      this.#sendOutcome(job);
    } else if (job.acked) {
      this.#beat();
    } else {
      this.#sendAck(connection, job);
    }
  }

  /** Has the next BEAT sent at a time, or earlier. */
  #schedule(at: number): void {
    if (at < this.#nextBeat) {
      this.#nextBeat = at;
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#beat(), Math.max(0, at - performance.now()));
    }
  }

  /**
   * Extends all leases; over a new connection that moves them to its node. A BEAT does not
   * wait for the answer to the last one, which a slow DONE may delay.
   */
  #beat(): void {
    this.#nextBeat = Infinity;
    const jobs = this.all.filter((job) => job.isLeased);
    if (jobs.length === 0) {
      return; // accept schedules the next one
    }
    const interval = Math.min(IDLE_INTERVAL * 5, ...jobs.map((job) => job.quest.beat));
    this.#schedule(performance.now() + Math.max(interval, MIN_INTERVAL));
    const connection = this.#connection;
    if (connection === undefined) {
      this.#checkLeases(jobs);
      return;
    }
    const due = jobs.filter((job) => job.acked && job.moving !== connection);
    for (const job of due) {
      job.confirmed &&= job.connection === connection;
      job.connection = connection;
      job.moving = job.confirmed ? undefined : connection;
    }
    for (let from = 0; from < due.length; ) {
      const batch = batchFor(connection, due, from);
      from += batch.length;
      this.#sendBeat(connection, batch);
    }
  }

  #sendBeat(connection: Connection, jobs: readonly Assignment[]): void {
    const sent = performance.now();
    connection.send(T.BEAT, { jobs: jobs.map((job) => job.fields()) }, (answer, error) => {
      const entries = Array.isArray(answer["jobs"]) ? answer["jobs"] : [];
      jobs.forEach((job, i) => {
        if (job.moving === connection) {
          job.moving = undefined;
        }
        if (error === undefined && i < entries.length) {
          const entry = mapOf(entries[i]);
          this.#handleLease(connection, job, sent, entry, entry["ok"] === true ? undefined : new OverhopError(String(entry["code"]), ""));
        }
      });
      if (error instanceof OverhopError) {
        this.log.warn("node refused a BEAT", { node: connection.nodeName, err: error });
      }
    });
  }

  /** Stops jobs whose leases have ended while there is no connection: they may run elsewhere now. */
  #checkLeases(jobs: readonly Assignment[]): void {
    const now = performance.now();
    for (const job of jobs) {
      if (job.leaseEnd < now) {
        this.#lose(job, "LEASE_EXPIRED");
      } else {
        this.#schedule(job.leaseEnd + 1);
      }
    }
  }

  /** Sends the outcome of a job whose handler has returned, or forgets a job that has none to send. */
  finish(job: Assignment, outcome: Outcome): void {
    if (this.find(job.quest.token) !== job) {
      return; // already given back
    }
    job.end(outcome);
    if (job.isVoid || outcome.kind === "void") {
      this.#forget(job);
      this.subscriptions.grant(job.subscription);
    } else if (outcome.kind === "interrupted") {
      this.onChange();
    } else {
      this.#sendOutcome(job);
    }
  }

  /**
   * Sends a job's outcome with the credits for the next; its token makes repeating it safe.
   * Without a connection it is sent over the next one.
   */
  #sendOutcome(job: Assignment): void {
    const connection = this.#connection;
    const { outcome } = job;
    if (connection === undefined || outcome === undefined || outcome.kind === "void" || outcome.kind === "interrupted") {
      return;
    }
    if (job.losses >= 5 && hasLargeResult(outcome)) {
      return this.#replace(job, "no node accepts a result of this size");
    }
    const { type, fields } = report(outcome, connection);
    const credits = this.#stopping ? 0 : this.subscriptions.take(connection, job.subscription);
    job.connection = connection;
    try {
      const message: Fields = job.fields({ ...fields, credits: credits || undefined });
      connection.send(type, message, (_, error) => this.#handleOutcome(connection, job, error));
    } catch (err) {
      job.subscription.credits -= credits;
      if (!(err instanceof CodecError)) {
        throw err;
      }
      this.#replace(job, err.message);
    }
  }

  /** Fails a job whose result cannot be sent or stored. */
  #replace(job: Assignment, reason: string): void {
    job.outcome = invalidResult(reason);
    this.#sendOutcome(job);
  }

  #handleOutcome(connection: Connection, job: Assignment, error: OverhopError | ConnectionLost | undefined): void {
    if (this.find(job.quest.token) !== job) {
      return;
    }
    if (error instanceof ConnectionLost) {
      job.losses++; // the next connection sends it again
    } else if (error instanceof Unavailable) {
      setTimeout(() => this.#repeat(connection, job), delayAfter(error));
    } else if (error?.code === "RESULT_TOO_LARGE" && job.outcome?.kind === "done") {
      this.#replace(job, error.message);
    } else {
      if (error !== undefined) {
        this.log.warn("the outcome of a job was refused", { job: job.quest.jid, err: error });
      }
      this.#forget(job);
    }
  }

  #forget(job: Assignment): void {
    this.#assignments.delete(keyOf(job.quest.token));
    this.onChange();
  }
}

function keyOf(token: Uint8Array): string {
  return Buffer.from(token).toString("hex");
}

/** Returns the jobs from an index on that fit into one BEAT and its answer. */
function batchFor(connection: Connection, jobs: readonly Assignment[], from: number): Assignment[] {
  const batch: Assignment[] = [];
  for (let size = 0; from + batch.length < jobs.length && batch.length < MAX_BEAT_JOBS; ) {
    const job = jobs[from + batch.length]!;
    size += job.quest.jid.length + 128;
    if (batch.length > 0 && size > connection.maxFrame / 2) {
      break;
    }
    batch.push(job);
  }
  return batch;
}
