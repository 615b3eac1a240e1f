package scheduler

import (
	"maps"
	"slices"
	"time"

	"yardmaster/job"
)

// How the authority watches nodes.
const (
	sweepEvery   = 250 * time.Millisecond
	silentAfter  = 2500 * time.Millisecond // without a beat, nothing is placed on a node
	resendAfter  = time.Second             // an assignment without an answer
	giveUpAfter  = 10 * time.Second        // an assignment that a living node never answers
	workerLease  = 6 * time.Second         // an Overhop worker's, which may outlive its node
	unseenFor    = 2 * time.Second         // how long a node may leave open what room a batch left
	emptySeatFor = time.Minute             // how long a seat without room is remembered
)

// beat hears a node's sign of life and extends its lease, for no longer than
// this authority's own can be trusted.
func (m *mind) beat(b job.Beat, reply func(job.BeatAck)) {
	lease := min(nodeLease, time.Until(m.trusted()))
	if lease <= 0 {
		return
	}
	n := m.nodeOf(b.Node, b.Incarnation)
	if b.Incarnation < n.incarnation {
		return // a former life of the node
	}
	n.beatAt = time.Now()
	m.setState(n, false, b.Draining)
	n.edge = b.Edge
	n.runners = make(map[string]bool, len(b.Runners))
	for _, r := range b.Runners {
		n.runners[r] = true
	}
	reply(job.BeatAck{
		Epoch: m.epoch, Lease: lease, WantFull: b.Rev > n.rev || n.wantsFull(n.beatAt), Batches: n.batches, Edges: m.edgesBeside(n),
	})
}

// edgesBeside are where a node may send its clients when it stops.
func (m *mind) edgesBeside(n *node) (edges []string) {
	for _, other := range m.nodes {
		if other != n && other.edge != "" && !other.silent && !other.draining {
			edges = append(edges, other.edge)
		}
	}
	slices.Sort(edges)
	return edges
}

// sweep ends what nobody will end: dispatches of nodes that are gone, and
// assignments that were never taken.
func (m *mind) sweep() {
	now := time.Now()
	if now.Sub(m.renewedAt) >= renewEvery {
		m.renew()
		m.prove(now)
	}
	m.lookBringing()
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		n := m.nodes[name]
		m.setState(n, now.Sub(n.beatAt) > silentAfter, n.draining)
		m.sweepSeats(n, now)
		m.forgetNode(n)
	}
	var overdue []dispatchKey
	for k, f := range m.flights {
		if !m.well(f) {
			overdue = append(overdue, k)
		}
	}
	slices.SortFunc(overdue, dispatchKey.compare) // the same facts make the same entry
	out := batches{m, map[*node]*openBatch{}}
	for _, k := range overdue {
		m.sweepFlight(k, m.flights[k], now, out)
	}
	out.send()
	m.sweepOrphans(now)
	m.tellBlocked(now)
	m.crons.look = true // the stamps may have been steered, and a lane may answer again
}

// well tells a dispatch that needs no sweeping, as nearly all do: its node has
// it, lives, and need not be told anything.
func (m *mind) well(f *flight) bool {
	n := m.nodes[f.node]
	return f.confirmed && f.recalled == "" && len(f.former) == 0 && n != nil && !n.silent && n.incarnation == f.incarnation
}

func (m *mind) sweepSeats(n *node, now time.Time) {
	for k, s := range n.seats {
		switch {
		case s.told > 0 || s.reserved > 0 || len(s.sent) > 0:
			s.emptySince = time.Time{}
		case s.emptySince.IsZero():
			s.emptySince = now
		case now.Sub(s.emptySince) > emptySeatFor:
			m.removeSeat(n, k)
		}
	}
}

func (m *mind) sweepFlight(k dispatchKey, f *flight, now time.Time, out batches) {
	n := m.nodes[f.node]
	// A new authority gives every node its full lease. Who has just taken a job
	// over from another node has it as well, however long the node was not heard:
	// the worker may be on its way, with the lease that it had there.
	heard := later(m.began, f.movedAt)
	if n != nil {
		heard = later(heard, n.beatAt)
	}
	lost := job.Outcome{Status: job.Lost, Started: true}
	m.letGo(f, now)
	switch {
	case f.ended:
	case now.Sub(heard) > reassignAfter:
		lost.Fault = &job.Fault{Message: "node " + f.node + " is gone", Type: job.FaultLost}
		m.endFlight(k, lost)
	case n == nil || n.silent:
	case n.incarnation != f.incarnation:
		lost.Fault = &job.Fault{Message: "node " + f.node + " was restarted", Type: job.FaultLost}
		if f.kind == job.RRQ || now.Sub(later(n.born, f.movedAt)) > workerLease+time.Second {
			m.endFlight(k, lost)
		}
	default:
		m.remind(k, f, n, now, out)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// remind tells a node again what it has not answered: an assignment, or that a
// dispatch must stop, which only its outcome answers.
func (m *mind) remind(k dispatchKey, f *flight, n *node, now time.Time, out batches) {
	if f.recalled != "" && now.Sub(f.recalledAt) > resendAfter {
		m.sendRecall(f, f.recalled, now)
	}
	if f.confirmed || now.Sub(f.sentAt) <= resendAfter {
		return
	}
	if f.firstSent.IsZero() {
		f.firstSent = now
	}
	if now.Sub(f.firstSent) > giveUpAfter {
		m.sendRecall(f, job.RecallSuperseded, now) // lest it has it all the same
		o := job.Outcome{Status: job.Declined}
		if !f.movedAt.IsZero() {
			o = job.Outcome{Status: job.Lost, Started: true, Fault: &job.Fault{
				Message: "its worker did not bring it to node " + f.node, Type: job.FaultLost,
			}}
		}
		m.endFlight(k, o)
		return
	}
	m.again(f, n, now, out)
}
