package job

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// State is the state of a job.
type State uint8

// The states of a job. A job is new from its acknowledgement until it is
// ingested; the ledger never holds a new one.
const (
	New       State = iota
	Waiting         // due; in start order
	Delayed         // not due yet, or between two attempts
	Active          // a dispatch of it is in flight
	Completed       // ended successfully
	Failed          // ended with a failure; its body is in the dead letter stream
	Cancelled       // ended because a caller cancelled it; there is no dead letter
	Expired         // ended because it had not started in time; there is no dead letter
)

// States is the number of states.
const States = len(stateNames)

var stateNames = [...]string{"new", "waiting", "delayed", "active", "completed", "failed", "cancelled", "expired"}

func (s State) String() string { return stateNames[s] }

// Ended reports whether s is final: a job leaves it only at a caller's request.
func (s State) Ended() bool { return s >= Completed }

// Overhop returns the state in terms of Overhop's protocol, in which a cancelled or expired job
// has failed.
func (s State) Overhop() State {
	if s == Cancelled || s == Expired {
		return Failed
	}
	return s
}

// ParseState parses a state's name.
func ParseState(name string) (State, bool) {
	for s, n := range stateNames {
		if n == name {
			return State(s), true
		}
	}
	return 0, false
}

// StateNames returns the names of states as a list for people, such as "waiting or
// delayed" with the conjunction "or".
func StateNames(conjunction string, states ...State) string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = s.String()
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + conjunction + " " + names[last]
}

// Priorities. Jobs of a higher priority start first.
const (
	MaxPriority     = 9
	DefaultPriority = 5
)

// Position is the place of a record: its lane, the sequence of its message in the lane's
// stream, and its index in the message, which may hold up to [MaxPacked] records.
type Position struct {
	Lane  uint8
	Seq   uint64
	Index uint8
}

// RelocatedLane is the [Position.Lane] of a record in the stream of relocated
// records. It is not a lane.
const RelocatedLane = 255

// Relocated reports whether the record is in the stream of relocated records.
func (p Position) Relocated() bool { return p.Lane == RelocatedLane }

// Compare orders positions by lane and then by their order there, as [cmp.Compare] does.
// Relocated records, which are the oldest, come before those of the lanes.
func (p Position) Compare(o Position) int {
	// Adding 1 makes RelocatedLane 0.
	return cmp.Or(cmp.Compare(p.Lane+1, o.Lane+1), cmp.Compare(p.Seq, o.Seq), cmp.Compare(p.Index, o.Index))
}

// String returns the position as "lane 1, sequence 42", or as "relocated, sequence
// 42". The second and later records of a message have their number: "lane 1, sequence
// 42, record 3".
func (p Position) String() string {
	text := fmt.Sprintf("lane %d, sequence %d", p.Lane, p.Seq)
	if p.Relocated() {
		text = fmt.Sprintf("relocated, sequence %d", p.Seq)
	}
	if p.Index > 0 {
		text += fmt.Sprintf(", record %d", int(p.Index)+1)
	}
	return text
}

// Job is what the ledger is given of a job when it ingests its record: small
// facts, not the body. In optional fields zero means "not given".
type Job struct {
	ID       ID
	Queue    string
	Function string // "", "handler" or "runner#handler"
	Position Position
	Accepted time.Time // when the lane stored the record
	RunAt    time.Time // not before; zero: immediately. With Delay, it is an estimate by the clock of Accepted
	Priority uint8     // 0 to 9; 9 starts first

	MaxAttempts    uint32        // total number of attempts
	Timeout        time.Duration // of one attempt
	RetryInterval  time.Duration // fixed delay between attempts
	RetryOnTimeout *bool         // whether a timeout is retried like an error; nil: as its queue has it

	Guards *Guards // nil: none

	ResultTTL time.Duration // how long the result is kept visible after the end; 0: as long as it is stored

	BlobOwner ID // the owner of the blob with the job's body, see [Blob.Owner]; zero: the record contains the body

	LimitKey   string     // under which it uses limits, and shares a fair queue; "": none
	Limits     []LimitUse // that the job names itself, in the order of their names; a Key of "" stands for LimitKey
	Expires    time.Time  // if it has not started by then, it ends as expired; zero: it does not expire
	NoPriority bool       // the producer gave no priority: that of the queue applies

	Labels string // see [Labels.Encode]

	Delay     time.Duration // not before this time after acceptance; 0: RunAt is what the producer gave
	ExpiresIn time.Duration // the job expires this time after acceptance; 0: Expires is what the producer gave
}

// SplitFunction splits "runner#handler" at its first '#'. For "#h" and "h" the
// runner is empty; for "a#" the handler is empty.
func SplitFunction(function string) (runner, handler string) {
	if runner, handler, ok := strings.Cut(function, "#"); ok {
		return runner, handler
	}
	return "", function
}
