package index

import (
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// life is what events say about a job, which are added from the last one to the first.
type life struct {
	job.Document
	last     uint64 // number of the last event
	labels   string // see [job.Labels.Encode]; "": not known
	known    bool   // the state is known
	queued   bool   // the number of the last dispatch is known
	detailed bool   // what the job was enqueued with is known
	exact    bool   // so is the time at which it was accepted
	removed  bool   // a caller has removed the job
	reset    bool   // earlier runs do not count: the job was retried, or a debounce has replaced it
	fault    uint32 // the dispatch of Fault, which has not ended the job; 0: there is none, or it has
}

// add adds an event that is earlier than the others, and reports whether it is the job's first.
func (l *life) add(at time.Time, e *ledger.Event) (isFirst bool) {
	if e.N > 0 && !l.queued {
		l.queued, l.Dispatches = true, e.N
	}
	if e.Kind != ledger.OperatorActed && e.B != "" {
		l.Queue = e.B
	}
	switch e.Kind {
	case ledger.JobDetails:
		l.addDetails(e)
	case ledger.DispatchQueued:
		l.become(ledger.InState(job.Waiting), at)
		l.setFunction(e.A)
		return l.came(e.From, at, e.From == 0 && e.N == 1) // earlier builds have not written From
	case ledger.JobChanged:
		l.become(e.To, at)
		l.setFunction(e.A)
		l.addEnd(e.To)
		return l.came(e.From, at, false)
	case ledger.DispatchNotified:
		if e.A == "none" && l.fault == e.N {
			l.Fault, l.fault = nil, 0 // it was not placed
		}
		if e.A != "none" {
			l.become(ledger.InState(job.Active), at)
			l.addRun(e.A, "", at, 0)
		}
	case ledger.WorkerAssigned, ledger.WorkerRecovered:
		l.become(ledger.InState(job.Active), at)
		if e.Extra != nil && e.Extra.Run != nil {
			l.setFunction(e.Extra.Run.Function)
			l.addRun(e.A, e.Extra.Run.Node, at, e.Extra.Run.Attempt)
		}
	case ledger.DispatchDelivered:
		if !l.known && e.Extra != nil {
			l.Result = e.Extra.Result
		}
		l.become(ledger.InState(job.Completed), at)
	case ledger.DispatchFailed:
		l.become(e.To, at)
		l.addFailure(e)
	case ledger.OperatorActed:
		if !l.reset { // the first one counts
			l.Cancellation = &job.Cancellation{Actor: e.Extra.By.Name, Door: string(e.Extra.By.Door), Reason: e.Extra.By.Reason, At: at}
		}
	}
	return false
}

// become sets the state of the job if it is not known.
func (l *life) become(w ledger.Whereabouts, at time.Time) {
	if l.known {
		return
	}
	l.known = true
	l.removed = w == ledger.OutGone
	if state, ok := w.State(); ok {
		l.State = state
	}
	if l.State.Ended() {
		l.Ended = at
	}
}

// came reports whether the job was not in the ledger before the event. An ended job was retried.
func (l *life) came(from ledger.Whereabouts, at time.Time, isFirst bool) bool {
	switch {
	case isFirst, from == ledger.OutNew, from == ledger.OutGone:
		if !l.detailed {
			l.Created, l.Priority = at, job.DefaultPriority
		}
		return true
	case from.HasEnded():
		l.reset = true
	}
	return false
}

func (l *life) setFunction(name string) {
	if l.Function == "" {
		l.Function = name
	}
}

func (l *life) addDetails(e *ledger.Event) {
	if !l.detailed {
		l.detailed, l.exact, l.Created = true, true, time.Unix(0, e.Extra.Accepted).UTC()
		l.Priority, l.LimitKey, l.Position = e.Extra.Priority, e.A, e.Extra.Record
	}
	if e.Extra.C != "" {
		if l.labels == "" {
			l.labels = strings.Clone(e.Extra.C)
		}
		l.reset = true
	}
}

// addRun adds that the job was started, or has moved.
func (l *life) addRun(worker, node string, at time.Time, attempt uint32) {
	if l.reset {
		return
	}
	if l.Worker == "" {
		l.Worker = worker
	}
	if l.Node == "" {
		l.Node = node
	}
	if l.Started.IsZero() && node == "" { // the event that it was placed
		l.Started = at
	}
	if l.Attempts == 0 {
		l.Attempts = attempt
	}
}

// addEnd adds the fault of a job that has ended without a dispatch.
func (l *life) addEnd(to ledger.Whereabouts) {
	if l.reset || l.Fault != nil {
		return
	}
	switch to {
	case ledger.InState(job.Cancelled):
		l.Fault = &job.Fault{Message: job.ReasonCancelled, Type: job.FaultCancelled}
	case ledger.InState(job.Expired):
		l.Fault = &job.Fault{Message: job.ReasonExpired, Type: job.FaultExpired}
	}
}

func (l *life) addFailure(e *ledger.Event) {
	if l.reset || l.Fault != nil {
		return
	}
	l.Fault = &job.Fault{Message: job.CutText(e.A, ledger.MaxKeptReason)}
	if e.Extra != nil {
		l.Fault.Type = e.Extra.C
	}
	if l.Fault.Type == job.FaultRejected {
		l.Fault.Message = strings.TrimPrefix(l.Fault.Message, "rejected: ")
	}
	if !e.To.HasEnded() {
		l.fault = e.N
	}
}

// document returns the document of the job.
func (l *life) document() *job.Document {
	d := l.Document
	if d.State != job.Cancelled {
		d.Cancellation = nil
	}
	d.SetLabels(parseLabels(l.labels))
	return &d
}
