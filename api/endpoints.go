package api

import (
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// jobHeaders are the headers of a request over HTTP that enqueues a job.
const jobHeaders = "Idempotency-Key Yard-Delay traceparent tracestate"

// Endpoints lists the operations that every node serves alike, over NATS and HTTP.
var Endpoints = []Endpoint{
	{
		Name: "enqueue", Subject: "yard.enqueue.*", Summary: "accept a job for a queue", AllowNoReply: true,
		Pattern: "POST /v1/queues/{queue}/jobs", Token: "queue", Query: "wait", Headers: jobHeaders, Large: true,
		Request: EnqueueRequest{}, Accepts: "* -blob", Reply: EnqueueReply{}, Status: 202, WaitReply: Job{},
	},
	{
		Name: "call", Subject: "yard.call.*", Summary: "accept a job for a queue, and return how it ended", LongRunning: true,
		Pattern: "POST /v1/queues/{queue}/call", Token: "queue", Headers: jobHeaders + " Yard-Wait", Large: true,
		Request: CallRequest{}, Accepts: "* -blob", Reply: CallReply{},
	},
	{
		Name: "exec", Subject: "yard.exec", Summary: "carry out one command of the runtime contract",
		Pattern: "POST /v1/exec", Request: ContractCommand{}, Reply: ContractEvent{}, Forms: ContractForms,
		Accepts: "*", Required: "command", Indexed: true,
	},
	{
		Name: "exec-command", Subject: "yard.exec.*", Summary: "carry out the command of the runtime contract that the subject names",
		Pattern: "POST /v1/exec/{command}", Token: "command", Request: ContractCommand{}, Reply: ContractEvent{}, Forms: ContractForms,
		Accepts: "*", Required: "command", Indexed: true,
	},
	{
		Name: "snapshot", Subject: "yard.snapshot", Summary: "the runtime contract's snapshot",
		Pattern: "GET /v1/snapshot", Reply: ledger.Snapshot{}, Indexed: true,
	},
	{
		Name: "status", Subject: "yard.status", Summary: "members, authority, lanes, backlog, readiness",
		Pattern: "GET /v1/status", Reply: Status{}, Indexed: true,
	},

	{
		Name: "overview", Subject: "yard.api.v1.overview", Summary: "what happened in the yard in a window of time, and how it is now",
		Pattern: "GET /v1/overview", Request: OverviewRequest{}, Accepts: "*", Reply: Overview{}, Indexed: true,
	},

	{
		Name: "job-show", Subject: "yard.api.v1.job.show", Summary: "a job by id or key",
		Pattern: "GET /v1/jobs/{id}", Request: JobRequest{}, Accepts: "queue", Reply: Job{}, Indexed: true,
	},
	{
		Name: "job-explain", Subject: "yard.api.v1.job.explain", Summary: "why a job is where it is, when that will change, and what has happened to it",
		Pattern: "GET /v1/jobs/{id}/explain", Request: JobRequest{}, Accepts: "queue", Reply: JobExplanation{}, Indexed: true,
	},
	{
		Name: "job-wait", Subject: "yard.api.v1.job.wait", Summary: "a job, once it has ended", LongRunning: true,
		Pattern: "GET /v1/jobs/{id}/wait", Request: JobRequest{}, Accepts: "queue timeout_ms", Reply: Job{}, Indexed: true,
	},
	{
		Name: "job-result", Subject: "yard.api.v1.job.result", Summary: "the result of a job, of any size",
		Pattern: "GET /v1/jobs/{id}/result", Request: ContentRequest{}, Accepts: "queue", Reply: Content{}, Content: true,
	},
	{
		Name: "job-params", Subject: "yard.api.v1.job.params", Summary: "the params of a job or, if it has none, its payload, of any size",
		Pattern: "GET /v1/jobs/{id}/params", Request: ContentRequest{}, Accepts: "queue", Reply: Content{}, Content: true,
	},
	{
		Name: "job-bulk", Subject: "yard.api.v1.job.bulk", Summary: "accept many jobs, each with its own result",
		Pattern: "POST /v1/jobs/bulk", Request: BulkRequest{}, Accepts: "*", Required: "jobs", Headers: jobHeaders, Large: true,
		Shapes: map[string]Shape{"jobs": {Of: BulkJob{}, List: true, Without: "blob"}}, Reply: BulkReply{},
	},
	{
		Name: "job-logs", Subject: "yard.api.v1.job.logs", Summary: "the end of a job's log",
		Pattern: "GET /v1/jobs/{id}/logs", Request: LogRequest{}, Accepts: "queue lines", Reply: LogReply{},
	},
	{
		Name: "job-errors", Subject: "yard.api.v1.job.errors", Summary: "the errors of a job's last attempts, with their details",
		Pattern: "GET /v1/jobs/{id}/errors", Request: JobErrorsRequest{}, Accepts: "queue limit", Reply: JobErrors{},
	},
	{
		Name: "job-list", Subject: "yard.api.v1.job.list", Summary: "a page of the jobs of all or some queues, in all or some states, newest first",
		Pattern: "GET /v1/jobs", Request: JobListRequest{}, Accepts: "*", Reply: JobList{}, Indexed: true,
	},
	{
		Name: "job-find", Subject: "yard.api.v1.job.find", Summary: "a page of the jobs that a query finds, also of those that ended days ago",
		Pattern: "GET /v1/jobs/find", Request: JobFindRequest{}, Accepts: "*", Reply: FoundJobs{}, Indexed: true,
	},
	{
		Name: "job-cancel", Subject: "yard.api.v1.job.cancel", Summary: "cancel a job",
		Pattern: "POST /v1/jobs/{id}/cancel", Request: JobRequest{}, Accepts: "queue reason", Query: "queue", Reply: JobChanged{}, Indexed: true,
	},
	{
		Name: "job-retry", Subject: "yard.api.v1.job.retry", Summary: "run a failed, cancelled or expired job again",
		Pattern: "POST /v1/jobs/{id}/retry", Request: JobRequest{}, Accepts: "queue", Query: "queue", Reply: JobChanged{}, Indexed: true,
	},
	{
		Name: "job-set", Subject: "yard.api.v1.job.set", Summary: "change when a waiting or delayed job starts, or its priority",
		Pattern: "PATCH /v1/jobs/{id}", Request: JobChange{}, Accepts: "*", Query: "queue", Reply: JobChanged{}, Indexed: true,
	},
	{
		Name: "job-replay", Subject: "yard.api.v1.job.replay", Summary: "enqueue a copy of a job that has ended",
		Pattern: "POST /v1/jobs/{id}/replay", Request: ReplayRequest{}, Accepts: "*", Query: "queue", Reply: ReplayReply{}, Large: true,
	},
	{
		Name: "job-remove", Subject: "yard.api.v1.job.remove", Summary: "remove a job that is not active",
		Pattern: "DELETE /v1/jobs/{id}", Request: JobRequest{}, Accepts: "queue", Reply: JobRemoved{}, Indexed: true,
	},

	{
		Name: "cron-list", Subject: "yard.api.v1.cron.list", Summary: "a page of the cron entries",
		Pattern: "GET /v1/cron", Request: CronListRequest{}, Accepts: "after limit", Reply: CronPage{}, Indexed: true,
	},
	{
		Name: "cron-show", Subject: "yard.api.v1.cron.show", Summary: "one cron entry, and the state of its last job",
		Pattern: "GET /v1/cron/{name}", Request: CronShowRequest{}, Accepts: "next", Reply: CronDetail{}, Indexed: true,
	},
	{
		Name: "cron-add", Subject: "yard.api.v1.cron.add", Summary: "add a cron entry",
		Pattern: "PUT /v1/cron/{name}", Request: CronChange{}, Accepts: "schedule time_zone queue missed overlap replace job",
		Required: "schedule queue job", Shapes: map[string]Shape{"job": {Of: job.Spec{}, Without: "blob"}}, Reply: Cron{}, Indexed: true,
	},
	{
		Name: "cron-remove", Subject: "yard.api.v1.cron.remove", Summary: "remove a cron entry",
		Pattern: "DELETE /v1/cron/{name}", Request: CronRequest{}, Reply: Removed{}, Indexed: true,
	},
	{
		Name: "cron-pause", Subject: "yard.api.v1.cron.pause", Summary: "pause a cron entry",
		Pattern: "POST /v1/cron/{name}/pause", Request: CronRequest{}, Reply: Cron{}, Indexed: true,
	},
	{
		Name: "cron-resume", Subject: "yard.api.v1.cron.resume", Summary: "resume a cron entry",
		Pattern: "POST /v1/cron/{name}/resume", Request: CronRequest{}, Reply: Cron{}, Indexed: true,
	},
	{
		Name: "cron-run", Subject: "yard.api.v1.cron.run", Summary: "enqueue a cron entry's job now",
		Pattern: "POST /v1/cron/{name}/run", Request: CronRunRequest{}, Accepts: "new_id", Reply: EnqueueReply{},
	},

	{
		Name: "cluster-members", Subject: "yard.api.v1.cluster.members", Summary: "the members, their state, and the progress of a change",
		Pattern: "GET /v1/cluster/members", Reply: Membership{}, Indexed: true,
	},
	{
		Name: "cluster-add", Subject: "yard.api.v1.cluster.add", Summary: "admit a waiting node",
		Pattern: "PUT /v1/cluster/members/{name}", Request: MemberRequest{}, Accepts: "route raft", Required: "route raft",
		Reply: Membership{}, Status: 202,
	},
	{
		Name: "cluster-rm", Subject: "yard.api.v1.cluster.rm", Summary: "remove a member",
		Pattern: "DELETE /v1/cluster/members/{name}", Request: MemberRequest{}, Reply: Membership{}, Status: 202,
	},
	{
		Name: "cluster-replace", Subject: "yard.api.v1.cluster.replace", Summary: "replace a lost member by a node with another data directory",
		Pattern: "POST /v1/cluster/members/{name}/replace", Request: MemberRequest{}, Accepts: "with route raft",
		Reply: Membership{}, Status: 202,
	},
	{
		Name: "cluster-cancel", Subject: "yard.api.v1.cluster.cancel", Summary: "cancel a change that admits a node",
		Pattern: "POST /v1/cluster/cancel", Request: MemberRequest{}, Reply: Membership{}, Status: 202,
	},
	{
		Name: "cluster-transfer", Subject: "yard.api.v1.cluster.transfer", Summary: "transfer the authority to another member",
		Pattern: "POST /v1/cluster/transfer", Request: MemberRequest{}, Accepts: "to", Reply: Transfer{}, Indexed: true,
	},
	{
		Name: "cluster-scrub", Subject: "yard.api.v1.cluster.scrub", Summary: "retired: refused with 410, which names the step that replaces it",
		Pattern: "GET /v1/cluster/scrub", Reply: struct{}{},
	},
	{
		Name: "cluster-rebuild", Subject: "yard.api.v1.cluster.rebuild", Summary: "retired: refused with 410, which names the step that replaces it",
		Pattern: "POST /v1/cluster/members/{name}/rebuild", Request: RetiredRequest{}, Accepts: "stream", Reply: struct{}{},
	},

	{
		Name: "ledger-hash", Subject: "yard.api.v1.ledger.hash", Summary: "the hash of this node's ledger, which is the same on every node at that index",
		Pattern: "GET /v1/ledger/hash", Reply: LedgerHash{}, Indexed: true,
	},

	{
		Name: "queue-list", Subject: "yard.api.v1.queue.list", Summary: "a page of the queues",
		Pattern: "GET /v1/queues", Request: QueueListRequest{}, Accepts: "*", Reply: QueueList{}, Indexed: true,
	},
	{
		Name: "queue-show", Subject: "yard.api.v1.queue.show", Summary: "one queue",
		Pattern: "GET /v1/queues/{name}", Request: QueueRequest{}, Reply: Queue{}, Indexed: true,
	},
	{
		Name: "queue-explain", Subject: "yard.api.v1.queue.explain", Summary: "why a queue's jobs run or do not",
		Pattern: "GET /v1/queues/{name}/explain", Request: QueueRequest{}, Reply: QueueExplanation{}, Indexed: true,
	},
	{
		Name: "queue-add", Subject: "yard.api.v1.queue.add", Summary: "add a queue",
		Pattern: "PUT /v1/queues/{name}", Request: QueueRequest{}, Accepts: "*", Reply: Queue{}, Indexed: true,
	},
	{
		Name: "queue-set", Subject: "yard.api.v1.queue.set", Summary: "change settings of a queue; those that are not given stay",
		Pattern: "PATCH /v1/queues/{name}", Request: QueueChange{}, Accepts: "*", Reply: Queue{}, Indexed: true,
	},
	{
		Name: "queue-pause", Subject: "yard.api.v1.queue.pause", Summary: "start no more jobs of a queue",
		Pattern: "POST /v1/queues/{name}/pause", Request: QueueRequest{}, Reply: Queue{}, Indexed: true,
	},
	{
		Name: "queue-resume", Subject: "yard.api.v1.queue.resume", Summary: "start jobs of a queue again",
		Pattern: "POST /v1/queues/{name}/resume", Request: QueueRequest{}, Reply: Queue{}, Indexed: true,
	},
	{
		Name: "queue-cancel", Subject: "yard.api.v1.queue.cancel", Summary: "cancel a queue's jobs by state or function", LongRunning: true,
		Pattern: "POST /v1/queues/{name}/cancel", Request: QueueJobsRequest{}, Accepts: "*", Reply: QueueJobsReply{}, Indexed: true,
	},
	{
		Name: "queue-set-jobs", Subject: "yard.api.v1.queue.set-jobs", LongRunning: true,
		Summary: "change when a queue's waiting and delayed jobs start, or their priority, by state or function",
		Pattern: "PATCH /v1/queues/{name}/jobs", Request: QueueJobsChange{}, Accepts: "* -reason", Reply: QueueJobsReply{}, Indexed: true,
	},
	{
		Name: "queue-clear", Subject: "yard.api.v1.queue.clear", Summary: "remove a queue's jobs that are not active by state or function", LongRunning: true,
		Pattern: "POST /v1/queues/{name}/clear", Request: QueueJobsRequest{}, Accepts: "* -reason", Reply: QueueJobsReply{}, Indexed: true,
	},
	{
		Name: "queue-remove", Subject: "yard.api.v1.queue.remove", Summary: "remove a queue all of whose jobs have ended",
		Pattern: "DELETE /v1/queues/{name}", Request: QueueRequest{}, Reply: Removed{}, Indexed: true,
	},

	{
		Name: "state-at", Subject: "yard.api.v1.state.at", Summary: "the state of the yard at a point of its history",
		Pattern: "GET /v1/state", Request: StateRequest{}, Accepts: "*", Reply: State{},
	},
	{
		Name: "state-diff", Subject: "yard.api.v1.state.diff", Summary: "what differs between the states of the yard at two points of its history",
		Pattern: "GET /v1/state/diff", Request: StateDiffRequest{}, Accepts: "*", Required: "from", Reply: StateDiff{},
	},

	{
		Name: "retention-show", Subject: "yard.api.v1.retention.show", Summary: "how long what is left of ended jobs is kept, in the yard or of one queue",
		Pattern: "GET /v1/retention", Request: RetentionRequest{}, Accepts: "*", Reply: Retention{}, Indexed: true,
	},
	{
		Name: "retention-set", Subject: "yard.api.v1.retention.set", Summary: "change retention settings of the yard; those that are not given stay",
		Pattern: "PATCH /v1/retention", Request: RetentionChange{}, Accepts: "*", Reply: Retention{}, Indexed: true,
	},

	{
		Name: "schema-list", Subject: "yard.api.v1.schema.list", Summary: "the schemas of the payloads of one queue or of all, without their texts",
		Pattern: "GET /v1/schemas", Request: SchemaListRequest{}, Accepts: "*", Reply: SchemaList{}, Indexed: true,
	},
	{
		Name: "schema-show", Subject: "yard.api.v1.schema.show", Summary: "the schema of the payloads of a queue's function",
		Pattern: "GET /v1/schemas/{queue}", Request: SchemaRequest{}, Accepts: "function", Reply: Schema{}, Indexed: true,
	},
	{
		Name: "schema-set", Subject: "yard.api.v1.schema.set", Summary: "set the schema of the payloads of a queue's function",
		Pattern: "PUT /v1/schemas/{queue}", Request: SchemaChange{}, Accepts: "*", Required: "schema", Reply: Schema{}, Indexed: true,
	},
	{
		Name: "schema-remove", Subject: "yard.api.v1.schema.remove", Summary: "remove the schema of the payloads of a queue's function",
		Pattern: "DELETE /v1/schemas/{queue}", Request: SchemaRequest{}, Accepts: "function", Reply: SchemaRemoved{}, Indexed: true,
	},

	{
		Name: "limit-list", Subject: "yard.api.v1.limit.list", Summary: "a page of the limits, and how much of each is used",
		Pattern: "GET /v1/limits", Request: LimitListRequest{}, Accepts: "*", Reply: LimitList{}, Indexed: true,
	},
	{
		Name: "limit-show", Subject: "yard.api.v1.limit.show", Summary: "one limit, the queues and keys that use it, and the jobs that hold its slots",
		Pattern: "GET /v1/limits/{name}", Request: LimitRequest{}, Reply: LimitDetail{}, Indexed: true,
	},
	{
		Name: "limit-set", Subject: "yard.api.v1.limit.set", Summary: "create a limit, or change settings of it; those that are not given stay, and null resets one",
		Pattern: "PATCH /v1/limits/{name}", Request: LimitChange{}, Accepts: "*", Reply: LimitDetail{}, Indexed: true,
	},
	{
		Name: "limit-remove", Subject: "yard.api.v1.limit.remove", Summary: "remove a limit that no queue uses, or any with force, which takes it from its queues",
		Pattern: "DELETE /v1/limits/{name}", Request: LimitRequest{}, Accepts: "force", Reply: Removed{}, Indexed: true,
	},
	{
		Name: "limit-pause", Subject: "yard.api.v1.limit.pause", Summary: "start no more jobs that use a limit",
		Pattern: "POST /v1/limits/{name}/pause", Request: LimitRequest{}, Reply: LimitDetail{}, Indexed: true,
	},
	{
		Name: "limit-resume", Subject: "yard.api.v1.limit.resume", Summary: "start jobs that use a limit again",
		Pattern: "POST /v1/limits/{name}/resume", Request: LimitRequest{}, Reply: LimitDetail{}, Indexed: true,
	},

	{
		Name: "operation-start", Subject: "yard.api.v1.operation.start", Summary: "retry, cancel, remove or requeue all jobs that match a query", LongRunning: true,
		Pattern: "POST /v1/operations", Request: OperationStart{}, Accepts: "*", Required: "action query", Reply: Operation{}, Status: 202, Indexed: true,
	},
	{
		Name: "operation-preview", Subject: "yard.api.v1.operation.preview", Summary: "what an operation would do: how many jobs match, to how many the action applies, and a sample", LongRunning: true,
		Pattern: "POST /v1/operations/preview", Request: OperationStart{}, Accepts: "*", Required: "action query", Reply: OperationPreview{}, Indexed: true,
	},
	{
		Name: "operation-list", Subject: "yard.api.v1.operation.list", Summary: "a page of the operations on many jobs, newest first",
		Pattern: "GET /v1/operations", Request: OperationRequest{}, Accepts: "after limit", Reply: OperationList{}, Indexed: true,
	},
	{
		Name: "operation-show", Subject: "yard.api.v1.operation.show", Summary: "an operation, how far it is, and the first jobs that it could not change",
		Pattern: "GET /v1/operations/{id}", Request: OperationRequest{}, Reply: Operation{}, Indexed: true,
	},
	{
		Name: "operation-pause", Subject: "yard.api.v1.operation.pause", Summary: "change no more jobs until the operation is resumed",
		Pattern: "POST /v1/operations/{id}/pause", Request: OperationRequest{}, Reply: Operation{}, Indexed: true,
	},
	{
		Name: "operation-resume", Subject: "yard.api.v1.operation.resume", Summary: "go on with a paused operation, where it was",
		Pattern: "POST /v1/operations/{id}/resume", Request: OperationRequest{}, Reply: Operation{}, Indexed: true,
	},
	{
		Name: "operation-cancel", Subject: "yard.api.v1.operation.cancel", Summary: "end an operation; the jobs that it has changed stay changed",
		Pattern: "POST /v1/operations/{id}/cancel", Request: OperationRequest{}, Reply: Operation{}, Indexed: true,
	},
	{
		Name: "operation-set", Subject: "yard.api.v1.operation.set", Summary: "change the rate of an operation",
		Pattern: "PATCH /v1/operations/{id}", Request: OperationChange{}, Accepts: "rate", Required: "rate", Reply: Operation{}, Indexed: true,
	},

	{
		Name: "worker-list", Subject: "yard.api.v1.worker.list", Summary: "the connected workers and the runner processes, and what they run",
		Pattern: "GET /v1/workers", Request: WorkerRequest{}, Accepts: "node queue worker", Reply: WorkerList{},
	},
	{
		Name: "worker-drain", Subject: "yard.api.v1.worker.drain", Summary: "give one worker or runner process no more jobs",
		Pattern: "POST /v1/workers/{worker}/drain", Request: WorkerRequest{}, Accepts: "node", Query: "node", Reply: WorkerDrain{},
	},
	{
		Name: "worker-resume", Subject: "yard.api.v1.worker.resume", Summary: "give a drained worker or runner process jobs again",
		Pattern: "POST /v1/workers/{worker}/resume", Request: WorkerRequest{}, Accepts: "node", Query: "node", Reply: WorkerDrain{},
	},

	{
		Name: "dlq-list", Subject: "yard.api.v1.dlq.list", Summary: "dead letters, newest first",
		Pattern: "GET /v1/dlq", Request: DeadLetterRequest{},
		Accepts: "letters jobs queue function error failed_before failed_after order from until limit", Reply: DeadLetterPage{},
	},
	{
		Name: "dlq-show", Subject: "yard.api.v1.dlq.show", Summary: "one dead letter, with its record",
		Pattern: "GET /v1/dlq/{letters}", Request: DeadLetterRequest{}, Reply: DeadLetter{},
	},
	{
		Name: "dlq-stats", Subject: "yard.api.v1.dlq.stats", Summary: "dead letters by queue, function, and type and code of the error",
		Pattern: "GET /v1/dlq/stats", Request: DeadLetterRequest{},
		Accepts: "letters jobs queue function error failed_before failed_after from until", Reply: DeadLetterStats{},
	},
	{
		Name: "dlq-requeue", Subject: "yard.api.v1.dlq.requeue", Summary: "run the jobs of dead letters again",
		Pattern: "POST /v1/dlq/requeue", Request: DeadLetterRequest{}, Accepts: "*", Reply: DeadLetterResults{},
	},
	{
		Name: "dlq-remove", Subject: "yard.api.v1.dlq.remove", Summary: "remove dead letters",
		Pattern: "POST /v1/dlq/remove", Request: DeadLetterRequest{}, Accepts: "* -to -keep_attempts", Reply: DeadLetterResults{},
	},
}

// NodeEndpoints lists the operations of one node, whose name is the "*" in the
// subject. A client reaches that node from wherever it is connected.
var NodeEndpoints = []Endpoint{
	{Name: "health", Subject: "yard.node.*.health", Summary: "whether this node works, of itself", Reply: Health{}},
	{Name: "readiness", Subject: "yard.node.*.readiness", Summary: "whether the yard is ready, seen from this node, and why not", Reply: Readiness{}},
	{Name: "snapshot", Subject: "yard.node.*.snapshot", Summary: "the runtime contract's snapshot, from this node", Reply: ledger.Snapshot{}, Indexed: true},
	{Name: "status", Subject: "yard.node.*.status", Summary: "members, authority, lanes, backlog, readiness, seen from this node", Reply: Status{}, Indexed: true},
	{Name: "stepdown", Subject: "yard.node.*.stepdown", Summary: "hand the authority to another member, if this node holds it", Reply: Transfer{}},
	{Name: "drain", Subject: "yard.node.*.drain", Summary: "take no more work, and give to other members what they can do as well", Reply: DrainStatus{}},
	{Name: "resume", Subject: "yard.node.*.resume", Summary: "take work again after a drain", Reply: Resumed{}},
}

// BackupRoute describes the route that saves the whole yard over HTTP. It needs the
// permission for the first of the requests that do so over NATS.
var BackupRoute = Endpoint{
	Name: "backup", Subject: "yard.api.v1.backup.begin", Summary: "a backup of the whole yard, a tar archive", LongRunning: true,
	Pattern: "POST /v1/backup", Media: "application/x-tar",
}

// BackupEndpoints lists the operations of a backup and a restore of the whole yard.
// The plan in restore-begin is what package backup reads from the file.
var BackupEndpoints = []Endpoint{
	{Name: "backup-begin", Subject: "yard.api.v1.backup.begin", Summary: "start a backup", LongRunning: true, Reply: BackupReply{}},
	{Name: "backup-read", Subject: "yard.api.v1.backup.read", Summary: "return the next chunk of the file", LongRunning: true, Request: BackupRequest{}},
	{Name: "backup-end", Subject: "yard.api.v1.backup.end", Summary: "end a backup, complete or not", LongRunning: true, Request: BackupRequest{}, Reply: struct{}{}},
	{Name: "restore-begin", Subject: "yard.api.v1.restore.begin", Summary: "start a restore", LongRunning: true, Reply: RestoreReply{}},
	{Name: "restore-push", Subject: "yard.api.v1.restore.push", Summary: "take the next chunk of a part", LongRunning: true, Request: RestoreChunk{}, Reply: RestoreReply{}},
	{Name: "restore-finish", Subject: "yard.api.v1.restore.finish", Summary: "become the yard that was saved", LongRunning: true, Request: BackupRequest{}, Reply: RestoreReply{}},
	{Name: "restore-abandon", Subject: "yard.api.v1.restore.abandon", Summary: "give up a restore and leave the yard empty", LongRunning: true, Reply: RestoreReply{}},
	{Name: "restore-wait", Subject: "yard.api.v1.restore.wait", Summary: "wait for a step that takes longer than one reply", LongRunning: true, Request: BackupRequest{}, Reply: RestoreReply{}},
}
