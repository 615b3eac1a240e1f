/** Jobs and queues as nodes show them. */

import { JobFault } from "./errors.js";
import { Fields, intOf, mapOf, textsOf, timeOf, userValue } from "./protocol.js";

export type JobStatus = "new" | "waiting" | "delayed" | "active" | "completed" | "failed";

/** A job as a node shows it. */
export interface JobRecord<Payload = unknown, Result = unknown> {
  /** "<queue>:<uuid>" */
  readonly jid: string;
  readonly queue: string;
  readonly status: JobStatus;
  readonly fn?: string;
  /** What it was enqueued with; undefined for a UUID, and once its record is reclaimed. */
  readonly key?: string;
  /** undefined if it is no longer stored: see `payloadGone`. */
  readonly payload?: Payload;
  readonly payloadGone: boolean;
  /** undefined until the job has completed, and if it is no longer stored: see `resultGone`. */
  readonly result?: Result;
  /** Why the result is no longer stored: "result_evicted", "result_expired" or "result_dropped". */
  readonly resultGone?: string;
  /** Why the job or its last attempt failed. */
  readonly fault?: JobFault;
  readonly attempts: number;
  /** undefined: the yard's default. */
  readonly maxAttempts?: number;
  readonly retryInterval?: number;
  readonly timeout?: number;
  readonly retryOnTimeout?: boolean;
  readonly priority?: number;
  readonly createdAt?: Date;
  /** When it is or was due. */
  readonly dueAt?: Date;
  readonly startedAt?: Date;
  readonly completedAt?: Date;
  /** Where it runs or ran last. */
  readonly node?: string;
  readonly workerId?: string;
  /** While it runs. */
  readonly leaseUntil?: Date;
  readonly progress?: { readonly percent?: number; readonly data?: unknown };
}

/** Returns the record in an answer. */
export function jobRecord(fields: Fields): JobRecord {
  const runtime = mapOf(fields["runtime"]);
  const progress = runtime["progress"] === undefined ? undefined : mapOf(runtime["progress"]);
  const record: Record<keyof JobRecord, unknown> = {
    jid: fields["jid"],
    queue: fields["queue_name"],
    status: fields["status"],
    fn: fields["fn"],
    key: fields["key"],
    payload: userValue(fields, "payload"),
    payloadGone: fields["payload_gone"] === true,
    result: userValue(fields, "result"),
    resultGone: fields["result_gone"],
    fault: jobFault(fields["error"]),
    attempts: intOf(runtime["attempts_so_far"]),
    maxAttempts: fields["max_attempts"],
    retryInterval: fields["retry_interval_ms"],
    timeout: fields["timeout_ms"],
    retryOnTimeout: fields["retry_on_timeout"],
    priority: fields["priority"],
    createdAt: timeOf(fields["created_at"]),
    dueAt: timeOf(fields["execution_start_at"]),
    startedAt: timeOf(fields["started_at"]),
    completedAt: timeOf(fields["completed_at"]),
    node: fields["node"],
    workerId: fields["worker_id"],
    leaseUntil: timeOf(runtime["lease_until"]),
    progress: progress && { percent: progress["percent"] ?? undefined, data: userValue(progress, "data") },
  };
  const given = Object.entries(record).filter(([key, value]) => value !== undefined && (value !== null || key === "payload" || key === "result"));
  return Object.fromEntries(given) as unknown as JobRecord;
}

/** Returns the error of a job in an answer or a JOBEND; undefined if it has none. */
export function jobFault(value: unknown): JobFault | undefined {
  if (value === null || value === undefined) {
    return undefined;
  }
  const error = mapOf(value);
  const details = userValue(error, "details");
  return {
    message: String(error["message"] ?? "no reason given"),
    ...(error["type"] != null && { type: String(error["type"]) }),
    ...(error["code"] != null && { code: String(error["code"]) }),
    ...(details != null && { details }),
    ...(typeof error["reason"] === "string" && { reason: error["reason"] }),
  };
}

/** How a job has ended. */
export interface JobEnd {
  readonly completed: boolean;
  readonly result: unknown;
  readonly resultGone: string | undefined;
  readonly fault: JobFault;
  readonly attempts: number;
  /** The names of what did not fit into a frame. */
  readonly omitted: readonly string[];
}

/** Returns the end of a job from its JOBEND or its record. */
export function jobEnd(fields: Fields): JobEnd {
  const omitted = textsOf(fields["omitted"]);
  const fault = omitted.includes("error") ? { message: "its error is too large for the node's frames" } : jobFault(fields["error"]);
  return {
    completed: fields["status"] === "completed",
    result: userValue(fields, "result") ?? null,
    resultGone: typeof fields["result_gone"] === "string" ? fields["result_gone"] : undefined,
    fault: fault ?? { message: "no reason given" },
    attempts: intOf(fields["attempts"] ?? mapOf(fields["runtime"])["attempts_so_far"]),
    omitted,
  };
}

/** A queue as a node shows it. */
export interface Queue {
  readonly id: string;
  readonly name: string;
  readonly state: "running" | "paused";
  /** How many of its jobs run at once over all workers; undefined: no limit. */
  readonly concurrencyLimit?: number;
}

/** The number of a queue's jobs by their status. */
export type QueueStats = Readonly<Record<JobStatus, number>>;

/** Returns the queue in an answer. */
export function queueOf(fields: Fields): Queue {
  const limit = mapOf(fields["config"])["concurrency_limit"];
  return {
    id: String(fields["id"]),
    name: String(fields["name"]),
    state: fields["state"] === "paused" ? "paused" : "running",
    ...(typeof limit === "number" && { concurrencyLimit: limit }),
  };
}
