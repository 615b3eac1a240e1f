package scheduler

import (
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// dispatch is the tenure's state of one running dispatch.
type dispatch struct {
	node           string
	incarnation    uint64
	kind           job.Kind
	assignment     job.Assignment   // without its body
	batch          uint64           // last batch that carried the assignment
	sentAt         time.Time        // when the assignment was last sent; zero: not by this tenure
	resendingSince time.Time        // when the assignment was first sent again; zero: not yet
	recalledAt     time.Time        // when a recall was last sent; zero: never
	firstBatch     uint64           // first batch that carried the assignment to the node; 0: none since the dispatch moved there
	confirmed      bool             // the node answered that it has the dispatch
	confirmedSeq   uint64           // number of the last heartbeat acknowledged before that answer
	recallReason   job.RecallReason // why the node must stop it; "": it need not
	settling       bool             // its outcome is pending or in flight
	previous       []string         // nodes that must release it, because its worker may have come from there
	releasedAt     time.Time        // when release last sent recalls
	movedAt        time.Time        // when it last moved to another node; zero: never
}

// Limits of a batch of assignments, so that it fits into one message.
const (
	maxBatchAssignments = 256
	maxBatchBytes       = 256 << 10 // of bodies
)

// batcher collects assignments by node and sends each node's in few messages.
type batcher struct {
	tenure *tenure
	open   map[*node]*openBatch
}

// openBatch is a batch that is being filled.
type openBatch struct {
	job.AssignmentBatch
	bytes int
}

// add adds an assignment to its node's batch and returns the batch's number. A batch
// that is full is sent first.
func (b batcher) add(n *node, a job.Assignment) uint64 {
	open := b.open[n]
	if open != nil && (len(open.Assignments) == maxBatchAssignments || open.bytes+len(a.Body) > maxBatchBytes) {
		b.tenure.sendBatch(n.name, open.AssignmentBatch)
		open = nil
	}
	if open == nil {
		n.lastBatch++
		open = &openBatch{AssignmentBatch: job.AssignmentBatch{Epoch: b.tenure.epoch, Number: n.lastBatch, Incarnation: n.incarnation}}
		b.open[n] = open
	}
	open.Assignments = append(open.Assignments, a)
	open.bytes += len(a.Body)
	return open.Number
}

// send sends all open batches.
func (b batcher) send() {
	for n, open := range b.open {
		b.tenure.sendBatch(n.name, open.AssignmentBatch)
	}
}

// finishPlacements sends the assignments of the placements that the ledger has
// accepted (placed), and unreserves the slots of the others. index is that of
// their entry.
func (t *tenure) finishPlacements(placements []*placement, placed []bool, index uint64) {
	now := time.Now()
	out := batcher{t, map[*node]*openBatch{}}
	for i, p := range placements {
		t.forgetPlacement(p)
		if !placed[i] {
			p.slot.unreserve()
			continue
		}
		n := p.slot.node
		k := dispatchKey{p.ID, p.N}
		a := t.assignment(&p.WaitingJob, p.slot.pool.key, p.slot.worker, t.fenceBase+index)
		d := &dispatch{node: n.name, incarnation: p.incarnation, kind: a.Kind, assignment: a, sentAt: now}
		t.dispatches[k] = d
		if p.incarnation != n.incarnation { // the node restarted meanwhile
			p.slot.unreserve()
			t.endDispatch(k, job.Outcome{Status: job.Declined})
			continue
		}
		a.Body = t.bodies.take(p.Position)
		d.batch = out.add(n, a)
		d.firstBatch = d.batch
		p.slot.markSent(d.batch, now)
	}
	out.send()
}

// assignment returns the assignment, without its body, of a job to a worker.
func (t *tenure) assignment(w *ledger.WaitingJob, k poolKey, worker string, fence uint64) job.Assignment {
	a := job.Assignment{
		Job: w.ID, N: w.N, Attempt: w.Attempt, MaxAttempts: w.MaxAttempts, Queue: w.Queue, Function: w.Function,
		Kind: k.kind, Key: k.key, Worker: worker, Epoch: t.epoch, Fence: fence, Timeout: w.Timeout,
		Accepted: w.Accepted, RunAt: w.Due, Redelivered: w.Redelivered, Position: w.Position,
	}
	if a.Timeout == 0 {
		a.Timeout = t.cfg.DefaultTimeout
	}
	if a.MaxAttempts == 0 {
		a.MaxAttempts = t.cfg.Policy.MaxAttempts
	}
	return a
}

// sendBatch sends a batch to a node and posts its answers to the loop. It sends
// nothing once the lease can no longer be trusted: the next authority adopts the
// dispatches.
func (t *tenure) sendBatch(node string, b job.AssignmentBatch) {
	if time.Until(t.trusted()) <= 0 {
		return
	}
	t.sched.fleet.Assign(node, b, func(answers []job.Answer, err error) {
		if err != nil {
			return // the sweep sends it again
		}
		t.postReply(func() {
			for i := range min(len(answers), len(b.Assignments)) {
				a := &b.Assignments[i]
				t.handleAnswer(dispatchKey{a.Job, a.N}, node, b.Number, answers[i])
			}
		})
	})
}

// handleAnswer handles a node's answer to an assignment. An assignment without an
// answer is sent again, see resend.
func (t *tenure) handleAnswer(k dispatchKey, node string, batch uint64, answer job.Answer) {
	d := t.dispatches[k]
	if d == nil || d.settling || d.node != node || d.firstBatch == 0 || batch < d.firstBatch {
		return
	}
	switch answer {
	case job.Taken:
		if !d.confirmed {
			d.confirmed, d.confirmedSeq = true, t.ackSeq
		}
	case job.NoCapacity, job.Draining:
		if !d.movedAt.IsZero() {
			return // its worker may still resume it there, see resend
		}
		if n := t.nodes[d.node]; n != nil && n.incarnation == d.incarnation {
			t.markFull(n, d, batch)
			t.setNodeState(n, n.silent, n.draining || answer == job.Draining)
		}
		t.endDispatch(k, job.Outcome{Status: job.Declined})
	case job.BodyLost:
		t.endDispatch(k, job.Outcome{Status: job.Error, Fault: &job.Fault{
			Message: "payload_lost: the record of the job cannot be read", Type: job.FaultInvalid,
		}})
	}
}

// markFull sets a worker's offer to zero and has its node send all offers again,
// unless the node has sent offers since the batch that it refused.
func (t *tenure) markFull(n *node, d *dispatch, batch uint64) {
	s := n.slots[slotKey{poolKey{d.kind, d.assignment.Key}, d.assignment.Worker}]
	if s == nil || n.seenBatch >= batch {
		return
	}
	s.offered = 0
	n.stale = true
}

// adoptDispatch returns the state of a dispatch that an earlier tenure sent. Its node
// is sent the assignment again after its first heartbeat. index is that of the
// ledger's last entry.
func (t *tenure) adoptDispatch(a ledger.ActiveDispatch, index uint64) *dispatch {
	kind, key, worker := splitChannel(a.Channel, a.Queue)
	d := &dispatch{
		node: a.Node, incarnation: a.Incarnation, kind: kind, recallReason: a.Recalled,
		assignment: t.assignment(&a.WaitingJob, poolKey{kind, key}, worker, a.Fence),
	}
	if a.Moved {
		// Its worker may not have reached the node yet. A set Started keeps the
		// node from starting it a second time.
		d.assignment.Started, d.movedAt = a.Started, t.startedAt
		// The ledger does not hold which node it left, nor whether that node has
		// released it.
		d.assignment.MoveIndex = index
		for _, name := range t.members {
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

// resendAssignment adds an unconfirmed assignment to out again. The node recognizes
// dispatches that it has already taken.
func (t *tenure) resendAssignment(d *dispatch, n *node, now time.Time, out batcher) {
	a := d.assignment
	a.Epoch = t.epoch
	d.sentAt = now
	d.batch = out.add(n, a)
	if d.firstBatch == 0 {
		d.firstBatch = d.batch
	}
}

// recall has the node that runs a job stop it. The recall is repeated until the
// dispatch ends, see resend.
func (t *tenure) recall(id job.ID, reason job.RecallReason) {
	t.ledger().View(func(l *ledger.Ledger) {
		if view, _, ok := l.Find(id); ok {
			if d := t.dispatches[dispatchKey{id, view.Dispatches}]; d != nil {
				d.recallReason = reason
				t.sendRecall(d, reason, time.Now())
			}
		}
	})
}

// sendRecall sends one recall of a dispatch to its node.
func (t *tenure) sendRecall(d *dispatch, reason job.RecallReason, now time.Time) {
	d.recalledAt = now
	a := &d.assignment
	r := job.Recall{Job: a.Job, N: a.N, Epoch: t.epoch, Reason: reason}
	if reason == job.RecallSuperseded { // the index tells it from a later move back to the node
		t.ledger().View(func(l *ledger.Ledger) { r.MoveIndex = l.Index() })
	}
	t.sched.fleet.Recall(d.node, r)
}

// followMove applies a committed move of a dispatch to another node or worker. The
// new node has to confirm the dispatch, and the previous one to release it.
func (t *tenure) followMove(c *ledger.MoveDispatch, index uint64) {
	d := t.dispatches[dispatchKey{c.Job, c.N}]
	if d == nil {
		return
	}
	a := &d.assignment
	now := time.Now()
	if d.node != c.Node || d.incarnation != c.Incarnation {
		d.movedAt, d.previous, d.releasedAt = now, nil, time.Time{}
		if d.node != c.Node {
			d.previous = []string{d.node}
		}
		d.node, d.incarnation, d.firstBatch, d.confirmed = c.Node, c.Incarnation, 0, false
		d.sentAt, d.resendingSince, d.recalledAt = now, time.Time{}, time.Time{}
		a.MoveIndex = index
		t.ledger().View(func(l *ledger.Ledger) {
			if view, ok := l.Dispatch(c.Job, c.N); ok {
				a.Started = view.Started
			}
		})
		t.release(d, now)
	}
	d.kind, a.Key, a.Worker = splitChannel(c.Channel, a.Queue)
	a.Kind = d.kind
}

// release sends a recall to the previous nodes of a dispatch every resendInterval
// until assignTimeout after the move. Recalls are not acknowledged.
func (t *tenure) release(d *dispatch, now time.Time) {
	switch {
	case len(d.previous) == 0 || now.Sub(d.releasedAt) <= resendInterval:
	case now.Sub(d.movedAt) > assignTimeout:
		d.previous = nil
	default:
		d.releasedAt = now
		a := &d.assignment
		r := job.Recall{Job: a.Job, N: a.N, Epoch: t.epoch, Reason: job.RecallSuperseded, MoveIndex: a.MoveIndex}
		for _, name := range d.previous {
			t.sched.fleet.Recall(name, r)
		}
	}
}
