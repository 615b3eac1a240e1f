/**
 * Operations of the yard's API, at nodes with the capability "api". Keys of requests and
 * replies are as in docs/reference/api.md.
 */

import { generatedKey } from "./enqueue.js";
import { ApiError, InvalidQuery, OverhopError, QueryProblem } from "./errors.js";
import { parseJSON, writeJSON } from "./json.js";
import { intOf, T, text } from "./protocol.js";
import { Requester } from "./requester.js";
import { CallOptions } from "./wait.js";

const MAX_JSON_LEVELS = 1000;

/** Operations that make a job: with a key, repeating them makes no second one. */
const NEEDS_KEY: readonly string[] = ["cron.run", "job.replay"];

/** Calls an operation of the API and returns its reply. */
export async function callAPI(requester: Requester, op: string, request: object, options: CallOptions): Promise<unknown> {
  const keyed = NEEDS_KEY.includes(op) ? { new_id: generatedKey(), ...request } : request;
  const json = Buffer.from(writeJSON(keyed, MAX_JSON_LEVELS));
  try {
    const answer = await requester.request(T.API, { op, request_json: json }, requester.wait(options), { size: json.length });
    const reply = answer["reply_json"];
    return reply instanceof Uint8Array && reply.length > 0 ? parseJSON(text(reply)) : undefined;
  } catch (err) {
    throw err instanceof OverhopError && err.code === "API_ERROR" ? apiError(op, err) : err;
  }
}

function apiError(op: string, refusal: OverhopError): ApiError {
  const data = refusal.details["data_json"];
  const reason = refusal.message.replace(/^API_ERROR(: )?/, "");
  const details = data instanceof Uint8Array ? parseJSON(text(data)) : undefined;
  const kind = (details as { reason?: unknown } | undefined)?.reason === "query" ? InvalidQuery : ApiError;
  return new kind(`${op}: ${reason}`, intOf(refusal.details["status"], 500), details as QueryProblem);
}

/** Selects dead letters: those that match all that is given. */
export interface DeadLetterFilter {
  /** By number. */
  letters?: number[];
  /** By the id of their job. */
  jobs?: string[];
  queue?: string;
  function?: string;
  /** Type or code of the error, or part of its text. */
  error?: string;
  failed_before?: string;
  failed_after?: string;
}

/** A job that has failed for good. */
export interface DeadLetter {
  readonly letter: number;
  /** The job's id, a UUID. */
  readonly id: string;
  readonly queue: string;
  readonly function?: string;
  readonly reason: string;
  readonly error?: { readonly message: string; readonly type?: string; readonly code?: string; readonly details?: unknown };
  readonly attempts: number;
  readonly accepted_at: string;
  readonly failed_at: string;
  /** Present state of its job. */
  readonly state?: string;
  /** The job as it was enqueued; in a list, only if it was asked for alone. */
  readonly job?: unknown;
}

/** What happened to a dead letter, or in a dry run would. */
export interface DeadLetterResult {
  readonly letter: number;
  readonly id: string;
  readonly result: "retried" | "enqueued" | "stale" | "removed" | "failed";
  /** The job that runs now, and its queue. */
  readonly job?: string;
  readonly queue?: string;
  readonly note?: string;
  readonly error?: string;
}

/** Numbers of dead letters. */
export interface DeadLetterStats {
  count: number;
  oldest?: string;
  newest?: string;
  queues: Record<string, number>;
  functions: Record<string, number>;
  errors: Record<string, number>;
}

/** What is changed: `all` is required without another filter; `dry_run` changes nothing. */
export interface DeadLetterChange extends DeadLetterFilter {
  all?: boolean;
  dry_run?: boolean;
}

interface Part {
  readonly next?: number;
  readonly until: number;
}

/** The dead letters of the yard: `client.deadLetters`. Throws ApiError, and NotSupported if the node is too old. */
export class DeadLetters {
  readonly #requester: Requester;

  /** @internal */
  constructor(requester: Requester) {
    this.#requester = requester;
  }

  /** Calls an operation until nothing is left, and yields each reply. */
  async *#parts<Reply extends Part>(op: string, request: object, options: CallOptions): AsyncGenerator<Reply, void, undefined> {
    let range: { from?: number; until?: number } = {};
    for (;;) {
      const reply = (await callAPI(this.#requester, op, { ...request, ...range }, options)) as Reply;
      yield reply;
      if (!reply.next) {
        return;
      }
      range = { from: reply.next, until: reply.until };
    }
  }

  /** Iterates over the dead letters that match, newest first unless `order` is "oldest", page by page. */
  async *list(filter: DeadLetterFilter & { order?: "newest" | "oldest" } = {}, options: CallOptions = {}): AsyncGenerator<DeadLetter, void, undefined> {
    for await (const page of this.#parts<Part & { letters: DeadLetter[] }>("dlq.list", filter, options)) {
      yield* page.letters;
    }
  }

  /** Returns one dead letter with its job. */
  async get(letter: number, options: CallOptions = {}): Promise<DeadLetter> {
    return (await callAPI(this.#requester, "dlq.show", { letters: [letter] }, options)) as DeadLetter;
  }

  /** Counts the dead letters that match. */
  async stats(filter: DeadLetterFilter = {}, options: CallOptions = {}): Promise<DeadLetterStats> {
    const total: DeadLetterStats = { count: 0, queues: {}, functions: {}, errors: {} };
    for await (const part of this.#parts<Part & DeadLetterStats>("dlq.stats", filter, options)) {
      total.count += part.count;
      const times = [total.oldest, total.newest, part.oldest, part.newest].filter((at): at is string => at !== undefined);
      times.sort((a, b) => Date.parse(a) - Date.parse(b)); // parts may come in either order
      if (times.length > 0) [total.oldest, total.newest] = [times[0], times.at(-1)];
      for (const name of ["queues", "functions", "errors"] as const) {
        for (const [key, count] of Object.entries(part[name])) {
          total[name][key] = (total[name][key] ?? 0) + count;
        }
      }
    }
    return total;
  }

  /** Runs the jobs of dead letters again, in another queue with `to`, and returns what happened to each. */
  requeue(change: DeadLetterChange & { to?: string; keep_attempts?: boolean }, options: CallOptions = {}): Promise<DeadLetterResult[]> {
    return this.#change("dlq.requeue", change, options);
  }

  /** Removes dead letters and returns what happened to each. */
  remove(change: DeadLetterChange, options: CallOptions = {}): Promise<DeadLetterResult[]> {
    return this.#change("dlq.remove", change, options);
  }

  async #change(op: string, change: object, options: CallOptions): Promise<DeadLetterResult[]> {
    const results: DeadLetterResult[] = [];
    for await (const part of this.#parts<Part & { items: DeadLetterResult[]; stopped?: string }>(op, change, options)) {
      results.push(...part.items);
      if (part.stopped) {
        throw new ApiError(`${op} stopped after ${results.length} dead letters: ${part.stopped}`, 503, results);
      }
    }
    return results;
  }
}

/** The job that a cron entry makes, as in docs/guides/producers.md. */
export interface CronJob {
  function?: string;
  params?: Record<string, unknown>;
  priority?: number;
  max_attempts?: number;
  timeout_ms?: number;
  retry_interval_ms?: number;
  retry_on_timeout?: boolean;
}

/** When a cron entry makes jobs, and which. */
export interface CronEntry {
  /** Five or six fields, or such as "@hourly" or "@every 90s". */
  schedule: string;
  /** An IANA name; default UTC. */
  time_zone?: string;
  queue: string;
  job: CronJob;
  /** Whether times that passed without an authority make one job together; default "skip". */
  missed?: "skip" | "once";
  /** Whether a job is made although the last one has not ended; default "allow". */
  overlap?: "allow" | "skip";
}

/** A future time of a cron entry. */
export interface CronTick {
  readonly at: string;
  /** The same time in the entry's time zone. */
  readonly local: string;
  /** If clocks change then, such as "skipped hour: runs at 03:00" or "double hour: first". */
  readonly note?: string;
}

/** A cron entry as the yard shows it. */
export interface Cron extends Required<CronEntry> {
  readonly name: string;
  readonly state: "running" | "paused" | "ended";
  /** It is in the configuration of the nodes. */
  readonly declared: boolean;
  readonly next: string | null;
  readonly upcoming: string[];
  readonly ticks: CronTick[];
  readonly last: string | null;
  readonly last_job: string | null;
  readonly fired: number;
  readonly skipped: number;
  readonly missed_count: number;
}

/** The cron entries of the yard: `client.cron`. Throws ApiError, and NotSupported if the node is too old. */
export class CronEntries {
  readonly #requester: Requester;

  /** @internal */
  constructor(requester: Requester) {
    this.#requester = requester;
  }

  #call(op: string, request: object, options: CallOptions): Promise<unknown> {
    return callAPI(this.#requester, op, request, options);
  }

  /** Iterates over the entries by name, page by page. */
  async *list(options: CallOptions = {}): AsyncGenerator<Cron, void, undefined> {
    let after = "";
    for (;;) {
      const page = (await this.#call("cron.list", { after }, options)) as { entries: Cron[]; more: boolean };
      yield* page.entries;
      const last = page.entries.at(-1);
      if (!page.more || last === undefined) {
        return;
      }
      after = last.name;
    }
  }

  /** Returns an entry with its `next` future times, up to 100; default 3. */
  async get(name: string, options: CallOptions & { next?: number } = {}): Promise<Cron> {
    const { next, ...call } = options;
    return (await this.#call("cron.show", next === undefined ? { name } : { name, next }, call)) as Cron;
  }

  /** Adds an entry. With `replace`, it replaces a different one of this name, which is else a conflict. */
  async add(name: string, entry: CronEntry & { replace?: boolean }, options: CallOptions = {}): Promise<Cron> {
    return (await this.#call("cron.add", { name, ...entry }, options)) as Cron;
  }

  async remove(name: string, options: CallOptions = {}): Promise<void> {
    await this.#call("cron.remove", { name }, options);
  }

  async pause(name: string, options: CallOptions = {}): Promise<Cron> {
    return (await this.#call("cron.pause", { name }, options)) as Cron;
  }

  async resume(name: string, options: CallOptions = {}): Promise<Cron> {
    return (await this.#call("cron.resume", { name }, options)) as Cron;
  }

  /** Enqueues an entry's job now and returns the job's id, a UUID. */
  async run(name: string, options: CallOptions = {}): Promise<string> {
    return ((await this.#call("cron.run", { name }, options)) as { id: string }).id;
  }
}
