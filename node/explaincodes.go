package node

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
)

// code identifies a reason for programs. docs/reference/readiness.md lists all codes.
type code string

// Why a job is not due yet.
const (
	codeDelayed   code = "delayed"       // its producer delayed it
	codeBackoff   code = "retry_backoff" // its last attempt failed
	codeGivenBack code = "given_back"    // its last dispatch was given back, with a delay
	codeDebounced code = "debounced"     // its debounce time is not over
)

// What prevents a job that is due from starting.
const (
	codePaused         code = "queue_paused"
	codeLimit          code = "queue_limit"
	codeNoWorker       code = "no_worker"
	codeWorkersBusy    code = "workers_busy"
	codeWorkersStalled code = "workers_stalled"
	codeRunnerMissing  code = "runner_missing"
	codeRunnerDown     code = "runner_down"
	codeRunnerLooping  code = "runner_crash_looping"
	codeRunnerBusy     code = "runner_busy"
	codeJobsAhead      code = "ahead_in_line"
	codeNextInQueue    code = "next_in_line"
	codeBeingPlaced    code = "being_placed"
	codeDrained        code = "node_drained"
	codeMembersSilent  code = "members_unheard"
)

// What prevents all jobs from starting.
const (
	codeNotDispatching  code = "not_dispatching"
	codeLease           code = "lease_uncertain"
	codeHistoryFull     code = "history_full"
	codeNoQuorum        code = "no_quorum"
	codeNoAuthority     code = "no_authority"
	codeAuthoritySilent code = "authority_silent"
)

// About records that are not jobs yet or never became jobs, and about forgotten jobs.
const (
	codeNotIngested code = "not_folded"
	codeLaneTrouble code = "lane_in_trouble"
	codeDuplicate   code = "duplicate"
	codeRateLimited code = "rate_limited"
	codeMerged      code = "merged"
	codeRejected    code = "rejected"
	codeForgotten   code = "forgotten"
	codeUnknown     code = "unknown_here"
)

// About jobs that are active or have ended.
const (
	codeRunning    code = "running"
	codeStopping   code = "stopping"
	codeNotTaken   code = "not_taken"
	codeNodeSilent code = "node_silent"
	codeCompleted  code = "completed"
	codeCancelled  code = "cancelled"
	codeFailed     code = "failed"
)

// About queues.
const (
	codeIdle    code = "idle"
	codeFlowing code = "flows"
)

// reason is one reason of an explanation: a code for programs, a text for people, and
// the facts behind it.
type reason struct {
	Code code        `json:"code"`
	Text string      `json:"text"`
	Data *reasonData `json:"data,omitempty"`

	blocks bool // it prevents a job from starting; blocking reasons come first
}

// reasonData holds the facts behind a reason. Which fields are set depends on its code.
type reasonData struct {
	At          *time.Time      `json:"at,omitempty"`    // when it will end, or when it happened
	Since       *time.Time      `json:"since,omitempty"` // when it began
	Queue       string          `json:"queue,omitempty"`
	Limit       uint32          `json:"limit,omitempty"`
	Active      int             `json:"active,omitempty"`       // active jobs of the queue
	Holders     []holder        `json:"holders,omitempty"`      // those of them that have run longest
	MoreHolders int             `json:"more_holders,omitempty"` // active jobs that are not in Holders
	Ahead       int             `json:"ahead,omitempty"`        // jobs that start before this one
	Runner      string          `json:"runner,omitempty"`
	Nodes       []nodeExecutors `json:"nodes,omitempty"` // each member's executors for the job
	Node        string          `json:"node,omitempty"`
	Channel     string          `json:"channel,omitempty"`
	Dispatch    uint32          `json:"dispatch,omitempty"`
	Attempt     uint32          `json:"attempt,omitempty"`
	MaxAttempts uint32          `json:"max_attempts,omitempty"`
	Losses      uint32          `json:"losses,omitempty"`
	Deadline    *time.Time      `json:"deadline,omitempty"`
	RemainingMS int64           `json:"remaining_ms,omitempty"` // until the deadline
	Lease       *time.Time      `json:"lease_until,omitempty"`
	Percent     *int64          `json:"percent,omitempty"`
	Lane        *uint8          `json:"lane,omitempty"`
	Seq         uint64          `json:"seq,omitempty"`
	Cursor      uint64          `json:"cursor,omitempty"` // sequence up to which the lane is ingested
	Lag         uint64          `json:"lag,omitempty"`    // records before it that are not ingested
	Job         *job.ID         `json:"job,omitempty"`    // another job
	Error       string          `json:"error,omitempty"`
}

// holder is an active job, which counts towards its queue's limit.
type holder struct {
	ID       job.ID    `json:"id"`
	Node     string    `json:"node"`
	Channel  string    `json:"channel"`
	Since    time.Time `json:"since"`
	Attempt  uint32    `json:"attempt"`
	Deadline time.Time `json:"deadline"`
	Stopping bool      `json:"stopping,omitempty"`
}

// nodeExecutors is what a member has to run the jobs of a queue or a runner.
type nodeExecutors struct {
	Node    string                 `json:"node"`
	Error   string                 `json:"error,omitempty"`   // why the rest is not known
	Drained bool                   `json:"drained,omitempty"` // it starts no jobs
	Workers *edge.Subscribers      `json:"workers,omitempty"`
	Pool    *runnerpool.PoolStatus `json:"pool,omitempty"` // null: the member has no such runner
}
