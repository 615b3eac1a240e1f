package sim

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// externalChecker checks external dispatches, which callers queue and mark themselves.
type externalChecker struct {
	sim    *simulation
	states map[string]ledger.EventKind
	open   []string // in the order they were queued
}

func newExternalChecker(sim *simulation) *externalChecker {
	return &externalChecker{sim: sim, states: map[string]ledger.EventKind{}}
}

// event checks an event of an external dispatch: queued, notified, then delivered or
// failed.
func (c *externalChecker) event(ch *checker, e *ledger.Event) {
	id := e.Extra.Request
	before := ledger.DispatchNotified
	switch e.Kind {
	case ledger.DispatchQueued:
		before = 0
		ch.counts.Pending++
		c.open = append(c.open, id)
	case ledger.DispatchNotified:
		before = ledger.DispatchQueued
		ch.counts.Pending--
		ch.counts.Notified++
	case ledger.DispatchDelivered:
		ch.counts.Notified--
		ch.counts.Delivered++
	case ledger.DispatchFailed:
		ch.counts.Notified--
		ch.counts.Failed++
	}
	if c.states[id] != before {
		c.sim.fail("external dispatch %s: %s follows %s", id, e.Kind, c.states[id])
	}
	c.states[id] = e.Kind
}

// unfinished returns the request ids of the external dispatches that have not ended.
func (c *externalChecker) unfinished() (ids []string) {
	for _, id := range c.open {
		if s := c.states[id]; s == ledger.DispatchQueued || s == ledger.DispatchNotified {
			ids = append(ids, id)
		}
	}
	c.open = ids
	return ids
}

// cronChecker checks cron entries: ticks fire in order, none twice and none early.
type cronChecker struct {
	sim   *simulation
	fired map[string]uint64    // number of ticks, by entry
	last  map[string]time.Time // last tick, by entry
	jobs  []job.ID             // jobs of all ticks
}

func newCronChecker(sim *simulation) *cronChecker {
	return &cronChecker{sim: sim, fired: map[string]uint64{}, last: map[string]time.Time{}}
}

// check compares a ledger's cron entries with their last state.
func (ch *cronChecker) check(l *ledger.Ledger) {
	l.Crons("", func(c ledger.CronView) bool {
		if c.Fired == ch.fired[c.Name] {
			return true
		}
		switch {
		case c.Fired != ch.fired[c.Name]+1:
			ch.sim.fail("cron entry %s has fired %d times after %d", c.Name, c.Fired, ch.fired[c.Name])
		case !c.Last.After(ch.last[c.Name]):
			ch.sim.fail("cron entry %s fires at %s after %s", c.Name, c.Last, ch.last[c.Name])
		case c.Last.After(l.Now()):
			ch.sim.fail("cron entry %s fires %s before its time", c.Name, c.Last.Sub(l.Now()))
		}
		ch.fired[c.Name], ch.last[c.Name] = c.Fired, c.Last
		ch.jobs = append(ch.jobs, c.LastJob)
		ch.sim.report.Ticks++
		return true
	})
}
