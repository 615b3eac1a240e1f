/** Jobs that match a query, and operations, which change all of them. */

import { callAPI } from "./admin.js";
import { generatedKey } from "./enqueue.js";
import { JobFault } from "./errors.js";
import { backoff } from "./nodes.js";
import { Requester } from "./requester.js";
import { CallOptions } from "./wait.js";

/** A job that a query has found, without params and result; docs/reference/api.md describes the keys. */
export interface FoundJob {
  /** A UUID. */
  readonly id: string;
  /** "<queue>:<id>" */
  readonly jid: string;
  readonly queue: string;
  readonly state: "waiting" | "delayed" | "active" | "completed" | "failed" | "cancelled" | "expired";
  readonly function?: string;
  readonly key?: string;
  readonly created_at: string;
  readonly started_at?: string;
  readonly ended_at?: string;
  readonly priority: number;
  readonly attempts: number;
  readonly node?: string;
  readonly worker?: string;
  readonly error?: JobFault;
  readonly tags?: readonly string[];
  readonly meta?: Readonly<Record<string, string>>;
  /** The params by which it is found. */
  readonly indexed?: Readonly<Record<string, string>>;
  readonly dead_letter?: number;
}

/** How to find jobs. */
export interface FindOptions extends CallOptions {
  /** Default: -created, the newest first. */
  sort?: "created" | "ended" | "-created" | "-ended";
  /** Jobs that are read at a time; default 100. */
  pageSize?: number;
}

/** Iterates over the jobs that a query finds, page by page. */
export async function* findJobs(requester: Requester, query: string, options: FindOptions): AsyncGenerator<FoundJob, void, undefined> {
  let cursor: string | undefined;
  do {
    const request = { q: query, sort: options.sort, limit: options.pageSize ?? 100, cursor };
    const page = (await callAPI(requester, "job.find", request, options)) as { jobs: FoundJob[]; next?: string };
    yield* page.jobs;
    cursor = page.next;
  } while (cursor);
}

/** What an operation does. "requeue" runs the jobs of dead letters again. */
export type OperationAction = "retry" | "cancel" | "remove" | "requeue";

/** An action, and the jobs that it changes: those that match and that are accepted by the start. */
export interface OperationStart {
  action: OperationAction;
  /** As for `client.find`; not empty: "id:*" stands for all jobs. */
  query: string;
  /** Jobs per second; default 0, as fast as the yard takes them beside its other work. */
  rate?: number;
  /** Requeue only: a JSON merge patch for the params, in which null removes a key. */
  params?: Record<string, unknown>;
  /** Requeue only: another queue. */
  to?: string;
  /** The attempts so far count. */
  keep_attempts?: boolean;
  /** A start with the key of an earlier one starts no second operation; default: a generated one. */
  key?: string;
}

/** An operation, and how far it is. */
export interface Operation {
  readonly id: number;
  readonly action: OperationAction;
  /** With absolute times. */
  readonly query: string;
  readonly state: "running" | "paused" | "done" | "cancelled";
  readonly accepted_until: string;
  readonly rate: number;
  readonly params?: unknown;
  readonly to?: string;
  readonly keep_attempts?: boolean;
  /** How many jobs matched before the start; undefined if they were not all counted. */
  readonly expected?: number;
  /** Jobs that it has come to: the sum of the next three. */
  readonly matched: number;
  readonly changed: number;
  /** They were left as they were. */
  readonly skipped: number;
  /** Numbers of those by reason; undefined if there are none. */
  readonly skipped_by?: Readonly<Record<string, number>>;
  /** The action was refused. */
  readonly failed: number;
  /** `get` only: the first of these. */
  readonly failures?: readonly { readonly job: string; readonly error: string }[];
  /** When the last job was accepted that it has come to. */
  readonly reached?: string;
  /** Why it does not go on at present. */
  readonly waiting_for?: string;
  readonly actor?: string;
  readonly door?: string;
  readonly reason?: string;
  readonly started_at: string;
  readonly updated_at: string;
  readonly ended_at?: string;
}

/** What an operation would do if it were started now. */
export interface OperationPreview {
  readonly action: OperationAction;
  readonly query: string;
  readonly matched: number;
  /** Not all were counted: more may match. */
  readonly at_least: boolean;
  /** How many of those the action applies to. */
  readonly applicable: number;
  /** How many of those may have no dead letter any more: there was no time to look for all. */
  readonly unchecked?: number;
  /** Numbers of jobs by state. */
  readonly states: Readonly<Record<string, number>>;
  /** Numbers of jobs that the action does not apply to, by reason. */
  readonly skipped?: Readonly<Record<string, number>>;
  /** On labels in the query that no job has. */
  readonly advice?: readonly string[];
  /** The first jobs. */
  readonly sample: readonly OperationSample[];
  readonly index: number;
}

/** One of the jobs that match. */
export interface OperationSample {
  readonly id: string;
  readonly queue: string;
  readonly function?: string;
  readonly state: string;
  readonly created_at: string;
  readonly error?: JobFault;
  /** Why the action does not apply. */
  readonly skipped?: string;
  readonly dead_letter?: number;
  /** Requeue with params: as the new job would have them. */
  readonly params?: unknown;
  /** Why the new job would be refused. */
  readonly refused?: string;
}

/**
 * The operations of the yard, which change all jobs that match a query: `client.operations`. The
 * yard carries them out, also if the program ends or a node dies. Throws InvalidQuery if a query
 * is wrong, ApiError for what else is refused, and NotSupported if the node is too old.
 */
export class Operations {
  readonly #requester: Requester;

  /** @internal */
  constructor(requester: Requester) {
    this.#requester = requester;
  }

  async #call<Reply>(op: string, request: object, options: CallOptions): Promise<Reply> {
    return (await callAPI(this.#requester, op, request, options)) as Reply;
  }

  /** Returns what an operation would do: how many jobs match, to how many the action applies, and the first ones. It changes nothing. */
  preview(start: OperationStart, options: CallOptions = {}): Promise<OperationPreview> {
    return this.#call("operation.preview", start, options);
  }

  /** Starts an operation. */
  start(start: OperationStart, options: CallOptions = {}): Promise<Operation> {
    return this.#call("operation.start", { ...start, key: start.key || generatedKey() }, options);
  }

  /** Returns an operation, how far it is, and the first jobs that it could not change. */
  get(id: number, options: CallOptions = {}): Promise<Operation> {
    return this.#call("operation.show", { id }, options);
  }

  /**
   * Returns an operation once it has ended, which may be because it was cancelled: without limit
   * unless there is a `signal` or a `deadline`.
   */
  async wait(id: number, options: CallOptions = {}): Promise<Operation> {
    const wait = this.#requester.wait(options, Infinity);
    for (let tries = 1; ; tries++) {
      const operation = await this.get(id, options);
      if (operation.ended_at !== undefined) {
        return operation;
      }
      await wait.sleep(backoff(tries));
    }
  }

  /** Iterates over the operations that have not ended, and those of the last 7 days, the newest first. */
  async *list(options: CallOptions = {}): AsyncGenerator<Operation, void, undefined> {
    let after: number | undefined;
    do {
      const page = await this.#call<{ operations: Operation[]; next?: number }>("operation.list", { after }, options);
      yield* page.operations;
      after = page.next;
    } while (after);
  }

  /** Has an operation change no more jobs until it is resumed. */
  pause(id: number, options: CallOptions = {}): Promise<Operation> {
    return this.#call("operation.pause", { id }, options);
  }

  /** Has a paused operation go on where it was. */
  resume(id: number, options: CallOptions = {}): Promise<Operation> {
    return this.#call("operation.resume", { id }, options);
  }

  /** Ends an operation; the jobs that it has changed stay changed. Throws ApiError 409 if it is done. */
  cancel(id: number, options: CallOptions = {}): Promise<Operation> {
    return this.#call("operation.cancel", { id }, options);
  }

  /** Changes how many jobs per second an operation changes; 0 is as many as the yard takes beside its other work. */
  setRate(id: number, rate: number, options: CallOptions = {}): Promise<Operation> {
    return this.#call("operation.set", { id, rate }, options);
  }
}
