package api

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// OverviewRequest selects what an overview shows.
type OverviewRequest struct {
	Window string `json:"window"` // whole minutes, such as 15m, 1h or 24h, at most 24h; "" means 1h
	Queue  string `json:"queue"`  // only its numbers; "" means all queues
}

// Overview is what happened in the yard in a window of time, and how it is now, as one node knows
// it. Nodes count the same, each as far as it has applied the ledger's log: see AsOf.
type Overview struct {
	Node       string     `json:"node"`
	At         time.Time  `json:"at"` // the node's time
	AsOf       AsOf       `json:"as_of"`
	Certain    bool       `json:"certain"`     // the node is in contact with a quorum; else more may have happened
	KnownSince *time.Time `json:"known_since"` // what happened before is not known; nil: the node has applied no entry yet
	Window     int64      `json:"window_ms"`
	Queue      string     `json:"queue,omitempty"` // whose points and totals these are; "" means all queues

	Points     OverviewPoints    `json:"points"`
	Totals     OverviewTotals    `json:"totals"`      // of the minutes of the window and the present one
	LastMinute OverviewCounts    `json:"last_minute"` // of six slots of ten seconds that have ended
	Failures   []OverviewFailure `json:"failures"`    // of the window, by type of error: the 20 most frequent ones
	Others     uint64            `json:"other_failures"`

	Backlog    map[string]int  `json:"backlog"` // jobs of all queues by state
	Queues     []OverviewQueue `json:"queues"`  // at most 200: those in which most happened or is left to do
	MoreQueues int             `json:"more_queues"`
	Limits     []Limit         `json:"limits"` // those that keep jobs waiting now

	Members   []MemberStatus      `json:"members"`
	Authority AuthorityStatus     `json:"authority"`
	Readiness Readiness           `json:"readiness"`
	Timeline  []OverviewHappening `json:"timeline"` // of 24 hours, the newest first
}

// AsOf is a point of the ledger's log.
type AsOf struct {
	Index uint64    `json:"index"` // of an entry
	At    time.Time `json:"at"`    // the ledger's time of the entry
}

// OverviewPoints has numbers of steps of time. In all lists, null is a number that is not known, or
// a quantile of nothing.
type OverviewPoints struct {
	Step      int64      `json:"step_ms"`
	Start     time.Time  `json:"start"` // of the first step
	Accepted  []*uint64  `json:"accepted"`
	Started   []*uint64  `json:"started"`
	Completed []*uint64  `json:"completed"`
	Retried   []*uint64  `json:"retried"`
	Failed    []*uint64  `json:"failed"`
	Cancelled []*uint64  `json:"cancelled"`
	Expired   []*uint64  `json:"expired"`
	Returned  []*uint64  `json:"returned"`
	WaitP50   []*float64 `json:"wait_p50_ms"`
	WaitP99   []*float64 `json:"wait_p99_ms"`
	RunP50    []*float64 `json:"run_p50_ms"`
	RunP99    []*float64 `json:"run_p99_ms"`
}

// OverviewCounts are numbers of jobs and dispatches.
type OverviewCounts struct {
	Accepted  uint64 `json:"accepted"`
	Started   uint64 `json:"started"` // dispatches
	Completed uint64 `json:"completed"`
	Retried   uint64 `json:"retried"` // attempts that failed, and after which the job runs again
	Failed    uint64 `json:"failed"`  // jobs, for good
	Cancelled uint64 `json:"cancelled"`
	Expired   uint64 `json:"expired"`
	Returned  uint64 `json:"returned"` // dispatches that ended and do not count as attempts, such as of a lost node
}

// OverviewTotals are numbers of a window.
type OverviewTotals struct {
	OverviewCounts
	Wait OverviewTimes `json:"wait"` // from when a job was due until its first attempt started
	Run  OverviewTimes `json:"run"`  // of dispatches, from their start until they ended
}

// OverviewTimes are quantiles of durations, each within 3.2 % of one that was measured, or more if
// very many queues are busy.
type OverviewTimes struct {
	Count uint64   `json:"count"`
	P50   *float64 `json:"p50_ms"` // nil: there are none
	P99   *float64 `json:"p99_ms"`
}

// OverviewFailure is how often attempts failed with a type of error.
type OverviewFailure struct {
	Type  string `json:"type"` // "" means that the error had none
	Count uint64 `json:"count"`
}

// OverviewQueue is what happened in a queue, and what is left to do.
type OverviewQueue struct {
	Name       string         `json:"name"`
	State      string         `json:"state"`   // running or paused
	Backlog    map[string]int `json:"backlog"` // jobs by state
	Oldest     *OldestJob     `json:"oldest,omitempty"`
	Counted    bool           `json:"counted"` // false: it is one of too many queues, and LastMinute and Totals are not known
	LastMinute OverviewCounts `json:"last_minute"`
	Totals     OverviewTotals `json:"totals"`
	Ended      []uint32       `json:"ended,omitempty"` // jobs that ended in each minute of a window of at most an hour, and in the present one; nil: none did
}

// OverviewHappening is an act of an operator that is about more than one job, or a change of the
// authority.
type OverviewHappening struct {
	At     time.Time `json:"at"`
	Action string    `json:"action"` // as in the history, such as queue.pause; authority.acquired for a change of the authority
	Queue  string    `json:"queue,omitempty"`
	Target string    `json:"target,omitempty"` // what it is about besides the queue, such as a node
	Actor  string    `json:"actor,omitempty"`
	Door   string    `json:"door,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// NewOldestJob returns a waiting job of which none was accepted before.
func NewOldestJob(id job.ID, accepted, now time.Time) *OldestJob {
	return &OldestJob{ID: id, Accepted: accepted.UTC(), AgeMS: max(0, now.Sub(accepted).Milliseconds())}
}
