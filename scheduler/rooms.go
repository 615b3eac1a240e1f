package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// room is all seats of hands that are alike. Only seats that may have room
// stand in ready, so that finding one costs nothing however many are busy.
type room struct {
	key   roomKey
	seats int     // how many there are, ready or not
	ready []*seat // in turn, so that all get work
}

// seat is one worker's room for one key, as its node last told, less what was
// placed there since.
type seat struct {
	node    *node
	room    *room
	worker  string
	channel string
	told    int // free, as the node said
	// What the node had not yet seen when it said so: placements not yet
	// sent, and those sent by the number of their batch.
	reserved   int
	sent       []sentBatch
	ready      bool      // stands in room.ready
	gone       bool      // taken out of its room
	emptySince time.Time // see sweepSeats
}

type sentBatch struct {
	number uint64
	count  int
}

// free is how many more jobs the seat takes.
func (s *seat) free() int {
	if s.gone || s.node.silent || s.node.draining {
		return 0
	}
	free := s.told - s.reserved
	for _, b := range s.sent {
		free -= b.count
	}
	return max(free, 0)
}

// freed stands the seat in line again if it has room. It must be called after
// whatever may have made some.
func (s *seat) freed() {
	if !s.ready && s.free() > 0 {
		s.ready = true
		s.room.ready = append(s.room.ready, s)
	}
}

// cancel gives a reservation back.
func (s *seat) cancel() {
	s.reserved--
	s.freed()
}

// ship turns a reservation into a sent placement.
func (s *seat) ship(batch uint64, now time.Time) {
	s.reserved--
	last := len(s.sent) - 1
	if last >= 0 && s.sent[last].number == batch {
		s.sent[last].count++
		return
	}
	if last < 0 {
		s.node.expect(s, now)
	}
	s.sent = append(s.sent, sentBatch{batch, 1})
}

// free tells whether any seat takes a job.
func (r *room) free() bool {
	for len(r.ready) > 0 {
		if r.ready[0].free() > 0 {
			return true
		}
		r.pop()
	}
	return false
}

// reserve takes room at the next seat in turn; nil if there is none.
func (r *room) reserve() *seat {
	if !r.free() {
		return nil
	}
	s := r.pop()
	s.reserved++
	s.freed() // behind the others
	return s
}

func (r *room) pop() *seat {
	s := r.ready[0]
	r.ready[0] = nil
	r.ready = r.ready[1:]
	s.ready = false
	return s
}

// node is a member as this tenure has heard of it.
type node struct {
	name        string
	incarnation uint64
	born        time.Time // when this incarnation was first heard of
	beatAt      time.Time // when its last beat was answered
	clocks      clocks    // what its wall clock shows
	rev         uint64    // of its last report with offers
	seen        uint64    // batches its offers take into account
	batches     uint64    // number of the last one sent to it
	seats       map[seatKey]*seat
	unseen      []*seat         // with placements in batches above seen
	unseenSince time.Time       // how long unseen has not shrunk
	runners     map[string]bool // nil: not told yet
	silent      bool            // its beats stopped; nothing is placed there
	draining    bool
	edge        string // where clients reach it; "": not told
	doubted     bool   // its room is not what it told: it must tell all of it
}

type seatKey struct {
	roomKey
	worker string
}

func (k seatKey) compare(o seatKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.key, o.key), cmp.Compare(k.worker, o.worker))
}

// expect remembers that the node has still to see what was sent to a seat.
func (n *node) expect(s *seat, now time.Time) {
	if len(n.unseen) == 0 {
		n.unseenSince = now
	}
	n.unseen = append(n.unseen, s)
}

// hasSeen forgets what was sent in batches that the node's offers take into
// account.
func (n *node) hasSeen(batch uint64, now time.Time) {
	if batch <= n.seen {
		return
	}
	n.seen, n.unseenSince = batch, now
	unseen := n.unseen[:0]
	for _, s := range n.unseen {
		sent := s.sent[:0]
		for _, b := range s.sent {
			if b.number > batch {
				sent = append(sent, b)
			}
		}
		if s.sent = sent; len(sent) > 0 {
			unseen = append(unseen, s)
		}
		s.freed()
	}
	clear(n.unseen[len(unseen):])
	n.unseen = unseen
}

// wantsFull tells that the node should tell all its room: what it said and
// what it did differ, or it took a batch and never said what room that left.
func (n *node) wantsFull(now time.Time) bool {
	return n.doubted || len(n.unseen) > 0 && now.Sub(n.unseenSince) > unseenFor
}

// batchesPerEntry makes the numbers of batches grow over epochs, so that what a
// node has seen of an earlier one is not taken for something of this. Epochs
// grow with the log, and an entry causes fewer batches than 2 to this power.
const batchesPerEntry = 16

// nodeOf finds a node, and starts afresh with one that was born again.
func (m *mind) nodeOf(name string, incarnation uint64) *node {
	n := m.nodes[name]
	if n == nil {
		n = &node{name: name, seats: map[seatKey]*seat{}, silent: true, batches: m.epoch << batchesPerEntry}
		m.nodes[name] = n
	}
	if incarnation > n.incarnation {
		for k := range n.seats {
			m.removeSeat(n, k)
		}
		n.incarnation, n.born = incarnation, time.Now()
		n.rev, n.seen, n.unseen, n.runners = 0, 0, nil, nil
		n.silent, n.draining, n.doubted = true, false, false // until its first beat
	}
	return n
}

// setState hears whether a node is there and takes work.
func (m *mind) setState(n *node, silent, draining bool) {
	was := n.silent || n.draining
	n.silent, n.draining = silent, draining
	if was && !silent && !draining {
		for _, k := range slices.SortedFunc(maps.Keys(n.seats), seatKey.compare) {
			n.seats[k].freed()
		}
		m.dirty = true
	}
}

func (m *mind) removeSeat(n *node, k seatKey) {
	s := n.seats[k]
	if s == nil {
		return
	}
	delete(n.seats, k)
	s.gone = true
	if s.room.seats--; s.room.seats == 0 {
		delete(m.rooms, s.room.key)
		m.turns = slices.DeleteFunc(m.turns, func(r *room) bool { return r == s.room })
	}
}

// hearOffers takes a report's offers. It reports whether the node must send
// all of them because some were missed.
func (m *mind) hearOffers(n *node, r *job.Report) (wantFull bool) {
	if r.Rev == 0 || r.Rev <= n.rev {
		return n.doubted
	}
	if r.Rev != n.rev+1 && !r.Full {
		return true
	}
	n.rev = r.Rev
	if r.Full {
		n.doubted = false
		told := make(map[seatKey]bool, len(r.Offers))
		for _, o := range r.Offers {
			told[keyOf(&o)] = true
		}
		for k, s := range n.seats {
			if !told[k] {
				s.told = 0
			}
		}
	}
	for i := range r.Offers {
		m.hearOffer(n, &r.Offers[i])
	}
	n.hasSeen(r.Seen, time.Now())
	m.dirty = true
	return n.doubted
}

func keyOf(o *job.Offer) seatKey { return seatKey{roomKey{o.Kind, o.Key}, o.Worker} }

func (m *mind) hearOffer(n *node, o *job.Offer) {
	k := keyOf(o)
	s := n.seats[k]
	if s == nil {
		if o.Free == 0 {
			return
		}
		r := m.rooms[k.roomKey]
		if r == nil {
			r = &room{key: k.roomKey}
			m.rooms[k.roomKey] = r
			m.turns = append(m.turns, r)
		}
		s = &seat{node: n, room: r, worker: o.Worker, channel: o.Channel()}
		n.seats[k] = s
		r.seats++
	}
	s.told = o.Free
	s.freed()
}

// heedRoll goes by the ledger's roll.
func (m *mind) heedRoll(l *ledger.Ledger) {
	roll := l.Roll()
	if roll.Revision == m.roll {
		return
	}
	m.roll, m.members = roll.Revision, roll.Present()
	m.seated = map[string]bool{}
	for i := range roll.Members {
		m.seated[roll.Members[i].Node] = true
	}
}

// forgetNode forgets a node that is silent and no member any more.
func (m *mind) forgetNode(n *node) {
	if !n.silent || m.roll == 0 || m.seated[n.name] {
		return
	}
	for k := range n.seats {
		m.removeSeat(n, k)
	}
	delete(m.nodes, n.name)
}
