package scheduler

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// dispatch is the tenure's state of one running dispatch.
type dispatch struct {
	node               string
	incarnation        uint64
	kind               job.Kind
	assignment         job.Assignment   // without its body
	sentAt             time.Time        // when the assignment was last sent; zero: not by this tenure
	resendingSince     time.Time        // when the assignment was first sent again; zero: not yet
	recalledAt         time.Time        // when a recall was last sent; zero: never
	firstBatch         uint64           // first batch that carried the assignment to the current node; 0: none yet
	confirmed          bool             // the node answered that it has the dispatch
	confirmedSeq       uint64           // dispatches.ackSeq when that answer arrived, see endMissing
	recallReason       job.RecallReason // why the node must stop it; "": it need not
	settling           bool             // its outcome is pending or in flight
	previous           []string         // nodes that must release it, because its worker may have come from there
	previousRecalledAt time.Time        // when recallPrevious last sent recalls
	movedAt            time.Time        // when it last moved to another node; zero: never
	movedBy            uint64           // index of that move's entry, which assignment.MoveIndex may exceed; 0: not known, or it has not moved
}

// predates reports whether an outcome is of an earlier stay of d at the node that reports
// it. The ledger could not tell: the worker may have come back to that node.
func (d *dispatch) predates(o *job.Outcome) bool {
	return !d.movedAt.IsZero() && (o.MoveIndex == 0 || o.MoveIndex < d.movedBy)
}

// dispatches are the running dispatches: assigned to nodes, and not settled yet. It
// belongs to the loop's goroutine.
type dispatches struct {
	loop     *eventLoop
	lease    *lease
	capacity *capacity
	placer   *placer
	bodies   *bodyCache
	fleet    Fleet
	counters *counters

	running   map[job.DispatchID]*dispatch
	outcomes  []*pendingOutcome // wait for the next entry
	ackSeq    uint64            // number of heartbeats acknowledged, of all nodes
	fenceBase uint64            // added to the index of an entry to give the fence of its dispatches
}

// load initializes the dispatches with those that the ledger has as running.
func (ds *dispatches) load(l *ledger.Ledger) {
	l.ActiveDispatches(func(a ledger.ActiveDispatch) bool {
		ds.running[job.DispatchID{Job: a.ID, N: a.N}] = ds.adopt(a, l.Index())
		return true
	})
	ds.fenceBase = l.FenceBase()
}

// Limits of a batch of assignments, so that it fits into one message.
const (
	maxBatchAssignments = 256
	maxBatchBytes       = 256 << 10 // of bodies
)

// batcher collects assignments by node and sends each node's in few messages.
type batcher struct {
	dispatches *dispatches
	open       map[*node]*openBatch
	expected   map[*node]int // how many assignments come for a node, if that is known
}

func newBatcher(ds *dispatches) batcher {
	return batcher{ds, make(map[*node]*openBatch), make(map[*node]int)}
}

// openBatch is a batch that is being filled.
type openBatch struct {
	job.AssignmentBatch
	bytes int
}

// add adds an assignment to the open batch of its node and returns the batch's number. If
// that batch is full, it sends the batch first and opens another.
func (b batcher) add(n *node, a job.Assignment) uint64 {
	open := b.open[n]
	if open != nil && (len(open.Assignments) == maxBatchAssignments || open.bytes+len(a.Body) > maxBatchBytes) {
		b.dispatches.sendBatch(n.name, open.AssignmentBatch)
		open = nil
	}
	if open == nil {
		n.lastBatch++
		open = &openBatch{AssignmentBatch: job.AssignmentBatch{Epoch: b.dispatches.loop.epoch, Number: n.lastBatch, Incarnation: n.incarnation}}
		size := min(b.expected[n], maxBatchAssignments)
		b.expected[n] -= size
		open.Assignments = make([]job.Assignment, 0, max(size, 1))
		b.open[n] = open
	}
	open.Assignments = append(open.Assignments, a)
	open.bytes += len(a.Body)
	return open.Number
}

// send sends all open batches.
func (b batcher) send() {
	for n, open := range b.open {
		b.dispatches.sendBatch(n.name, open.AssignmentBatch)
	}
}

// finishPlacements is called once the entry with the placements is applied. It sends the
// assignments of those that the ledger has accepted, for which placed is true, and
// releases the slots of the others. index is the log index of the entry.
func (ds *dispatches) finishPlacements(placements []*placement, placed []bool, index uint64) {
	now := time.Now()
	out := newBatcher(ds)
	for _, p := range placements {
		out.expected[p.slot.node]++
	}
	for i, p := range placements {
		ds.placer.forget(p)
		if !placed[i] {
			p.slot.unreserve()
			continue
		}
		n := p.slot.node
		k := job.DispatchID{Job: p.ID, N: p.N}
		a := ds.assignment(&p.WaitingJob, p.slot.pool.key, p.slot.worker, ds.fenceBase+index)
		d := &dispatch{node: n.name, incarnation: p.incarnation, kind: a.Kind, assignment: a, sentAt: now}
		ds.running[k] = d
		if p.incarnation != n.incarnation { // the node restarted meanwhile
			p.slot.unreserve()
			ds.end(k, job.Outcome{Status: job.Declined})
			continue
		}
		a.Body = ds.bodies.take(p.Position)
		d.firstBatch = out.add(n, a)
		p.slot.markSent(d.firstBatch, now)
	}
	out.send()
}

// assignment returns the assignment, without its body, of a job to a worker.
func (ds *dispatches) assignment(w *ledger.WaitingJob, k poolKey, worker string, fence uint64) job.Assignment {
	a := job.Assignment{
		Job: w.ID, N: w.N, Attempt: w.Attempt, MaxAttempts: w.MaxAttempts, Queue: w.Queue, Function: w.Function,
		Kind: k.kind, Key: k.key, Worker: worker, Epoch: ds.loop.epoch, Fence: fence, Timeout: w.Timeout,
		Accepted: w.Accepted, RunAt: w.Due, Redelivered: w.Redelivered, Position: w.Position,
	}
	a.Timeout = cmp.Or(a.Timeout, ds.loop.cfg.DefaultTimeout)
	a.MaxAttempts = cmp.Or(a.MaxAttempts, ds.loop.cfg.Policy.MaxAttempts)
	return a
}

// sendBatch sends a batch to a node and posts its answers to the loop. It sends
// nothing once the lease can no longer be trusted: the next authority adopts the
// dispatches.
func (ds *dispatches) sendBatch(node string, b job.AssignmentBatch) {
	if time.Until(ds.lease.trusted()) <= 0 {
		return
	}
	ds.fleet.Assign(node, b, func(answers []job.Answer, err error) {
		if err != nil {
			return // the sweep sends it again
		}
		ds.loop.postReply(func() {
			for i := range min(len(answers), len(b.Assignments)) {
				a := &b.Assignments[i]
				ds.handleAnswer(a.DispatchID(), node, b.Number, answers[i])
			}
		})
	})
}

// handleAnswer handles a node's answer to an assignment in a batch. It ignores the answer
// if the dispatch has ended or moved since that batch was sent.
func (ds *dispatches) handleAnswer(k job.DispatchID, node string, batch uint64, answer job.Answer) {
	d := ds.running[k]
	if d == nil || d.settling || d.node != node {
		return
	}
	if d.firstBatch == 0 || batch < d.firstBatch { // the batch was sent before the dispatch was adopted or moved
		return
	}
	switch answer {
	case job.Taken:
		if !d.confirmed {
			d.confirmed, d.confirmedSeq = true, ds.ackSeq
		}
	case job.NoCapacity, job.Draining:
		if !d.movedAt.IsZero() {
			return // its worker may still resume it there, see resend
		}
		if n := ds.capacity.nodes[d.node]; n != nil && n.incarnation == d.incarnation {
			ds.capacity.markFull(n, slotKey{poolKey{d.kind, d.assignment.Key}, d.assignment.Worker}, batch)
			ds.capacity.setNodeState(n, n.silent, n.draining || answer == job.Draining)
		}
		ds.end(k, job.Outcome{Status: job.Declined})
	case job.BodyLost:
		ds.end(k, job.Outcome{Status: job.Error, Fault: &job.Fault{
			Message: "payload_lost: the record of the job cannot be read", Type: job.FaultInvalid,
		}})
	}
}

// adopt returns the state of a dispatch that an earlier authority has sent to a node, as
// far as the ledger has it. The assignment is sent again after the node's first
// heartbeat. lastIndex is the index of the ledger's last entry.
func (ds *dispatches) adopt(a ledger.ActiveDispatch, lastIndex uint64) *dispatch {
	kind, key, worker := splitChannel(a.Channel, a.Queue)
	d := &dispatch{
		node: a.Node, incarnation: a.Incarnation, kind: kind, recallReason: a.Recalled,
		assignment: ds.assignment(&a.WaitingJob, poolKey{kind, key}, worker, a.Fence),
	}
	if a.Moved {
		// The worker may not have reached the new node yet. Started tells that node
		// not to start the job a second time.
		d.assignment.Started, d.movedAt = a.Started, ds.loop.startedAt
		d.assignment.MoveIndex = lastIndex
		// The ledger does not hold which node the job left, nor whether that node has
		// released it: every other member may be the one.
		for _, name := range ds.capacity.members {
			if name != a.Node {
				d.previous = append(d.previous, name)
			}
		}
	}
	return d
}

// splitChannel splits a channel, "overhop/<worker>" or "rrq/<pool>/<port>", into
// the kind, the pool's key and the worker.
func splitChannel(channel, queue string) (kind job.Kind, key, worker string) {
	if worker, ok := strings.CutPrefix(channel, "rrq/"); ok {
		pool := worker[:max(strings.LastIndexByte(worker, '/'), 0)]
		return job.RRQ, pool, worker
	}
	return job.Overhop, queue, strings.TrimPrefix(channel, "overhop/")
}

// resendAssignment adds an unconfirmed assignment to out again. A node that has taken the
// dispatch already recognizes it.
func (ds *dispatches) resendAssignment(d *dispatch, n *node, now time.Time, out batcher) {
	a := d.assignment
	a.Epoch = ds.loop.epoch
	d.sentAt = now
	batch := out.add(n, a)
	d.firstBatch = cmp.Or(d.firstBatch, batch)
}

// recall has the node that runs a job stop it. The sweep repeats the recall until the
// dispatch ends.
func (ds *dispatches) recall(id job.ID, reason job.RecallReason) {
	var d *dispatch
	ds.loop.ledger.View(func(l *ledger.Ledger) {
		if view, _, ok := l.Find(id); ok {
			d = ds.running[job.DispatchID{Job: id, N: view.Dispatches}]
		}
	})
	if d != nil {
		d.recallReason = reason
		ds.sendRecall(d, reason, time.Now())
	}
}

// sendRecall sends one recall of a dispatch to its current node.
func (ds *dispatches) sendRecall(d *dispatch, reason job.RecallReason, now time.Time) {
	d.recalledAt = now
	a := &d.assignment
	r := job.Recall{Job: a.Job, N: a.N, Epoch: ds.loop.epoch, Reason: reason}
	switch reason {
	case job.RecallSuperseded: // the index tells it from a later move back to the node
		ds.loop.ledger.View(func(l *ledger.Ledger) { r.MoveIndex = l.Index() })
	case job.RecallCancelled:
		ds.loop.ledger.View(func(l *ledger.Ledger) {
			if view, _, ok := l.Find(a.Job); ok && view.Cancellation != nil {
				r.Message = view.Cancellation.Reason
			}
		})
	}
	ds.fleet.Recall(d.node, r)
}

// followMove applies a committed move of a dispatch to another node or worker. The
// new node has to confirm the dispatch, and the previous one to release it.
func (ds *dispatches) followMove(c *ledger.MoveDispatch, index uint64) {
	d := ds.running[job.DispatchID{Job: c.Job, N: c.N}]
	if d == nil {
		return
	}
	a := &d.assignment
	now := time.Now()
	if d.node != c.Node || d.incarnation != c.Incarnation {
		d.movedAt, d.previous, d.previousRecalledAt = now, nil, time.Time{}
		if d.node != c.Node {
			d.previous = []string{d.node}
		}
		d.node, d.incarnation, d.firstBatch, d.confirmed = c.Node, c.Incarnation, 0, false
		d.sentAt, d.resendingSince, d.recalledAt = now, time.Time{}, time.Time{}
		d.movedBy, a.MoveIndex = index, index
		ds.loop.ledger.View(func(l *ledger.Ledger) {
			if view, ok := l.Dispatch(c.Job, c.N); ok {
				a.Started = view.Started
			}
		})
		ds.recallPrevious(d, now)
	}
	d.kind, a.Key, a.Worker = splitChannel(c.Channel, a.Queue)
	a.Kind = d.kind
}

// recallPrevious sends a recall to the nodes that a moved dispatch has left, every
// resendInterval until assignTimeout after the move. Nodes do not acknowledge recalls.
func (ds *dispatches) recallPrevious(d *dispatch, now time.Time) {
	if len(d.previous) == 0 || now.Sub(d.previousRecalledAt) <= resendInterval {
		return
	}
	if now.Sub(d.movedAt) > assignTimeout {
		d.previous = nil
		return
	}
	d.previousRecalledAt = now
	a := &d.assignment
	r := job.Recall{Job: a.Job, N: a.N, Epoch: ds.loop.epoch, Reason: job.RecallSuperseded, MoveIndex: a.MoveIndex}
	for _, node := range d.previous {
		ds.fleet.Recall(node, r)
	}
}

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
		ds.endLost(k, "node "+n.name+" no longer has the dispatch")
	}
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
	out := newBatcher(ds)
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
	ds.recallPrevious(d, now)
	switch {
	case d.settling:
		return // it has ended: its outcome waits for an entry
	case now.Sub(lastContact) > reassignAfter:
		ds.endLost(k, "node "+d.node+" is gone")
	case n == nil || n.silent || n.incarnation < d.incarnation:
		return // wait for a heartbeat, not one that an earlier incarnation sent, or until the case above
	case n.incarnation > d.incarnation:
		if d.kind == job.RRQ || now.Sub(latest(n.startedAt, d.movedAt)) > workerLease+time.Second {
			ds.endLost(k, "node "+d.node+" was restarted")
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
		if d.movedAt.IsZero() {
			ds.end(k, job.Outcome{Status: job.Declined})
		} else {
			ds.endLost(k, "its worker did not resume it at node "+d.node)
		}
		return
	}
	ds.resendAssignment(d, n, now, out)
}
