package sim

import (
	"yardmaster/job"
	"yardmaster/ledger"
)

// event follows the contract: pending, notified, then delivered or failed.
func (j *judge) event(l *life, e *ledger.Event, ended map[dispatch]bool) {
	y := j.y
	if e.Kind == ledger.AuthorityAcquired {
		a := l.ledger.Authority()
		if a.Epoch <= j.epoch {
			y.fail("epoch %d follows %d", a.Epoch, j.epoch)
		}
		j.epoch, j.owner = a.Epoch, e.A
	}
	if e.Kind < ledger.DispatchQueued || e.Kind > ledger.DispatchFailed {
		return
	}
	if e.Extra != nil && e.Extra.Request != "" {
		j.own.event(j, e)
		return
	}
	d := dispatch{e.Job, e.N}
	t := j.tries[e.Job]
	if t == nil {
		t = &tries{most: int(retries.MaxAttempts)}
		j.tries[e.Job] = t
	}
	if t.ended {
		y.fail("%s: %s after the job's end", e.RequestID(), e.Kind)
	}
	before := map[ledger.EventKind]ledger.EventKind{
		ledger.DispatchNotified: ledger.DispatchQueued, ledger.DispatchDelivered: ledger.DispatchNotified, ledger.DispatchFailed: ledger.DispatchNotified,
	}[e.Kind]
	if j.states[d] != before {
		y.fail("%s: %s follows %s", e.RequestID(), e.Kind, j.states[d])
	}
	j.states[d] = e.Kind
	switch e.Kind {
	case ledger.DispatchQueued:
		if e.N != t.n+1 {
			y.fail("%s follows dispatch %d", e.RequestID(), t.n)
		}
		t.n = e.N
		j.counts.Pending++
	case ledger.DispatchNotified:
		j.counts.Pending--
		j.counts.Notified++
		if e.A != "none" {
			t.counted++
			j.inOrder(l, e)
		}
	case ledger.DispatchDelivered:
		t.ended = true
		if j.told[d] != job.Success {
			y.fail("%s is delivered, and no worker has said so", e.RequestID())
		}
		j.counts.Notified--
		j.counts.Delivered++
		ended[d] = true
	case ledger.DispatchFailed:
		j.counts.Notified--
		j.counts.Failed++
		ended[d] = true
	}
}

// inOrder looks that jobs alike start in the order their lane took them in, the
// first time. Later dispatches do as it comes, and so do jobs that came late by
// their own wish, that have two records (they stand where the first one is), that
// the lane's clock stamped later than those behind them, whose keys have to be
// decided about first, and whose placement a pause has undone: it may be over while
// the next is placed already.
func (j *judge) inOrder(l *life, e *ledger.Event) {
	view, _, ok := l.ledger.Find(e.Job)
	if !ok || e.N != 1 || !view.RunAt.Equal(view.Created) || j.copied[e.Job] || j.waived[e.Job] || j.guards.asked[e.Job] {
		return
	}
	at := line{view.Queue, ledger.Class(view.Function), view.Priority, view.Position.Lane}
	last := j.order[at]
	if view.Position.Seq < last.seq && !view.Created.After(last.accepted) {
		j.y.fail("%s at %d@%d starts after %d@%d", e.RequestID(), at.lane, view.Position.Seq, at.lane, last.seq)
	}
	if view.Position.Seq > last.seq {
		j.order[at] = started{view.Position.Seq, view.Created}
	}
}

// settled compares what the authority was told of ends with what has ended.
func (j *judge) settled(e *logged, results []ledger.Result, ended map[dispatch]bool) {
	for i, c := range e.commands {
		settle, ok := c.(*ledger.Settle)
		if !ok || results[i].Err != nil {
			continue
		}
		for n, end := range settle.Ends {
			v := results[i].Ended[n]
			switch t := j.tries[end.Job]; {
			case v.Stale:
				j.y.report.Stale++
			case v.Dup:
			case !ended[dispatch{end.Job, end.N}]:
				j.y.fail("entry %d: the end of %s was taken and is no end of it", e.at.Index, job.RequestID(end.Job, end.N))
			case t == nil: // a caller has removed it since
			case end.Next == job.Back && v.State != job.Failed:
				t.counted--
			}
		}
	}
}

// retried starts the count anew of jobs that callers have revived. It comes last,
// because one entry may hold a job's end, too.
func (j *judge) retried(e *logged, results []ledger.Result) {
	for i, c := range e.commands {
		retry, ok := c.(*ledger.RetryJob)
		if !ok || results[i].Err != nil || j.tries[retry.Job] == nil {
			continue
		}
		t := j.tries[retry.Job]
		if !retry.Keep {
			t.counted = 0
		}
		t.most = t.counted + int(retries.MaxAttempts)
	}
}

// compare looks at the ledger itself.
func (j *judge) compare(l *life, e *logged) {
	y := j.y
	if got := l.ledger.Counts(); got != j.counts {
		y.fail("entry %d: the backlog is %v, by the events it is %v", e.at.Index, got, j.counts)
	}
	if a := l.ledger.Authority(); a.Epoch != j.epoch || a.Owner != j.owner {
		y.fail("entry %d: the authority is %s under %d, by the events %s under %d", e.at.Index, a.Owner, a.Epoch, j.owner, j.epoch)
	}
	if q, ok := l.ledger.Queue("narrow"); ok && q.Counts[job.Active] > narrowLimit {
		y.fail("entry %d: %d jobs of a queue are active, its limit is %d", e.at.Index, q.Counts[job.Active], narrowLimit)
	}
	for id, t := range j.tries {
		if j.gone[id] {
			continue
		}
		view, _, ok := l.ledger.Find(id)
		if !ok {
			y.fail("entry %d: job %s is not known any more", e.at.Index, id)
			continue
		}
		t.ended = view.State.Ended()
		if int(view.Attempts) != t.counted {
			y.fail("entry %d: job %s counts %d attempts, by its ends there were %d", e.at.Index, id, view.Attempts, t.counted)
		}
		if int(view.Attempts) > t.most {
			y.fail("entry %d: job %s is at attempt %d of %d", e.at.Index, id, view.Attempts, t.most)
		}
	}
	for i, c := range l.ledger.Lanes() {
		if c.Cursor < j.cursors[i] || c.Cursor > uint64(len(y.lanes.lanes[i].records)) {
			y.fail("entry %d: lane %d goes from %d to %d of %d", e.at.Index, i, j.cursors[i], c.Cursor, len(y.lanes.lanes[i].records))
			continue
		}
		for j.cursors[i] < c.Cursor {
			r := &y.lanes.lanes[i].records[j.cursors[i]]
			j.cursors[i]++
			id, _ := job.KeyID(r.Queue, r.Key)
			if _, known := l.ledger.Known(id); !known && !j.guards.excused[id] {
				y.fail("entry %d: record %d@%d is folded and its job is not known", e.at.Index, i, r.Seq)
			}
		}
	}
}
