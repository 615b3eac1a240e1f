/** Named limits, which bound how many jobs run and how often they start. */

import { callAPI } from "./admin.js";
import { ApiError } from "./errors.js";
import { Requester } from "./requester.js";
import { CallOptions } from "./wait.js";

/** What a limit bounds. A setting that is left out stays, null resets it. */
export interface LimitSettings {
  /** Jobs that run at the same time. */
  total?: number | null;
  /** The same, of each key. */
  per_key?: number | null;
  /** Starts: "100/s", "5/m", "1/h", "3/10s". */
  rate?: string | null;
  /** Starts at once, after a pause. */
  burst?: number | null;
  /** Starts, of each key. */
  rate_per_key?: string | null;
  burst_per_key?: number | null;
  /** So many failures within `within_ms` open the circuit. */
  open_after?: number | null;
  within_ms?: number | null;
  /** Types or codes of the errors that count. */
  on?: string[] | null;
  /** How many jobs may probe at the same time. */
  half_open?: number | null;
  /** How long the circuit is open before the first probe. */
  probe_after_ms?: number | null;
}

/** A limit, how much of it is used, and by what. */
export interface Limit extends LimitSettings {
  readonly name: string;
  readonly paused: boolean;
  readonly running: number;
  readonly waiting: number;
  readonly full_since?: string;
  readonly tokens?: number;
  readonly next_start_at?: string;
}

/** A limit with its queues and keys. */
export interface LimitDetail extends Limit {
  readonly queues: readonly { readonly queue: string; readonly waiting: number }[];
  readonly keys: readonly { readonly limit_key: string; readonly running: number; readonly waiting: number; readonly blocked?: boolean }[];
}

/** How the jobs of a queue start. A setting that is left out stays, null resets it. */
export interface StartSettings {
  concurrency_limit?: number | null;
  /** Names of limits that all its jobs use. */
  limits?: string[] | null;
  /** Where params have the key of a job, such as "params.customer". */
  key?: string | null;
  /** Accept jobs without a value there. */
  key_optional?: boolean | null;
  /** Share the starts among keys. */
  fair?: boolean | null;
  /** Jobs of a key that start in each round. */
  weights?: Record<string, number | null>;
  /** Time of waiting that is worth one class of priority. */
  age_ms?: number | null;
  /** Of jobs that give none. */
  priority?: number | null;
  max_attempts?: number | null;
  timeout_ms?: number | null;
}

/** The limits of the yard: `client.limits`. Throws ApiError, and NotSupported if the node is too old. */
export class Limits {
  readonly #requester: Requester;

  /** @internal */
  constructor(requester: Requester) {
    this.#requester = requester;
  }

  /** Iterates over the limits by name, page by page. */
  async *list(options: CallOptions = {}): AsyncGenerator<Limit, void, undefined> {
    let after: string | undefined = "";
    while (after !== undefined) {
      const page = (await callAPI(this.#requester, "limit.list", { after }, options)) as { limits: Limit[]; next?: string };
      yield* page.limits;
      after = page.next || undefined;
    }
  }

  /** Returns a limit with the queues and keys that use it. */
  async get(name: string, options: CallOptions = {}): Promise<LimitDetail> {
    return (await callAPI(this.#requester, "limit.show", { name }, options)) as LimitDetail;
  }

  /** Creates a limit, or changes it while jobs run. */
  async set(name: string, settings: LimitSettings, options: CallOptions = {}): Promise<LimitDetail> {
    return (await callAPI(this.#requester, "limit.set", { name, ...settings }, options)) as LimitDetail;
  }

  /** Starts no job that uses a limit until it is resumed. */
  pause(name: string, options: CallOptions = {}): Promise<void> {
    return this.#change("limit.pause", name, options);
  }

  /** Starts jobs that use a paused limit again. */
  resume(name: string, options: CallOptions = {}): Promise<void> {
    return this.#change("limit.resume", name, options);
  }

  async #change(op: string, name: string, options: CallOptions): Promise<void> {
    try {
      await callAPI(this.#requester, op, { name }, options);
    } catch (err) {
      if (!(err instanceof ApiError && err.status === 409)) { // it already is
        throw err;
      }
    }
  }

  /** Removes a limit; one that queues use needs `force`, which takes it from them. */
  async remove(name: string, { force = false, ...options }: CallOptions & { force?: boolean } = {}): Promise<void> {
    await callAPI(this.#requester, "limit.remove", { name, force }, options);
  }

  /** Changes how the jobs of a queue start. */
  async configureQueue(name: string, settings: StartSettings, options: CallOptions = {}): Promise<void> {
    await callAPI(this.#requester, "queue.set", { name, ...settings }, options);
  }
}
