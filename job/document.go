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
	DeadLetter   uint64    // number of the dead letter of a failed job; 0: there is none, or it is not known
	RunAt        time.Time // not before which it was to start, or starts if it is delayed; zero: none was set
	MaxAttempts  uint32
	Result       uint64 // number of the result of a completed job; 0: there is none
	ResultTTL    time.Duration
	Position     Position // of the record; only of a job that has ended
}

// Labels returns the job's labels.
func (d *Document) Labels() Labels { return Labels{d.Key, d.Tags, d.Meta, d.Params} }

// SetLabels sets the job's labels.
func (d *Document) SetLabels(l Labels) {
	d.Key, d.Tags, d.Meta, d.Params = l.Key, l.Tags, l.Meta, l.Params
}

// View returns what can be shown of the job.
func (d *Document) View() View {
	v := View{
		ID: d.ID, Key: d.Key, Queue: d.Queue, State: d.State, Function: d.Function, Created: d.Created, RunAt: d.RunAt, Started: d.Started, Ended: d.Ended,
		Priority: d.Priority, Attempts: d.Attempts, MaxAttempts: d.MaxAttempts, Dispatches: d.Dispatches, Node: d.Node, Worker: d.Worker,
		Fault: d.Fault, Cancellation: d.Cancellation, LimitKey: d.LimitKey, ResultTTL: d.ResultTTL, Position: d.Position,
		Labels: new(d.Labels()),
	}
	if d.RunAt.IsZero() {
		v.RunAt = d.Created
	}
	if d.State == Failed {
		v.DeadLetter = d.DeadLetter
	}
	if d.Fault != nil {
		v.Reason = d.Fault.Message
	}
	return v
}

// Label is a named text of a job: an entry of its metadata, or a value of its params.
type Label struct{ Name, Value string }
