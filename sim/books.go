package sim

import (
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// ownBook judges callers' own dispatches, which nobody schedules.
type ownBook struct {
	y      *yard
	states map[string]ledger.EventKind
	open   []string // in the order they were queued
}

func newOwnBook(y *yard) *ownBook { return &ownBook{y: y, states: map[string]ledger.EventKind{}} }

// event follows the contract, as for a job's dispatch.
func (b *ownBook) event(j *judge, e *ledger.Event) {
	id := e.Extra.Request
	before := ledger.DispatchNotified
	switch e.Kind {
	case ledger.DispatchQueued:
		before = 0
		j.counts.Pending++
		b.open = append(b.open, id)
	case ledger.DispatchNotified:
		before = ledger.DispatchQueued
		j.counts.Pending--
		j.counts.Notified++
	case ledger.DispatchDelivered:
		j.counts.Notified--
		j.counts.Delivered++
	case ledger.DispatchFailed:
		j.counts.Notified--
		j.counts.Failed++
	}
	if b.states[id] != before {
		b.y.fail("own dispatch %s: %s follows %s", id, e.Kind, b.states[id])
	}
	b.states[id] = e.Kind
}

// unfinished are the own dispatches that a caller has yet to mark.
func (b *ownBook) unfinished() (ids []string) {
	for _, id := range b.open {
		if s := b.states[id]; s == ledger.DispatchQueued || s == ledger.DispatchNotified {
			ids = append(ids, id)
		}
	}
	b.open = ids
	return ids
}

// cronBook judges cron entries: each tick that is said to have made a job made
// one, at its time, and none comes twice.
type cronBook struct {
	y     *yard
	fired map[string]uint64
	last  map[string]time.Time
	jobs  []job.ID // that ticks have made
}

func newCronBook(y *yard) *cronBook {
	return &cronBook{y: y, fired: map[string]uint64{}, last: map[string]time.Time{}}
}

func (b *cronBook) look(l *ledger.Ledger) {
	l.Crons("", func(c ledger.CronView) bool {
		if c.Fired == b.fired[c.Name] {
			return true
		}
		switch {
		case c.Fired != b.fired[c.Name]+1:
			b.y.fail("cron entry %s has fired %d times after %d", c.Name, c.Fired, b.fired[c.Name])
		case !c.Last.After(b.last[c.Name]):
			b.y.fail("cron entry %s fires at %s after %s", c.Name, c.Last, b.last[c.Name])
		case c.Last.After(l.Now()):
			b.y.fail("cron entry %s fires %s before its time", c.Name, c.Last.Sub(l.Now()))
		}
		b.fired[c.Name], b.last[c.Name] = c.Fired, c.Last
		b.jobs = append(b.jobs, c.LastJob)
		b.y.report.Ticks++
		return true
	})
}
