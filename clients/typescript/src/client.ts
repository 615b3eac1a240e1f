import { callAPI, CronEntries, DeadLetters } from "./admin.js";
import { Limits } from "./limits.js";
import { DEFAULT_TIMING, Timing } from "./connection.js";
import { duration, integer, timeText } from "./checks.js";
import { EnqueueRequest, enqueueRequest, JobDefinition, JobId, JobOptions, JobRequest } from "./enqueue.js";
import { DeadlineExceeded, JobCancelled, JobFailed, OverhopError, RateLimited } from "./errors.js";
import { Fields, mapOf, readContent, T, timeOf } from "./protocol.js";
import { FindOptions, findJobs, FoundJob, Operations } from "./operations.js";
import { Queues } from "./queues.js";
import { jobEnd, JobRecord, jobRecord, JobStatus } from "./records.js";
import { ConnectOptions, Requester } from "./requester.js";
import { CallOptions, Timer, Wait } from "./wait.js";

export interface ClientOptions extends ConnectOptions {
  /** How long a call is repeated, in milliseconds, unless it has a `deadline`; default 30 000. */
  timeout?: number;
}

/** The answer for one job of `enqueueMany`. With an unknown outcome, `key` makes a repetition safe. */
export type EnqueueAnswer =
  | { readonly key: string | undefined; readonly jid: JobId; readonly error?: undefined }
  | { readonly key: string | undefined; readonly jid?: undefined; readonly error: Error };

const MAX_AWAIT = 30_000; // milliseconds of one AWAIT
/** Milliseconds for which an awaited job may be unknown: another node has accepted it just now. */
const UNKNOWN_TIMEOUT = 15_000;

/** A call that waits for the end of a job. */
interface EndWaiter {
  end: Fields | undefined;
  lost: boolean; // a connection has ended since the last AWAIT
  wake: () => void;
}

/**
 * Enqueues jobs, waits for their results, and manages jobs and queues.
 *
 * A client connects to one node on first use, and to another one if the connection is lost or
 * the node drains. A call is repeated until a node answers, its `signal` is aborted (then it
 * throws the signal's reason) or its time is over (DeadlineExceeded). It throws an
 * OverhopError if a node refuses it. Calls may be made at the same time; they share the
 * connection and do not wait for each other.
 *
 * ```ts
 * const client = new Client({ nodes: ["10.0.0.1:9876", "10.0.0.2:9876"] });
 * const jid = await client.enqueue("mail", { fn: "send_mail", payload: { to: "ann" } });
 * console.log(await client.result(jid));
 * client.close();
 * ```
 */
export class Client {
  readonly queues: Queues;
  readonly deadLetters: DeadLetters;
  readonly cron: CronEntries;
  readonly limits: Limits;
  readonly operations: Operations;
  readonly #requester: Requester;
  readonly #createQueues: boolean;
  readonly #creating = new Map<string, Promise<void>>(); // queues that jobs need
  readonly #waiters = new Map<string, Set<EndWaiter>>();

  constructor(options?: ClientOptions);
  /** @internal */
  constructor(options: ClientOptions, timing?: Timing);
  constructor(options: ClientOptions = {}, timing: Timing = DEFAULT_TIMING) {
    if (options.timeout !== undefined && !(options.timeout >= 0)) {
      throw new RangeError(`timeout is ${options.timeout}, must be 0 milliseconds or more`);
    }
    this.#requester = new Requester(options, timing, options.timeout ?? 30_000);
    this.#createQueues = options.createQueues ?? true;
    this.#requester.onPush = (type, fields) => type === T.JOBEND && this.#handleEnd(fields);
    this.#requester.onLost = () => this.#waiters.forEach((waiters) => waiters.forEach((waiter) => {
      waiter.lost = true; // the node has forgotten its AWAIT
      waiter.wake();
    }));
    this.queues = new Queues(this.#requester);
    this.deadLetters = new DeadLetters(this.#requester);
    this.cron = new CronEntries(this.#requester);
    this.limits = new Limits(this.#requester);
    this.operations = new Operations(this.#requester);
  }

  /** The address of the connected node; undefined while there is none. */
  get node(): string | undefined {
    return this.#requester.node;
  }

  /** Closes the connection. Pending and later calls throw ClosedError. */
  close(): void {
    this.#requester.close();
  }

  /**
   * Enqueues a job and returns its id, once a quorum of disks has it. A queue that does not
   * exist is created, unless `createQueues` is false: then it throws OverhopError QUEUE_NOT_FOUND.
   */
  enqueue<Payload = unknown>(queue: string, job?: Omit<JobRequest<Payload>, "queue"> & CallOptions): Promise<JobId>;
  /** Enqueues a job of a kind made by defineJob. */
  enqueue<Payload, Result>(kind: JobDefinition<Payload, Result>, payload: Payload, options?: JobOptions & CallOptions): Promise<JobId<Result>>;
  async enqueue(target: string | JobDefinition<unknown, unknown>, payload?: unknown, options?: JobOptions & CallOptions): Promise<JobId> {
    if (typeof target === "string") {
      const job = (payload ?? {}) as JobRequest & CallOptions;
      return this.#enqueue(enqueueRequest({ ...job, queue: target }), this.#requester.wait(job));
    }
    return this.#enqueue(enqueueRequest(target.with(payload, options)), this.#requester.wait(options ?? {}));
  }

  async #enqueue({ fields, key, size }: EnqueueRequest, wait: Wait): Promise<JobId> {
    const send = async () => (await this.#requester.request(T.ENQUEUE, fields, wait, { key, size }))["jid"] as JobId;
    try {
      return await send();
    } catch (err) {
      if (!this.#createQueues || !(err instanceof OverhopError && err.code === "QUEUE_NOT_FOUND")) {
        throw err;
      }
    }
    await wait.race(this.#createQueue(fields["q"] as string));
    return send();
  }

  /** Creates a queue, once for all jobs that wait for it. */
  #createQueue(name: string): Promise<void> {
    let creating = this.#creating.get(name);
    if (creating === undefined) {
      creating = this.queues.add(name, { ifMissing: true }).finally(() => this.#creating.delete(name));
      this.#creating.set(name, creating);
    }
    return creating;
  }

  /**
   * Enqueues many jobs and returns an answer for each, in their order: a refused job does not
   * affect the others. All have the time of one call. It throws only if it is aborted before it
   * begins.
   *
   * ```ts
   * const answers = await client.enqueueMany(people.map((to) => sendMail.with({ to })));
   * const failed = answers.filter((answer) => answer.error);
   * ```
   */
  async enqueueMany(jobs: Iterable<JobRequest>, options: CallOptions = {}): Promise<EnqueueAnswer[]> {
    const wait = this.#requester.wait(options);
    const answer = async (job: JobRequest): Promise<EnqueueAnswer> => {
      let key = job.key;
      try {
        const request = enqueueRequest(job);
        key = request.key;
        return { key, jid: await this.#enqueue(request, wait) };
      } catch (error) {
        return { key, error: error as Error };
      }
    };
    return Promise.all(Array.from(jobs, answer));
  }

  /**
   * Waits until a job has ended and returns its result, of any size: without limit unless
   * there is a `signal` or a `deadline`.
   *
   * Throws JobFailed if it failed or was removed, JobCancelled if it was cancelled; OverhopError CONTENT_GONE if its result is
   * no longer stored, and JOB_NOT_FOUND if it remains unknown for some seconds.
   */
  result<Result>(jid: JobId<Result>, options?: CallOptions): Promise<Result>;
  result<Result = unknown>(jid: string, options?: CallOptions): Promise<Result>;
  async result(jid: string, options: CallOptions = {}): Promise<unknown> {
    const wait = this.#requester.wait(options, Infinity);
    const end = jobEnd(await this.#end(jid, wait));
    if (!end.completed) {
      throw new (end.fault.type === "cancelled" ? JobCancelled : JobFailed)(jid, end.fault, end.attempts);
    }
    if (end.resultGone !== undefined) {
      throw new OverhopError("CONTENT_GONE", `${end.resultGone}: job ${jid} has completed, its result is no longer stored`);
    }
    return end.omitted.includes("result") ? this.#content(jid, "result", wait) : end.result;
  }

  /** Enqueues a job and returns its result: {@link enqueue} and {@link result}. It waits without limit unless there is a `signal` or a `deadline`. */
  call<Result = unknown>(queue: string, job?: Omit<JobRequest, "queue"> & CallOptions): Promise<Result>;
  call<Payload, Result>(kind: JobDefinition<Payload, Result>, payload: Payload, options?: JobOptions & CallOptions): Promise<Result>;
  async call(target: string | JobDefinition<unknown, unknown>, payload?: unknown, options?: JobOptions & CallOptions): Promise<unknown> {
    if (typeof target === "string") {
      const job = (payload ?? {}) as CallOptions;
      return this.result(await this.enqueue(target, job), job);
    }
    return this.result(await this.enqueue(target, payload, options), options);
  }

  /** Returns the payload of a job, of any size. Throws OverhopError CONTENT_NOT_FOUND if it has none, CONTENT_GONE if it is no longer stored. */
  async payload<Payload = unknown>(jid: string, options: CallOptions = {}): Promise<Payload> {
    return (await this.#content(jid, "payload", this.#requester.wait(options))) as Payload;
  }

  #content(jid: string, value: "payload" | "result", wait: Wait): Promise<unknown> {
    return readContent((request) => this.#requester.request(T.CONTENT, request, wait), jid, value);
  }

  /** Returns a job, or undefined if the node does not know it (yet). Throws OverhopError RESPONSE_TOO_LARGE if it does not fit into a frame. */
  async get<Payload = unknown, Result = unknown>(jid: string, options: CallOptions = {}): Promise<JobRecord<Payload, Result> | undefined> {
    const answer = await this.#requester.request(T.JOB, { jid }, this.#requester.wait(options));
    return answer["jid"] === undefined ? undefined : (jobRecord(answer) as JobRecord<Payload, Result>);
  }

  /**
   * Iterates over the jobs of a queue in one status, oldest first, page by page. Jobs that
   * leave the status meanwhile move the others, so that some may be missed.
   */
  async *list(queue: string, status: JobStatus, options: CallOptions & { pageSize?: number } = {}): AsyncGenerator<JobRecord, void, undefined> {
    let size = integer("pageSize", options.pageSize, 1) ?? 100;
    for (let page = 1; ; ) {
      let jobs: unknown[];
      try {
        const answer = await this.#requester.request(T.LSJOB, { q: queue, status, page, page_size: size }, this.#requester.wait(options));
        jobs = answer["jobs"] as unknown[];
      } catch (err) {
        if (err instanceof OverhopError && err.code === "RESPONSE_TOO_LARGE" && size > 1) {
          const smaller = size % 2 === 0 ? size / 2 : 1;
          [page, size] = [((page - 1) * size) / smaller + 1, smaller]; // the same jobs begin there
          continue;
        }
        throw err;
      }
      yield* jobs.map((job) => jobRecord(mapOf(job)));
      if (jobs.length < size) {
        return;
      }
      page++;
    }
  }

  /**
   * Iterates over the jobs that a query finds, such as "queue:mail state:failed since:1h", also
   * those that ended days ago, page by page. Throws InvalidQuery if the query is wrong.
   */
  find(query: string, options: FindOptions = {}): AsyncGenerator<FoundJob, void, undefined> {
    return findJobs(this.#requester, query, options);
  }

  /** Cancels a job and returns its status: "active" while its handler has yet to stop. */
  async cancel(jid: string, reason?: string, options: CallOptions = {}): Promise<JobStatus> {
    return this.#change(T.CANCEL, { jid, reason }, options, "JOB_ALREADY_TERMINAL", "failed");
  }

  /** Runs a failed or cancelled job again, its attempts counted from zero, and returns its status. */
  async retry(jid: string, options: CallOptions = {}): Promise<JobStatus> {
    return this.#change(T.RETRYJOB, { jid }, options, "JOB_NOT_ACTIVE", "waiting");
  }

  /**
   * Changes a job that has not started, and returns its status. A `delay` of 0 starts it now.
   * Throws OverhopError JOB_NOT_PENDING if it runs or has ended.
   */
  async setJob(jid: string, change: Pick<JobOptions, "delay" | "runAt" | "priority">, options: CallOptions = {}): Promise<JobStatus> {
    if (change.delay !== undefined && change.runAt !== undefined) {
      throw new TypeError("give delay or runAt, not both");
    }
    const fields = {
      priority: integer("priority", change.priority, 0, 9),
      delay_ms: duration("delay", change.delay, 0),
      scheduled_at: change.runAt === undefined ? undefined : timeText("runAt", change.runAt),
    };
    if (Object.values(fields).every((value) => value === undefined)) {
      throw new TypeError("nothing to change: give priority, delay or runAt");
    }
    return this.#change(T.SETJOB, { jid, ...fields }, options);
  }

  /** Removes a job that is not active. */
  async remove(jid: string, options: CallOptions = {}): Promise<void> {
    await this.#change(T.RMJOB, { jid }, options, "JOB_NOT_FOUND");
  }

  /** Changes a job and returns its status: `otherwise` if an earlier try was carried out, of which a repeated one learns by `doneCode`. */
  async #change(type: number, fields: Fields, options: CallOptions, doneCode?: string, otherwise?: JobStatus): Promise<JobStatus> {
    const more = doneCode === undefined ? {} : { doneCodes: [doneCode] };
    const answer = await this.#requester.request(type, fields, this.#requester.wait(options), more);
    return (answer["status"] ?? otherwise) as JobStatus;
  }

  /**
   * Calls an operation of the API, such as "job.explain", and returns its reply: see
   * docs/reference/api.md. Throws ApiError if it is refused, and NotSupported if the node is
   * of an older release. It is repeated like every call; an operation that makes a job is
   * given a key for that, as `new_id`.
   */
  async api<Reply = unknown>(op: string, request: object = {}, options: CallOptions = {}): Promise<Reply> {
    return (await callAPI(this.#requester, op, request, options)) as Reply;
  }

  /** Returns the state of the connected node and of the yard, as STATUS in docs/reference/overhop.md. */
  async status(options: CallOptions = {}): Promise<Record<string, unknown>> {
    return this.#requester.request(T.STATUS, {}, this.#requester.wait(options));
  }

  /** Returns the connected node's time. */
  async ping(options: CallOptions = {}): Promise<Date> {
    const answer = await this.#requester.request(T.PING, {}, this.#requester.wait(options));
    return timeOf(answer["server_time"]) ?? new Date(NaN);
  }

  #handleEnd(fields: Fields): void {
    this.#waiters.get(String(fields["jid"]))?.forEach((waiter) => {
      waiter.end = fields;
      waiter.wake();
    });
  }

  /** Waits until a job has ended, and returns its JOBEND, or its record if it had ended before. */
  async #end(jid: string, wait: Wait): Promise<Fields> {
    const waiter: EndWaiter = { end: undefined, lost: false, wake: () => undefined };
    const waiters = this.#waiters.get(jid) ?? new Set();
    this.#waiters.set(jid, waiters.add(waiter));
    try {
      const unknownUntil = performance.now() + UNKNOWN_TIMEOUT;
      while (waiter.end === undefined) {
        waiter.lost = false;
        const pause = await this.#await(jid, waiter, unknownUntil, wait);
        if (waiter.end === undefined && !waiter.lost) {
          await this.#pause(waiter, pause, wait);
        }
      }
      return waiter.end;
    } catch (err) {
      throw err instanceof DeadlineExceeded ? new DeadlineExceeded(`job ${jid} has not ended in time`, { cause: err.cause }) : err;
    } finally {
      waiters.delete(waiter);
      if (waiters.size === 0 && this.#waiters.get(jid) === waiters) {
        this.#waiters.delete(jid);
      }
    }
  }

  /** Sends an AWAIT, and returns for how long its JOBEND may come; or, if it was refused, how long to wait until the next. */
  async #await(jid: string, waiter: EndWaiter, unknownUntil: number, wait: Wait): Promise<number> {
    const timeout = Math.ceil(Math.min(wait.left, MAX_AWAIT));
    try {
      const answer = await this.#requester.request(T.AWAIT, { jid, timeout_ms: timeout }, wait);
      if (answer["pending"] !== true) {
        waiter.end ??= answer;
      }
      return timeout;
    } catch (err) {
      if (err instanceof RateLimited) { // too many AWAITs on this connection: poll
        return 250;
      }
      if (err instanceof OverhopError && err.code === "JOB_NOT_FOUND" && performance.now() < unknownUntil) {
        return 100;
      }
      throw err;
    }
  }

  /** Waits until a JOBEND comes, a connection ends, or some milliseconds have passed. */
  async #pause(waiter: EndWaiter, milliseconds: number, wait: Wait): Promise<void> {
    let timer: Timer | undefined;
    const woken = new Promise<void>((resolve) => {
      waiter.wake = resolve;
      timer = setTimeout(resolve, milliseconds);
    });
    try {
      await wait.race(woken);
    } finally {
      clearTimeout(timer);
    }
  }
}
