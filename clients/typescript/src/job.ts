/** Jobs as a worker receives them. */

import { Encoded, encode, MAX_DEPTH, MAX_VALUE_DEPTH } from "./codec.js";
import { CodecError, JobStopped, StopReason } from "./errors.js";
import { Fields, intOf, mapOf, textsOf, timeOf, userField, userValue } from "./protocol.js";

/** An assignment of a job to this worker, as the node sends it. */
export interface Quest {
  readonly jid: string;
  readonly queue: string;
  readonly fn: string | undefined;
  /** Returns the payload. Throws a CodecError if it is malformed. */
  readonly payload: () => unknown;
  /** The payload does not fit into a frame. */
  readonly omitted: boolean;
  readonly token: Uint8Array;
  readonly fence: number;
  readonly attempt: number;
  readonly maxAttempts: number | undefined;
  readonly redelivered: boolean;
  readonly createdAt: Date | undefined;
  readonly deadline: Date | undefined;
  /** When it was sent, by the node's clock, in Unix milliseconds; by this machine's if it has no end of the lease. */
  readonly sent: number;
  /** Milliseconds from the arrival to the deadline, by the node's clock alone. */
  readonly timeLeft: number | undefined;
  readonly lease: number;
  readonly beat: number;
  readonly trace: Readonly<Record<string, string>>;
  readonly tags: readonly string[];
  readonly meta: Readonly<Record<string, string>>;
}

/** Parses a QUEST. Throws a CodecError if it lacks what is needed to answer it. */
export function parseQuest(fields: Fields): Quest {
  const { jid, q, tok } = fields;
  if (typeof jid !== "string" || typeof q !== "string" || !(tok instanceof Uint8Array)) {
    throw new CodecError("QUEST without jid, q or tok");
  }
  const lease = intOf(fields["lease_ms"], 5000);
  const deadline = timeOf(fields["deadline"]);
  const leaseUntil = timeOf(fields["lease_until"]);
  const sent = leaseUntil === undefined ? Date.now() : leaseUntil.getTime() - lease;
  return {
    jid, queue: q, token: tok, lease, deadline,
    fn: typeof fields["fn"] === "string" ? fields["fn"] : undefined,
    payload: () => userValue(fields, "job_payload"),
    omitted: textsOf(fields["omitted"]).includes("job_payload"),
    fence: intOf(fields["fence"]),
    attempt: intOf(fields["attempt"], 1),
    maxAttempts: fields["max_attempts"] == null ? undefined : intOf(fields["max_attempts"]),
    redelivered: fields["redelivered"] === true,
    createdAt: timeOf(fields["created_at"]),
    sent,
    timeLeft: deadline && deadline.getTime() - sent,
    beat: intOf(fields["beat_ms"], 2000),
    trace: mapOf(fields["trace"]) as Record<string, string>,
    tags: textsOf(fields["tags"]),
    meta: mapOf(fields["meta"]) as Record<string, string>,
  };
}

/** What a job may report while it runs. */
export interface Reports {
  progress(fields: Encoded): void;
  log(line: Fields): void;
}

const MAX_LINES = 1000; // that a node keeps of a dispatch
const MAX_LINE_LENGTH = 2048;
const MAX_PROGRESS = 4096; // bytes

/** A job, as its handler receives it. */
export class Job<Payload = unknown> {
  /** "<queue>:<uuid>" */
  readonly id: string;
  readonly queue: string;
  /** The function that the job names; undefined if it names none. */
  readonly fn: string | undefined;
  readonly payload: Payload;
  /** From 1. */
  readonly attempt: number;
  /** undefined: the yard's default. */
  readonly maxAttempts: number | undefined;
  /**
   * Larger for every later assignment of any job. Pass it to the systems that the job
   * changes, so that they can refuse a writer whose lease is lost.
   */
  readonly fence: number;
  /** It was assigned before, so that side effects may have happened. */
  readonly redelivered: boolean;
  readonly createdAt: Date | undefined;
  /** End of the time for this attempt, by the node's clock; undefined: no limit. */
  readonly deadline: Date | undefined;
  /** What the producer passed as `trace`. */
  readonly trace: Readonly<Record<string, string>>;
  /** What the producer passed as `tags`, and below as `meta`. */
  readonly tags: readonly string[];
  readonly meta: Readonly<Record<string, string>>;
  /**
   * Aborted once the job must stop, with a {@link JobStopped} as reason. Pass it on:
   * `fetch(url, { signal: job.signal })`.
   */
  readonly signal: AbortSignal;

  readonly #quest: Quest;
  readonly #reports: Reports;
  #lines = 0;

  /** @internal */
  constructor(quest: Quest, payload: Payload, signal: AbortSignal, reports: Reports) {
    this.#quest = quest;
    this.#reports = reports;
    this.id = quest.jid;
    this.queue = quest.queue;
    this.fn = quest.fn;
    this.payload = payload;
    this.attempt = quest.attempt;
    this.maxAttempts = quest.maxAttempts;
    this.fence = quest.fence;
    this.redelivered = quest.redelivered;
    this.createdAt = quest.createdAt;
    this.deadline = quest.deadline;
    this.trace = quest.trace;
    this.tags = quest.tags;
    this.meta = quest.meta;
    this.signal = signal;
  }

  /**
   * Reports how far the job has come: `percent` from 0 to 100 and `data` of up to 4 KiB, both
   * optional. Only the newest report is kept, and none delays the handler. Throws the
   * signal's reason if the job must stop, a RangeError for another percentage, and a
   * CodecError if the data cannot be sent.
   */
  progress(percent?: number, data?: unknown): void {
    this.signal.throwIfAborted();
    if (percent !== undefined && !(percent >= 0 && percent <= 100)) {
      throw new RangeError(`percent is ${percent}, must be 0 to 100`);
    }
    const value = data === undefined ? {} : userField("data", data, MAX_VALUE_DEPTH);
    const size = encode(value).length;
    if (size > MAX_PROGRESS) {
      throw new CodecError(`progress data of ${size} bytes is too large: the yard keeps ${MAX_PROGRESS}`);
    }
    const { jid, token } = this.#quest;
    const fields = { ...value, percent: percent === undefined ? undefined : Math.round(percent), jid, tok: token };
    this.#reports.progress(new Encoded(encode(fields, MAX_DEPTH - 1)));
  }

  /**
   * Adds a line to the job's log in the yard, which keeps 1000 lines of 2048 bytes. Throws
   * the signal's reason if the job must stop.
   */
  log(message: string, level: "debug" | "info" | "warn" | "error" = "info"): void {
    this.signal.throwIfAborted();
    if (++this.#lines <= MAX_LINES) {
      this.#reports.log({ at: new Date().toISOString(), level, msg: cutText(message, MAX_LINE_LENGTH) });
    }
  }
}

/** Returns a text in valid Unicode, of at most `length` characters. */
export function cutText(text: string, length: number): string {
  return String(text).slice(0, length).replace(/\p{Surrogate}/gu, "\ufffd");
}

/** The code of the reason when the worker, and not its node, stops. */
export const WORKER_STOPS = "WORKER";

/** Returns why a job must stop for the reason of a RECALL and its message, or the code of a refusal. */
export function jobStopped(code: string, why?: string): JobStopped {
  const reasons: Record<string, StopReason> = { CANCELLED: "cancel", QUEUE_REMOVED: "cancel", DEADLINE: "deadline", SHUTDOWN: "shutdown", [WORKER_STOPS]: "shutdown" };
  return new JobStopped(reasons[code] ?? "lease_lost", code, why);
}
