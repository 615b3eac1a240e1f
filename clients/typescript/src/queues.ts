import { integer, queueName } from "./checks.js";
import { OverhopError } from "./errors.js";
import { Fields, intOf, mapOf, T } from "./protocol.js";
import { JobStatus, Queue, queueOf, QueueStats } from "./records.js";
import { Requester, RequestOptions } from "./requester.js";
import { CallOptions } from "./wait.js";

/** Settings of a queue. */
export interface QueueConfig {
  /** How many of its jobs run at once over all workers; null means no limit. */
  concurrencyLimit?: number | null;
}

/** The queues of the yard: `client.queues`. All calls throw OverhopError if a node refuses them. */
export class Queues {
  readonly #requester: Requester;

  /** @internal */
  constructor(requester: Requester) {
    this.#requester = requester;
  }

  #request(type: number, fields: Fields, options: CallOptions, more?: RequestOptions): Promise<Fields> {
    return this.#requester.request(type, fields, this.#requester.wait(options), more);
  }

  /** Returns all queues by name, the yard's own included. */
  async list(options: CallOptions = {}): Promise<Queue[]> {
    const answer = await this.#request(T.LSQUEUE, {}, options);
    return (answer["queues"] as unknown[]).map((queue) => queueOf(mapOf(queue)));
  }

  /** Returns a queue, or undefined if it does not exist. */
  async get(name: string, options: CallOptions = {}): Promise<Queue | undefined> {
    const answer = await this.#request(T.QUEUE, { q: name }, options);
    return answer["name"] === undefined ? undefined : queueOf(answer);
  }

  /** Creates a queue. Throws OverhopError DUPLICATE_QUEUE if it exists, unless `ifMissing` is true: then it stays as it is. */
  async add(name: string, config: QueueConfig & { ifMissing?: boolean } = {}, options: CallOptions = {}): Promise<void> {
    const limit = integer("concurrencyLimit", config.concurrencyLimit, 1);
    const fields = { name: queueName(name), config: { concurrency_limit: limit ?? null } };
    try {
      await this.#request(T.ADDQUEUE, fields, options, { doneCodes: ["DUPLICATE_QUEUE"] });
    } catch (err) {
      if (!(config.ifMissing && err instanceof OverhopError && err.code === "DUPLICATE_QUEUE")) {
        throw err;
      }
    }
  }

  /** Changes settings of a queue; those that are left out stay. A lowered limit stops no running job. */
  async set(name: string, config: QueueConfig & { retryOnTimeout?: boolean }, options: CallOptions = {}): Promise<void> {
    const changed = { concurrency_limit: integer("concurrencyLimit", config.concurrencyLimit, 1), retry_on_timeout: config.retryOnTimeout };
    await this.#request(T.SETQUEUE, { q: name, config: changed }, options);
  }

  /** Starts no more jobs of a queue; active ones continue. */
  async pause(name: string, options: CallOptions = {}): Promise<void> {
    await this.#request(T.PAUSE, { q: name }, options, { doneCodes: ["QUEUE_ALREADY_PAUSED"] });
  }

  /** Starts jobs of a paused queue again. */
  async resume(name: string, options: CallOptions = {}): Promise<void> {
    await this.#request(T.RESUME, { q: name }, options, { doneCodes: ["QUEUE_ALREADY_RUNNING"] });
  }

  /** Returns the numbers of a queue's jobs. */
  async stats(name: string, options: CallOptions = {}): Promise<QueueStats> {
    const answer = await this.#request(T.QSTATS, { q: name }, options);
    return mapOf(answer["stats"]) as QueueStats;
  }

  /** Removes a queue's jobs, except active ones, and returns their number. `statuses` selects them; default: all. */
  async clear(name: string, statuses?: readonly Exclude<JobStatus, "active">[], options: CallOptions = {}): Promise<number> {
    if (statuses?.length === 0) {
      return 0;
    }
    const answer = await this.#request(T.CLRQUEUE, { q: name, statuses }, options);
    return intOf(answer["removed"]);
  }

  /**
   * Removes a queue whose jobs have all ended. With `jobs` it removes a queue and all its
   * jobs, with `force` even active ones, which are recalled first.
   */
  async remove(name: string, how: { jobs?: boolean; force?: boolean } = {}, options: CallOptions = {}): Promise<void> {
    const done = { doneCodes: ["QUEUE_NOT_FOUND"] };
    if (how.jobs || how.force) {
      await this.#request(T.OBLITERATE, { q: name, force: how.force ?? false }, options, done);
    } else {
      await this.#request(T.RMQUEUE, { q: name }, options, done);
    }
  }
}
