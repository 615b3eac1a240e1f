package scheduler

import (
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

// endMissing settles as lost the dispatches that a node has confirmed and that its
// heartbeat does not list. A node keeps a dispatch until its outcome is committed,
// and the commit removes it here; so a missing one would never end otherwise. A
// heartbeat counts only if the node had received, before it was sent, an
// acknowledgement that was sent after the node confirmed the dispatch: earlier
// lists may be out of date.
func (ds *dispatches) endMissing(n *node, b *job.Heartbeat) {
	if b.Epoch != ds.loop.epoch || b.AckSeq == 0 || b.Incarnation != n.incarnation {
		return
	}
	listed := make(map[job.DispatchID]struct{}, len(b.Dispatches))
	for _, d := range b.Dispatches {
		listed[d] = struct{}{}
	}
	var missing []job.DispatchID
	for k, d := range ds.running {
		if d.node != n.name || d.incarnation != n.incarnation || d.settling || !d.confirmed || d.confirmedSeq >= b.AckSeq {
			continue
		}
		if _, ok := listed[k]; !ok {
			missing = append(missing, k)
		}
	}
	slices.SortFunc(missing, job.DispatchID.Compare)
	for _, k := range missing {
		ds.loop.log.Warn("dispatch missing on its node", "node", n.name, "job", k.Job, "dispatch", k.N)
		ds.end(k, job.Outcome{Status: job.Lost, Started: true, Fault: &job.Fault{
			Message: "node " + n.name + " no longer has the dispatch", Type: job.FaultLost,
		}})
	}
}

// sweep runs every sweepInterval. It renews the lease, detects silent nodes, ends or
// resends dispatches that are not healthy, and publishes lasting conditions.
func (t *tenure) sweep() {
	now := time.Now()
	if now.Sub(t.lease.renewedAt) >= renewInterval {
		t.lease.renew(t.phase())
		t.submitConsistencyCheck(now)
	}
	t.endOnRestore()
	t.capacity.sweep(now)
	t.dispatches.sweep(now)
	t.orphans.sweep(now)
	t.blockers.publish(t.conditions(now), now)
	t.crons.dirty = true // the clock may have been adjusted, and a lane may answer again
}

// sweep ends or resends the dispatches that are not healthy.
func (ds *dispatches) sweep(now time.Time) {
	var overdue []job.DispatchID
	for k, d := range ds.running {
		if !ds.healthy(d) {
			overdue = append(overdue, k)
		}
	}
	slices.SortFunc(overdue, job.DispatchID.Compare) // a fixed order, so that a simulation can be repeated
	out := batcher{ds, map[*node]*openBatch{}}
	for _, k := range overdue {
		ds.sweepDispatch(k, ds.running[k], now, out)
	}
	out.send()
}

// healthy reports whether a dispatch needs nothing of the sweep, as most do: its node has
// confirmed it, is not silent, and was not restarted, and no recall is to be sent.
func (ds *dispatches) healthy(d *dispatch) bool {
	n := ds.capacity.nodes[d.node]
	return d.confirmed && d.recallReason == "" && len(d.previous) == 0 && n != nil && !n.silent && n.incarnation == d.incarnation
}

// sweepDispatch ends a dispatch as lost if its node is gone or was restarted. Otherwise it
// sends again what the node has not confirmed.
func (ds *dispatches) sweepDispatch(k job.DispatchID, d *dispatch, now time.Time, out batcher) {
	n := ds.capacity.nodes[d.node]
	// The previous authority may have renewed its lease just before this tenure
	// began, and may not know of its end: it can grant a full node lease until its
	// own is no longer trusted for that long. A move also counts as contact with
	// the node that it moved to, however long that node was silent before: the
	// worker may not have arrived yet, and its lease of the previous node goes on.
	lastContact := latest(ds.loop.startedAt.Add(trustTime-nodeLease), d.movedAt)
	if n != nil {
		lastContact = latest(lastContact, n.heartbeatAt)
	}
	lost := job.Outcome{Status: job.Lost, Started: true}
	ds.recallPrevious(d, now)
	switch {
	case d.settling:
	case now.Sub(lastContact) > reassignAfter:
		lost.Fault = &job.Fault{Message: "node " + d.node + " is gone", Type: job.FaultLost}
		ds.end(k, lost)
	case n == nil || n.silent:
	case n.incarnation != d.incarnation:
		lost.Fault = &job.Fault{Message: "node " + d.node + " was restarted", Type: job.FaultLost}
		if d.kind == job.RRQ || now.Sub(latest(n.startedAt, d.movedAt)) > workerLease+time.Second {
			ds.end(k, lost)
		}
	default:
		ds.resend(k, d, n, now, out)
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
func (ds *dispatches) resend(k job.DispatchID, d *dispatch, n *node, now time.Time, out batcher) {
	if d.recallReason != "" && now.Sub(d.recalledAt) > resendInterval {
		ds.sendRecall(d, d.recallReason, now)
	}
	if d.confirmed || now.Sub(d.sentAt) <= resendInterval {
		return
	}
	if d.resendingSince.IsZero() {
		d.resendingSince = now
	}
	if now.Sub(d.resendingSince) > assignTimeout {
		ds.sendRecall(d, job.RecallSuperseded, now) // the node may have taken it without its answer arriving
		o := job.Outcome{Status: job.Declined}
		if !d.movedAt.IsZero() {
			o = job.Outcome{Status: job.Lost, Started: true, Fault: &job.Fault{
				Message: "its worker did not resume it at node " + d.node, Type: job.FaultLost,
			}}
		}
		ds.end(k, o)
		return
	}
	ds.resendAssignment(d, n, now, out)
}
