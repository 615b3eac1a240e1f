package scheduler

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// receiveHeartbeat handles a node's heartbeat and extends the node's lease, to at most
// the time that the authority's own lease can be trusted.
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
	reply(job.HeartbeatAck{
		Epoch: t.loop.epoch, Lease: lease, Seq: t.dispatches.ackSeq, WantFull: b.Rev > n.rev || n.needsFull(n.heartbeatAt), LastBatch: n.lastBatch, Edges: t.capacity.otherEdges(n),
	})
	t.dispatches.endMissing(n, &b)
}

// receiveReport handles a node's report: its offers, outcomes and worker events. It
// calls reply once all outcomes and events are committed.
func (t *tenure) receiveReport(r job.Report, reply func(job.ReportAck)) {
	n := t.capacity.nodeOf(r.Node, r.Incarnation)
	ack := job.ReportAck{Epoch: t.loop.epoch}
	if r.Incarnation == n.incarnation {
		ack.WantFull = t.capacity.receiveOffers(n, &r)
	}
	remaining := len(r.Outcomes) + 1
	committed := func() {
		if remaining--; remaining == 0 {
			reply(ack)
		}
	}
	ack.Settled = make([]job.Settled, len(r.Outcomes))
	for i, o := range r.Outcomes {
		t.dispatches.addOutcome(&pendingOutcome{o, r.Node, r.Incarnation, func(s job.Settled) {
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
	t.loop.submit(c, func(result ledger.Result, _ uint64) {
		if result.Err != nil {
			t.loop.log.Warn("worker events refused by the ledger", "node", r.Node, "err", result.Err)
		}
		committed()
	})
}

// sampleClock adds the time in a heartbeat to its member's samples, and adjusts the
// stamp clock to the median of the members' clocks.
func (t *tenure) sampleClock(b job.Heartbeat, arrived time.Time) {
	n := t.capacity.nodeOf(b.Node, b.Incarnation)
	if b.At.IsZero() || b.Incarnation < n.incarnation {
		return
	}
	n.clock.add(b.At.Sub(arrived))
	median, ok := t.capacity.medianOffset()
	if len(t.capacity.members) <= 1 || !ok {
		return
	}
	t.crons.clockKnown = true
	before := t.loop.clock.now()
	t.loop.clock = t.loop.clock.adjust(time.Now().Add(median))
	if after := t.loop.clock.now(); after.Sub(before) > clockSlack {
		t.loop.log.Info("ledger time moved forward to the median of the members' clocks", "duration", after.Sub(before).Round(time.Millisecond))
		t.lease.renew(t.phase()) // the lease in the ledger was granted by the old time
	}
}
