package scheduler

import (
	"cmp"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// pool holds the slots of all workers that can run the same jobs. Only slots that
// may have free capacity are in ready, so finding one takes constant time however
// many are busy.
type pool struct {
	key   poolKey
	slots int     // number of slots, ready or not
	ready []*slot // served in turn, so that all get work
}

// slot is the capacity of one worker for one pool: the free capacity that its node
// last offered, less the placements that the offer does not count yet.
type slot struct {
	node    *node
	pool    *pool
	worker  string
	channel string
	offered int // free capacity in the node's last offer, in jobs
	// Placements that the last offer does not count: those not sent yet, and
	// those sent, by batch.
	reserved    int
	sentBatches []sentBatch
	ready       bool      // is in pool.ready
	removed     bool      // was removed from its pool
	emptySince  time.Time // see sweepSlots
}

// sentBatch counts a slot's placements in one batch of assignments.
type sentBatch struct {
	number uint64
	count  int
}

// available returns how many more jobs can be placed on the slot.
func (s *slot) available() int {
	if s.removed || s.node.silent || s.node.draining {
		return 0
	}
	n := s.offered - s.reserved
	for _, b := range s.sentBatches {
		n -= b.count
	}
	return max(n, 0)
}

// requeue appends s to its pool's ready list if it has free capacity. Call it after
// anything that may free some.
func (s *slot) requeue() {
	if !s.ready && s.available() > 0 {
		s.ready = true
		s.pool.ready = append(s.pool.ready, s)
	}
}

// unreserve releases a reservation.
func (s *slot) unreserve() {
	s.reserved--
	s.requeue()
}

// markSent turns a reservation into a sent placement.
func (s *slot) markSent(batch uint64, now time.Time) {
	s.reserved--
	last := len(s.sentBatches) - 1
	if last >= 0 && s.sentBatches[last].number == batch {
		s.sentBatches[last].count++
		return
	}
	if last < 0 {
		s.node.addUnseen(s, now)
	}
	s.sentBatches = append(s.sentBatches, sentBatch{batch, 1})
}

// hasAvailable reports whether any slot has free capacity. It removes slots without
// from the front of the ready list.
func (p *pool) hasAvailable() bool {
	for len(p.ready) > 0 {
		if p.ready[0].available() > 0 {
			return true
		}
		p.pop()
	}
	return false
}

// reserve reserves capacity for one job on the next slot in turn; it returns nil if
// no slot has any.
func (p *pool) reserve() *slot {
	if !p.hasAvailable() {
		return nil
	}
	s := p.pop()
	s.reserved++
	s.requeue() // at the end of the list
	return s
}

// pop removes the first slot from the ready list.
func (p *pool) pop() *slot {
	s := p.ready[0]
	p.ready[0] = nil
	p.ready = p.ready[1:]
	s.ready = false
	return s
}

// slotKey identifies a slot within its node.
type slotKey struct {
	poolKey
	worker string
}

// poolKey identifies workers that can run the same jobs: the workers of an Overhop
// queue, or the processes of an RRQ runner.
type poolKey struct {
	kind job.Kind
	key  string
}

func (k slotKey) compare(o slotKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.key, o.key), cmp.Compare(k.worker, o.worker))
}

// available returns how many more jobs can be placed on the pool's slots.
func (p *pool) available() (n int) {
	for _, s := range p.ready {
		n += s.available()
	}
	return n
}
