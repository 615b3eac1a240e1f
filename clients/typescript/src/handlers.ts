/** Handlers by queue and function, and how one is run. */

import { Assignment } from "./assignment.js";
import { describe } from "./codec.js";
import { JobDefinition } from "./enqueue.js";
import { Job, Quest } from "./job.js";
import { Logger } from "./log.js";
import { failure, Outcome, success, textOf, thrown } from "./outcome.js";

/** Runs a job and returns its result. What it throws fails the attempt. */
export type Handler<Payload = unknown, Result = unknown> = (job: Job<Payload>) => Promise<Result> | Result;

/**
 * Runs around the handlers of all jobs: `next` calls the following middleware and at last the
 * handler, and returns the result, which the middleware may replace.
 */
export type Middleware = (job: Job, next: () => Promise<unknown>) => Promise<unknown> | unknown;

interface Registered {
  readonly handler: Handler;
  readonly parse: ((payload: unknown) => unknown) | undefined;
}

/** Milliseconds for which a job without a handler goes back: the shortest and longest time, and its age from which on it fails. */
const UNKNOWN_DELAY = 5000;
const MAX_UNKNOWN_DELAY = 600_000;
const UNKNOWN_GRACE = 24 * 3600 * 1000;

export class Handlers {
  readonly #byQueue = new Map<string, Map<string | undefined, Registered>>();
  readonly middleware: Middleware[] = [];

  readonly #unknown = new Set<string>(); // queues and functions without a handler that were logged

  constructor(private readonly log: Required<Logger>, private readonly failUnknown: boolean) {}

  /** Adds the handler of a kind of job, or of a queue's jobs: those of a function, or all without a handler of their own. */
  add(target: string | JobDefinition<unknown, unknown>, fn: string | undefined, handler: Handler): void {
    const [queue, name, parse] = typeof target === "string" ? [target, fn, undefined] : [target.queue, target.fn, target.parse];
    if (typeof handler !== "function") {
      throw new TypeError(`the handler of queue ${JSON.stringify(queue)} is ${describe(handler)}, must be a function`);
    }
    const functions = this.#byQueue.get(queue) ?? new Map<string | undefined, Registered>();
    if (functions.has(name)) {
      throw new TypeError(`queue ${JSON.stringify(queue)} has a handler for ${name ?? "any function"} already`);
    }
    this.#byQueue.set(queue, functions.set(name, { handler, parse }));
  }

  /** Runs an assigned job and returns how it has ended. It never throws. `read` returns a payload that did not fit into the QUEST. */
  async run(assignment: Assignment, read: () => Promise<unknown>): Promise<Outcome> {
    const { quest } = assignment;
    const functions = this.#byQueue.get(quest.queue);
    const registered = functions?.get(quest.fn) ?? functions?.get(undefined);
    if (registered === undefined) {
      return this.#unhandled(quest, [...(functions?.keys() ?? [])]);
    }
    try {
      const payload = quest.omitted ? await read() : quest.payload();
      assignment.signal.throwIfAborted();
      const parsed = parsePayload(registered, payload);
      if ("outcome" in parsed) {
        return parsed.outcome;
      }
      const job = new Job(quest, parsed.payload, assignment.signal, assignment);
      return success(await this.#call(job, registered.handler, 0));
    } catch (err) {
      const outcome = thrown(err, assignment.stopped);
      if (outcome.kind === "fail" && assignment.stopped === undefined && !outcome.isChosen) {
        this.log.warn("attempt failed", { job: quest.jid, attempt: quest.attempt, error: outcome.error["message"] });
      }
      return outcome;
    }
  }

  /**
   * Returns how a job ends whose function has no handler: it goes back for a time that grows, for
   * a worker of a newer release, or fails for good. It logs the first job of each function.
   */
  #unhandled({ jid, queue, fn, createdAt, sent }: Quest, handled: Array<string | undefined>): Outcome {
    const wanted = fn === undefined ? "names no function" : `names the function ${JSON.stringify(fn)}`;
    const has = handled.map((name) => JSON.stringify(name)).join(", ");
    const message = `job of queue ${JSON.stringify(queue)} ${wanted}, for which this worker has no handler; it has ${has}`;
    const id = JSON.stringify([queue, fn]);
    if (!this.#unknown.has(id)) {
      this.#unknown.add(id);
      const then = this.failUnknown ? "fail without another attempt" : "go back for some time";
      this.log.warn(`${message}: add one to every worker of the queue, or use another queue for the function; such jobs ${then}`, { job: jid });
    }
    if (this.failUnknown) {
      return failure(message, "handler_not_found", { code: "UNKNOWN_FUNCTION", retry: false });
    }
    const age = createdAt === undefined ? 0 : sent - createdAt.getTime();
    if (age < UNKNOWN_GRACE) {
      return { kind: "snooze", delay: Math.round(Math.min(Math.max(age / 2, UNKNOWN_DELAY), MAX_UNKNOWN_DELAY)), reason: message };
    }
    return failure(message, "unknown_function", { code: "UNKNOWN_FUNCTION" });
  }

  /** Calls the middleware from an index on, and then the handler. */
  async #call(job: Job, handler: Handler, index: number): Promise<unknown> {
    const middleware = this.middleware[index];
    return middleware === undefined ? handler(job) : middleware(job, () => this.#call(job, handler, index + 1));
  }
}

/** Checks a payload with the `parse` of its kind of job; one that it refuses is never tried again. */
function parsePayload({ parse }: Registered, payload: unknown): { payload: unknown } | { outcome: Outcome } {
  if (parse === undefined) {
    return { payload };
  }
  try {
    return { payload: parse(payload) };
  } catch (err) {
    return { outcome: failure(`payload: ${textOf(err)}`, "invalid", { retry: false }) };
  }
}
