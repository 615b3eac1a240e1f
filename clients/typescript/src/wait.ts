/** Waiting with an end: for a time, until a signal is aborted, or both. */

import { DeadlineExceeded } from "./errors.js";

/** What every call takes that may have to be repeated. */
export interface CallOptions {
  /** Ends the call: it throws the signal's reason. The node may have carried it out. */
  signal?: AbortSignal;
  /** When the call ends with {@link DeadlineExceeded}; default: the `timeout` of the client from now. */
  deadline?: Date;
}

/** What setTimeout returns. */
export type Timer = ReturnType<typeof setTimeout>;

const MAX_TIMER = 2 ** 31 - 1; // milliseconds

/** Callbacks by signal, so that a thousand calls with one signal add one listener. */
const aborts = new WeakMap<AbortSignal, Set<() => void>>();

/** Calls back when the signal is aborted, and returns a function that prevents it. */
export function onAbort(signal: AbortSignal, callback: () => void): () => void {
  let callbacks = aborts.get(signal);
  if (callbacks === undefined) {
    const created = new Set<() => void>();
    aborts.set(signal, (callbacks = created));
    signal.addEventListener("abort", () => created.forEach((each) => each()), { once: true });
  }
  const registered = callbacks.add(callback);
  return () => void registered.delete(callback);
}

/** Resolves after some milliseconds. */
export function sleep(milliseconds: number): Promise<void> {
  return new Promise((resolve) => void setTimeout(resolve, Math.min(milliseconds, MAX_TIMER)));
}

/** The time that one call has. */
export class Wait {
  readonly #end: number;
  readonly #signal: AbortSignal | undefined;

  /** `timeout` is in milliseconds, for calls without a deadline. */
  constructor(options: CallOptions, timeout: number) {
    const left = options.deadline === undefined ? timeout : options.deadline.getTime() - Date.now();
    if (Number.isNaN(left)) {
      throw new RangeError("deadline is not a valid date");
    }
    this.#end = performance.now() + left;
    this.#signal = options.signal;
    this.#signal?.throwIfAborted();
  }

  /** The milliseconds that are left. */
  get left(): number {
    return Math.max(0, this.#end - performance.now());
  }

  throwIfAborted(): void {
    this.#signal?.throwIfAborted();
  }

  /** Settles as the promise does, unless the signal is aborted or the time is over first. */
  race<T>(promise: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const signal = this.#signal;
      if (signal?.aborted) {
        promise.catch(() => undefined);
        reject(signal.reason);
        return;
      }
      const timer = this.left > MAX_TIMER ? undefined : setTimeout(() => end(() => reject(new DeadlineExceeded("no answer in time"))), this.left);
      const forget = signal === undefined ? undefined : onAbort(signal, () => end(() => reject(signal.reason)));
      const end = (settle: () => void) => {
        clearTimeout(timer);
        forget?.();
        settle();
      };
      promise.then((value) => end(() => resolve(value)), (err) => end(() => reject(err)));
    });
  }

  /** Waits for some milliseconds, or for as many as are left. */
  async sleep(milliseconds: number): Promise<void> {
    let timer: Timer | undefined;
    const slept = new Promise<void>((resolve) => void (timer = setTimeout(resolve, Math.min(milliseconds, this.left, MAX_TIMER))));
    try {
      await this.race(slept);
    } catch (err) {
      if (!(err instanceof DeadlineExceeded)) { // that is found by what comes next
        throw err;
      }
    } finally {
      clearTimeout(timer);
    }
  }
}

/** Limits how many requests, and how many bytes of them, have no answer yet. */
export class Window {
  readonly #waiting: Array<{ bytes: number; grant: () => void }> = [];
  #count = 0;
  #bytes = 0;

  constructor(private readonly maxCount: number, private readonly maxBytes: number) {}

  /** Waits for room, which the caller must release. One request always has room. */
  async acquire(bytes: number, wait: Wait): Promise<void> {
    let entry: { bytes: number; grant: () => void } | undefined;
    const granted = new Promise<void>((grant) => void this.#waiting.push((entry = { bytes, grant })));
    this.#grant();
    try {
      await wait.race(granted);
    } catch (err) {
      const at = this.#waiting.indexOf(entry!);
      if (at >= 0) {
        this.#waiting.splice(at, 1);
      } else {
        this.release(bytes);
      }
      throw err;
    }
  }

  release(bytes: number): void {
    this.#count--;
    this.#bytes -= bytes;
    this.#grant();
  }

  #grant(): void {
    for (let next = this.#waiting[0]; next !== undefined; next = this.#waiting[0]) {
      if (this.#count > 0 && (this.#count >= this.maxCount || this.#bytes + next.bytes > this.maxBytes)) {
        return;
      }
      this.#waiting.shift();
      this.#count++;
      this.#bytes += next.bytes;
      next.grant();
    }
  }
}
