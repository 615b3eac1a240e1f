package api

import (
	"cmp"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Status is the state of a node and, as far as that node can see, of the yard.
type Status struct {
	Node          string                 `json:"node"`
	Version       string                 `json:"version"`
	TimeZones     string                 `json:"time_zones"` // version of the node's database of time zones: its release, "-", and a hash
	Mode          string                 `json:"mode"`       // single or cluster
	Uptime        int64                  `json:"uptime_seconds"`
	HTTP          string                 `json:"http"` // host:port; "" means no HTTP listener
	Members       []MemberStatus         `json:"members"`
	Raft          RaftStatus             `json:"raft"`
	Authority     AuthorityStatus        `json:"authority"`
	Lanes         []LaneStatus           `json:"lanes"`
	Streams       []StreamStatus         `json:"streams"`  // whose leader answers, lanes included
	Finished      FinishedStatus         `json:"finished"` // records of finished jobs in the ledger
	Backlog       ledger.SnapshotBacklog `json:"backlog"`
	Balance       BalanceStatus          `json:"balance"`
	HeldKeys      int                    `json:"held_keys"` // of guards, at most [ledger.MaxHeldKeys]
	OutboxBytes   int                    `json:"outbox_bytes"`
	StaleOutcomes uint64                 `json:"stale_outcomes"`
	Nodes         []NodeStatus           `json:"nodes"` // as the authority sees them
	Pools         []Pool                 `json:"pools"` // of this node
	Workers       WorkerStatus           `json:"workers"`
	Drain         *DrainStatus           `json:"drain,omitempty"` // nil means that the node takes work
	Readiness     Readiness              `json:"readiness"`
}

// BalanceStatus compares the jobs that the ledger has accepted, since the yard has counted them,
// with those that it has.
type BalanceStatus struct {
	Accepted  uint64 `json:"accepted"`
	Removed   uint64 `json:"removed"`   // of them: by a caller, with their queue, or, unless they had completed, by retention
	Imbalance int64  `json:"imbalance"` // of the accepted jobs, those that are neither in a state nor removed: 0
}

// MemberStatus is a member as the node knows it.
type MemberStatus struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
	Leader  bool   `json:"leader"`
	State   string `json:"state"` // up, draining, down, or unknown while there is no authority
	// From the last handshake with the member at the Raft port.
	Version   string `json:"version"`              // of its program; "" means no handshake
	TimeZones string `json:"time_zones,omitempty"` // version of its database of time zones; "" means that it is not known
	TLS       bool   `json:"tls"`                  // the handshake was encrypted
	Refused   string `json:"refused,omitempty"`    // why the two nodes do not talk
}

// RaftStatus is the state of the Raft group as the node sees it.
type RaftStatus struct {
	State     string `json:"state"`
	Leader    string `json:"leader"`
	Term      uint64 `json:"term"`
	Applied   uint64 `json:"applied"`
	Last      uint64 `json:"last"`
	ContactMS int64  `json:"contact_ms"` // since the last contact with the leader; -1 means never
}

// AuthorityStatus is the lease of the authority.
type AuthorityStatus struct {
	Owner       string    `json:"owner"` // "" means none
	LeaseID     string    `json:"lease_id"`
	Epoch       uint64    `json:"epoch"`
	LeasedUntil time.Time `json:"leased_until"`
	Expired     bool      `json:"expired"`
}

// LaneStatus is the state of a lane.
type LaneStatus struct {
	Lane   int    `json:"lane"`
	Stream string `json:"stream"`
	Leader string `json:"leader"` // member; "" means that no leader answers that is in contact with a majority
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Cursor uint64 `json:"cursor"`
	Lag    uint64 `json:"lag"` // messages that are not ingested, each of one job or more
}

// NodeStatus is the authority's view of a member.
type NodeStatus struct {
	Name        string `json:"name"`
	Incarnation uint64 `json:"incarnation"`
	Silent      bool   `json:"silent"` // heartbeats are missing
	Draining    bool   `json:"draining"`
	BeatAgoMS   int64  `json:"beat_ago_ms"` // since its last heartbeat; -1: the authority has received none
	Offers      int    `json:"offers"`      // number of its slots
	Available   int    `json:"room"`        // jobs that could be placed on it now
	Running     int    `json:"running"`     // its running dispatches
	// ClockOffsetMS is how far the member's wall clock is ahead of the members' median, in
	// milliseconds; negative if it is behind. nil: the authority has too few heartbeats to know.
	ClockOffsetMS *int64 `json:"clock_offset_ms"`

	Edge    string        `json:"edge"`    // address of its Overhop listener; "" means unknown
	Credits int           `json:"credits"` // the part of Available at Overhop subscriptions
	Slots   int           `json:"slots"`   // the part of Available at RRQ processes
	Pools   []RunnerSlots `json:"pools"`   // by runner
}

// State returns the node's state in one word: down, draining or up.
func (n NodeStatus) State() string {
	switch {
	case n.Silent:
		return "down"
	case n.Draining:
		return "draining"
	}
	return "up"
}

// RunnerSlots is the free capacity of a node for an RRQ runner.
type RunnerSlots struct {
	Runner string `json:"runner"`
	Slots  int    `json:"slots"` // free
}

// Pool is the state of a node's pool of runner processes.
type Pool struct {
	Runner       string        `json:"runner"`
	Managed      bool          `json:"managed"`           // the node starts the processes
	Size         int           `json:"size"`              // configured processes
	Up           int           `json:"up"`                // processes that accept dispatches
	Slots        int           `json:"slots"`             // slots of the processes that are up; of one that is drained those in use
	Drained      int           `json:"drained,omitempty"` // processes that an operator has drained
	InFlight     int           `json:"in_flight"`         // running dispatches
	CrashLooping int           `json:"crash_looping"`     // processes in a crash loop
	Reason       string        `json:"reason,omitempty"`  // why the first process that is down is down
	Members      []PoolProcess `json:"members"`
}

// PoolProcess is the state of one process of a pool.
type PoolProcess struct {
	Worker       string `json:"worker,omitempty"` // "" means down
	Port         int    `json:"port,omitempty"`
	PID          int    `json:"pid,omitempty"`
	Slots        int    `json:"slots"`
	InFlight     int    `json:"in_flight"`
	Drained      bool   `json:"drained,omitempty"` // an operator has drained it
	Restarts     int    `json:"restarts"`
	CrashLooping bool   `json:"crash_looping,omitempty"`
	Reason       string `json:"reason,omitempty"`
}

// WorkerStatus counts the node's Overhop connections.
type WorkerStatus struct {
	Connections   int `json:"connections"`
	Registered    int `json:"registered"`
	Subscriptions int `json:"subscriptions"`
	Credits       int `json:"credits"` // jobs that the workers would take now
}

// Readiness is the readiness of the yard as a node sees it, with separate values for
// accepting and dispatching.
type Readiness struct {
	ledger.Readiness
	Accepting   bool `json:"accepting"`   // the node accepts jobs
	Dispatching bool `json:"dispatching"` // the authority starts jobs
	// Warnings do not make the node unready, but need attention before they do.
	Warnings []string `json:"warnings,omitempty"`
}

// DrainStatus is the progress of a drain.
type DrainStatus struct {
	Since     time.Time   `json:"since"`
	Done      bool        `json:"done"`      // nothing remains on the node
	Running   int         `json:"running"`   // active jobs on the node
	Jobs      []ActiveJob `json:"jobs"`      // those that have run longest, at most 20
	Leads     []string    `json:"leads"`     // streams that it still leads
	Authority bool        `json:"authority"` // it still holds the authority
}

// ActiveJob is an active job, which counts towards its queue's limit.
type ActiveJob struct {
	ID       job.ID    `json:"id"`
	Queue    string    `json:"queue"`
	LimitKey string    `json:"limit_key,omitempty"`
	Node     string    `json:"node"`
	Channel  string    `json:"channel"`
	Since    time.Time `json:"since"`
	Attempt  uint32    `json:"attempt"`
	Deadline time.Time `json:"deadline"`
	Stopping bool      `json:"stopping,omitempty"`
}

// MaxActiveJobs is the maximum number of active jobs that are listed for a drained node or
// a queue.
const MaxActiveJobs = 20

// NewActiveJob returns an active dispatch as the API shows it. timeout is the one of
// jobs that set none.
func NewActiveJob(a *ledger.ActiveDispatch, timeout time.Duration) ActiveJob {
	return ActiveJob{
		ID: a.ID, Queue: a.Queue, LimitKey: a.LimitKey, Node: a.Node, Channel: a.Channel, Since: a.Started.UTC(), Attempt: a.Attempt,
		Deadline: a.Started.Add(cmp.Or(a.Timeout, timeout)).UTC(), Stopping: a.Recalled != "",
	}
}
