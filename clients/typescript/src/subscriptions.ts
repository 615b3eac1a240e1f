/** The queues of a worker, and the credits that its node holds for them. */

import { Connection } from "./connection.js";
import { ConnectionLost, OverhopError, Unavailable } from "./errors.js";
import { Logger } from "./log.js";
import { Fields, T } from "./protocol.js";

/** A queue that a worker serves. */
export class Subscription {
  /** The subscription's id on the current connection; undefined: not subscribed. */
  sid: string | undefined;
  /** The code of the last refusal on the current connection. */
  refusal = "";
  /** Jobs whose handler has not returned. */
  running = 0;
  /** Unused credits, as the node counts them. */
  credits = 0;

  constructor(readonly queue: string, public concurrency: number) {}

  /** Returns the credits to grant now, so that the node can fill all free places, and counts them as granted. */
  take(): number {
    const missing = Math.max(0, this.concurrency - this.running - this.credits);
    this.credits += missing;
    return missing;
  }
}

/** Codes that no other node would answer differently, now or later. */
const PERMANENT: readonly string[] = [
  "PROTOCOL_VIOLATION", "UNAUTHORIZED", "NOT_IMPLEMENTED", "QUEUE_NOT_FOUND", "INVALID_QUEUE_NAME",
  "SYSTEM_QUEUE_FORBIDDEN", "DUPLICATE_SUBSCRIPTION",
];

/** Reports whether an error is a refusal that another try would not change. */
export function isPermanent(error: unknown): error is OverhopError {
  return error instanceof OverhopError && PERMANENT.includes(error.code);
}

export interface SubscriptionEvents {
  /** A queue cannot be served, ever. */
  onFatal(error: Error): void;
  /** The node of a connection drains. */
  onDraining(connection: Connection): void;
}

const MAX_REQUESTS = 64; // without an answer, so that a BEAT does not wait for a thousand queues
const REFUSED_DELAY = 5000; // milliseconds before a SUBSCRIBE that was refused is repeated
const LOST_DELAY = 1000;

export class Subscriptions {
  readonly #subscriptions = new Map<string, Subscription>();
  #connection: Connection | undefined;
  #requests: Array<() => void> = [];
  #sent = 0;

  constructor(private readonly createQueues: boolean, private readonly events: SubscriptionEvents, private readonly log: Required<Logger>) {}

  get(queue: string): Subscription | undefined {
    return this.#subscriptions.get(queue);
  }

  /** Serves a queue, with `concurrency` jobs at once if it is given, else as many as before or `otherwise`. */
  add(queue: string, concurrency: number | undefined, otherwise: number): Subscription {
    const subscription = this.#subscriptions.get(queue) ?? new Subscription(queue, concurrency ?? otherwise);
    subscription.concurrency = concurrency ?? subscription.concurrency;
    this.#subscriptions.set(queue, subscription);
    return subscription;
  }

  get size(): number {
    return this.#subscriptions.size;
  }

  /** Subscribes to all queues over a new connection. What the nodes of earlier ones held is void. */
  start(connection: Connection): void {
    this.#connection = connection;
    this.#sent = 0;
    this.#requests = [];
    for (const subscription of this.#subscriptions.values()) {
      subscription.sid = undefined;
      subscription.credits = 0;
      subscription.refusal = "";
      this.#requests.push(() => this.#subscribe(connection, subscription));
    }
    this.#sendNext();
  }

  /** Sends no further requests: the worker stops, or its node drains. */
  stop(): void {
    this.#connection = undefined;
    this.#requests = [];
  }

  /** Counts a QUEST that has arrived. */
  use(connection: Connection, subscription: Subscription): void {
    if (connection === this.#connection) {
      subscription.credits = Math.max(0, subscription.credits - 1);
    }
  }

  /** Returns the credits to send with an outcome over a connection, and counts them as granted. */
  take(connection: Connection, subscription: Subscription): number {
    return connection === this.#connection && subscription.sid !== undefined ? subscription.take() : 0;
  }

  /** Sends the credits that are missing. */
  grant(subscription: Subscription): void {
    const connection = this.#connection;
    const { sid } = subscription;
    if (connection === undefined || sid === undefined) {
      return;
    }
    const credits = subscription.take();
    if (credits > 0) {
      connection.send(T.CREDIT, { sid, credits }, (_, error) => {
        if (error instanceof OverhopError && error.code === "SUBSCRIPTION_NOT_FOUND") {
          this.log.warn("subscription lost, subscribing again", { queue: subscription.queue });
          this.#subscribeLater(connection, subscription, LOST_DELAY);
        }
      });
    }
  }

  /** Takes over what a CREDITS says about the node's count. */
  handleCredits(connection: Connection, fields: Fields): void {
    for (const subscription of this.#subscriptions.values()) {
      if (connection === this.#connection && subscription.sid !== undefined && subscription.sid === fields["sid"]) {
        // Absolute numbers would be wrong if a CREDIT is on its way.
        subscription.credits = fields["reason"] === "RESTORED" ? subscription.credits + 1 : 0;
        this.grant(subscription);
      }
    }
  }

  #sendNext(): void {
    while (this.#sent < MAX_REQUESTS) {
      const request = this.#requests.shift();
      if (request === undefined) {
        return;
      }
      this.#sent++;
      request();
    }
  }

  #subscribe(connection: Connection, subscription: Subscription): void {
    subscription.credits = 0;
    connection.send(T.SUBSCRIBE, { q: subscription.queue, credits: subscription.take() }, (answer, error) => {
      if (connection !== this.#connection || error instanceof ConnectionLost) {
        return;
      }
      this.#sent--;
      if (error === undefined) {
        subscription.sid = String(answer["sid"]);
        this.grant(subscription); // for handlers that have returned since
        if ([...this.#subscriptions.values()].every(({ sid }) => sid !== undefined)) {
          this.log.info("worker is subscribed", { node: connection.nodeName, queues: this.#subscriptions.size });
        }
      } else {
        this.#handleRefusal(connection, subscription, error as OverhopError);
      }
      this.#sendNext();
    });
  }

  #handleRefusal(connection: Connection, subscription: Subscription, error: OverhopError): void {
    if (error.code === "QUEUE_NOT_FOUND" && this.createQueues) {
      this.#requests.push(() => this.#create(connection, subscription));
    } else if (error.code === "DRAINING") {
      this.events.onDraining(connection);
    } else if (isPermanent(error)) {
      this.events.onFatal(refusal("subscribe to", subscription, error));
    } else {
      this.#logRefusal(subscription, error);
      this.#subscribeLater(connection, subscription, delayAfter(error));
    }
  }

  #create(connection: Connection, subscription: Subscription): void {
    connection.send(T.ADDQUEUE, { name: subscription.queue }, (_, error) => {
      if (connection !== this.#connection || error instanceof ConnectionLost) {
        return;
      }
      this.#sent--;
      if (error === undefined || error.code === "DUPLICATE_QUEUE") {
        this.#requests.push(() => this.#subscribe(connection, subscription));
      } else if (error instanceof Unavailable) {
        this.#logRefusal(subscription, error);
        this.#subscribeLater(connection, subscription, delayAfter(error));
      } else {
        this.events.onFatal(refusal("create", subscription, error));
      }
      this.#sendNext();
    });
  }

  #logRefusal(subscription: Subscription, error: OverhopError): void {
    if (subscription.refusal !== error.code) {
      subscription.refusal = error.code;
      this.log.warn("cannot subscribe to a queue, trying again", { queue: subscription.queue, err: error });
    }
  }

  #subscribeLater(connection: Connection, subscription: Subscription, delay: number): void {
    setTimeout(() => {
      if (connection === this.#connection) {
        this.#requests.push(() => this.#subscribe(connection, subscription));
        this.#sendNext();
      }
    }, delay);
  }
}

/** Returns the milliseconds after which a refused request is repeated. */
export function delayAfter(error: OverhopError): number {
  return error instanceof Unavailable ? Math.min(Math.max(error.retryAfter, 50), 2000) : REFUSED_DELAY;
}

function refusal(act: string, { queue }: Subscription, error: OverhopError): OverhopError {
  return new OverhopError(error.code, `cannot ${act} queue ${JSON.stringify(queue)}: ${error.message}`, error.details);
}
