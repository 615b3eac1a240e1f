package history

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Read calls visit with the events of a message that are about single jobs, in order, as far as they say
// where the jobs are, who ran them, and why they failed. It skips other events. An event is only valid
// during the call.
func Read(body []byte, visit func(number uint64, at time.Time, e *ledger.Event)) error {
	d := decoder{add: visit}
	d.full = func(line []byte) error {
		var l fullLine
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		if e, ok := l.event(); ok {
			visit(l.Number, l.At, e)
		}
		return nil
	}
	return d.read(body)
}

// fullLine is an event that is written in full.
type fullLine struct {
	Line
	To, From string
	Accepted time.Time
	Priority uint8
	Key      string
	Labels   map[string]any
	Node     string
	Attempt  uint32
	Limits   string
	Lane     uint8
	LaneSeq  uint64 `json:"lane_seq"`
	Index    uint8
	Result   uint64
}

// event returns the event of a line; ok is false if it is not one that Read visits.
func (l *fullLine) event() (e *ledger.Event, ok bool) {
	e = &ledger.Event{Extra: new(ledger.Extra), B: l.Queue}
	id := l.Job
	if request, n, isJob := job.ParseRequestID(l.Request); isJob {
		e.Job, e.N, id = request, n, ""
	}
	if queue, task, found := strings.Cut(l.Task, ":"); found {
		id, e.B = task, queue
	}
	if id != "" {
		var err error
		if e.Job, err = job.ParseID(id); err != nil {
			return nil, false
		}
	}
	e.From, _ = whereaboutsOf(l.From) // "" or a name that this build does not know is none
	e.To, _ = whereaboutsOf(l.To)
	switch l.Event {
	case ledger.DispatchQueued.String():
		e.Kind, e.A = ledger.DispatchQueued, l.Function
	case ledger.DispatchNotified.String():
		e.Kind, e.A = ledger.DispatchNotified, l.Channel
	case ledger.DispatchDelivered.String():
		e.Kind, e.Extra.Result = ledger.DispatchDelivered, l.Result
	case ledger.DispatchFailed.String():
		e.Kind, e.A, e.Extra.C = ledger.DispatchFailed, l.Reason, l.Error
	case ledger.WorkerAssigned.String(), ledger.WorkerRecovered.String():
		e.Kind, e.A, e.Extra.Run = ledger.WorkerAssigned, l.Worker, &ledger.Run{Node: l.Node, Function: l.Function, Attempt: l.Attempt, Key: l.Key, Limits: l.Limits}
		if l.Event == ledger.WorkerRecovered.String() {
			e.Kind = ledger.WorkerRecovered
		}
	case ledger.JobChanged.String():
		e.Kind, e.A = ledger.JobChanged, l.Function
	case ledger.JobDetails.String():
		e.Kind, e.A, e.Extra.Accepted, e.Extra.Priority = ledger.JobDetails, l.Key, l.Accepted.UnixNano(), l.Priority
		e.Extra.Record = job.Position{Lane: l.Lane, Seq: l.LaneSeq, Index: l.Index}
		if l.Labels != nil {
			e.Extra.C = labelsOf(l.Labels)
		}
	case ledger.OperatorActed.String():
		e.Kind, e.A, e.Extra.By = ledger.OperatorActed, l.Action, &ledger.Actor{Name: l.Actor, Door: ledger.Door(l.Door), Reason: l.Reason}
	default:
		return nil, false
	}
	return e, !e.Job.IsZero()
}
