/** Jobs as a producer describes them, and the requests that enqueue them. */

import { randomBytes } from "node:crypto";
import * as checks from "./checks.js";
import { duration, integer, timeText } from "./checks.js";
import { isPlainObject, MAX_VALUE_DEPTH } from "./codec.js";
import { CodecError } from "./errors.js";
import { Fields, userField } from "./protocol.js";

/**
 * What a producer may choose for a job. Times are in milliseconds; for what is left out, the
 * defaults of the queue and the yard apply.
 */
export interface JobOptions {
  /**
   * Jobs with the same key in the same queue are the same job; a UUID becomes its id. Without
   * one, a key is generated, so that a lost answer never makes two jobs.
   */
  key?: string;
  /** The earliest start, from acceptance, whatever clocks show; excludes `runAt`. */
  delay?: number;
  /** The earliest start: a date, or an RFC 3339 text. */
  runAt?: Date | string;
  /** 0 to 9: 9 starts first in its queue. Default 5. */
  priority?: number;
  /** Attempts in all. */
  maxAttempts?: number;
  /** The limit of one attempt. */
  timeout?: number;
  /** The delay between attempts; default: growing ones. */
  retryInterval?: number;
  /** Whether an attempt that exceeds its `timeout` is retried; default: what the queue has, or not at all. */
  retryOnTimeout?: boolean;
  /**
   * Another job with this key is refused (DuplicateJob) for `uniqueTtl`, even if this one ends earlier or later, or
   * until this one has reached `uniqueUntil`.
   */
  uniqueKey?: string;
  uniqueTtl?: number;
  uniqueUntil?: "start" | "end";
  /** Another job with this key is refused (RateLimited) for `rateLimit`. */
  rateLimitKey?: string;
  rateLimit?: number;
  /** The job replaces one with this key that has not started, and starts `debounce` from now. */
  debounceKey?: string;
  debounce?: number;
  /** Milliseconds after its acceptance, within which the job must start: else it ends without an attempt. */
  expiresIn?: number;
  /** The key under which the job uses the limits of its queue. */
  limitKey?: string;
  /** More limits, by name, each with the key under which the job uses it; "" stands for `limitKey`. */
  limits?: Readonly<Record<string, string>>;
  /** Up to 20 texts that are kept with the job and shown with it. */
  tags?: readonly string[];
  /** Texts by name that are kept with the job and shown with it. */
  meta?: Readonly<Record<string, string>>;
  /** Passed to the worker, such as a traceparent. */
  trace?: Readonly<Record<string, string>>;
}

/** A job for a queue. */
export interface JobRequest<Payload = unknown> extends JobOptions {
  queue: string;
  /** The function that a worker calls; default: the one for all jobs of the queue. */
  fn?: string;
  payload?: Payload;
}

const MAX_FUNCTION = 256; // bytes

declare const resultType: unique symbol;

/** The id of a job, "<queue>:<uuid>", with the type of its result for the compiler. */
export type JobId<Result = unknown> = string & { readonly [resultType]: Result };

/** What a kind of job is made of, for {@link defineJob}. */
export interface JobConfig<Payload> extends Omit<JobOptions, "key" | "uniqueKey" | "rateLimitKey" | "debounceKey" | "limitKey"> {
  queue: string;
  /**
   * Checks the payload of a job at its worker, and may convert it: what it throws fails the
   * job without another attempt. Use the `parse` of a schema library, for example.
   */
  parse?: (payload: unknown) => Payload;
}

/** A kind of job, that producers and workers share: see {@link defineJob}. */
export class JobDefinition<Payload, Result> {
  readonly queue: string;
  readonly parse: ((payload: unknown) => Payload) | undefined;
  readonly #options: JobOptions;

  /** Only for the compiler. */
  declare readonly _result?: Result;

  constructor(readonly fn: string, config: JobConfig<Payload>) {
    const { queue, parse, ...options } = config;
    this.queue = queue;
    this.parse = parse;
    this.#options = options;
  }

  /** Returns a job of this kind, for `enqueueMany`. */
  with(payload: Payload, options?: JobOptions): JobRequest<Payload> {
    return { ...this.#options, ...options, queue: this.queue, fn: this.fn, payload };
  }
}

/**
 * Defines a kind of job: the function by which workers know it, its queue, and its defaults.
 *
 * ```ts
 * const sendMail = defineJob<{ to: string }, { sent: boolean }>("send_mail", { queue: "mail" });
 * const jid = await client.enqueue(sendMail, { to: "ann" });
 * worker.handle(sendMail, async (job) => ({ sent: await send(job.payload.to) }));
 * ```
 */
export function defineJob<Payload, Result = unknown>(fn: string, config: JobConfig<Payload>): JobDefinition<Payload, Result> {
  return new JobDefinition(fn, config);
}

/** An ENQUEUE. */
export interface EnqueueRequest {
  readonly key: string;
  readonly fields: Fields;
  /** The bytes of the payload. */
  readonly size: number;
}

/** Returns a key for a job without one: not a UUID, which would become the job's id. */
export function generatedKey(): string {
  return `auto-${randomBytes(16).toString("hex")}`;
}

/**
 * Returns the ENQUEUE for a job, whose start counts from now. Throws a CodecError if the
 * payload cannot be sent, and a RangeError or TypeError for options that are out of range or
 * exclude each other.
 */
export function enqueueRequest(job: JobRequest): EnqueueRequest {
  const key = checks.key("key", job.key) ?? generatedKey();
  if (job.debounceKey !== undefined && (job.delay ?? job.runAt ?? job.rateLimitKey) !== undefined) {
    throw new TypeError("a debounced job starts when its window ends: debounceKey does not go with delay, runAt or rateLimitKey");
  }
  checkUnique(job);
  const payload = userField("job_payload", job.payload, MAX_VALUE_DEPTH);
  if ("job_payload_json" in payload && !isPlainObject(job.payload)) {
    throw new CodecError("a payload with fractions or integers beyond 64 bits must be an object");
  }
  const [body] = Object.values(payload) as [{ bytes: Uint8Array } | Uint8Array];
  const fields: Fields = {
    ...payload, key, q: checks.queueName(job.queue), fn: checks.text("fn", job.fn, MAX_FUNCTION, 0),
    trace: checks.texts("trace", job.trace, { count: Infinity, name: Infinity, value: Infinity }),
    scheduled_at: startOf(job),
    delay_ms: duration("delay", job.delay, 0),
    priority: integer("priority", job.priority, 0, 9),
    max_attempts: integer("maxAttempts", job.maxAttempts, 1),
    timeout_ms: duration("timeout", job.timeout, 1),
    retry_interval_ms: duration("retryInterval", job.retryInterval, 1),
    retry_on_timeout: job.retryOnTimeout,
    expires_in_ms: duration("expiresIn", job.expiresIn, 1),
    unique_key: checks.key("uniqueKey", job.uniqueKey), unique_ttl_ms: duration("uniqueTtl", job.uniqueTtl, 1), unique_until: job.uniqueUntil,
    rate_limit_key: checks.key("rateLimitKey", job.rateLimitKey), rate_limit_ms: window("rateLimit", job.rateLimitKey, job.rateLimit),
    debounce_key: checks.key("debounceKey", job.debounceKey), debounce_ms: window("debounce", job.debounceKey, job.debounce),
    limit_key: checks.limitKey("limitKey", job.limitKey), limits: checks.limits(job.limits),
    tags: checks.tags(job.tags), meta: checks.texts("meta", job.meta, { count: 20, name: 64, value: 512 }),
  };
  return { key, fields, size: "bytes" in body ? body.bytes.length : body.length };
}

/** Returns the time of a job's start as text; undefined means now. A delay is given so to nodes of older releases, which ignore delay_ms. */
export function startOf({ delay, runAt }: Pick<JobOptions, "delay" | "runAt">): string | undefined {
  if (delay === undefined) {
    return runAt === undefined ? undefined : timeText("runAt", runAt);
  }
  if (runAt !== undefined) {
    throw new TypeError("give delay or runAt, not both");
  }
  return timeText("delay", new Date(Date.now() + duration("delay", delay, 0)));
}

/** Checks the options of a unique key. */
function checkUnique({ uniqueKey, uniqueTtl, uniqueUntil }: JobOptions): void {
  if (uniqueKey === undefined && (uniqueTtl ?? uniqueUntil) !== undefined) {
    throw new TypeError("uniqueTtl and uniqueUntil need uniqueKey");
  }
  if (uniqueTtl !== undefined && uniqueUntil !== undefined) {
    throw new TypeError("give uniqueTtl or uniqueUntil, not both");
  }
  if (uniqueUntil !== undefined && uniqueUntil !== "start" && uniqueUntil !== "end") {
    throw new RangeError(`uniqueUntil is ${JSON.stringify(uniqueUntil)}, must be "start" or "end"`);
  }
}

/** Checks the window of a rate limit or debounce key. */
function window(name: string, key: string | undefined, value: number | undefined): number | undefined {
  if ((key === undefined) !== (value === undefined)) {
    throw new TypeError(`${name}Key and ${name} (milliseconds) go together: give both or neither`);
  }
  return duration(name, value, 1);
}
