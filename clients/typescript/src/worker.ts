import { Assignment } from "./assignment.js";
import { duration, integer, queueName } from "./checks.js";
import { describe } from "./codec.js";
import { Connection, ConnectionSettings, Timing, WORKER_TIMING } from "./connection.js";
import { JobDefinition } from "./enqueue.js";
import { ConnectionLost, Unavailable } from "./errors.js";
import { Handler, Handlers, Middleware } from "./handlers.js";
import { parseQuest, WORKER_STOPS } from "./job.js";
import { Leases } from "./leases.js";
import { Logger, toLogger } from "./log.js";
import { backoff, NodeRotation } from "./nodes.js";
import { Fields, readContent, T, textsOf } from "./protocol.js";
import { ConnectOptions, connectionSettings } from "./requester.js";
import { delayAfter, isPermanent, Subscriptions } from "./subscriptions.js";
import { onAbort, sleep, Timer } from "./wait.js";

export interface WorkerOptions extends ConnectOptions {
  /** How many jobs of each queue run at once; default 1. */
  concurrency?: number;
  /** Milliseconds that running jobs have to end once the worker is to stop; default 10 000. */
  grace?: number;
  /**
   * Fails a job for good if it names a function without a handler. By default it goes back without
   * counting an attempt, so that one of a newer release waits for its worker: for 5 s at first,
   * later for half of the time since it was accepted, at most 10 minutes. After a day its attempts
   * fail.
   */
  failUnknown?: boolean;
}

/** Which jobs of a queue a handler is for, and how many of the queue's run at once. */
export interface HandleOptions {
  /** The function; default: all that have no handler of their own, and jobs that name none. */
  fn?: string;
  concurrency?: number;
}

/**
 * Times of a worker in milliseconds.
 * @internal
 */
export interface WorkerTiming extends Timing {
  /** That handlers have after they were aborted at the end of the grace. */
  readonly cancel: number;
  /** That a node has to answer the last GOODBYE. */
  readonly goodbye: number;
}

const DEFAULT_WORKER_TIMING: WorkerTiming = { ...WORKER_TIMING, cancel: 2000, goodbye: 3000 };
const STABLE_AFTER = 2000; // milliseconds after which a connection has held
const LOG_INTERVAL = 30_000; // milliseconds between messages that no node is reached

/**
 * Runs jobs of its queues, connected to one of several nodes. If the connection is lost or
 * the node drains, it connects to another one and keeps its jobs, because a job belongs to a
 * worker by its token; handlers do not notice.
 *
 * ```ts
 * const worker = new Worker({ nodes: ["10.0.0.1:9876", "10.0.0.2:9876"], concurrency: 10 });
 * worker.handle("mail", async (job) => send(job.payload, { signal: job.signal }));
 * await worker.stopOnSignals().run();
 * ```
 *
 * A worker receives every job of its queues, whatever function a job names: all workers of a
 * queue must handle all its functions. See {@link WorkerOptions.failUnknown}.
 */
export class Worker {
  readonly #options: WorkerOptions;
  readonly #nodes: NodeRotation;
  readonly #settings: ConnectionSettings;
  readonly #timing: WorkerTiming;
  readonly #log: Required<Logger>;
  readonly #handlers: Handlers;
  readonly #subscriptions: Subscriptions;
  readonly #leases: Leases;
  readonly #draining = new Set<Connection>(); // to draining nodes, until all jobs have moved

  #running: Promise<void> | undefined;
  #stopping = false;
  #stopped = false;
  #stopRequested: (reason: string) => void = () => undefined; // begins the stop of run
  #idle: () => void = () => undefined; // ends the wait for jobs
  #fatal: Error | undefined;
  readonly #closing = new AbortController(); // ends an attempt to connect
  #connecting = false;
  #reconnect: Timer | undefined;
  #connectedAt = 0;
  #failures = 0;
  #failureLogged = -Infinity;
  #cleanUps: Array<() => void> = [];

  constructor(options?: WorkerOptions);
  /** @internal */
  constructor(options: WorkerOptions, timing?: Partial<WorkerTiming>);
  constructor(options: WorkerOptions = {}, timing: Partial<WorkerTiming> = {}) {
    integer("concurrency", options.concurrency, 1);
    duration("grace", options.grace, 0);
    this.#options = options;
    this.#timing = { ...DEFAULT_WORKER_TIMING, ...timing };
    this.#nodes = new NodeRotation(options.nodes);
    this.#settings = connectionSettings(options, this.#timing);
    this.#log = toLogger(options.log);
    this.#handlers = new Handlers(this.#log, options.failUnknown ?? false);
    this.#subscriptions = new Subscriptions(options.createQueues ?? true, {
      onFatal: (error) => this.#fail(error),
      onDraining: (connection) => this.#switchNode(connection, []),
    }, this.#log);
    this.#leases = new Leases(this.#subscriptions, this.#log);
    this.#leases.onAcked = (job) => setImmediate(() => this.#start(job)); // a handler may keep the processor
    this.#leases.onChange = () => {
      this.#closeDrained();
      this.#checkIdle();
    };
  }

  /** The address of the connected node; undefined while there is none. */
  get node(): string | undefined {
    return this.#leases.connection?.node;
  }

  /** Adds the handler of a kind of job made by defineJob. */
  handle<Payload, Result>(kind: JobDefinition<Payload, Result>, handler: Handler<Payload, Result>, options?: Omit<HandleOptions, "fn">): this;
  /** Adds the handler of a queue's jobs: those that name a function, or all that have no handler of their own. */
  handle<Payload = unknown, Result = unknown>(queue: string, handler: Handler<Payload, Result>, options?: HandleOptions): this;
  handle(target: string | JobDefinition<any, any>, handler: Handler<any, any>, options: HandleOptions = {}): this {
    const concurrency = integer("concurrency", options.concurrency, 1);
    queueName(typeof target === "string" ? target : target.queue);
    if (this.#running !== undefined) {
      throw new TypeError("the worker runs: add handlers before");
    }
    this.#handlers.add(target, options.fn, handler);
    this.#subscriptions.add(typeof target === "string" ? target : target.queue, concurrency, this.#options.concurrency ?? 1);
    return this;
  }

  /** Adds middleware, which runs around all handlers: what was added first is the outermost. */
  use(middleware: Middleware): this {
    if (typeof middleware !== "function") {
      throw new TypeError(`the middleware is ${describe(middleware)}, must be a function`);
    }
    this.#handlers.middleware.push(middleware);
    return this;
  }

  /** Stops the worker at the first of these signals, by default SIGTERM and SIGINT; the second one ends the process as usual. */
  stopOnSignals(...names: string[]): this {
    const signals = names.length > 0 ? names : ["SIGTERM", "SIGINT"];
    const listener = (name: string) => {
      remove();
      void this.stop(name);
    };
    const remove = () => signals.forEach((name) => process.off(name, listener));
    signals.forEach((name) => process.on(name, listener));
    this.#cleanUps.push(remove);
    return this;
  }

  /**
   * Runs jobs until `stop` is called or the signal is aborted, and resolves once the worker
   * has stopped: running jobs have their `grace` to end, then their signals are aborted, and
   * what has not ended 2 s later is given back to the yard, as the same attempt. A handler
   * that ignores its signal may still run then, so end the process.
   *
   * Throws a TypeError without a handler or at a second call, and an OverhopError if the
   * nodes refuse the worker or a queue.
   */
  run(options: { signal?: AbortSignal } = {}): Promise<void> {
    if (this.#subscriptions.size === 0) {
      return Promise.reject(new TypeError("the worker has no handler: add one with handle()"));
    }
    if (this.#running !== undefined) {
      return Promise.reject(new TypeError("run was called before: make another worker"));
    }
    return (this.#running = this.#run(options.signal));
  }

  /** Has `run` stop, and resolves when it has ended. */
  async stop(reason = "worker stops"): Promise<void> {
    this.#stopping = true;
    this.#stopRequested(reason);
    await this.#running?.catch(() => undefined); // run throws it
  }

  async #run(signal: AbortSignal | undefined): Promise<void> {
    const requested = new Promise<string>((resolve) => (this.#stopRequested = resolve));
    if (signal !== undefined) {
      this.#cleanUps.push(onAbort(signal, () => this.#stopRequested("its signal was aborted")));
    }
    if (!this.#stopping && !signal?.aborted) {
      this.#connect();
      await this.#shutDown(await requested);
    }
    this.#stopped = true;
    this.#closing.abort();
    clearTimeout(this.#reconnect);
    this.#cleanUps.forEach((cleanUp) => cleanUp());
    if (this.#fatal !== undefined) {
      throw this.#fatal;
    }
  }

  // Connections

  #connect(): void {
    this.#connecting = true;
    const node = this.#nodes.next();
    const listener = {
      onPush: (connection: Connection, type: number, fields: Fields) => this.#handlePush(connection, type, fields),
      onClose: (connection: Connection, error: Error) => this.#handleClose(connection, error),
    };
    Connection.connect(node, this.#settings, listener, this.#closing.signal).then(
      (connection) => this.#handleConnected(connection),
      (error: Error) => {
        this.#connecting = false;
        if (isPermanent(error) || this.#nodes.allRefuse(error)) {
          this.#fail(error);
        } else {
          this.#logDisconnected("cannot connect to a node", node, error);
          this.#reconnectLater();
        }
      },
    );
  }

  #logDisconnected(message: string, node: string, err: Error): void {
    const now = performance.now();
    if (!this.#stopped && now - this.#failureLogged >= LOG_INTERVAL) {
      this.#failureLogged = now;
      this.#log.warn(`${message}, trying others`, { node, err });
    }
  }

  /** Connects to the next node after a delay that grows until a connection has held. */
  #reconnectLater(): void {
    if (this.#connecting || this.#stopped || this.#fatal !== undefined) {
      return;
    }
    if (this.#connectedAt > 0 && performance.now() - this.#connectedAt > STABLE_AFTER) {
      this.#failures = 0;
      this.#failureLogged = -Infinity;
    }
    this.#connectedAt = 0;
    this.#connecting = true;
    this.#reconnect = setTimeout(() => this.#connect(), backoff(this.#failures++));
  }

  /** Makes a connection the current one: all jobs move to its node, then the worker subscribes there. */
  #handleConnected(connection: Connection): void {
    this.#connecting = false;
    this.#nodes.reached = true;
    if (this.#stopped) {
      connection.close();
      return;
    }
    const previous = this.#leases.connection;
    if (previous !== undefined) {
      this.#draining.add(previous);
    }
    this.#connectedAt = performance.now();
    this.#leases.use(connection);
    if (!this.#stopping) {
      this.#subscriptions.start(connection);
    }
    this.#closeDrained();
    this.#checkIdle();
  }

  #handleClose(connection: Connection, error: Error): void {
    this.#draining.delete(connection);
    if (connection === this.#leases.connection) {
      this.#leases.use(undefined);
      if (!this.#stopped && !(this.#stopping && this.#leases.size === 0)) {
        this.#logDisconnected("lost the connection to a node", connection.node, error);
        this.#reconnectLater();
      }
    } else {
      this.#leases.leave(connection);
    }
    if (isPermanent(error)) {
      this.#fail(error);
    }
    this.#checkIdle();
  }

  /** Connects to another node, as this one drains, and keeps its connection until the jobs have moved. */
  #switchNode(connection: Connection, alternatives: readonly string[]): void {
    this.#subscriptions.stop();
    this.#nodes.leave(connection.node, alternatives);
    this.#reconnectLater();
  }

  #closeDrained(): void {
    if (this.#draining.size > 0 && this.#leases.haveMoved) {
      this.#draining.forEach((connection) => connection.close());
    }
  }

  /** Ends run with an error that no other try would change. */
  #fail(error: Error): void {
    this.#fatal ??= error;
    this.#stopRequested(error.message);
  }

  // Messages from nodes

  #handlePush(connection: Connection, type: number, fields: Fields): void {
    switch (type) {
      case T.QUEST:
        this.#accept(connection, fields);
        break;
      case T.RECALL:
        this.#recall(connection, fields);
        break;
      case T.CREDITS:
        this.#subscriptions.handleCredits(connection, fields);
        break;
      case T.DRAIN:
        if (connection === this.#leases.connection && !this.#stopping) {
          this.#log.info("node drains", { node: connection.nodeName, reason: fields["reason"] });
          this.#switchNode(connection, textsOf(fields["reconnect"]));
        }
        break;
      case T.BYE:
        this.#log.info("node closes the connection", { node: connection.nodeName, code: fields["code"], reason: fields["msg"] });
    }
  }

  /** Acknowledges an assigned job, or declines it. */
  #accept(connection: Connection, fields: Fields): void {
    const quest = parseQuest(fields);
    const subscription = this.#subscriptions.get(quest.queue);
    if (subscription !== undefined) {
      this.#subscriptions.use(connection, subscription);
    }
    const known = this.#leases.find(quest.token);
    if (known !== undefined) {
      this.#leases.acceptAgain(connection, known);
      this.#subscriptions.grant(known.subscription);
      return;
    }
    if (this.#stopping || subscription === undefined || subscription.running >= subscription.concurrency) {
      const reason = this.#stopping ? "worker stops" : subscription === undefined ? "worker does not serve this queue" : "worker is busy";
      connection.send(T.NACK, { jid: quest.jid, tok: quest.token, reason });
      return;
    }
    subscription.running++;
    this.#leases.accept(connection, quest);
  }

  /** Calls the handler of a job whose ACK a node has answered. */
  async #start(job: Assignment): Promise<void> {
    if (!this.#leases.holdsLease(job)) {
      return; // it starts again when the next ACK is answered
    }
    const outcome = await this.#handlers.run(job, () => this.#readPayload(job));
    job.subscription.running--;
    this.#leases.finish(job, outcome);
  }

  /** Stops a job that the node asks back. It ignores a node that the job has left. */
  #recall(connection: Connection, fields: Fields): void {
    const job = this.#leases.find(fields["tok"]);
    if (job !== undefined && job.connection === connection) {
      job.isVoid ||= fields["grace_ms"] === 0;
      job.stop(String(fields["reason"]), typeof fields["msg"] === "string" ? fields["msg"] : undefined);
    }
  }

  /** Reads a payload that does not fit into a frame. */
  #readPayload(job: Assignment): Promise<unknown> {
    return readContent(async (request) => {
      for (;;) {
        job.signal.throwIfAborted();
        let pause = 100;
        try {
          const connection = this.#leases.connection;
          if (connection !== undefined) {
            return await connection.request(T.CONTENT, request);
          }
        } catch (err) {
          if (err instanceof Unavailable) {
            pause = delayAfter(err);
          } else if (!(err instanceof ConnectionLost)) { // after that, the worker connects to another node
            throw err;
          }
        }
        await sleep(pause);
      }
    }, job.quest.jid, "payload");
  }

  // Stopping

  /** Takes no more jobs and waits for the running ones; aborts those that take too long, and gives back what is left. */
  async #shutDown(reason: string): Promise<void> {
    this.#stopping = true;
    this.#log.info("worker stops", { reason, jobs: this.#leases.size });
    this.#subscriptions.stop();
    this.#leases.stop();
    const canReport = this.#fatal === undefined || this.#leases.connection !== undefined;
    if (this.#leases.size > 0) {
      this.#leases.connection?.send(T.GOODBYE, { reason: "worker stops", drain: true });
      await this.#waitIdle(canReport ? this.#options.grace ?? 10_000 : 0);
    }
    if (this.#leases.size > 0) {
      this.#leases.all.filter((job) => job.outcome === undefined).forEach((job) => job.stop(WORKER_STOPS));
      await this.#waitIdle(canReport ? this.#timing.cancel : 0);
    }
    await this.#sayGoodbye();
  }

  /** Waits until all jobs have ended or are to be given back, and there is a node to give them to. */
  #waitIdle(milliseconds: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#idle = () => {
        clearTimeout(timer);
        resolve();
      };
      this.#checkIdle();
    });
  }

  #checkIdle(): void {
    const jobs = this.#leases.all;
    if (jobs.length === 0 || (this.#leases.connection !== undefined && jobs.every((job) => job.outcome?.kind === "interrupted"))) {
      this.#idle();
    }
  }

  /** Sends the last GOODBYE, by which the remaining jobs are given back, and closes all connections. */
  async #sayGoodbye(): Promise<void> {
    this.#stopped = true;
    for (const { quest } of this.#leases.all) {
      this.#log.warn("job did not end in time and is given back", { job: quest.jid });
    }
    this.#leases.clear();
    const connections = [this.#leases.connection, ...this.#draining].filter((each): each is Connection => each !== undefined);
    const goodbyes = connections.map((connection) => connection.request(T.GOODBYE, { reason: "worker stops", drain: false }).catch(() => undefined));
    let timer: Timer | undefined;
    await Promise.race([Promise.all(goodbyes), new Promise<void>((resolve) => (timer = setTimeout(resolve, this.#timing.goodbye)))]);
    clearTimeout(timer);
    connections.forEach((connection) => connection.close());
  }
}
