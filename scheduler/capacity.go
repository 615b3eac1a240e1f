package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

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

// setSeen records that the node had received all batches of assignments up to seenBatch
// when it made its offers. The offers take the placements in those batches into account,
// so the slots no longer subtract them.
func (n *node) setSeen(seenBatch uint64, now time.Time) {
	if seenBatch <= n.seenBatch {
		return
	}
	n.seenBatch, n.unseenSince = seenBatch, now
	for _, s := range n.unseen {
		s.sentBatches = slices.DeleteFunc(s.sentBatches, func(b sentBatch) bool { return b.number <= seenBatch })
		s.requeue()
	}
	n.unseen = slices.DeleteFunc(n.unseen, func(s *slot) bool { return len(s.sentBatches) == 0 })
}

// needsFull reports whether the node should send all its offers: because it refused
// an assignment that its offers allowed, or has not offered its remaining capacity
// within unseenTimeout after a batch.
func (n *node) needsFull(now time.Time) bool {
	return n.stale || len(n.unseen) > 0 && now.Sub(n.unseenSince) > unseenTimeout
}

// capacity is what the members could run, by their heartbeats and offers. It belongs
// to the loop's goroutine.
type capacity struct {
	loop               *eventLoop
	members            []string        // names of the members that count, by the ledger's membership
	membershipRevision uint64          // of the membership that members and listed are from; 0: none yet
	listed             map[string]bool // every node in the membership, also joining and leaving ones
	nodes              map[string]*node
	pools              map[poolKey]*pool
	runners            []*pool // the pools of runners; see placer.place
	workers            []*pool // the pools of workers that are listed, see pool.list; served in turn
}

func newCapacity(loop *eventLoop, members []string) *capacity {
	return &capacity{loop: loop, members: members, nodes: map[string]*node{}, pools: map[poolKey]*pool{}}
}

// batchesPerEntry is the number of bits by which the epoch is shifted to give a
// tenure's first batch number. Batch numbers so grow over epochs, and a node's
// SeenBatch of an earlier epoch is below all batches of this one: epochs are log
// indexes, and an entry causes fewer than 1<<batchesPerEntry batches.
const batchesPerEntry = 16

// nodeOf returns the state of a node, which it creates if needed and resets if the
// incarnation is a new one.
func (c *capacity) nodeOf(name string, incarnation uint64) *node {
	n := c.nodes[name]
	if n == nil {
		n = &node{name: name, slots: map[slotKey]*slot{}, silent: true, lastBatch: c.loop.epoch << batchesPerEntry}
		c.nodes[name] = n
	}
	if incarnation > n.incarnation {
		c.removeSlots(n)
		n.incarnation, n.startedAt = incarnation, time.Now()
		n.rev, n.seenBatch, n.unseen, n.runners = 0, 0, nil, nil
		n.silent, n.draining, n.stale = true, false, false // until its first heartbeat
	}
	return n
}

// setNodeState sets whether a node is silent and whether it is draining. If it has
// become available, its slots are requeued.
func (c *capacity) setNodeState(n *node, silent, draining bool) {
	wasUnavailable := n.silent || n.draining
	n.silent, n.draining = silent, draining
	if wasUnavailable && !silent && !draining {
		for _, k := range slices.SortedFunc(maps.Keys(n.slots), slotKey.compare) {
			n.slots[k].requeue()
		}
		c.loop.placeDirty = true
	}
}

// removeSlots removes all slots of a node.
func (c *capacity) removeSlots(n *node) {
	for k := range n.slots {
		c.removeSlot(n, k)
	}
}

// removeSlot removes a slot from its node and its pool, and the pool if it was its
// last slot.
func (c *capacity) removeSlot(n *node, k slotKey) {
	s := n.slots[k]
	delete(n.slots, k)
	s.removed = true
	if s.pool.slots--; s.pool.slots == 0 {
		delete(c.pools, s.pool.key)
		isPool := func(p *pool) bool { return p == s.pool }
		c.runners = slices.DeleteFunc(c.runners, isPool)
		if s.pool.listed {
			c.workers = slices.DeleteFunc(c.workers, isPool)
		}
	}
}

// receiveOffers takes a report's offers. It reports whether the node must send all
// its offers: because a report was missed, or the offers turned out wrong.
func (c *capacity) receiveOffers(n *node, r *job.Report) (wantFull bool) {
	if r.Rev == 0 || r.Rev <= n.rev { // the report has no offers, or was received before
		return n.stale
	}
	if r.Rev != n.rev+1 && !r.Full { // the offers are changes to those of a missed report
		return true
	}
	n.rev = r.Rev
	if r.Full {
		n.stale = false
		for _, s := range n.slots {
			s.offered = 0 // unless the report lists it
		}
	}
	for i := range r.Offers {
		c.receiveOffer(n, &r.Offers[i])
	}
	n.setSeen(r.SeenBatch, time.Now())
	c.loop.placeDirty = true
	return n.stale
}

// receiveOffer sets the free capacity of a slot, which it creates if needed.
func (c *capacity) receiveOffer(n *node, o *job.Offer) {
	k := slotKey{poolKey{o.Kind, o.Key}, o.Worker}
	s := n.slots[k]
	if s == nil {
		if o.Free == 0 {
			return
		}
		p := c.pools[k.poolKey]
		if p == nil {
			p = &pool{key: k.poolKey, capacity: c}
			c.pools[k.poolKey] = p
			if k.kind == job.RRQ {
				c.runners = append(c.runners, p)
			}
		}
		s = &slot{node: n, pool: p, worker: o.Worker, channel: o.Channel()}
		n.slots[k] = s
		p.slots++
	}
	s.offered = o.Free
	s.requeue()
}

// updateMembership reads the members from the ledger if its membership has changed.
func (c *capacity) updateMembership(l *ledger.Ledger) {
	membership := l.Membership()
	if membership.Revision == c.membershipRevision {
		return
	}
	c.membershipRevision, c.members = membership.Revision, membership.PresentNodes()
	c.listed = map[string]bool{}
	for i := range membership.Members {
		c.listed[membership.Members[i].Node] = true
	}
}

// sweep detects silent nodes. It drops the slots that have had no capacity for
// emptySlotTTL, and the silent nodes that are no longer in the membership.
func (c *capacity) sweep(now time.Time) {
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		n := c.nodes[name]
		c.setNodeState(n, now.Sub(n.heartbeatAt) > silenceTimeout, n.draining)
		c.sweepSlots(n, now)
		if n.silent && c.membershipRevision != 0 && !c.listed[n.name] {
			c.removeSlots(n)
			delete(c.nodes, n.name)
		}
	}
}

// markFull sets a worker's offer to zero, after its node has refused an assignment in a
// batch, and has the node send all offers again. It does nothing if the node's offers
// already take that batch into account.
func (c *capacity) markFull(n *node, k slotKey, batch uint64) {
	s := n.slots[k]
	if s == nil || n.seenBatch >= batch {
		return
	}
	s.offered = 0
	n.stale = true
}

// otherEdges returns the edge addresses of the other available nodes, to which a node
// may redirect its clients when it stops.
func (c *capacity) otherEdges(n *node) (edges []string) {
	for _, other := range c.nodes {
		if other != n && other.edge != "" && !other.silent && !other.draining {
			edges = append(edges, other.edge)
		}
	}
	slices.Sort(edges)
	return edges
}

// sweepSlots removes a node's slots that have had no capacity for emptySlotTTL.
func (c *capacity) sweepSlots(n *node, now time.Time) {
	for k, s := range n.slots {
		switch {
		case s.offered > 0 || s.reserved > 0 || len(s.sentBatches) > 0:
			s.emptySince = time.Time{}
		case s.emptySince.IsZero():
			s.emptySince = now
		case now.Sub(s.emptySince) > emptySlotTTL:
			c.removeSlot(n, k)
		}
	}
}

// lacksQuorum reports whether at most half of the members send heartbeats.
func (c *capacity) lacksQuorum() bool {
	live := 0
	for _, name := range c.members {
		if n := c.nodes[name]; n != nil && !n.silent {
			live++
		}
	}
	return live <= len(c.members)/2
}

// runnerOwners returns, by the name of an RRQ runner, the members that are configured for
// it and whether one of them sends heartbeats. unreported are the members that have not
// reported their runners yet.
func (c *capacity) runnerOwners() (owners map[string][]string, available map[string]bool, unreported []string) {
	owners, available = map[string][]string{}, map[string]bool{}
	for _, member := range c.members {
		n := c.nodes[member]
		if n == nil || n.runners == nil {
			unreported = append(unreported, member)
			continue
		}
		for runner := range n.runners {
			owners[runner] = append(owners[runner], member)
			available[runner] = available[runner] || !n.silent
		}
	}
	return owners, available, unreported
}

// pool holds the slots of all workers that can run the same jobs. Only slots that
// may have free capacity are in ready, so finding one takes constant time however
// many are busy.
type pool struct {
	key      poolKey
	capacity *capacity
	slots    int     // number of slots, ready or not
	ready    []*slot // served in turn, so that all get work
	listed   bool    // is in capacity.workers
}

// list appends a pool of workers to capacity.workers if one of its slots is ready. It must
// be called whenever that may have become so.
func (p *pool) list() {
	if p.key.kind == job.Overhop && !p.listed && len(p.ready) > 0 {
		p.listed = true
		p.capacity.workers = append(p.capacity.workers, p)
	}
}

// listLast moves a pool of workers to the end of the list, if it is listed.
func (p *pool) listLast() {
	c := p.capacity
	if i := slices.Index(c.workers, p); i >= 0 {
		c.workers = append(slices.Delete(c.workers, i, i+1), p)
	}
}

// popWorkers removes the first pool from the list of the pools of workers, and returns it.
func (c *capacity) popWorkers() *pool {
	p := c.workers[0]
	c.workers[0] = nil
	c.workers = c.workers[1:]
	p.listed = false
	return p
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
		s.pool.list()
	}
}

// unreserve releases a reservation.
func (s *slot) unreserve() {
	s.reserved--
	s.requeue()
}

// markSent turns a reservation of the slot into a placement that is sent with a batch. The
// placement takes up capacity of the slot until the node's offers show it, see setSeen.
func (s *slot) markSent(batch uint64, now time.Time) {
	s.reserved--
	last := len(s.sentBatches) - 1
	if last >= 0 && s.sentBatches[last].number == batch {
		s.sentBatches[last].count++
		return
	}
	if last < 0 { // the slot had no unseen placements
		n := s.node
		if len(n.unseen) == 0 {
			n.unseenSince = now
		}
		n.unseen = append(n.unseen, s)
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
