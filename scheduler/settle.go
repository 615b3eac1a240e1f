package scheduler

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// pendingOutcome is an outcome that waits for an entry.
type pendingOutcome struct {
	outcome     job.Outcome
	node        string // that reported it, or whose dispatch the authority ends
	incarnation uint64
	done        func(job.Settled) // called once it is settled; may be nil
}

// receiveReport handles a node's report: its offers, outcomes and worker events. It
// calls reply once all outcomes and events are committed.
func (t *tenure) receiveReport(r job.Report, reply func(job.ReportAck)) {
	n := t.nodeOf(r.Node, r.Incarnation)
	ack := job.ReportAck{Epoch: t.epoch}
	if r.Incarnation == n.incarnation {
		ack.WantFull = t.receiveOffers(n, &r)
	}
	remaining := len(r.Outcomes) + 1
	committed := func() {
		if remaining--; remaining == 0 {
			reply(ack)
		}
	}
	ack.Settled = make([]job.Settled, len(r.Outcomes))
	for i, o := range r.Outcomes {
		t.addOutcome(&pendingOutcome{o, r.Node, r.Incarnation, func(s job.Settled) {
			ack.Settled[i] = s
			committed()
		}})
	}
	t.recordWorkerEvents(&r, committed)
}

// recordWorkerEvents submits a report's worker events and calls committed afterwards,
// also if the ledger refuses them: it would refuse them again.
func (t *tenure) recordWorkerEvents(r *job.Report, committed func()) {
	if len(r.WorkerEvents) == 0 {
		committed()
		return
	}
	c := &ledger.RecordWorkerEvents{Node: r.Node, Incarnation: r.Incarnation, First: r.FirstWorkerEvent, Events: r.WorkerEvents}
	t.submitCommand(c, func(result ledger.Result, _ uint64) {
		if result.Err != nil {
			t.sched.log.Warn("worker events refused by the ledger", "node", r.Node, "err", result.Err)
		}
		committed()
	})
}

// size estimates the size of the outcome in an entry, in bytes.
func (o *pendingOutcome) size() int {
	n := outcomeSize + len(o.node) + len(o.outcome.Result.Data)
	if f := o.outcome.Fault; f != nil {
		n += 2*len(f.Message) + len(f.Details) // the message is also the reason
	}
	return n
}

// addOutcome adds an outcome to the pending entry.
func (t *tenure) addOutcome(e *pendingOutcome) {
	t.entry.outcomes = append(t.entry.outcomes, e)
	t.entry.size += e.size()
	t.markLazy()
}

// endDispatch settles a dispatch with an outcome that the authority itself decides,
// because its node will not report one.
func (t *tenure) endDispatch(k dispatchKey, o job.Outcome) {
	o.Job, o.N = k.id, k.n
	e := &pendingOutcome{outcome: o}
	if d := t.dispatches[k]; d != nil {
		d.settling = true
		e.node, e.incarnation = d.node, d.incarnation
	}
	t.addOutcome(e)
}

// addOutcomes moves pending outcomes with their verdicts into the entry, up to about
// maxOutcomeSize.
func (t *tenure) addOutcomes(l *ledger.Ledger, b *entryBuilder) {
	size, n := 0, 0
	for n < len(t.entry.outcomes) && size < maxOutcomeSize {
		size += t.entry.outcomes[n].size()
		n++
	}
	if n == 0 {
		return
	}
	outcomes := t.entry.outcomes[:n]
	t.entry.outcomes = t.entry.outcomes[n:]
	c := &ledger.Settle{Settlements: make([]ledger.Settlement, n)}
	for i, e := range outcomes {
		c.Settlements[i] = t.settlementOf(l, e, b.at)
	}
	b.add(c, func(r ledger.Result, index uint64) {
		for i, e := range outcomes {
			v := r.Settled[i]
			t.sched.counters.settled(c.Settlements[i].Next, v)
			t.forgetEnded(e, v)
			if e.done != nil {
				e.done(job.Settled{Stale: v.Stale, Duplicate: v.Duplicate, State: v.State, RunAt: v.RunAt, Index: index})
			}
		}
	})
}

// forgetEnded drops a dispatch that has ended. If the outcome was a loss reported by
// a node that the dispatch has left, the dispatch continues. If the dispatch ended
// at another node than its current one, because its worker reported to both, the
// current node is sent a recall.
func (t *tenure) forgetEnded(e *pendingOutcome, settled ledger.Settled) {
	k := dispatchKey{e.outcome.Job, e.outcome.N}
	d := t.dispatches[k]
	switch {
	case d == nil:
		return
	case settled.Stale && settled.State == job.Active:
		d.settling = false
		return
	case e.node != d.node:
		t.sendRecall(d, job.RecallSuperseded, time.Now())
	}
	delete(t.dispatches, k)
}

// settlementOf returns the settlement of an outcome by the retry policy. The ledger
// ignores the settlement if the dispatch is no longer current.
func (t *tenure) settlementOf(l *ledger.Ledger, e *pendingOutcome, now time.Time) ledger.Settlement {
	o := &e.outcome
	active, _ := l.Dispatch(o.Job, o.N)
	verdict := t.cfg.Policy.Decide(job.Attempt{
		Number: max(active.Attempt, 1), Losses: active.Losses, MaxAttempts: active.MaxAttempts, RetryInterval: active.RetryInterval,
	}, *o)
	s := ledger.Settlement{
		Job: o.Job, N: o.N, Next: verdict.Next, Loss: verdict.Loss, Reason: verdict.Reason,
		Result: o.Result, Blob: o.Blob, Fault: o.Fault,
	}
	if verdict.Delay > 0 {
		s.At = now.Add(verdict.Delay)
	}
	switch o.Status {
	case job.Lost, job.Declined, job.Interrupted:
		// Counts only if the dispatch is still on that node: it may have moved.
		s.Node, s.Incarnation = e.node, e.incarnation
		if active.Recalled != "" { // it was recalled, and has stopped
			s.Fault = &job.Fault{Message: verdict.Reason, Type: job.FaultCancelled}
		}
	}
	return s
}
