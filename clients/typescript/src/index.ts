/**
 * Workers and producers for Yardmaster, over the Overhop protocol.
 *
 * A {@link Client} enqueues jobs and waits for their results; a {@link Worker} runs them.
 */

export {
  CronEntries, DeadLetters,
  type Cron, type CronEntry, type CronJob, type CronTick, type DeadLetter, type DeadLetterChange, type DeadLetterFilter, type DeadLetterResult, type DeadLetterStats,
} from "./admin.js";
export { Client, type ClientOptions, type EnqueueAnswer } from "./client.js";
export { defineJob, JobDefinition, type JobConfig, type JobId, type JobOptions, type JobRequest } from "./enqueue.js";
export {
  ApiError, ClosedError, CodecError, ConnectionLost, DeadlineExceeded, DuplicateJob, HandlerError, InvalidJob, InvalidQuery, JobCancelled,
  JobFailed, JobStopped, NotSupported, OverhopError, PermanentError, RateLimited, RetryAfter, Snooze, TLSError, Unavailable, YardmasterError,
  type FaultOptions, type JobFault, type QueryProblem, type StopReason,
} from "./errors.js";
export type { Handler, Middleware } from "./handlers.js";
export { Job } from "./job.js";
export { Limits, type Limit, type LimitDetail, type LimitSettings, type StartSettings } from "./limits.js";
export type { Logger } from "./log.js";
export type { Nodes } from "./nodes.js";
export {
  Operations,
  type FindOptions, type FoundJob, type Operation, type OperationAction, type OperationPreview, type OperationSample, type OperationStart,
} from "./operations.js";
export { Queues, type QueueConfig } from "./queues.js";
export type { JobRecord, JobStatus, Queue, QueueStats } from "./records.js";
export type { ConnectOptions } from "./requester.js";
export type { TLSOptions } from "./tls.js";
export type { CallOptions } from "./wait.js";
export { Worker, type HandleOptions, type WorkerOptions } from "./worker.js";
