package job

import "time"

// Assignment is the authority's order to a node to run one dispatch of a job on
// one of its workers. A node that has seen the same (Job, N) does not start it
// again.
type Assignment struct {
	Job         ID
	N           uint32 // dispatch number, never reused; Job and N form the request id
	Attempt     uint32 // 1-based, as workers and policies see it
	MaxAttempts uint32
	Queue       string
	Function    string
	Kind        Kind
	Key         string // key of the offer: the queue's or the runner's name
	Worker      string // worker of the offer
	Epoch       uint64 // epoch of the authority that sent it; a node refuses an epoch lower than one it has seen
	Fence       uint64 // increases with every dispatch of the cluster, and jumps when a backup is restored
	Timeout     time.Duration
	Accepted    time.Time
	RunAt       time.Time // when the job became due
	Redelivered bool      // an earlier dispatch of this attempt was lost or never started
	Position    Position  // where the body is stored
	Body        []byte    // the Spec's JSON; nil: the node loads it from Position
	// Started is when the dispatch began, if its worker moved here from another
	// node while running it: the node then adopts it as running instead of
	// starting it. Zero: the node starts it now. It is by the yard's time, except in what
	// the node itself has found, where it is by the node's clock, with a monotonic reading.
	Started time.Time
	// MoveIndex is the index of the log entry that moved the dispatch to this
	// node, or of a later one; 0: the dispatch has not moved.
	MoveIndex uint64
}

// DispatchID returns which dispatch the node is to run.
func (a *Assignment) DispatchID() DispatchID { return DispatchID{a.Job, a.N} }

// RequestID returns the dispatch's request id; see the function [RequestID].
func (a *Assignment) RequestID() string { return RequestID(a.Job, a.N) }
