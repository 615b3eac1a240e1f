package scheduler

import (
	"time"

	"yardmaster/job"
)

// room is all seats of hands that are alike.
type room struct {
	key   roomKey
	seats []*seat
	at    int // where the next look for a free seat begins, so that all get work
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
	emptySince time.Time // see sweepSeats
}

type sentBatch struct {
	number uint64
	count  int
}

// free is how many more jobs the seat takes.
func (s *seat) free() int {
	if s.node.silent || s.node.draining {
		return 0
	}
	free := s.told - s.reserved
	for _, b := range s.sent {
		if b.number > s.node.seen {
			free -= b.count
		}
	}
	return max(free, 0)
}

// settleSent forgets the batches that the node has seen.
func (s *seat) settleSent() {
	keep := s.sent[:0]
	for _, b := range s.sent {
		if b.number > s.node.seen {
			keep = append(keep, b)
		}
	}
	s.sent = keep
}

// ship turns a reservation into a sent placement.
func (s *seat) ship(batch uint64) {
	s.reserved--
	if n := len(s.sent); n > 0 && s.sent[n-1].number == batch {
		s.sent[n-1].count++
		return
	}
	s.settleSent()
	s.sent = append(s.sent, sentBatch{batch, 1})
}

func (r *room) free() int {
	free := 0
	for _, s := range r.seats {
		free += s.free()
		if free > 0 {
			return free
		}
	}
	return 0
}

// next gives the next seat in turn that takes a job, nil if there is none.
func (r *room) next() *seat {
	for range r.seats {
		if r.at >= len(r.seats) {
			r.at = 0
		}
		s := r.seats[r.at]
		r.at++
		if s.free() > 0 {
			return s
		}
	}
	return nil
}

// node is a member as this tenure has heard of it.
type node struct {
	name        string
	incarnation uint64
	born        time.Time // when this incarnation was first heard of
	beatAt      time.Time // when its last beat was answered
	rev         uint64    // of its last report with offers
	seen        uint64    // batches its offers take into account
	batches     uint64    // sent to it
	seats       map[seatKey]*seat
	runners     map[string]bool
	silent      bool // its beats stopped; nothing is placed there
	draining    bool
}

type seatKey struct {
	roomKey
	worker string
}

// nodeOf finds a node, and starts afresh with one that was born again.
func (m *mind) nodeOf(name string, incarnation uint64) *node {
	n := m.nodes[name]
	if n == nil {
		n = &node{name: name, seats: map[seatKey]*seat{}, silent: true}
		m.nodes[name] = n
	}
	if incarnation > n.incarnation {
		m.emptyNode(n)
		n.incarnation, n.born = incarnation, time.Now()
		n.rev, n.seen, n.runners = 0, 0, nil
	}
	return n
}

// emptyNode takes a node's seats out of their rooms.
func (m *mind) emptyNode(n *node) {
	for k := range n.seats {
		m.removeSeat(n, k)
	}
}

func (m *mind) removeSeat(n *node, k seatKey) {
	s := n.seats[k]
	if s == nil {
		return
	}
	delete(n.seats, k)
	s.told = 0
	seats := s.room.seats
	for i := range seats {
		if seats[i] == s {
			seats[i] = seats[len(seats)-1]
			s.room.seats = seats[:len(seats)-1]
			break
		}
	}
	if len(s.room.seats) == 0 {
		delete(m.rooms, s.room.key)
	}
}

// hearOffers takes a report's offers. It reports whether the node must send
// all of them because some were missed.
func (m *mind) hearOffers(n *node, r *job.Report) (wantFull bool) {
	if r.Rev == 0 || r.Rev <= n.rev {
		return false
	}
	if r.Rev != n.rev+1 && !r.Full {
		return true
	}
	n.rev, n.seen = r.Rev, max(n.seen, r.Seen)
	if r.Full {
		told := make(map[seatKey]bool, len(r.Offers))
		for _, o := range r.Offers {
			told[keyOf(&o)] = true
		}
		for k := range n.seats {
			if !told[k] {
				m.removeSeat(n, k)
			}
		}
	}
	for i := range r.Offers {
		m.hearOffer(n, &r.Offers[i])
	}
	m.dirty = true
	return false
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
		}
		s = &seat{node: n, room: r, worker: o.Worker, channel: o.Channel()}
		n.seats[k] = s
		r.seats = append(r.seats, s)
	}
	s.told = o.Free
}
