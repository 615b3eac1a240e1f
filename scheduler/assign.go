package scheduler

import (
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// flight is a running dispatch as this tenure follows it.
type flight struct {
	node        string
	incarnation uint64
	kind        job.Kind
	assignment  job.Assignment // without its body
	sentAt      time.Time      // last; zero: not by this tenure
	firstSent   time.Time      // again
	confirmed   bool           // the node said that it has it
	ended       bool           // its end is on its way
}

// placed sends the assignments of the placements that hold, and frees the room
// of the others.
func (m *mind) placed(picks []*pick, placed []bool, index uint64) {
	batches := map[*node]*job.Batch{}
	for i, p := range picks {
		delete(m.placing, dispatchKey{p.ID, p.N})
		if m.taking[p.Queue]--; m.taking[p.Queue] == 0 {
			delete(m.taking, p.Queue)
		}
		if !placed[i] {
			p.seat.reserved--
			continue
		}
		n := p.seat.node
		b := batches[n]
		if b == nil {
			n.batches++
			b = &job.Batch{Epoch: m.epoch, Number: n.batches}
			batches[n] = b
		}
		p.seat.ship(b.Number)
		a := m.assignment(&p.Waiting, p.seat.room.key, p.seat.worker, index)
		m.flights[dispatchKey{p.ID, p.N}] = &flight{
			node: n.name, incarnation: n.incarnation, kind: a.Kind, assignment: a, sentAt: time.Now(),
		}
		a.Body = m.bodies.take(p.ID)
		b.Assignments = append(b.Assignments, a)
	}
	if time.Until(m.trusted()) <= 0 {
		return // too late to give orders; the next authority adopts them
	}
	for n, b := range batches {
		m.dispatch(n.name, *b)
	}
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

// dispatch sends a batch to a node and posts its answers.
func (m *mind) dispatch(to string, b job.Batch) {
	m.sched.fleet.Assign(to, b, func(answers []job.Answer, err error) {
		m.post(func() {
			for i := range b.Assignments {
				a := &b.Assignments[i]
				if err == nil && i < len(answers) {
					m.answered(dispatchKey{a.Job, a.N}, answers[i])
				}
			}
		})
	})
}

// answered hears what a node says of an assignment. Without an answer the
// assignment is sent again (see sweep).
func (m *mind) answered(k dispatchKey, answer job.Answer) {
	f := m.flights[k]
	if f == nil {
		return
	}
	switch answer {
	case job.Taken:
		f.confirmed = true
	case job.NoRoom, job.Draining:
		if n := m.nodes[f.node]; n != nil {
			if s := n.seats[seatKey{roomKey{f.kind, f.assignment.Key}, f.assignment.Worker}]; s != nil {
				s.told = 0 // until the node tells of room again
			}
			n.draining = n.draining || answer == job.Draining
		}
		m.endFlight(k, job.Outcome{Status: job.Declined})
	case job.BodyLost:
		m.endFlight(k, job.Outcome{Status: job.Error, Fault: &job.Fault{
			Message: "payload_lost: the record of the job cannot be read", Type: job.FaultInvalid,
		}})
	}
}

// adoptFlight follows a dispatch that an earlier tenure notified. Its node
// gets the assignment again as soon as it is heard of.
func adoptFlight(a ledger.Active) *flight {
	kind, key, worker := splitChannel(a.Channel, a.Queue)
	f := &flight{node: a.Node, incarnation: a.Incarnation, kind: kind}
	f.assignment = job.Assignment{
		Job: a.ID, N: a.N, Attempt: a.Attempt, MaxAttempts: a.MaxAttempts, Queue: a.Queue, Function: a.Function,
		Kind: kind, Key: key, Worker: worker, Fence: a.Fence, Timeout: a.Timeout,
		Accepted: a.Accepted, RunAt: a.Due, Redelivered: a.Redelivered, Position: a.Position,
	}
	return f
}

// splitChannel takes a channel apart: "overhop/<wid>" or
// "rrq/<pool>/<port>".
func splitChannel(channel, queue string) (kind job.Kind, key, worker string) {
	const rrq = "rrq/"
	if len(channel) > len(rrq) && channel[:len(rrq)] == rrq {
		worker = channel[len(rrq):]
		for i := len(worker) - 1; i >= 0; i-- {
			if worker[i] == '/' {
				return job.RRQ, worker[:i], worker
			}
		}
	}
	return job.Overhop, queue, channel[len("overhop/"):]
}

// again sends an assignment that its node has not confirmed. The node knows
// the ids it has seen.
func (m *mind) again(f *flight, n *node, now time.Time) {
	n.batches++
	a := f.assignment
	a.Epoch = m.epoch
	if a.Timeout == 0 {
		a.Timeout = m.cfg.DefaultTimeout
	}
	if a.MaxAttempts == 0 {
		a.MaxAttempts = m.cfg.Policy.MaxAttempts
	}
	f.sentAt = now
	m.dispatch(n.name, job.Batch{Epoch: m.epoch, Number: n.batches, Assignments: []job.Assignment{a}})
}

// recall asks the node that runs a job to stop it.
func (m *mind) recall(id job.ID) {
	for k, f := range m.flights {
		if k.id == id {
			m.sched.fleet.Recall(f.node, job.Recall{Job: id, N: k.n, Epoch: m.epoch, Reason: job.RecallCancelled})
		}
	}
}
