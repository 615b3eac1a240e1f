package job

import "time"

// Document is what the index of jobs keeps of a job: what it can be found by, and what can be
// shown of it when its record is gone. The fields have the names and the meaning that they have
// in [View].
type Document struct {
	ID           ID
	Key          string // with which its producer enqueued it; "": none, a UUID, or not known
	Queue        string
	Function     string
	State        State
	LimitKey     string
	Tags         []string
	Meta         []Label // in the order of their names
	Params       []Label // those that the queue has indexed: path below params, and value as text
	Priority     uint8
	Attempts     uint32
	Dispatches   uint32
	Created      time.Time // with ID its place in lists of jobs
	Started      time.Time // of the last attempt; zero: never started
	Ended        time.Time // zero: it has not ended
	Node, Worker string    // of the last dispatch; Worker is a channel, see [Channel]
	Fault        *Fault    // of the last attempt that failed; nil: none failed
	Cancellation *Cancellation
	DeadLetter   uint64 // number of the dead letter of a failed job; 0: there is none, or it is not known
}

// Label is a named text of a job: an entry of its metadata, or a value of its params.
type Label struct{ Name, Value string }
