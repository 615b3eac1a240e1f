package scheduler

import (
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// How the authority watches nodes.
const (
	sweepEvery   = 250 * time.Millisecond
	silentAfter  = 2500 * time.Millisecond // without a beat, nothing is placed on a node
	resendAfter  = time.Second             // an assignment without an answer
	giveUpAfter  = 10 * time.Second        // an assignment that a living node never answers
	workerLease  = 6 * time.Second         // an Overhop worker's, which may outlive its node
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
	n.beatAt, n.draining = time.Now(), b.Draining
	if n.silent {
		n.silent, m.dirty = false, true
	}
	n.runners = make(map[string]bool, len(b.Runners))
	for _, r := range b.Runners {
		n.runners[r] = true
	}
	reply(job.BeatAck{Epoch: m.epoch, Lease: lease, WantFull: b.Rev != n.rev})
}

// sweep ends what nobody will end: dispatches of nodes that are gone, and
// assignments that were never taken.
func (m *mind) sweep() {
	now := time.Now()
	for _, n := range m.nodes {
		n.silent = now.Sub(n.beatAt) > silentAfter
		m.sweepSeats(n, now)
	}
	for k, f := range m.flights {
		m.sweepFlight(k, f, now)
	}
	m.sweepOrphans(now)
}

func (m *mind) sweepSeats(n *node, now time.Time) {
	for k, s := range n.seats {
		switch {
		case s.told > 0 || s.reserved > 0:
			s.emptySince = time.Time{}
		case s.emptySince.IsZero():
			s.emptySince = now
		case now.Sub(s.emptySince) > emptySeatFor:
			m.removeSeat(n, k)
		}
	}
}

func (m *mind) sweepFlight(k dispatchKey, f *flight, now time.Time) {
	n := m.nodes[f.node]
	heard := m.began // a new authority gives every node its full lease
	if n != nil && n.beatAt.After(heard) {
		heard = n.beatAt
	}
	lost := job.Outcome{Status: job.Lost, Started: true}
	switch {
	case f.ended:
	case now.Sub(heard) > reassignAfter:
		lost.Fault = &job.Fault{Message: "node " + f.node + " is gone", Type: job.FaultLost}
		m.endFlight(k, lost)
	case n == nil || n.silent:
	case n.incarnation != f.incarnation:
		lost.Fault = &job.Fault{Message: "node " + f.node + " was restarted", Type: job.FaultLost}
		if f.kind == job.RRQ || now.Sub(n.born) > workerLease+time.Second {
			m.endFlight(k, lost)
		}
	case f.confirmed:
	case f.sentAt.IsZero() || now.Sub(f.sentAt) > resendAfter:
		if f.firstSent.IsZero() {
			f.firstSent = now
		}
		if now.Sub(f.firstSent) > giveUpAfter {
			m.endFlight(k, job.Outcome{Status: job.Declined})
			return
		}
		m.again(f, n, now)
	}
}

// sweepOrphans ends waiting jobs that ask for a runner no member is configured
// for. It waits until every member has said what it has.
func (m *mind) sweepOrphans(now time.Time) {
	if now.Sub(m.orphansAt) < time.Second {
		return
	}
	m.orphansAt = now
	configured := map[string]bool{}
	for _, name := range m.cfg.Members {
		n := m.nodes[name]
		if n == nil || n.runners == nil {
			return
		}
		for r := range n.runners {
			configured[r] = true
		}
	}
	m.ledger().View(func(l *ledger.Ledger) {
		l.Classes(func(class string) bool {
			runner, _ := job.SplitFunction(class)
			if runner == "" || configured[runner] {
				return true
			}
			l.BusyLines(class, func(queue string) bool {
				most := 100
				l.Line(queue, class, func(w ledger.Waiting) bool {
					m.queue(&ledger.CancelJob{
						Job: w.ID, Reason: "No runner configured for '" + runner + "'.", Type: job.HandlerNotFound,
					}, nil)
					most--
					return most > 0
				})
				return true
			})
			return true
		})
	})
}
