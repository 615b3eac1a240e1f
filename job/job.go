package job

import "time"

// State is where a job stands, in Overhop's words.
type State uint8

// The states of a job. A job is new from its PubAck until it is folded: the
// ledger never holds a new one.
const (
	New       State = iota
	Waiting         // due, in the order of start
	Delayed         // not due yet, or between two attempts
	Active          // a dispatch is notified
	Completed       // ended well
	Failed          // ended badly; its body lies in the dead letters
)

var stateNames = [...]string{"new", "waiting", "delayed", "active", "completed", "failed"}

func (s State) String() string { return stateNames[s] }

// Ended tells a state that a job leaves only by a caller's hand.
func (s State) Ended() bool { return s == Completed || s == Failed }

// ParseState reads a state's name.
func ParseState(name string) (State, bool) {
	for s, n := range stateNames {
		if n == name {
			return State(s), true
		}
	}
	return 0, false
}

// Priorities: 9 starts first.
const (
	MaxPriority     = 9
	DefaultPriority = 5
)

// Position is a record's place: which lane, which stream sequence in it.
type Position struct {
	Lane uint8
	Seq  uint64
}

// Job is what the ledger knows of a job when it is folded: small facts, no
// body. Zero means "not given" in every optional field.
type Job struct {
	ID       ID
	Queue    string
	Function string // "", "handler" or "runner#handler"
	Position Position
	Accepted time.Time // when the lane stored the record
	RunAt    time.Time // not before; zero: at once
	Priority uint8     // 0 to 9, 9 first

	MaxAttempts   uint32        // total number of attempts
	Timeout       time.Duration // of one attempt
	RetryInterval time.Duration // fixed delay between attempts

	Guards *Guards // nil: it is made whatever other jobs there are

	ResultTTL time.Duration // how long its result is shown after its end
}

// SplitFunction splits "runner#handler" at its first '#'. "#h" and "h" name no
// runner; "a#" has no handler.
func SplitFunction(function string) (runner, handler string) {
	for i := range len(function) {
		if function[i] == '#' {
			return function[:i], function[i+1:]
		}
	}
	return "", function
}
