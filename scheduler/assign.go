package scheduler

import (
	"strings"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// flight is a running dispatch as this tenure follows it.
type flight struct {
	node        string
	incarnation uint64
	kind        job.Kind
	assignment  job.Assignment   // without its body
	batch       uint64           // it went with last
	sentAt      time.Time        // last; zero: not by this tenure
	firstSent   time.Time        // again
	recalledAt  time.Time        // last; zero: never
	confirmed   bool             // the node said that it has it
	recalled    job.RecallReason // why its node must stop it; "": it need not
	ended       bool             // its end is on its way
	former      []string         // nodes its worker may have come from, until they know
	formerTold  time.Time        // last
	movedAt     time.Time        // zero: never
}

// Limits of a batch, so that it is one message.
const (
	maxBatch      = 256
	maxBatchBytes = 256 << 10 // of bodies
)

// batches gathers assignments by node and sends them a message at a time.
type batches struct {
	m    *mind
	open map[*node]*openBatch
}

type openBatch struct {
	job.Batch
	bytes int
}

// add puts an assignment into its node's batch and gives the batch's number.
func (b batches) add(n *node, a job.Assignment) uint64 {
	open := b.open[n]
	if open != nil && (len(open.Assignments) == maxBatch || open.bytes+len(a.Body) > maxBatchBytes) {
		b.m.dispatch(n.name, open.Batch)
		open = nil
	}
	if open == nil {
		n.batches++
		open = &openBatch{Batch: job.Batch{Epoch: b.m.epoch, Number: n.batches, Incarnation: n.incarnation}}
		b.open[n] = open
	}
	open.Assignments = append(open.Assignments, a)
	open.bytes += len(a.Body)
	return open.Number
}

func (b batches) send() {
	for n, open := range b.open {
		b.m.dispatch(n.name, open.Batch)
	}
}

// placed sends the assignments of the placements that hold, and frees the room
// of the others.
func (m *mind) placed(picks []*pick, placed []bool, index uint64) {
	now := time.Now()
	out := batches{m, map[*node]*openBatch{}}
	for i, p := range picks {
		m.unplace(p)
		if !placed[i] {
			p.seat.cancel()
			continue
		}
		n := p.seat.node
		k := dispatchKey{p.ID, p.N}
		a := m.assignment(&p.Waiting, p.seat.room.key, p.seat.worker, m.fenceBase+index)
		f := &flight{node: n.name, incarnation: p.incarnation, kind: a.Kind, assignment: a, sentAt: now}
		m.flights[k] = f
		if p.incarnation != n.incarnation { // the one that had the room is no more
			p.seat.cancel()
			m.endFlight(k, job.Outcome{Status: job.Declined})
			continue
		}
		a.Body = m.bodies.take(p.Position)
		f.batch = out.add(n, a)
		p.seat.ship(f.batch, now)
	}
	out.send()
}

func (m *mind) assignment(w *ledger.Waiting, k roomKey, worker string, fence uint64) job.Assignment {
	a := job.Assignment{
		Job: w.ID, N: w.N, Attempt: w.Attempt, MaxAttempts: w.MaxAttempts, Queue: w.Queue, Function: w.Function,
		Kind: k.kind, Key: k.key, Worker: worker, Epoch: m.epoch, Fence: fence, Timeout: w.Timeout,
		Accepted: w.Accepted, RunAt: w.Due, Redelivered: w.Redelivered, Position: w.Position,
	}
	if a.Timeout == 0 {
		a.Timeout = m.cfg.DefaultTimeout
	}
	if a.MaxAttempts == 0 {
		a.MaxAttempts = m.cfg.Policy.MaxAttempts
	}
	return a
}

// dispatch sends a batch to a node and hears its answers. Once the lease can
// no longer be trusted it is too late to give orders: the next authority
// adopts what was notified.
func (m *mind) dispatch(to string, b job.Batch) {
	if time.Until(m.trusted()) <= 0 {
		return
	}
	m.sched.fleet.Assign(to, b, func(answers []job.Answer, err error) {
		if err != nil {
			return // sent again by the sweep
		}
		m.postAside(func() {
			for i := range min(len(answers), len(b.Assignments)) {
				a := &b.Assignments[i]
				m.answered(dispatchKey{a.Job, a.N}, to, b.Number, answers[i])
			}
		})
	})
}

// answered hears what a node says of an assignment. Without an answer the
// assignment is sent again (see sweep).
func (m *mind) answered(k dispatchKey, from string, batch uint64, answer job.Answer) {
	f := m.flights[k]
	if f == nil || f.ended || f.node != from {
		return
	}
	switch answer {
	case job.Taken:
		f.confirmed = true
	case job.NoRoom, job.Draining:
		if !f.movedAt.IsZero() {
			return // its worker may yet bring it (see remind)
		}
		if n := m.nodes[f.node]; n != nil && n.incarnation == f.incarnation {
			m.refused(n, f, batch)
			m.setState(n, n.silent, n.draining || answer == job.Draining)
		}
		m.endFlight(k, job.Outcome{Status: job.Declined})
	case job.BodyLost:
		m.endFlight(k, job.Outcome{Status: job.Error, Fault: &job.Fault{
			Message: "payload_lost: the record of the job cannot be read", Type: job.FaultInvalid,
		}})
	}
}

// refused takes a worker for full until its node has told of its room anew,
// unless it has since the batch that it refused.
func (m *mind) refused(n *node, f *flight, batch uint64) {
	s := n.seats[seatKey{roomKey{f.kind, f.assignment.Key}, f.assignment.Worker}]
	if s == nil || n.seen >= batch {
		return
	}
	s.told = 0
	n.doubted = true
}

// adoptFlight follows a dispatch that an earlier tenure notified. Its node
// gets the assignment again as soon as it is heard of. index is the ledger's.
func (m *mind) adoptFlight(a ledger.Active, index uint64) *flight {
	kind, key, worker := splitChannel(a.Channel, a.Queue)
	f := &flight{
		node: a.Node, incarnation: a.Incarnation, kind: kind, recalled: a.Recalled,
		assignment: m.assignment(&a.Waiting, roomKey{kind, key}, worker, a.Fence),
	}
	if a.Moved {
		// Its worker may still be on the way to the node; an order to begin
		// would have it run twice.
		f.assignment.Started, f.movedAt = a.Started, m.began
		// Nor is it known where from, and whether that node was told to let go.
		f.assignment.Moved = index
		for _, name := range m.members {
			if name != a.Node {
				f.former = append(f.former, name)
			}
		}
	}
	return f
}

// splitChannel takes a channel apart: "overhop/<wid>" or
// "rrq/<pool>/<port>".
func splitChannel(channel, queue string) (kind job.Kind, key, worker string) {
	if worker, ok := strings.CutPrefix(channel, "rrq/"); ok {
		pool := worker[:max(strings.LastIndexByte(worker, '/'), 0)]
		return job.RRQ, pool, worker
	}
	return job.Overhop, queue, strings.TrimPrefix(channel, "overhop/")
}

// again sends an assignment that its node has not confirmed. The node knows
// the ids it has seen.
func (m *mind) again(f *flight, n *node, now time.Time, out batches) {
	a := f.assignment
	a.Epoch = m.epoch
	f.sentAt = now
	f.batch = out.add(n, a)
}

// recall asks the node that runs a job to stop it, until the dispatch ends
// (see sweep).
func (m *mind) recall(id job.ID, why job.RecallReason) {
	m.ledger().View(func(l *ledger.Ledger) {
		if view, _, ok := l.Find(id); ok {
			if f := m.flights[dispatchKey{id, view.Dispatches}]; f != nil {
				f.recalled = why
				m.sendRecall(f, why, time.Now())
			}
		}
	})
}

func (m *mind) sendRecall(f *flight, why job.RecallReason, now time.Time) {
	f.recalledAt = now
	a := &f.assignment
	m.sched.fleet.Recall(f.node, job.Recall{Job: a.Job, N: a.N, Epoch: m.epoch, Reason: why})
}

// moved follows a dispatch to the node that its worker came back to. That node
// has to say that it has it, and the former one to let go of it.
func (m *mind) moved(c *ledger.MoveDispatch, index uint64) {
	f := m.flights[dispatchKey{c.Job, c.N}]
	if f == nil {
		return
	}
	a := &f.assignment
	now := time.Now()
	if f.node != c.Node || f.incarnation != c.Incarnation {
		f.movedAt, f.former, f.formerTold = now, nil, time.Time{}
		if f.node != c.Node {
			f.former = []string{f.node}
		}
		f.node, f.incarnation, f.confirmed = c.Node, c.Incarnation, false
		f.sentAt, f.firstSent, f.recalledAt = now, time.Time{}, time.Time{}
		a.Moved = index
		m.ledger().View(func(l *ledger.Ledger) {
			if view, ok := l.Dispatch(c.Job, c.N); ok {
				a.Started = view.Started
			}
		})
		m.letGo(f, now)
	}
	f.kind, a.Key, a.Worker = splitChannel(c.Channel, a.Queue)
	a.Kind = f.kind
}

// letGo tells the nodes that a dispatch may have left, for as long as one could
// take itself for its holder. Nothing answers.
func (m *mind) letGo(f *flight, now time.Time) {
	switch {
	case len(f.former) == 0 || now.Sub(f.formerTold) <= resendAfter:
	case now.Sub(f.movedAt) > giveUpAfter:
		f.former = nil
	default:
		f.formerTold = now
		a := &f.assignment
		r := job.Recall{Job: a.Job, N: a.N, Epoch: m.epoch, Reason: job.RecallSuperseded, Moved: a.Moved}
		for _, name := range f.former {
			m.sched.fleet.Recall(name, r)
		}
	}
}
