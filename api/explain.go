package api

import (
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// JobExplanation is why a job is in its state, when that will change, and the job's
// history.
type JobExplanation struct {
	ID       job.ID     `json:"id,omitzero"` // omitted if unknown
	Queue    string     `json:"queue"`
	State    string     `json:"state"` // of the job, or none, forgotten, unknown
	Verdict  string     `json:"verdict"`
	NextAt   *time.Time `json:"next_at"` // when a delayed job is due; nil: its state depends on the reasons
	Reasons  []Reason   `json:"reasons"`
	Job      *Job       `json:"job,omitempty"` // without body and result
	Result   string     `json:"result,omitempty"`
	History  JobHistory `json:"history"`
	Observed Provenance `json:"observed"`
}

// JobHistory is a job's history.
type JobHistory struct {
	Events   []json.RawMessage `json:"events"`   // in order, as "yardmaster events --json" shows them
	Complete bool              `json:"complete"` // no event is missing
	Note     string            `json:"note,omitempty"`
}

// Provenance is what an explanation is based on.
type Provenance struct {
	Node      string    `json:"node"`
	At        time.Time `json:"at"`
	Index     uint64    `json:"index"`     // of the last entry in the local ledger
	LedgerAt  time.Time `json:"ledger_at"` // time of that entry
	Authority string    `json:"authority"` // "": none is known
	Certain   bool      `json:"certain"`   // the node is in contact with a quorum; else its ledger may be outdated
}

// QueueExplanation is why a queue's jobs run or do not run.
type QueueExplanation struct {
	Queue      Queue           `json:"queue"`
	Verdict    string          `json:"verdict"`
	Reasons    []Reason        `json:"reasons"` // of the queue, and of its first waiting job
	Oldest     *OldestJob      `json:"oldest,omitempty"`
	NextDue    *NextDueJob     `json:"next_due,omitempty"`
	Heads      []WaitlistHead  `json:"heads"` // the first waiting job for each kind of executor
	Active     []ActiveJob     `json:"active"`
	MoreActive int             `json:"more_active"`
	Workers    string          `json:"workers"` // the queue whose Overhop workers may run its jobs; "": none may
	Runner     string          `json:"runner"`  // the runner for its jobs, or for its jobs whose function names no runner; "": none
	Nodes      []NodeExecutors `json:"nodes"`
	Observed   Provenance      `json:"observed"`
}

// OldestJob is the waiting job that was accepted first.
type OldestJob struct {
	ID       job.ID    `json:"id"`
	Accepted time.Time `json:"accepted_at"`
	AgeMS    int64     `json:"age_ms"`
}

// NextDueJob is the delayed job that is due first. Without an id, At is only a time
// before which no job is due.
type NextDueJob struct {
	ID *job.ID   `json:"id"`
	At time.Time `json:"at"`
}

// WaitlistHead is the first of the queue's waiting jobs that need the same executors.
type WaitlistHead struct {
	ID       job.ID   `json:"id"`
	Function string   `json:"function"`
	Key      string   `json:"limit_key,omitempty"`
	Count    int      `json:"count"` // number of jobs that need them, this one included
	Reasons  []Reason `json:"reasons"`
}

// Reason is one reason of an explanation: a code for programs, a text for people, and
// the facts behind it.
type Reason struct {
	Code ReasonCode  `json:"code"`
	Text string      `json:"text"`
	Data *ReasonData `json:"data,omitempty"`
}

// ReasonData holds the facts behind a reason. Which fields are set depends on its code.
type ReasonData struct {
	At          *time.Time      `json:"at,omitempty"`    // when it will end, or when it happened
	Since       *time.Time      `json:"since,omitempty"` // when it began
	Queue       string          `json:"queue,omitempty"`
	Limit       uint32          `json:"limit,omitempty"`        // of the queue or the named limit: jobs that run at the same time
	Name        string          `json:"limit_name,omitempty"`   // of the named limit
	Key         *string         `json:"limit_key,omitempty"`    // under which the job uses it
	Rate        string          `json:"rate,omitempty"`         // of the named limit or of each of its keys
	Weight      int             `json:"weight,omitempty"`       // of the key
	Keys        int             `json:"keys,omitempty"`         // that have waiting jobs
	KeysBlocked int             `json:"keys_blocked,omitempty"` // those of them of which no job may start
	Active      int             `json:"active,omitempty"`       // active jobs of the queue
	Holders     []ActiveJob     `json:"holders,omitempty"`      // those of them that have run longest
	MoreHolders int             `json:"more_holders,omitempty"` // active jobs that are not in Holders
	Ahead       int             `json:"ahead,omitempty"`        // jobs that start before this one
	Runner      string          `json:"runner,omitempty"`
	Nodes       []NodeExecutors `json:"nodes,omitempty"` // each member's executors for the job
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
	Lag         uint64          `json:"lag,omitempty"`    // messages before it that are not ingested, each of one job or more
	Job         *job.ID         `json:"job,omitempty"`    // another job
	Error       string          `json:"error,omitempty"`
	// What has set the attempts, the delay between them and the timeout: job; rule, the queue's
	// retry rule for RuleFunction; or queue. Omitted, it is the yard.
	AttemptsFrom string  `json:"attempts_from,omitempty"`
	DelayFrom    string  `json:"delay_from,omitempty"`
	TimeoutFrom  string  `json:"timeout_from,omitempty"`
	RuleFunction *string `json:"rule_function,omitempty"` // "": all functions without a rule of their own
}

// NodeExecutors is what a member has to run the jobs of a queue or a runner.
type NodeExecutors struct {
	Node    string       `json:"node"`
	Error   string       `json:"error,omitempty"`   // why the rest is not known
	Drained bool         `json:"drained,omitempty"` // it starts no jobs
	Workers *Subscribers `json:"workers,omitempty"`
	Pool    *Pool        `json:"pool,omitempty"` // nil: the member has no such runner
}

// Subscribers describes a node's workers of a queue.
type Subscribers struct {
	Count   int          `json:"count"`             // workers with a subscription
	Stalled int          `json:"stalled"`           // of those, workers that did not acknowledge a job or let a lease expire, and have not recovered
	Credits int          `json:"credits"`           // jobs they would take now, in total
	Drained int          `json:"drained,omitempty"` // workers that an operator has drained
	Workers []Subscriber `json:"workers,omitempty"`
}

// Subscriber is one worker of a queue.
type Subscriber struct {
	Worker  string `json:"worker"`
	Name    string `json:"name,omitempty"` // from HELLO
	Credits int    `json:"credits"`        // jobs it would take now
	Running int    `json:"running"`        // jobs of all queues
	Stalled bool   `json:"stalled,omitempty"`
}
