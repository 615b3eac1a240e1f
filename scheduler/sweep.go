package scheduler

import (
	"maps"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Parameters of watching nodes and dispatches.
const (
	sweepInterval  = 250 * time.Millisecond
	silenceTimeout = 2500 * time.Millisecond // without a heartbeat, after which nothing is placed on a node
	resendInterval = time.Second             // between two sends of an assignment or recall
	assignTimeout  = 10 * time.Second        // how long an assignment is sent to a live node that does not answer
	workerLease    = 6 * time.Second         // lease of an Overhop worker, which may outlive its node
	unseenTimeout  = 2 * time.Second         // how long a node may not offer its remaining capacity after a batch
	emptySlotTTL   = time.Minute             // how long a slot without capacity is kept
)

// receiveHeartbeat handles a node's heartbeat and extends the node's lease, to at most
// the time that the authority's own lease can be trusted.
func (t *tenure) receiveHeartbeat(b job.Heartbeat, reply func(job.HeartbeatAck)) {
	lease := min(nodeLease, time.Until(t.trusted()))
	if lease <= 0 {
		return
	}
	n := t.nodeOf(b.Node, b.Incarnation)
	if b.Incarnation < n.incarnation {
		return // from a previous incarnation
	}
	n.heartbeatAt = time.Now()
	t.setNodeState(n, false, b.Draining)
	n.edge = b.Edge
	n.runners = make(map[string]bool, len(b.Runners))
	for _, r := range b.Runners {
		n.runners[r] = true
	}
	t.ackSeq++
	reply(job.HeartbeatAck{
		Epoch: t.epoch, Lease: lease, Seq: t.ackSeq, WantFull: b.Rev > n.rev || n.needsFull(n.heartbeatAt), LastBatch: n.lastBatch, Edges: t.otherEdges(n),
	})
	t.endMissing(n, &b)
}

// endMissing settles as lost the dispatches that a node has confirmed and that its
// heartbeat does not list. A node keeps a dispatch until its outcome is committed,
// and the commit removes it here; so a missing one would never end otherwise. A
// heartbeat counts only if the node had received, before it was sent, an
// acknowledgement that was sent after the node confirmed the dispatch: earlier
// lists may be out of date.
func (t *tenure) endMissing(n *node, b *job.Heartbeat) {
	if b.Epoch != t.epoch || b.AckSeq == 0 || b.Incarnation != n.incarnation {
		return
	}
	listed := make(map[dispatchKey]struct{}, len(b.Dispatches))
	for _, d := range b.Dispatches {
		listed[dispatchKey{d.Job, d.N}] = struct{}{}
	}
	var missing []dispatchKey
	for k, d := range t.dispatches {
		if d.node != n.name || d.incarnation != n.incarnation || d.settling || !d.confirmed || d.confirmedSeq >= b.AckSeq {
			continue
		}
		if _, ok := listed[k]; !ok {
			missing = append(missing, k)
		}
	}
	slices.SortFunc(missing, dispatchKey.compare)
	for _, k := range missing {
		t.sched.log.Warn("dispatch missing on its node", "node", n.name, "job", k.id, "dispatch", k.n)
		t.endDispatch(k, job.Outcome{Status: job.Lost, Started: true, Fault: &job.Fault{
			Message: "node " + n.name + " no longer has the dispatch", Type: job.FaultLost,
		}})
	}
}

// otherEdges returns the edge addresses of the other available nodes, to which a node
// may redirect its clients when it stops.
func (t *tenure) otherEdges(n *node) (edges []string) {
	for _, other := range t.nodes {
		if other != n && other.edge != "" && !other.silent && !other.draining {
			edges = append(edges, other.edge)
		}
	}
	slices.Sort(edges)
	return edges
}

// sweep runs every sweepInterval. It renews the lease, detects silent nodes, ends or
// resends dispatches that are not healthy, and publishes lasting conditions.
func (t *tenure) sweep() {
	now := time.Now()
	if now.Sub(t.renewedAt) >= renewInterval {
		t.renew()
		t.checkConsistency(now)
	}
	t.checkRestore()
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		n := t.nodes[name]
		t.setNodeState(n, now.Sub(n.heartbeatAt) > silenceTimeout, n.draining)
		t.sweepSlots(n, now)
		t.removeNode(n)
	}
	var overdue []dispatchKey
	for k, d := range t.dispatches {
		if !t.healthy(d) {
			overdue = append(overdue, k)
		}
	}
	slices.SortFunc(overdue, dispatchKey.compare) // a fixed order, so that a simulation can be repeated
	out := batcher{t, map[*node]*openBatch{}}
	for _, k := range overdue {
		t.sweepDispatch(k, t.dispatches[k], now, out)
	}
	out.send()
	t.sweepOrphans(now)
	t.publishBlocked(now)
	t.crons.dirty = true // the clock may have been adjusted, and a lane may answer again
}

// healthy reports whether a dispatch needs no sweep, as is the rule: its node has
// confirmed it and is not silent, and no recall is to be sent.
func (t *tenure) healthy(d *dispatch) bool {
	n := t.nodes[d.node]
	return d.confirmed && d.recallReason == "" && len(d.previous) == 0 && n != nil && !n.silent && n.incarnation == d.incarnation
}

// sweepSlots removes a node's slots that have had no capacity for emptySlotTTL.
func (t *tenure) sweepSlots(n *node, now time.Time) {
	for k, s := range n.slots {
		switch {
		case s.offered > 0 || s.reserved > 0 || len(s.sentBatches) > 0:
			s.emptySince = time.Time{}
		case s.emptySince.IsZero():
			s.emptySince = now
		case now.Sub(s.emptySince) > emptySlotTTL:
			t.removeSlot(n, k)
		}
	}
}

// sweepDispatch ends a dispatch whose node is gone or was restarted, or else resends
// what the node has not confirmed.
func (t *tenure) sweepDispatch(k dispatchKey, d *dispatch, now time.Time, out batcher) {
	n := t.nodes[d.node]
	// The previous authority may have renewed its lease just before this tenure
	// began, and may not know of its end: it can grant a full node lease until its
	// own is no longer trusted for that long. A move also counts as contact with
	// the node that it moved to, however long that node was silent before: the
	// worker may not have arrived yet, and its lease of the previous node goes on.
	lastContact := latest(t.startedAt.Add(trustTime-nodeLease), d.movedAt)
	if n != nil {
		lastContact = latest(lastContact, n.heartbeatAt)
	}
	lost := job.Outcome{Status: job.Lost, Started: true}
	t.release(d, now)
	switch {
	case d.settling:
	case now.Sub(lastContact) > reassignAfter:
		lost.Fault = &job.Fault{Message: "node " + d.node + " is gone", Type: job.FaultLost}
		t.endDispatch(k, lost)
	case n == nil || n.silent:
	case n.incarnation != d.incarnation:
		lost.Fault = &job.Fault{Message: "node " + d.node + " was restarted", Type: job.FaultLost}
		if d.kind == job.RRQ || now.Sub(latest(n.startedAt, d.movedAt)) > workerLease+time.Second {
			t.endDispatch(k, lost)
		}
	default:
		t.resend(k, d, n, now, out)
	}
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// resend sends an assignment again that its node has not confirmed, and a recall,
// which only the dispatch's outcome confirms. It ends a dispatch that was not
// confirmed within assignTimeout.
func (t *tenure) resend(k dispatchKey, d *dispatch, n *node, now time.Time, out batcher) {
	if d.recallReason != "" && now.Sub(d.recalledAt) > resendInterval {
		t.sendRecall(d, d.recallReason, now)
	}
	if d.confirmed || now.Sub(d.sentAt) <= resendInterval {
		return
	}
	if d.resendingSince.IsZero() {
		d.resendingSince = now
	}
	if now.Sub(d.resendingSince) > assignTimeout {
		t.sendRecall(d, job.RecallSuperseded, now) // the node may have taken it without its answer arriving
		o := job.Outcome{Status: job.Declined}
		if !d.movedAt.IsZero() {
			o = job.Outcome{Status: job.Lost, Started: true, Fault: &job.Fault{
				Message: "its worker did not resume it at node " + d.node, Type: job.FaultLost,
			}}
		}
		t.endDispatch(k, o)
		return
	}
	t.resendAssignment(d, n, now, out)
}
