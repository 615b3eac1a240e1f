package scheduler

import (
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

// addUnseen adds a slot that has received its first placement which the node's offers do
// not count yet.
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

// capacity is what the members could run, by their heartbeats and offers. It belongs
// to the loop's goroutine.
type capacity struct {
	loop               *eventLoop
	members            []string        // names of the members that count, by the ledger's membership
	membershipRevision uint64          // of the membership that members and listed are from; 0: none yet
	listed             map[string]bool // every node in the membership, also joining and leaving ones
	nodes              map[string]*node
	pools              map[poolKey]*pool
	roundRobin         []*pool // all pools
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
		for k := range n.slots {
			c.removeSlot(n, k)
		}
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

// removeSlot removes a slot from its node and its pool, and the pool if it was its
// last slot.
func (c *capacity) removeSlot(n *node, k slotKey) {
	s := n.slots[k]
	if s == nil {
		return
	}
	delete(n.slots, k)
	s.removed = true
	if s.pool.slots--; s.pool.slots == 0 {
		delete(c.pools, s.pool.key)
		c.roundRobin = slices.DeleteFunc(c.roundRobin, func(p *pool) bool { return p == s.pool })
	}
}

// receiveOffers takes a report's offers. It reports whether the node must send all
// its offers: because a report was missed, or the offers turned out wrong.
func (c *capacity) receiveOffers(n *node, r *job.Report) (wantFull bool) {
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
		c.receiveOffer(n, &r.Offers[i])
	}
	n.setSeen(r.SeenBatch, time.Now())
	c.loop.placeDirty = true
	return n.stale
}

func slotKeyOf(o *job.Offer) slotKey { return slotKey{poolKey{o.Kind, o.Key}, o.Worker} }

// receiveOffer sets the free capacity of a slot, which it creates if needed.
func (c *capacity) receiveOffer(n *node, o *job.Offer) {
	k := slotKeyOf(o)
	s := n.slots[k]
	if s == nil {
		if o.Free == 0 {
			return
		}
		p := c.pools[k.poolKey]
		if p == nil {
			p = &pool{key: k.poolKey}
			c.pools[k.poolKey] = p
			c.roundRobin = append(c.roundRobin, p)
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

// sweep detects silent nodes and drops slots and nodes that are no longer needed.
func (c *capacity) sweep(now time.Time) {
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		n := c.nodes[name]
		c.setNodeState(n, now.Sub(n.heartbeatAt) > silenceTimeout, n.draining)
		c.sweepSlots(n, now)
		c.removeNode(n)
	}
}

// removeNode drops a node that is silent and no longer in the membership.
func (c *capacity) removeNode(n *node) {
	if !n.silent || c.membershipRevision == 0 || c.listed[n.name] {
		return
	}
	for k := range n.slots {
		c.removeSlot(n, k)
	}
	delete(c.nodes, n.name)
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

// runnerOwners returns, by RRQ runner, the members that are configured for it and whether
// one of them is not silent. unknown are the members that have not reported their
// runners yet.
func (c *capacity) runnerOwners() (owners map[string][]string, available map[string]bool, unknown []string) {
	owners, available = map[string][]string{}, map[string]bool{}
	for _, name := range c.members {
		n := c.nodes[name]
		if n == nil || n.runners == nil {
			unknown = append(unknown, name)
			continue
		}
		for r := range n.runners {
			owners[r] = append(owners[r], name)
			available[r] = available[r] || !n.silent
		}
	}
	return owners, available, unknown
}
