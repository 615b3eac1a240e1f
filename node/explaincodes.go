package node

import (
	"time"

	"yardmaster/edge"
	"yardmaster/job"
	"yardmaster/runnerpool"
)

// code names a reason for programs. docs/explain.md lists them all.
type code string

// Why a job is not to start yet.
const (
	codeDelayed   code = "delayed"       // its producer wants it later
	codeBackoff   code = "retry_backoff" // its last attempt failed
	codeGivenBack code = "given_back"    // its last dispatch was given back, with a time to wait
	codeDebounced code = "debounced"     // its debounce window is not over
)

// What is in the way of a job that is due.
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
	codeAhead          code = "ahead_in_line"
	codeNext           code = "next_in_line"
	codePlacing        code = "being_placed"
	codeDrained        code = "node_drained"
	codeUnheard        code = "members_unheard"
)

// What is in the way of all jobs.
const (
	codeBlocked     code = "not_dispatching"
	codeLease       code = "lease_uncertain"
	codeHistoryFull code = "history_full"
	codeNoQuorum    code = "no_quorum"
	codeNoAuthority code = "no_authority"
	codeSilent      code = "authority_silent"
)

// Of what is not a job yet, never became one, or is one no more.
const (
	codeNotFolded   code = "not_folded"
	codeLane        code = "lane_in_trouble"
	codeDuplicate   code = "duplicate"
	codeRateLimited code = "rate_limited"
	codeMerged      code = "merged"
	codeRejected    code = "rejected"
	codeForgotten   code = "forgotten"
	codeUnknown     code = "unknown_here"
)

// Of a job that runs, or has ended.
const (
	codeRunning    code = "running"
	codeStopping   code = "stopping"
	codeNotTaken   code = "not_taken"
	codeNodeSilent code = "node_silent"
	codeCompleted  code = "completed"
	codeCancelled  code = "cancelled"
	codeFailed     code = "failed"
)

// Of a queue.
const (
	codeIdle  code = "idle"
	codeFlows code = "flows"
)

// reason is one of an explanation's: a code for programs, a text for people,
// and what it goes by.
type reason struct {
	Code code        `json:"code"`
	Text string      `json:"text"`
	Data *reasonData `json:"data,omitempty"`

	blocks bool // it keeps a job from starting; an answer has these first
}

// reasonData is what a reason goes by: the fields that its code has.
type reasonData struct {
	At          *time.Time  `json:"at,omitempty"`    // when it is over, or when it happened
	Since       *time.Time  `json:"since,omitempty"` // when it began
	Queue       string      `json:"queue,omitempty"`
	Limit       uint32      `json:"limit,omitempty"`
	Active      int         `json:"active,omitempty"`       // jobs of the queue that run
	Holders     []holder    `json:"holders,omitempty"`      // those of them that run longest
	MoreHolders int         `json:"more_holders,omitempty"` // how many more there are
	Ahead       int         `json:"ahead,omitempty"`        // jobs that start before it
	Runner      string      `json:"runner,omitempty"`
	Nodes       []nodeHands `json:"nodes,omitempty"` // what each member has to run it with
	Node        string      `json:"node,omitempty"`
	Channel     string      `json:"channel,omitempty"`
	Dispatch    uint32      `json:"dispatch,omitempty"`
	Attempt     uint32      `json:"attempt,omitempty"`
	MaxAttempts uint32      `json:"max_attempts,omitempty"`
	Losses      uint32      `json:"losses,omitempty"`
	Deadline    *time.Time  `json:"deadline,omitempty"`
	RemainingMS int64       `json:"remaining_ms,omitempty"` // until the deadline
	Lease       *time.Time  `json:"lease_until,omitempty"`
	Percent     *int64      `json:"percent,omitempty"`
	Lane        *uint8      `json:"lane,omitempty"`
	Seq         uint64      `json:"seq,omitempty"`
	Cursor      uint64      `json:"cursor,omitempty"` // the lane's folded position
	Lag         uint64      `json:"lag,omitempty"`    // records before it that are not folded
	Job         *job.ID     `json:"job,omitempty"`    // another one
	Error       string      `json:"error,omitempty"`
}

// holder is a job that takes one of its queue's places.
type holder struct {
	ID       job.ID    `json:"id"`
	Node     string    `json:"node"`
	Channel  string    `json:"channel"`
	Since    time.Time `json:"since"`
	Attempt  uint32    `json:"attempt"`
	Deadline time.Time `json:"deadline"`
	Stopping bool      `json:"stopping,omitempty"`
}

// nodeHands is what a member has to run jobs of a kind with.
type nodeHands struct {
	Node    string                 `json:"node"`
	Error   string                 `json:"error,omitempty"`   // why that is not known
	Drained bool                   `json:"drained,omitempty"` // it starts nothing
	Workers *edge.Subscribers      `json:"workers,omitempty"`
	Pool    *runnerpool.PoolStatus `json:"pool,omitempty"` // null: it has no such runner
}
