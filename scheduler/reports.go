package scheduler

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// receiveHeartbeat handles a node's heartbeat. Its reply extends the node's lease, to at
// most the time until which the authority's own lease can be trusted. It does not reply
// after that time, nor to an earlier incarnation of the node.
func (t *tenure) receiveHeartbeat(b job.Heartbeat, reply func(job.HeartbeatAck)) {
	lease := min(nodeLease, time.Until(t.lease.trusted()))
	if lease <= 0 {
		return
	}
	n := t.capacity.nodeOf(b.Node, b.Incarnation)
	if b.Incarnation < n.incarnation {
		return // from a previous incarnation
	}
	n.heartbeatAt = time.Now()
	t.capacity.setNodeState(n, false, b.Draining)
	n.edge = b.Edge
	n.runners = make(map[string]bool, len(b.Runners))
	for _, r := range b.Runners {
		n.runners[r] = true
	}
	t.dispatches.ackSeq++
	missedReport := b.Rev > n.rev
	elapsed := time.Time{}
	if t.clocks.elapsedKnown {
		elapsed = t.loop.clock.times().Elapsed
	}
	reply(job.HeartbeatAck{
		Epoch: t.loop.epoch, Lease: lease, Seq: t.dispatches.ackSeq,
		WantFull: missedReport || n.needsFull(n.heartbeatAt), LastBatch: n.lastBatch, Edges: t.capacity.otherEdges(n),
		Elapsed: elapsed,
	})
	t.dispatches.endMissing(n, &b)
}

// receiveReport handles a node's report: its offers, outcomes and worker events. It
// calls reply once all outcomes and events are committed.
func (t *tenure) receiveReport(r job.Report, reply func(job.ReportAck)) {
	n := t.capacity.nodeOf(r.Node, r.Incarnation)
	ack := job.ReportAck{Epoch: t.loop.epoch, Settled: make([]job.Settled, len(r.Outcomes))}
	if r.Incarnation == n.incarnation { // offers from before the node's last restart are void
		ack.WantFull = t.capacity.receiveOffers(n, &r) // the node must send all its offers
	}
	report := &pendingReport{ack: ack, reply: reply, uncommitted: len(r.Outcomes) + 1} // all worker events together count as one
	outcomes := make([]pendingOutcome, len(r.Outcomes))
	for i := range outcomes {
		outcomes[i] = pendingOutcome{outcome: r.Outcomes[i], node: r.Node, incarnation: r.Incarnation, report: report, index: i}
		t.dispatches.addOutcome(&outcomes[i])
	}
	t.recordWorkerEvents(&r, report.committed)
}

// pendingReport is a report that is answered once all that it contains is committed. It
// belongs to the loop's goroutine.
type pendingReport struct {
	ack         job.ReportAck
	reply       func(job.ReportAck)
	uncommitted int // parts of the report
}

// committed is called for each part of the report once it is committed.
func (r *pendingReport) committed() {
	r.uncommitted--
	if r.uncommitted == 0 {
		r.reply(r.ack)
	}
}

// recordWorkerEvents submits a report's worker events and calls committed afterwards,
// also if the ledger refuses them: it would refuse them again.
func (t *tenure) recordWorkerEvents(r *job.Report, committed func()) {
	if len(r.WorkerEvents) == 0 {
		committed()
		return
	}
	c := &ledger.RecordWorkerEvents{Node: r.Node, Incarnation: r.Incarnation, First: r.FirstWorkerEvent, Events: r.WorkerEvents}
	t.loop.submit(c, func(result ledger.Result, _ uint64) {
		if result.Err != nil {
			t.loop.log.Warn("worker events refused by the ledger", "node", r.Node, "err", result.Err)
		}
		committed()
	})
}

// pendingOutcome is an outcome that waits for an entry.
type pendingOutcome struct {
	outcome     job.Outcome
	node        string // that reported it, or whose dispatch the authority ends
	incarnation uint64
	report      *pendingReport // that it came in; nil: the authority ends the dispatch
	index       int            // in the report
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
func (ds *dispatches) addOutcome(e *pendingOutcome) {
	ds.outcomes = append(ds.outcomes, e)
	ds.loop.entry.size += e.size()
	ds.loop.markLazy()
}

// end adds an outcome of a dispatch that the authority itself decides, because its node
// will not report one.
func (ds *dispatches) end(k job.DispatchID, o job.Outcome) {
	o.Job, o.N = k.Job, k.N
	e := &pendingOutcome{outcome: o}
	if d := ds.running[k]; d != nil {
		d.settling = true
		e.node, e.incarnation = d.node, d.incarnation
		e.outcome.MoveIndex = d.assignment.MoveIndex
	}
	ds.addOutcome(e)
}

// endLost ends a dispatch as lost, with the reason as its fault.
func (ds *dispatches) endLost(k job.DispatchID, reason string) {
	ds.end(k, job.Outcome{Status: job.Lost, Started: true, Fault: &job.Fault{Message: reason, Type: job.FaultLost}})
}

// pendingSize returns the estimated size of the outcomes that wait for an entry, in
// bytes.
func (ds *dispatches) pendingSize() (size int) {
	for _, o := range ds.outcomes {
		size += o.size()
	}
	return size
}

// addOutcomes moves pending outcomes with their verdicts into the entry, up to about
// maxOutcomeSize.
func (ds *dispatches) addOutcomes(l *ledger.Ledger, b *entryBuilder) {
	size, n := 0, 0
	for n < len(ds.outcomes) && size < maxOutcomeSize {
		size += ds.outcomes[n].size()
		n++
	}
	if n == 0 {
		return
	}
	outcomes := ds.outcomes[:n]
	ds.outcomes = ds.outcomes[n:]
	c := &ledger.Settle{Settlements: make([]ledger.Settlement, n)}
	for i, e := range outcomes {
		c.Settlements[i] = ds.settlementOf(l, e, b.at.Now)
	}
	b.add(c, func(r ledger.Result, index uint64) {
		for i, e := range outcomes {
			v := r.Settled[i]
			ds.counters.countSettled(c.Settlements[i].Next, v)
			ds.forgetEnded(e, v)
			if e.report != nil {
				e.report.ack.Settled[e.index] = job.Settled{Stale: v.Stale, Duplicate: v.Duplicate, State: v.State, RunAt: v.RunAt, Index: index}
				e.report.committed()
			}
		}
	})
}

// forgetEnded removes the dispatch of an outcome that was settled. If the outcome was a
// loss reported by a node that the dispatch has left, the dispatch continues. If the
// dispatch ended at another node than its current one, because its worker reported to
// both, the current node is sent a recall.
func (ds *dispatches) forgetEnded(e *pendingOutcome, settled ledger.Settled) {
	k := e.outcome.DispatchID()
	d := ds.running[k]
	if d == nil {
		return
	}
	continues := settled.Stale && settled.State == job.Active
	if continues {
		d.settling = false
		return
	}
	if e.node != d.node {
		ds.sendRecall(d, job.RecallSuperseded, time.Now())
	}
	delete(ds.running, k)
}

// earlierStay replaces the node of an outcome of an earlier stay, see predates. No node
// has this name.
const earlierStay = "-"

// settlementOf returns the settlement of an outcome by the retry policy. The ledger
// ignores the settlement if the dispatch is no longer current.
func (ds *dispatches) settlementOf(l *ledger.Ledger, e *pendingOutcome, now time.Time) ledger.Settlement {
	o := &e.outcome
	active, _ := l.Dispatch(o.Job, o.N)
	verdict := ds.loop.cfg.Policy.Decide(job.Attempt{
		Job: o.Job, Number: max(active.Attempt, 1), Losses: active.Losses, MaxAttempts: active.MaxAttempts, RetryInterval: active.RetryInterval,
		RetryOnTimeout: active.RetryOnTimeout,
	}, l.RetryRule(active.Queue, active.Function), *o)
	s := ledger.Settlement{
		Job: o.Job, N: o.N, Next: verdict.Next, Loss: verdict.Loss, Reason: verdict.Reason,
		Result: o.Result, Blob: o.Blob, Dropped: o.Dropped, Fault: o.Fault,
	}
	if verdict.Delay > 0 {
		s.At = now.Add(verdict.Delay)
	}
	given := o.Status == job.Lost || o.Status == job.Declined || o.Status == job.Interrupted
	if given && !o.Snoozes() || o.ByNode {
		// Counts only if the dispatch is still on that node: it may have moved.
		s.Node, s.Incarnation = e.node, e.incarnation
		if d := ds.running[o.DispatchID()]; d != nil && d.predates(o) {
			s.Node = earlierStay
		}
	}
	if given && active.Recalled != "" { // it was recalled, and has stopped
		s.Fault = &job.Fault{Message: verdict.Reason, Type: job.FaultCancelled}
	}
	return s
}
