package job

import "time"

// Answer is a node's answer to one assignment.
type Answer uint8

// The answers to an assignment.
const (
	Taken      Answer = iota + 1 // started now, already running here, or its outcome is being reported
	NoCapacity                   // the worker is gone, or has no free credit or slot: not started
	StaleEpoch                   // the node has seen a higher epoch
	Draining                     // the node takes no more work: not started
	BodyLost                     // the body cannot be read or does not match its checksum
)

// Report is a message from a node to the authority: how dispatches ended, how
// the node's capacity changed and which workers stalled or recovered. The
// authority applies Offers first.
type Report struct {
	Node             string
	Incarnation      uint64 // increases with every start of the node
	Rev              uint64 // increases with every report of an incarnation that carries offers
	Full             bool   // Offers is the node's whole capacity, not only what changed
	SeenBatch        uint64 // number of the last AssignmentBatch that Offers takes into account
	Offers           []Offer
	Outcomes         []Outcome
	FirstWorkerEvent uint64        // number of WorkerEvents[0]; events are numbered from 1 in each incarnation
	WorkerEvents     []WorkerEvent // at most MaxWorkerEvents
}

// ReportAck answers a report once its outcomes and worker events are committed.
type ReportAck struct {
	Epoch    uint64
	WantFull bool      // the authority missed offers; the next report must carry all of them
	Settled  []Settled // one per outcome, in order
}

// Settled is the authority's answer to one outcome.
type Settled struct {
	Stale     bool  // not the job's current dispatch; the outcome was ignored
	Duplicate bool  // the same dispatch had ended the job before
	State     State // the job's state after it
	RunAt     time.Time
	Index     uint64 // index of the log entry that decided it
}

// AssignmentBatch is one message of assignments to a node.
type AssignmentBatch struct {
	Epoch       uint64
	Number      uint64 // increases with every batch to the node within an epoch
	Incarnation uint64 // incarnation of the node that it is meant for; 0: any
	Assignments []Assignment
}

// MaxListedDispatches is the highest number of dispatches that a heartbeat
// lists.
const MaxListedDispatches = 16384

// Heartbeat is a node's periodic message to the authority, sent every second.
type Heartbeat struct {
	Node        string
	Incarnation uint64
	At          time.Time // the node's wall clock
	Rev         uint64    // Rev of the last report that carried offers
	Running     int       // number of running dispatches
	Draining    bool
	Runners     []string // names of the RRQ runners this node is configured for
	Lanes       []uint8  // lanes whose stream leader is this node
	Edge        string   // host:port where clients reach the node's edge; "": not announced
	// Dispatches lists the dispatches that the node has taken and that are not
	// settled. Epoch and AckSeq are those of the last answered heartbeat: the
	// list was made after that authority sent that answer. AckSeq is 0 if
	// Dispatches must be ignored: no heartbeat was answered yet, or there are
	// more than [MaxListedDispatches] dispatches.
	Epoch      uint64
	AckSeq     uint64
	Dispatches []DispatchID
	// Elapsed is the elapsed time of the ledger, as the node keeps it since the authority of
	// ElapsedEpoch sent it, see [HeartbeatAck]. Zero: no authority has sent it.
	Elapsed      time.Time
	ElapsedEpoch uint64
}

// HeartbeatAck extends a node's lease by Lease, counted from when the node sent
// the heartbeat.
type HeartbeatAck struct {
	Epoch     uint64
	Lease     time.Duration
	WantFull  bool      // the authority missed offers; the next report must carry all of them
	Seq       uint64    // increases with every answer within an epoch
	LastBatch uint64    // number of the last AssignmentBatch sent to the node
	Edges     []string  // addresses of the other nodes' edges that accept clients
	Elapsed   time.Time // by which relative times end; a new authority continues from what the nodes keep of it; zero: it does not know yet
}

// Recall is the authority's order to a node to stop a dispatch.
type Recall struct {
	Job    ID
	N      uint32
	Epoch  uint64
	Reason RecallReason
	// MoveIndex, with RecallSuperseded, is the index of the log entry that
	// moved the dispatch to another node, or of a later one. A node to which a
	// later entry has moved it back ignores the recall; see [Recall.Outdated].
	MoveIndex uint64
	// Message, with RecallCancelled, is why the job was cancelled, as the caller gave it.
	Message string
}

// DispatchID returns which dispatch is to stop.
func (r *Recall) DispatchID() DispatchID { return DispatchID{r.Job, r.N} }

// Outdated reports whether the recall was sent before the log entry with the
// index moveIndex moved the dispatch to the node, so that the node must ignore
// it.
func (r *Recall) Outdated(moveIndex uint64) bool {
	return r.Reason == RecallSuperseded && r.MoveIndex != 0 && r.MoveIndex <= moveIndex
}

// RecallReason is why a dispatch is to stop, as written on the wire.
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
