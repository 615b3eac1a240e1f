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
	if view.Position.Seq < last.seq && !view.Created.After(last.accepted) {
		ch.sim.fail("%s at %d@%d starts after %d@%d", job.RequestID(e.Job, e.N), key.lane, view.Position.Seq, key.lane, last.seq)
	}
	if view.Position.Seq > last.seq {
		ch.order[key] = lastStarted{view.Position.Seq, view.Created}
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
			case end.Next == job.NextGiveBack && v.State != job.Failed:
				t.counted--
			}
		}
	}
}

// applyRetries resets the attempts of jobs that callers have retried. It is called
// last, because the same entry may have ended the job.
func (ch *checker) applyRetries(e *logEntry, results []ledger.Result) {
	for i, c := range e.commands {
		retry, ok := c.(*ledger.RetryJob)
		if !ok || results[i].Err != nil || ch.attempts[retry.Job] == nil {
			continue
		}
		t := ch.attempts[retry.Job]
		if !retry.KeepAttempts {
			t.counted = 0
		}
		t.max = t.counted + int(retryPolicy.MaxAttempts)
	}
}

// compare compares a ledger with the checker's state.
func (ch *checker) compare(proc *process, e *logEntry) {
	sim := ch.sim
	if got := proc.ledger.Snapshot(ledger.SnapshotContext{}).Backlog; got != ch.counts {
		sim.fail("entry %d: the backlog is %v, want %v by the events", e.stamp.Index, got, ch.counts)
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
	for i, c := range proc.ledger.Lanes() {
		if c.Cursor < ch.cursors[i] || c.Cursor > uint64(len(sim.lanes.lanes[i].records)) {
			sim.fail("entry %d: lane %d goes from %d to %d of %d", e.stamp.Index, i, ch.cursors[i], c.Cursor, len(sim.lanes.lanes[i].records))
			continue
		}
		for ch.cursors[i] < c.Cursor {
			r := &sim.lanes.lanes[i].records[ch.cursors[i]]
			ch.cursors[i]++
			id, _ := job.KeyID(r.Queue, r.Key)
			if _, known := proc.ledger.Known(id); !known && !ch.guards.noJob[id] {
				sim.fail("entry %d: record %d@%d is ingested and its job is missing", e.stamp.Index, i, r.Seq)
			}
		}
	}
}
