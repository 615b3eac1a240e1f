package api

// ReasonCode identifies a reason for programs. docs/reference/readiness.md lists all codes.
type ReasonCode string

// Why a job is not due yet.
const (
	ReasonDelayed   ReasonCode = "delayed"       // its producer delayed it
	ReasonBackoff   ReasonCode = "retry_backoff" // its last attempt failed
	ReasonGivenBack ReasonCode = "given_back"    // its last dispatch was given back, with a delay
	ReasonDebounced ReasonCode = "debounced"     // its debounce time is not over
)

// What prevents a job that is due from starting.
const (
	ReasonPaused         ReasonCode = "queue_paused"
	ReasonLimit          ReasonCode = "queue_limit"
	ReasonLimitPaused    ReasonCode = "limit_paused"
	ReasonLimitCircuit   ReasonCode = "limit_circuit_open"
	ReasonLimitFull      ReasonCode = "limit_full"
	ReasonLimitRate      ReasonCode = "limit_rate"
	ReasonLimitKeyFull   ReasonCode = "limit_key_full"
	ReasonLimitKeyRate   ReasonCode = "limit_key_rate"
	ReasonKeysBlocked    ReasonCode = "keys_blocked"
	ReasonFairTurn       ReasonCode = "fair_turn"
	ReasonNoWorker       ReasonCode = "no_worker"
	ReasonWorkersBusy    ReasonCode = "workers_busy"
	ReasonWorkersStalled ReasonCode = "workers_stalled"
	ReasonRunnerMissing  ReasonCode = "runner_missing"
	ReasonRunnerDown     ReasonCode = "runner_down"
	ReasonRunnerLooping  ReasonCode = "runner_crash_looping"
	ReasonRunnerBusy     ReasonCode = "runner_busy"
	ReasonJobsAhead      ReasonCode = "ahead_in_line"
	ReasonNextInQueue    ReasonCode = "next_in_line"
	ReasonBeingPlaced    ReasonCode = "being_placed"
	ReasonDrained        ReasonCode = "node_drained"
	ReasonMembersSilent  ReasonCode = "members_unheard"
)

// What prevents all jobs from starting.
const (
	ReasonNotDispatching  ReasonCode = "not_dispatching"
	ReasonLease           ReasonCode = "lease_uncertain"
	ReasonHistoryFull     ReasonCode = "history_full"
	ReasonNoQuorum        ReasonCode = "no_quorum"
	ReasonNoAuthority     ReasonCode = "no_authority"
	ReasonAuthoritySilent ReasonCode = "authority_silent"
)

// About records that are not jobs yet or never became jobs, and about forgotten jobs.
const (
	ReasonNotIngested ReasonCode = "not_folded"
	ReasonLaneTrouble ReasonCode = "lane_in_trouble"
	ReasonDuplicate   ReasonCode = "duplicate"
	ReasonRateLimited ReasonCode = "rate_limited"
	ReasonMerged      ReasonCode = "merged"
	ReasonRejected    ReasonCode = "rejected"
	ReasonForgotten   ReasonCode = "forgotten"
	ReasonUnknown     ReasonCode = "unknown_here"
)

// About jobs that are active or have ended.
const (
	ReasonRunning    ReasonCode = "running"
	ReasonStopping   ReasonCode = "stopping"
	ReasonNotTaken   ReasonCode = "not_taken"
	ReasonNodeSilent ReasonCode = "node_silent"
	ReasonCompleted  ReasonCode = "completed"
	ReasonCancelled  ReasonCode = "cancelled"
	ReasonExpired    ReasonCode = "expired"
	ReasonFailed     ReasonCode = "failed"
)

// About queues.
const (
	ReasonIdle    ReasonCode = "idle"
	ReasonFlowing ReasonCode = "flows"
)
