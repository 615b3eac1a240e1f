package scheduler

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// recall has the node that runs a job stop it. The recall is repeated until the
// dispatch ends, see resend.
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

// sendRecall sends one recall of a dispatch to its node.
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
		d.movedAt, d.previous, d.releasedAt = now, nil, time.Time{}
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
		ds.release(d, now)
	}
	d.kind, a.Key, a.Worker = splitChannel(c.Channel, a.Queue)
	a.Kind = d.kind
}

// release sends a recall to the previous nodes of a dispatch every resendInterval
// until assignTimeout after the move. Recalls are not acknowledged.
func (ds *dispatches) release(d *dispatch, now time.Time) {
	switch {
	case len(d.previous) == 0 || now.Sub(d.releasedAt) <= resendInterval:
	case now.Sub(d.movedAt) > assignTimeout:
		d.previous = nil
	default:
		d.releasedAt = now
		a := &d.assignment
		r := job.Recall{Job: a.Job, N: a.N, Epoch: ds.loop.epoch, Reason: job.RecallSuperseded, MoveIndex: a.MoveIndex}
		for _, name := range d.previous {
			ds.fleet.Recall(name, r)
		}
	}
}
