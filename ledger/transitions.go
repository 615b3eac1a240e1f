package ledger

import (
	"cmp"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Transition is a job that was accepted, started, or stopped running or waiting, for statistics.
type Transition struct {
	Queue         string
	Before, After job.State // Before is [job.New] for a job that the ledger did not have
	Attempt       uint32    // number of its attempts that count, after the transition
	Redelivered   bool      // an earlier dispatch of the attempt that starts was given back
	GivenBack     bool      // the attempt that ran does not count
	Due           int64     // when the job that starts was due, in Unix nanoseconds
	Started       int64     // when the dispatch that ended was placed, in Unix nanoseconds; 0: none was running
	Error         string    // code of the error, or else its type, with which a dispatch or the job failed, or ""
}

// RecordTransitions makes the ledger keep the transitions of each entry from now on. They are not a
// part of the state.
func (l *Ledger) RecordTransitions() { l.transitions = new([]Transition) }

// Transitions returns the transitions of the last entry, in order. The slice is valid until the next
// entry.
func (l *Ledger) Transitions() []Transition {
	if l.transitions == nil {
		return nil
	}
	return *l.transitions
}

// LastEvents returns the events of the last entry, which are never changed.
func (l *Ledger) LastEvents() []Event {
	if n := len(l.outbox.entries); n > 0 && l.outbox.entries[n-1].index == l.index {
		return l.outbox.entries[n-1].events
	}
	return nil
}

// record keeps the transition of a job that is stored in the place of old, which is nil for a new
// one. Changes of other kinds, such as of a priority, are not kept.
func (j *jobs) record(old, next *storedJob) {
	t := Transition{Queue: next.queue.name, After: next.state, Attempt: next.attempt}
	if old != nil {
		if old.state == next.state {
			return
		}
		t.Before = old.state
	}
	switch {
	case next.state == job.Active:
		t.Due, t.Redelivered = old.due, old.flags&redelivered != 0
	case t.Before == job.Active:
		t.Started, t.GivenBack = old.run.started, next.attempt < old.attempt
	case t.Before != job.New && !next.state.Ended():
		return // it is due, or is to be run again
	}
	if failure := next.run.failure; failure != nil && next.state != job.Active && next.state != job.Completed {
		t.Error = cmp.Or(failure.code, failure.kind)
	}
	*j.transitions = append(*j.transitions, t)
}
