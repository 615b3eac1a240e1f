package scheduler

import (
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
	batch              uint64           // last batch that carried the assignment
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
	out := batcher{ds, map[*node]*openBatch{}}
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
		d.batch = out.add(n, a)
		d.firstBatch = d.batch
		p.slot.markSent(d.batch, now)
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
	if a.Timeout == 0 {
		a.Timeout = ds.loop.cfg.DefaultTimeout
	}
	if a.MaxAttempts == 0 {
		a.MaxAttempts = ds.loop.cfg.Policy.MaxAttempts
	}
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
	if d == nil || d.settling || d.node != node || d.firstBatch == 0 || batch < d.firstBatch {
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

// adopt returns the state of a dispatch that an earlier tenure sent. Its node is sent
// the assignment again after its first heartbeat. index is that of the ledger's last
// entry.
func (ds *dispatches) adopt(a ledger.ActiveDispatch, index uint64) *dispatch {
	kind, key, worker := splitChannel(a.Channel, a.Queue)
	d := &dispatch{
		node: a.Node, incarnation: a.Incarnation, kind: kind, recallReason: a.Recalled,
		assignment: ds.assignment(&a.WaitingJob, poolKey{kind, key}, worker, a.Fence),
	}
	if a.Moved {
		// Its worker may not have reached the node yet. A set Started keeps the
		// node from starting it a second time.
		d.assignment.Started, d.movedAt = a.Started, ds.loop.startedAt
		// The ledger does not hold which node it left, nor whether that node has
		// released it.
		d.assignment.MoveIndex = index
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
	d.batch = out.add(n, a)
	if d.firstBatch == 0 {
		d.firstBatch = d.batch
	}
}

// recall has the node that runs a job stop it. The sweep repeats the recall until the
// dispatch ends.
func (ds *dispatches) recall(id job.ID, reason job.RecallReason) {
	ds.loop.ledger.View(func(l *ledger.Ledger) {
		if view, _, ok := l.Find(id); ok {
			if d := ds.running[job.DispatchID{Job: id, N: view.Dispatches}]; d != nil {
				d.recallReason = reason
				ds.sendRecall(d, reason, time.Now())
			}
		}
	})
}

// sendRecall sends one recall of a dispatch to its current node.
func (ds *dispatches) sendRecall(d *dispatch, reason job.RecallReason, now time.Time) {
	d.recalledAt = now
	a := &d.assignment
	r := job.Recall{Job: a.Job, N: a.N, Epoch: ds.loop.epoch, Reason: reason}
	if reason == job.RecallSuperseded { // the index tells it from a later move back to the node
		ds.loop.ledger.View(func(l *ledger.Ledger) { r.MoveIndex = l.Index() })
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
		a.MoveIndex = index
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
	switch {
	case len(d.previous) == 0 || now.Sub(d.previousRecalledAt) <= resendInterval:
	case now.Sub(d.movedAt) > assignTimeout:
		d.previous = nil
	default:
		d.previousRecalledAt = now
		a := &d.assignment
		r := job.Recall{Job: a.Job, N: a.N, Epoch: ds.loop.epoch, Reason: job.RecallSuperseded, MoveIndex: a.MoveIndex}
		for _, name := range d.previous {
			ds.fleet.Recall(name, r)
		}
	}
}
