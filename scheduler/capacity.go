package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
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

// node is the tenure's state of one member.
type node struct {
	name        string
	incarnation uint64
	startedAt   time.Time    // when this incarnation was first seen
	heartbeatAt time.Time    // when its last heartbeat was acknowledged
	clock       clockOffsets // samples of its wall clock
	rev         uint64       // revision of its last report with offers
	seenBatch   uint64       // last batch that its offers take into account
	lastBatch   uint64       // number of the last batch sent to it
	slots       map[slotKey]*slot
	unseen      []*slot         // slots with placements in batches above seenBatch
	unseenSince time.Time       // when unseen was last empty or seenBatch last grew
	runners     map[string]bool // RRQ runners configured there; nil: not known yet
	silent      bool            // heartbeats are missing; nothing is placed on it
	draining    bool
	edge        string // address of its edge; "": not known
	stale       bool   // its offers turned out wrong: it must send all of them again
}

// slotKey identifies a slot within its node.
type slotKey struct {
	poolKey
	worker string
}

func (k slotKey) compare(o slotKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.key, o.key), cmp.Compare(k.worker, o.worker))
}

// addUnseen adds a slot that has placements which the node's offers do not count
// yet.
func (n *node) addUnseen(s *slot, now time.Time) {
	if len(n.unseen) == 0 {
		n.unseenSince = now
	}
	n.unseen = append(n.unseen, s)
}

// setSeen drops the placements in batches up to the given one from all slots,
// because the node's offers take them into account.
func (n *node) setSeen(batch uint64, now time.Time) {
	if batch <= n.seenBatch {
		return
	}
	n.seenBatch, n.unseenSince = batch, now
	unseen := n.unseen[:0]
	for _, s := range n.unseen {
		sent := s.sentBatches[:0]
		for _, b := range s.sentBatches {
			if b.number > batch {
				sent = append(sent, b)
			}
		}
		if s.sentBatches = sent; len(sent) > 0 {
			unseen = append(unseen, s)
		}
		s.requeue()
	}
	clear(n.unseen[len(unseen):])
	n.unseen = unseen
}

// needsFull reports whether the node should send all its offers: because it refused
// an assignment that its offers allowed, or has not offered its remaining capacity
// within unseenTimeout after a batch.
func (n *node) needsFull(now time.Time) bool {
	return n.stale || len(n.unseen) > 0 && now.Sub(n.unseenSince) > unseenTimeout
}

// batchesPerEntry is the number of bits by which the epoch is shifted to give a
// tenure's first batch number. Batch numbers so grow over epochs, and a node's
// SeenBatch of an earlier epoch is below all batches of this one: epochs are log
// indexes, and an entry causes fewer than 1<<batchesPerEntry batches.
const batchesPerEntry = 16

// nodeOf returns the state of a node, which it creates if needed and resets if the
// incarnation is a new one.
func (t *tenure) nodeOf(name string, incarnation uint64) *node {
	n := t.nodes[name]
	if n == nil {
		n = &node{name: name, slots: map[slotKey]*slot{}, silent: true, lastBatch: t.epoch << batchesPerEntry}
		t.nodes[name] = n
	}
	if incarnation > n.incarnation {
		for k := range n.slots {
			t.removeSlot(n, k)
		}
		n.incarnation, n.startedAt = incarnation, time.Now()
		n.rev, n.seenBatch, n.unseen, n.runners = 0, 0, nil, nil
		n.silent, n.draining, n.stale = true, false, false // until its first heartbeat
	}
	return n
}

// setNodeState sets whether a node is silent and whether it is draining. If it has
// become available, its slots are requeued.
func (t *tenure) setNodeState(n *node, silent, draining bool) {
	wasUnavailable := n.silent || n.draining
	n.silent, n.draining = silent, draining
	if wasUnavailable && !silent && !draining {
		for _, k := range slices.SortedFunc(maps.Keys(n.slots), slotKey.compare) {
			n.slots[k].requeue()
		}
		t.placeDirty = true
	}
}

// removeSlot removes a slot from its node and its pool, and the pool if it was its
// last slot.
func (t *tenure) removeSlot(n *node, k slotKey) {
	s := n.slots[k]
	if s == nil {
		return
	}
	delete(n.slots, k)
	s.removed = true
	if s.pool.slots--; s.pool.slots == 0 {
		delete(t.pools, s.pool.key)
		t.roundRobin = slices.DeleteFunc(t.roundRobin, func(p *pool) bool { return p == s.pool })
	}
}

// receiveOffers takes a report's offers. It reports whether the node must send all
// its offers: because a report was missed, or the offers turned out wrong.
func (t *tenure) receiveOffers(n *node, r *job.Report) (wantFull bool) {
	if r.Rev == 0 || r.Rev <= n.rev {
		return n.stale
	}
	if r.Rev != n.rev+1 && !r.Full {
		return true
	}
	n.rev = r.Rev
	if r.Full {
		n.stale = false
		listed := make(map[slotKey]bool, len(r.Offers))
		for _, o := range r.Offers {
			listed[slotKeyOf(&o)] = true
		}
		for k, s := range n.slots {
			if !listed[k] {
				s.offered = 0
			}
		}
	}
	for i := range r.Offers {
		t.receiveOffer(n, &r.Offers[i])
	}
	n.setSeen(r.SeenBatch, time.Now())
	t.placeDirty = true
	return n.stale
}

func slotKeyOf(o *job.Offer) slotKey { return slotKey{poolKey{o.Kind, o.Key}, o.Worker} }

// receiveOffer sets the free capacity of a slot, which it creates if needed.
func (t *tenure) receiveOffer(n *node, o *job.Offer) {
	k := slotKeyOf(o)
	s := n.slots[k]
	if s == nil {
		if o.Free == 0 {
			return
		}
		p := t.pools[k.poolKey]
		if p == nil {
			p = &pool{key: k.poolKey}
			t.pools[k.poolKey] = p
			t.roundRobin = append(t.roundRobin, p)
		}
		s = &slot{node: n, pool: p, worker: o.Worker, channel: o.Channel()}
		n.slots[k] = s
		p.slots++
	}
	s.offered = o.Free
	s.requeue()
}

// updateMembership takes over the ledger's membership if it has changed.
func (t *tenure) updateMembership(l *ledger.Ledger) {
	membership := l.Membership()
	if membership.Revision == t.membershipRevision {
		return
	}
	t.membershipRevision, t.members = membership.Revision, membership.PresentNodes()
	t.listed = map[string]bool{}
	for i := range membership.Members {
		t.listed[membership.Members[i].Node] = true
	}
}

// removeNode drops a node that is silent and no longer in the membership.
func (t *tenure) removeNode(n *node) {
	if !n.silent || t.membershipRevision == 0 || t.listed[n.name] {
		return
	}
	for k := range n.slots {
		t.removeSlot(n, k)
	}
	delete(t.nodes, n.name)
}
