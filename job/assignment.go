package job

import "time"

// Assignment is the authority's order to a node: run this dispatch on that
// worker. A node that has seen the same (Job, N) does not start it again.
type Assignment struct {
	Job         ID
	N           uint32 // dispatch number, never reused: with Job it is the request id
	Attempt     uint32 // 1-based, as workers and policies see it
	MaxAttempts uint32
	Queue       string
	Function    string
	Kind        Kind
	Key         string // of the offer: queue or runner
	Worker      string // of the offer
	Epoch       uint64 // of the authority that sent it; a node refuses a lower one than it has seen
	Fence       uint64 // grows over all dispatches, and jumps where a backup is restored
	Timeout     time.Duration
	Accepted    time.Time
	RunAt       time.Time // when it became due
	Redelivered bool      // an earlier dispatch of this attempt never started or was lost
	Position    Position  // where the body lies
	Body        []byte    // the Spec's JSON if it is at hand; nil: load it from Position
	// Started is when the dispatch began, if its worker has brought it from
	// another node: it can be gone on with then, not begun. Zero: it begins now.
	Started time.Time
	// Moved is the index of the entry that moved it where it is, or of one since;
	// 0: it is where it began.
	Moved uint64
}

// RequestID is the dispatch's name.
func (a *Assignment) RequestID() string { return RequestID(a.Job, a.N) }
