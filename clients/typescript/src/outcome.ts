/** How a job has ended at its worker, and the messages that report it. */

import { describe, encode, Encoded, MAX_VALUE_DEPTH } from "./codec.js";
import { Connection } from "./connection.js";
import { HandlerError, JobStopped, PermanentError, RetryAfter, Snooze } from "./errors.js";
import { cutText, WORKER_STOPS } from "./job.js";
import { Fields, hasJSON, T, userField } from "./protocol.js";

export type Outcome =
  | { readonly kind: "done"; readonly result: Fields }
  /** isChosen: the handler has thrown a HandlerError. */
  | { readonly kind: "fail"; readonly error: Fields; readonly retry: boolean; readonly retryAfter?: number; readonly isChosen?: boolean }
  | { readonly kind: "snooze"; readonly delay: number; readonly reason: string }
  /** Nothing is reported: the lease is void. */
  | { readonly kind: "void" }
  /** Nothing is reported: the worker gives the job back. */
  | { readonly kind: "interrupted" };

const MAX_MESSAGE = 4000; // characters
const MAX_NAME = 200;
const MAX_STACK = 28 << 10; // bytes, so that it fits into the details
const OMISSION = 64; // bytes for the line of excerpt
const MAX_DETAILS = 32 << 10; // bytes, so that a FAIL fits into the smallest frame limit

/** Returns the outcome of a handler that has returned a value. */
export function success(result: unknown): Outcome {
  try {
    return { kind: "done", result: userField("result", result ?? null, MAX_VALUE_DEPTH) };
  } catch (err) {
    return invalidResult(textOf(err));
  }
}

/** Returns the outcome of a job whose result cannot be sent or stored. */
export function invalidResult(reason: string): Outcome {
  return failure(`result: ${reason}`, "invalid_result", { retry: false });
}

interface FailureOptions {
  code?: string | undefined;
  details?: unknown;
  retry?: boolean;
  retryAfter?: number;
  isChosen?: boolean;
}

/** Returns a failed attempt, with texts and details cut to a size that every node accepts. */
export function failure(message: string, type: string, options: FailureOptions = {}): Outcome {
  const error: Fields = {
    message: cutText(message || type, MAX_MESSAGE),
    type: cutText(type, MAX_NAME),
    code: options.code === undefined ? undefined : cutText(options.code, MAX_NAME),
    ...(options.details !== undefined && detailsField(options.details)),
  };
  const retryAfter = options.retryAfter === undefined ? {} : { retryAfter: Math.round(options.retryAfter) };
  return { kind: "fail", error, retry: options.retry ?? true, ...retryAfter, isChosen: options.isChosen ?? false };
}

function detailsField(details: unknown): Fields {
  let field: Fields;
  try {
    field = userField("details", details, MAX_VALUE_DEPTH);
  } catch (err) {
    return { details: cutText(`omitted: ${textOf(err)}`, MAX_MESSAGE) };
  }
  const size = encode(field).length;
  return size <= MAX_DETAILS ? field : { details: `omitted: ${size} bytes, more than the limit of ${MAX_DETAILS}` };
}

/**
 * Returns the outcome of a handler that has thrown anything. `stopped` is the reason of the
 * job's signal, if it was aborted.
 */
export function thrown(err: unknown, stopped: JobStopped | undefined): Outcome {
  try {
    return outcomeOf(err, stopped);
  } catch (reason) { // a getter or a conversion of the handler's own object throws, too
    return failure(`the handler has thrown ${textOf(err)}, which cannot be read: ${textOf(reason)}`, "unreadable_error");
  }
}

/** Returns the text of anything that was thrown: the message of an Error, or a description of another value. It never throws. */
export function textOf(err: unknown): string {
  try {
    return err instanceof Error && typeof err.message === "string" ? err.message : typeof err === "string" ? err : nameOf(err);
  } catch {
    return "an object that cannot be read";
  }
}

/** Returns the kind and the JSON of an object, or the text of another value. */
function nameOf(value: unknown): string {
  if (typeof value !== "object" || value === null) {
    return String(value);
  }
  try {
    return `${describe(value)} ${JSON.stringify(value)}`;
  } catch {
    return describe(value);
  }
}

function outcomeOf(err: unknown, stopped: JobStopped | undefined): Outcome {
  const message = err instanceof Error || typeof err === "string" ? textOf(err) : `the handler has thrown ${textOf(err)}`;
  if (stopped !== undefined) {
    switch (stopped.reason) {
      case "lease_lost":
        return { kind: "void" };
      case "deadline": // final, unless the job or its queue has retry_on_timeout
        return failure(message, "timeout", { retry: false });
      case "shutdown":
        if (isInterruption(err, stopped)) {
          return stopped.code === WORKER_STOPS ? { kind: "interrupted" } : failure(message, "cancelled");
        }
        break;
      case "cancel":
        if (!(err instanceof HandlerError)) {
          return failure(message, "cancelled");
        }
    }
  }
  if (err instanceof Snooze) {
    return { kind: "snooze", delay: Math.round(err.delay), reason: message };
  }
  if (err instanceof HandlerError) {
    const { code, details } = err;
    const delay = err instanceof RetryAfter ? { retryAfter: err.delay } : {};
    return failure(message, err.name, { code, details, retry: !(err instanceof PermanentError), isChosen: true, ...delay });
  }
  if (err instanceof Error) {
    const code = (err as { code?: unknown }).code;
    const stack = { stack: excerpt(stackOf(err), MAX_STACK) };
    return failure(message, err.name || "Error", { details: stack, code: typeof code === "string" ? code : undefined });
  }
  return failure(message, "non_error");
}

/** Reports whether an error is that of the job's signal, or of an operation that the signal has ended. */
function isInterruption(err: unknown, stopped: JobStopped): boolean {
  if (err instanceof HandlerError) {
    return false;
  }
  for (let at: unknown = err, depth = 0; at instanceof Error && depth < 10; at = at.cause, depth++) {
    if (at === stopped || at.name === "AbortError") {
      return true;
    }
  }
  return false;
}

function stackOf(err: Error): string {
  const stack = err.stack ?? String(err);
  return err.cause instanceof Error ? `${excerpt(stack, MAX_STACK / 2)}\ncaused by ${err.cause.stack ?? String(err.cause)}` : stack;
}

/** Returns text cut to `size` bytes of UTF-8: a line replaces the middle of a longer one. */
function excerpt(text: string, size: number): string {
  const data = Buffer.from(text, "utf8");
  if (data.length <= size) {
    return text;
  }
  const isPart = (at: number) => (data[at]! & 0xc0) === 0x80; // of a character, and not its first byte
  let start = Math.floor(size / 4);
  let end = data.length - (size - start - OMISSION);
  for (; isPart(start); start--);
  for (; end < data.length && isPart(end); end++);
  const decoder = new TextDecoder();
  return `${decoder.decode(data.subarray(0, start))}\n... ${end - start} bytes omitted ...\n${decoder.decode(data.subarray(end))}`;
}

/** A DONE or FAIL. */
export interface Report {
  readonly type: number;
  readonly fields: Fields;
}

/** Returns the message that reports an outcome to the node of a connection, without the job's names and credits. */
export function report(outcome: Exclude<Outcome, { kind: "void" | "interrupted" }>, connection: Connection): Report {
  switch (outcome.kind) {
    case "done":
      if (hasJSON(outcome.result) && !connection.has("json")) {
        return report(invalidResult("the node, of an older release, takes no fractions and no integers beyond 64 bits") as typeof outcome, connection);
      }
      return { type: T.DONE, fields: outcome.result };
    case "fail": {
      const error = hasJSON(outcome.error) && !connection.has("json") ? withoutJSON(outcome.error) : outcome.error;
      return { type: T.FAIL, fields: { error, retry: outcome.retry, retry_after_ms: outcome.retryAfter } };
    }
    case "snooze": {
      const reason = cutText(outcome.reason, MAX_MESSAGE);
      if (connection.has("snooze")) {
        return { type: T.FAIL, fields: { error: { message: reason, type: "snooze" }, snooze_ms: outcome.delay } };
      }
      const message = `the handler puts the job off (${reason}), which node ${connection.nodeName}, of an older release, cannot do: the attempt counts`;
      return report(failure(message, "snooze_not_supported", { retryAfter: outcome.delay }) as typeof outcome, connection);
    }
  }
}

/** Replaces details that travel as JSON by their text. */
function withoutJSON(error: Fields): Fields {
  const { details_json: json, ...rest } = error;
  return { ...rest, details: Buffer.from(json as Uint8Array).toString("utf8") };
}

/** Reports whether an outcome has a result that a node may find too large. */
export function hasLargeResult(outcome: Outcome): boolean {
  if (outcome.kind !== "done") {
    return false;
  }
  const [value] = Object.values(outcome.result);
  const bytes = value instanceof Encoded ? value.bytes : (value as Uint8Array);
  return bytes.length > 1 << 16;
}

