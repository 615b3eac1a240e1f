/** The errors that clients and workers throw, and those that handlers may throw. */

/** What an error may be given, as by the language. */
export interface Cause {
  cause?: unknown;
}

/** The base class of all errors of this package. */
export class YardmasterError extends Error {
  constructor(message: string, options?: Cause) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** A value that Overhop cannot carry, or bytes that do not encode a value. */
export class CodecError extends YardmasterError {}

/** The connection was lost. The node may or may not have carried out what it was asked for. */
export class ConnectionLost extends YardmasterError {}

/**
 * TLS with a node fails, and would again; the message says what to check. The node's certificate
 * is not accepted, or the client's, or only one side uses TLS, or the address names another port,
 * such as the one for HTTP. A client or worker throws it if it has reached no node so far and each
 * has failed so; later it goes on trying, as certificates are replaced one by one.
 */
export class TLSError extends ConnectionLost {
  constructor(readonly node: string, message: string, options?: Cause) {
    super(`node ${node}: ${message}`, options);
  }
}

/** The client was closed, or the worker has stopped. */
export class ClosedError extends YardmasterError {}

/**
 * No node has answered in time. `cause` is why the last try failed, if it did. A request to
 * enqueue may or may not have been carried out: repeat it with the same `key`.
 */
export class DeadlineExceeded extends YardmasterError {
  /** The key under which the job was to be enqueued; undefined for other requests. */
  readonly key: string | undefined;

  constructor(message: string, options?: Cause & { key?: string | undefined }) {
    super(message, options);
    this.key = options?.key;
  }
}

/** The node, of an older release, does not have what the request needs. */
export class NotSupported extends YardmasterError {}

/**
 * A node refused a request. `code` is stable and for programs, `message` for people;
 * `details` depends on the code and is empty if there are none.
 */
export class OverhopError extends YardmasterError {
  constructor(readonly code: string, message: string, readonly details: Readonly<Record<string, unknown>> = {}) {
    super(message === "" ? code : `${code}: ${message}`);
  }
}

/** The yard has no authority or no quorum at present, or the node no capacity. */
export class Unavailable extends OverhopError {
  /** Milliseconds after which to try again. */
  get retryAfter(): number {
    return milliseconds(this.details["retry_after_ms"]) ?? 250;
  }
}

/** A rate limit key is held, or the connection is at one of its limits. */
export class RateLimited extends OverhopError {
  /** Milliseconds after which the key is free; undefined for a limit of the connection. */
  get retryAfter(): number | undefined {
    return milliseconds(this.details["retry_after_ms"]);
  }
}

/** Another job holds the unique key. */
export class DuplicateJob extends OverhopError {
  /** The job that holds the key. */
  get jid(): string {
    return String(this.details["jid"] ?? "");
  }
}

/** The payload or an option of a job is invalid. */
export class InvalidJob extends OverhopError {
  /** JSON Pointer to what does not match the function's schema, "" being the whole; undefined if the reason is another one. */
  get path(): string | undefined {
    const path = this.details["path"];
    return typeof path === "string" ? path : undefined;
  }
}

/** An operation of the API was refused. */
export class ApiError extends OverhopError {
  constructor(message: string, readonly status: number, readonly data: unknown) {
    super("API_ERROR", message, { status, data });
  }
}

/** What is wrong with a query, and where. */
export interface QueryProblem {
  /** Of the part that is wrong, in bytes of its UTF-8. */
  readonly offset: number;
  /** 0 at the end of the query. */
  readonly length: number;
  readonly problem: string;
  /** What to write instead. */
  readonly advice: string;
}

/** The query of a request is wrong. */
export class InvalidQuery extends ApiError {
  constructor(message: string, status: number, override readonly data: QueryProblem) {
    super(message, status, data);
  }

  /** Returns the part of the query that is wrong. */
  partOf(query: string): string {
    const { offset, length } = this.data;
    return Buffer.from(query).subarray(offset, offset + length).toString();
  }
}

/** Returns the error for the payload of an ERR. */
export function overhopError(payload: Readonly<Record<string, unknown>>): OverhopError {
  const code = String(payload["code"] ?? "");
  const message = String(payload["msg"] ?? "");
  const details = (payload["details"] ?? {}) as Record<string, unknown>;
  switch (code) {
    case "UNAVAILABLE":
      return new Unavailable(code, message, details);
    case "RATE_LIMITED":
      return new RateLimited(code, message, details);
    case "DUPLICATE_JOB":
      return new DuplicateJob(code, message, details);
    case "INVALID_JOB_PAYLOAD":
      return new InvalidJob(code, message, details);
  }
  return new OverhopError(code, message, details);
}

function milliseconds(value: unknown): number | undefined {
  return typeof value === "number" && value >= 0 ? value : undefined;
}

/** Why a job failed, as its worker or the yard reported it. */
export interface JobFault {
  readonly message: string;
  /** For programs, such as "cancelled", "timeout" or "removed". */
  readonly type?: string;
  readonly code?: string;
  readonly details?: unknown;
  /** What was given to `cancel` as the reason. */
  readonly reason?: string;
}

/** The awaited job failed for good, was cancelled, or was removed (`fault.type` is "removed"). */
export class JobFailed extends YardmasterError {
  constructor(readonly jid: string, readonly fault: JobFault, readonly attempts: number) {
    super(
      fault.type === "removed"
        ? `job ${jid} was removed before it ended`
        : fault.type === "cancelled"
          ? `job ${jid} was cancelled: ${cancelReason(fault) ?? "no reason given"}`
          : `job ${jid} failed after ${attempts} attempts: ${fault.message}`,
    );
  }
}

/** The awaited job was cancelled. */
export class JobCancelled extends JobFailed {
  /** What was given to `cancel` as the reason, or else what its handler reported; undefined if that is nothing. */
  get reason(): string | undefined {
    return cancelReason(this.fault);
  }
}

function cancelReason({ reason, message }: JobFault): string | undefined {
  return reason || message || undefined;
}

/** What an error of a handler may add for the yard. */
export interface FaultOptions extends Cause {
  /** For programs. */
  code?: string;
  /** Any value that a payload may have. */
  details?: unknown;
}

/** The base class of the errors by which a handler decides what happens to its job. */
export class HandlerError extends YardmasterError {
  readonly code: string | undefined;
  readonly details: unknown;

  constructor(message: string, options: FaultOptions = {}) {
    super(message, options);
    this.code = options.code;
    this.details = options.details;
  }
}

/** Thrown by a handler to fail its job without another attempt. */
export class PermanentError extends HandlerError {}

const MAX_DELAY = 366 * 24 * 3600 * 1000;

/** Thrown by a handler to fail this attempt and have the next one start after a delay in milliseconds. */
export class RetryAfter extends HandlerError {
  constructor(readonly delay: number, message = "handler asks for a retry", options?: FaultOptions) {
    super(message, options);
    checkDelay(delay);
  }
}

/**
 * Thrown by a handler to put its job off by a delay in milliseconds. It is not a failure, and
 * the attempt is not counted. A delay of 0 is one second, so that a job that is not ready does
 * not start again at once. A node of an older release fails the attempt instead.
 */
export class Snooze extends HandlerError {
  readonly delay: number;

  constructor(delay: number, reason = "handler puts the job off") {
    super(reason);
    checkDelay(delay);
    this.delay = delay < 1 ? 1000 : delay;
  }
}

function checkDelay(delay: number): void {
  if (typeof delay !== "number" || !(delay >= 0 && delay <= MAX_DELAY)) {
    throw new RangeError(`delay is ${delay}, must be 0 to ${MAX_DELAY} milliseconds`);
  }
}

/** Why a job must stop: see {@link JobStopped}. */
export type StopReason = "cancel" | "deadline" | "lease_lost" | "shutdown";

/**
 * The reason of a job's signal once the job must stop.
 *
 * - `cancel`: it was cancelled, or its queue removed
 * - `deadline`: its attempt has taken too long
 * - `lease_lost`: it may already run elsewhere, and its outcome does not count
 * - `shutdown`: the worker or its node stops; a handler that throws this error gives the job
 *   back, and the attempt is not counted
 */
export class JobStopped extends YardmasterError {
  /**
   * `code` is what the node named, such as "CANCELLED", or else like `reason`; `why` is what was
   * given to `cancel` as the reason.
   */
  constructor(readonly reason: StopReason, readonly code: string, readonly why?: string) {
    super(`job must stop: ${why || code}`);
  }
}
