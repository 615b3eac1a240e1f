package scheduler

import (
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// pendingEnd is an outcome that waits for its entry, and who wants to know.
type pendingEnd struct {
	outcome     job.Outcome
	node        string // that says so, or of which the authority does
	incarnation uint64
	done        func(job.Settled)
}

// report hears a node's offers and outcomes.
func (m *mind) report(r job.Report, reply func(job.ReportAck)) {
	n := m.nodeOf(r.Node, r.Incarnation)
	ack := job.ReportAck{Epoch: m.epoch}
	if r.Incarnation == n.incarnation {
		ack.WantFull = m.hearOffers(n, &r)
	}
	left := len(r.Outcomes) + 1
	committed := func() {
		if left--; left == 0 {
			reply(ack)
		}
	}
	ack.Settled = make([]job.Settled, len(r.Outcomes))
	for i, o := range r.Outcomes {
		m.end(&pendingEnd{o, r.Node, r.Incarnation, func(s job.Settled) {
			ack.Settled[i] = s
			committed()
		}})
	}
	m.hearNotes(&r, committed)
}

// hearNotes commits what a node says of its workers. What the ledger refuses is
// not kept by the node either: it would be refused again.
func (m *mind) hearNotes(r *job.Report, committed func()) {
	if len(r.Notes) == 0 {
		committed()
		return
	}
	c := &ledger.NoteWorkers{Node: r.Node, Incarnation: r.Incarnation, First: r.FirstNote, Notes: r.Notes}
	m.queue(c, func(result ledger.Result, _ uint64) {
		if result.Err != nil {
			m.sched.log.Warn("a node's notes of its workers are refused", "node", r.Node, "error", result.Err)
		}
		committed()
	})
}

// size is what the outcome takes in an entry, in bytes.
func (e *pendingEnd) size() int {
	n := endSize + len(e.node) + len(e.outcome.Result.Data)
	if f := e.outcome.Fault; f != nil {
		n += 2*len(f.Message) + len(f.Details) // the message is also the reason
	}
	return n
}

// end queues an outcome for the next entry.
func (m *mind) end(e *pendingEnd) {
	m.entry.ends = append(m.entry.ends, e)
	m.entry.size += e.size()
	m.idle()
}

// endFlight ends a dispatch whose node will not.
func (m *mind) endFlight(k dispatchKey, o job.Outcome) {
	o.Job, o.N = k.id, k.n
	e := &pendingEnd{outcome: o}
	if f := m.flights[k]; f != nil {
		f.ended = true
		e.node, e.incarnation = f.node, f.incarnation
	}
	m.end(e)
}

// addEnds decides on pending outcomes and puts them into the entry, as far as
// it has room.
func (m *mind) addEnds(l *ledger.Ledger, d *draft) {
	size, n := 0, 0
	for n < len(m.entry.ends) && size < maxEnds {
		size += m.entry.ends[n].size()
		n++
	}
	if n == 0 {
		return
	}
	ends := m.entry.ends[:n]
	m.entry.ends = m.entry.ends[n:]
	c := &ledger.Settle{Ends: make([]ledger.End, n)}
	for i, e := range ends {
		c.Ends[i] = m.decide(l, e, d.at)
	}
	d.add(c, func(r ledger.Result, index uint64) {
		for i, e := range ends {
			v := r.Ended[i]
			m.sched.tallies.settled(c.Ends[i].Next, v)
			m.over(e, v)
			if e.done != nil {
				e.done(job.Settled{Stale: v.Stale, Dup: v.Dup, State: v.State, RunAt: v.RunAt, Index: index})
			}
		}
	})
}

// over forgets a dispatch that has ended. One that was said to be lost by the
// node it had left goes on. One that ended at another node than where it is, by
// a worker that spoke to both, is let go there.
func (m *mind) over(e *pendingEnd, v ledger.Ended) {
	k := dispatchKey{e.outcome.Job, e.outcome.N}
	f := m.flights[k]
	switch {
	case f == nil:
		return
	case v.Stale && v.State == job.Active:
		f.ended = false
		return
	case e.node != f.node:
		m.sendRecall(f, job.RecallSuperseded, time.Now())
	}
	delete(m.flights, k)
}

// decide asks the policy. What the ledger finds is no longer current, it
// ignores and counts.
func (m *mind) decide(l *ledger.Ledger, e *pendingEnd, now time.Time) ledger.End {
	o := &e.outcome
	a, _ := l.Dispatch(o.Job, o.N)
	v := m.cfg.Policy.Decide(job.Attempt{
		Number: max(a.Attempt, 1), Losses: a.Losses, MaxAttempts: a.MaxAttempts, RetryInterval: a.RetryInterval,
	}, *o)
	end := ledger.End{
		Job: o.Job, N: o.N, Next: v.Next, Loss: v.Loss, Reason: v.Reason,
		Result: o.Result, Blob: o.Blob, Fault: o.Fault,
	}
	if v.Delay > 0 {
		end.At = now.Add(v.Delay)
	}
	switch o.Status {
	case job.Lost, job.Declined, job.Interrupted:
		// Only where the dispatch is can it be lost; it may have moved since.
		end.Node, end.Incarnation = e.node, e.incarnation
		if a.Recalled != "" { // it was to stop, and did
			end.Fault = &job.Fault{Message: v.Reason, Type: job.FaultCancelled}
		}
	}
	return end
}
