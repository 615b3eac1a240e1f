package job

import "time"

// Answer is what a node says of one assignment.
type Answer uint8

// The answers to an assignment.
const (
	Taken      Answer = iota + 1 // started now, or already running here, or its outcome is on its way
	NoRoom                       // the worker is gone or has no credit or slot: it never started
	StaleEpoch                   // the node has seen a higher epoch
	Draining                     // the node takes no more work: it never started
	BodyLost                     // the body cannot be read or does not match its checksum
)

// Report is what a node tells the authority: how dispatches ended, how its room
// changed and how its workers are. Offers are read first.
type Report struct {
	Node        string
	Incarnation uint64 // grows with every start of the node
	Rev         uint64 // grows with every report of an incarnation that carries offers
	Full        bool   // Offers is all the node's room, not what changed
	Seen        uint64 // highest Batch whose assignments Offers takes into account
	Offers      []Offer
	Outcomes    []Outcome
	FirstNote   uint64 // number of Notes[0]; they are numbered from 1 in each incarnation
	Notes       []Note // at most MaxNotes
}

// ReportAck answers a report once its outcomes and notes are committed.
type ReportAck struct {
	Epoch    uint64
	WantFull bool      // the authority missed offers: send all of them
	Settled  []Settled // one per outcome, in order
}

// Settled is what became of an outcome.
type Settled struct {
	Stale bool  // not the job's current dispatch: ignored
	Dup   bool  // the job's end was already known through the same dispatch
	State State // the job's state now
	RunAt time.Time
	Index uint64 // of the log entry that says so
}

// Batch is a set of assignments for one node.
type Batch struct {
	Epoch       uint64
	Number      uint64 // grows with every batch to that node within an epoch
	Incarnation uint64 // of the node that the orders are for; 0: whichever hears them
	Assignments []Assignment
}

// Beat is a node's sign of life, sent every second.
type Beat struct {
	Node        string
	Incarnation uint64
	At          time.Time // the node's wall clock
	Rev         uint64    // of its last report that carried offers
	Running     int       // dispatches in hand
	Draining    bool
	Runners     []string // names of the RRQ runners this node is configured for
	Lanes       []uint8  // lanes whose stream this node leads
	Edge        string   // host:port where clients reach the node's edge; "": not told
}

// BeatAck extends a node's lease, counted from when it sent the beat.
type BeatAck struct {
	Epoch    uint64
	Lease    time.Duration
	WantFull bool
	Batches  uint64   // number of the last batch of orders that was sent to the node
	Edges    []string // of the other nodes that take work
}

// Recall tells a node to stop a dispatch.
type Recall struct {
	Job    ID
	N      uint32
	Epoch  uint64
	Reason RecallReason
	// Moved is the index of the entry that moved the dispatch away, or of one
	// since, if that is the reason: whoever brought it back later goes on with it.
	Moved uint64
}

// RecallReason says why a dispatch is to stop, in the words of the wire.
type RecallReason string

// The reasons for a recall.
const (
	RecallCancelled  RecallReason = "CANCELLED"
	RecallDeadline   RecallReason = "DEADLINE"
	RecallLease      RecallReason = "LEASE_EXPIRED"
	RecallQueueGone  RecallReason = "QUEUE_REMOVED"
	RecallShutdown   RecallReason = "SHUTDOWN"
	RecallSuperseded RecallReason = "SUPERSEDED"
)
