package sim

import (
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// checkEvent checks an event: that epochs grow, and that a dispatch is queued,
// notified, then delivered or failed.
func (ch *checker) checkEvent(proc *process, e *ledger.Event, ended map[dispatch]bool) {
	sim := ch.sim
	if e.Kind == ledger.AuthorityAcquired {
		a := proc.ledger.Authority()
		if a.Epoch <= ch.epoch {
			sim.fail("epoch %d follows %d", a.Epoch, ch.epoch)
		}
		ch.epoch, ch.owner = a.Epoch, e.A
	}
	if e.Kind == ledger.OperatorActed {
		ch.checkAct(proc, e)
		return
	}
	if e.Kind < ledger.DispatchQueued || e.Kind > ledger.DispatchFailed {
		return
	}
	if e.Extra != nil && e.Extra.Request != "" {
		ch.external.event(ch, e)
		return
	}
	d := dispatch{e.Job, e.N}
	t := ch.attempts[e.Job]
	if t == nil {
		t = &attemptState{max: int(retryPolicy.MaxAttempts)}
		ch.attempts[e.Job] = t
	}
	if t.ended {
		sim.fail("%s: %s after the job's end", job.RequestID(e.Job, e.N), e.Kind)
	}
	before := map[ledger.EventKind]ledger.EventKind{
		ledger.DispatchNotified: ledger.DispatchQueued, ledger.DispatchDelivered: ledger.DispatchNotified, ledger.DispatchFailed: ledger.DispatchNotified,
	}[e.Kind]
	if ch.states[d] != before {
		sim.fail("%s: %s follows %s", job.RequestID(e.Job, e.N), e.Kind, ch.states[d])
	}
	ch.states[d] = e.Kind
	switch e.Kind {
	case ledger.DispatchQueued:
		if e.N != t.n+1 {
			sim.fail("%s follows dispatch %d", job.RequestID(e.Job, e.N), t.n)
		}
		t.n = e.N
		ch.counts.Pending++
	case ledger.DispatchNotified:
		ch.counts.Pending--
		ch.counts.Notified++
		if e.A != "none" {
			t.counted++
			ch.checkOrder(proc, e)
		}
	case ledger.DispatchDelivered:
		t.ended = true
		if ch.reportedStatus[d] != job.Success {
			sim.fail("%s is delivered, and no worker has reported a success", job.RequestID(e.Job, e.N))
		}
		ch.counts.Notified--
		ch.counts.Delivered++
		ended[d] = true
	case ledger.DispatchFailed:
		ch.counts.Notified--
		ch.counts.Failed++
		ended[d] = true
	}
}

// checkAct checks an act, and updates the checker's state by what an operation has done to a job.
// Commands of callers that are no operations leave no acts.
func (ch *checker) checkAct(proc *process, e *ledger.Event) {
	op := ch.operations.onAct(e)
	switch {
	case op == nil:
	case e.A == "job.remove":
		ch.removed[e.Job] = true
		ch.guards.onRemoved(e.Job)
	case e.A == "job.retry":
		ch.retried[e.Job] = proc.ledger.Operation(op.number).KeepAttempts
	}
}

// checkOrder checks that the first dispatches of jobs with the same orderKey start in
// the order of their records. It excludes jobs with a delay, with two records, with
// guards, with a placement that a pause prevented (the pause may end before the
// placement of the next job), and with a timestamp later than that of the jobs after
// them.
func (ch *checker) checkOrder(proc *process, e *ledger.Event) {
	view, _, ok := proc.ledger.Find(e.Job)
	if !ok || e.N != 1 || !view.RunAt.Equal(view.Created) || ch.duplicated[e.Job] || ch.skipped[e.Job] || ch.guards.hasKeys[e.Job] {
		return
	}
	key := orderKey{view.Queue, ledger.Class(view.Function), view.Priority, view.Position.Lane}
	last := ch.order[key]
	later := view.Position.Compare(last.at)
	if later < 0 && !view.Created.After(last.accepted) {
		ch.sim.fail("%s at %s starts after %s", job.RequestID(e.Job, e.N), view.Position, last.at)
	}
	if later > 0 {
		ch.order[key] = lastStarted{view.Position, view.Created}
	}
}

// checkSettled compares the settlements of an entry with the dispatches that its
// events have ended.
func (ch *checker) checkSettled(e *logEntry, results []ledger.Result, ended map[dispatch]bool) {
	for i, c := range e.commands {
		settle, ok := c.(*ledger.Settle)
		if !ok || results[i].Err != nil {
			continue
		}
		for n, end := range settle.Settlements {
			v := results[i].Settled[n]
			switch t := ch.attempts[end.Job]; {
			case v.Stale:
				ch.sim.report.StaleOutcomes++
			case v.Duplicate:
			case !ended[dispatch{end.Job, end.N}]:
				ch.sim.fail("entry %d: a settlement of %s took effect without ending it", e.stamp.Index, job.RequestID(end.Job, end.N))
			case t == nil: // a caller has removed the job
			case end.Next == job.NextGiveBack && !v.State.Ended():
				t.counted--
			}
		}
	}
}

// applyRetries resets the attempts of jobs that callers or operations have retried. It is
// called last, because the same entry may have ended the job.
func (ch *checker) applyRetries(e *logEntry, results []ledger.Result) {
	for i, c := range e.commands {
		if retry, ok := c.(*ledger.RetryJob); ok && results[i].Err == nil {
			ch.retried[retry.Job] = retry.KeepAttempts
		}
	}
	for id, keepAttempts := range ch.retried {
		if t := ch.attempts[id]; t != nil {
			if !keepAttempts {
				t.counted = 0
			}
			t.max = t.counted + int(retryPolicy.MaxAttempts)
		}
	}
	clear(ch.retried)
}

// compare compares a ledger with the checker's state.
func (ch *checker) compare(proc *process, e *logEntry) {
	sim := ch.sim
	if backlog := proc.ledger.Snapshot(ledger.SnapshotContext{}).Backlog; backlog != ch.counts {
		sim.fail("entry %d: the backlog is %v, want %v by the events", e.stamp.Index, backlog, ch.counts)
	}
	recount := ledger.SnapshotBacklog{Delivered: ch.counts.Delivered, Failed: ch.counts.Failed}
	for _, q := range proc.ledger.Queues() {
		recount.Pending += uint64(q.Counts[job.Waiting])
		recount.Notified += uint64(q.Counts[job.Active])
	}
	for _, id := range ch.external.unfinished() {
		if ch.external.states[id] == ledger.DispatchQueued {
			recount.Pending++
		} else {
			recount.Notified++
		}
	}
	if recount != ch.counts {
		sim.fail("entry %d: the jobs' states give the backlog %v, want %v by the events", e.stamp.Index, recount, ch.counts)
	}
	if a := proc.ledger.Authority(); a.Epoch != ch.epoch || a.Owner != ch.owner {
		sim.fail("entry %d: the authority is %s in epoch %d, want %s in epoch %d by the events", e.stamp.Index, a.Owner, a.Epoch, ch.owner, ch.epoch)
	}
	if q, ok := proc.ledger.Queue("narrow"); ok && q.Counts[job.Active] > narrowLimit {
		sim.fail("entry %d: %d jobs of a queue are active, its limit is %d", e.stamp.Index, q.Counts[job.Active], narrowLimit)
	}
	for id, t := range ch.attempts {
		if ch.removed[id] {
			continue
		}
		view, _, ok := proc.ledger.Find(id)
		if !ok {
			sim.fail("entry %d: job %s is missing", e.stamp.Index, id)
			continue
		}
		t.ended = view.State.Ended()
		if int(view.Attempts) != t.counted {
			sim.fail("entry %d: job %s counts %d attempts, want %d by its settlements", e.stamp.Index, id, view.Attempts, t.counted)
		}
		if int(view.Attempts) > t.max {
			sim.fail("entry %d: job %s is at attempt %d of %d", e.stamp.Index, id, view.Attempts, t.max)
		}
	}
	ch.guards.checkContent(proc.ledger)
	for i, c := range proc.ledger.Lanes() {
		if c.Cursor < ch.cursors[i] || c.Cursor > uint64(len(sim.lanes.lanes[i].messages)) {
			sim.fail("entry %d: lane %d goes from %d to %d of %d", e.stamp.Index, i, ch.cursors[i], c.Cursor, len(sim.lanes.lanes[i].messages))
			continue
		}
		for ch.cursors[i] < c.Cursor {
			for _, r := range sim.lanes.lanes[i].messages[ch.cursors[i]] {
				id, _ := job.KeyID(r.Queue, r.Key)
				if _, known := proc.ledger.Known(id); !known && !ch.guards.noJob[id] {
					sim.fail("entry %d: the record at %s is ingested and its job is missing", e.stamp.Index, r.Position)
				}
			}
			ch.cursors[i]++
		}
	}
}

// externalChecker checks external dispatches, which callers queue and mark themselves.
type externalChecker struct {
	states map[string]ledger.EventKind
	open   []string // in the order they were queued
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
		ch.sim.fail("external dispatch %s: %s follows %s", id, e.Kind, c.states[id])
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

// cronChecker checks cron entries: no tick fires twice, and none early.
type cronChecker struct {
	sim    *simulation
	fired  map[string]uint64 // number of ticks, by entry
	ticked map[job.ID]bool   // whether a tick fired, by its job
	jobs   []job.ID          // jobs of all ticks
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
		case ch.ticked[c.LastJob]:
			ch.sim.fail("cron entry %s fires twice at %s", c.Name, c.Last)
		case c.Last.After(l.Now()):
			ch.sim.fail("cron entry %s fires %s before its time", c.Name, c.Last.Sub(l.Now()))
		}
		ch.fired[c.Name], ch.ticked[c.LastJob] = c.Fired, true
		ch.jobs = append(ch.jobs, c.LastJob)
		ch.sim.report.Ticks++
		return true
	})
}
