package scheduler

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"yardmaster/job"
)

// modelNode is a node as the rooms hear it: batches arrive in order, reports
// too, though some get lost.
type modelNode struct {
	name     string
	free     map[string]int // what its workers really have, by name
	running  map[string]int
	changed  map[string]bool
	rev      uint64
	seen     uint64
	full     bool
	inbox    []modelBatch
	reports  []job.Report // on their way
	overruns int
}

type modelBatch struct {
	number  uint64
	workers []string
}

type roomsModel struct {
	m     *mind
	nodes []*modelNode
	picks []*pick
	now   time.Time
}

var mailRoom = roomKey{job.Overhop, "mail"}

func newRoomsModel() *roomsModel {
	x := &roomsModel{m: &mind{epoch: 1, rooms: map[roomKey]*room{}, nodes: map[string]*node{}}, now: time.Now()}
	for i := range 2 {
		n := &modelNode{name: fmt.Sprint("n", i), free: map[string]int{}, running: map[string]int{}, changed: map[string]bool{}, full: true}
		x.nodes = append(x.nodes, n)
		x.m.setState(x.m.nodeOf(n.name, 1), false, false)
	}
	return x
}

func (x *roomsModel) reserve() bool {
	r := x.m.rooms[mailRoom]
	if r == nil {
		return false
	}
	s := r.reserve()
	if s == nil {
		return false
	}
	x.picks = append(x.picks, &pick{seat: s})
	return true
}

// commit ships some of the oldest reservations and takes the others back.
func (x *roomsModel) commit(keep func(int) bool) {
	batches := map[*node]*modelBatch{}
	for i, p := range x.picks {
		if !keep(i) {
			p.seat.cancel()
			continue
		}
		n := p.seat.node
		b := batches[n]
		if b == nil {
			n.batches++
			b = &modelBatch{number: n.batches}
			batches[n] = b
		}
		p.seat.ship(b.number, x.now)
		b.workers = append(b.workers, p.seat.worker)
	}
	x.picks = nil
	for n, b := range batches {
		for _, model := range x.nodes {
			if model.name == n.name {
				model.inbox = append(model.inbox, *b)
			}
		}
	}
}

func (n *modelNode) receive() {
	if len(n.inbox) == 0 {
		return
	}
	b := n.inbox[0]
	n.inbox = n.inbox[1:]
	n.seen = b.number
	for _, w := range b.workers {
		n.changed[w] = true
		if n.free[w] == 0 {
			n.overruns++
			continue
		}
		n.free[w]--
		n.running[w]++
	}
}

func (n *modelNode) report() {
	n.rev++
	r := job.Report{Node: n.name, Incarnation: 1, Rev: n.rev, Full: n.full, Seen: n.seen}
	for w, free := range n.free {
		if n.changed[w] || n.full && free > 0 {
			r.Offers = append(r.Offers, job.Offer{Kind: job.Overhop, Key: "mail", Worker: w, Free: free})
		}
	}
	n.full = false
	clear(n.changed)
	n.reports = append(n.reports, r)
}

func (x *roomsModel) hear(n *modelNode, lose bool) {
	if len(n.reports) == 0 {
		return
	}
	r := n.reports[0]
	n.reports = n.reports[1:]
	if lose {
		n.full = true // as it will hear from the next beat
		return
	}
	if x.m.hearOffers(x.m.nodes[n.name], &r) {
		n.full = true
	}
}

// consistent checks that every seat with room stands in line, once, and none
// has less than nothing.
func (x *roomsModel) consistent() error {
	lined := map[*seat]int{}
	for _, r := range x.m.rooms {
		for _, s := range r.ready {
			lined[s]++
			if !s.ready {
				return fmt.Errorf("seat %s stands in line and does not know", s.worker)
			}
		}
	}
	for _, n := range x.m.nodes {
		for _, s := range n.seats {
			switch {
			case lined[s] > 1, s.ready != (lined[s] == 1):
				return fmt.Errorf("seat %s stands in line %d times, ready %v", s.worker, lined[s], s.ready)
			case s.free() > 0 && lined[s] == 0:
				return fmt.Errorf("seat %s has room for %d and does not stand in line", s.worker, s.free())
			case s.reserved < 0:
				return fmt.Errorf("seat %s has %d reservations", s.worker, s.reserved)
			}
		}
	}
	return nil
}

// TestRooms_NeverOvercommittedNorLeaked: whatever is delayed and lost, a
// worker that only ever gains room by finishing gets no assignment beyond it,
// and when all is quiet the authority knows all the room there is.
func TestRooms_NeverOvercommittedNorLeaked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newRoomsModel()
		node := func() *modelNode { return rapid.SampledFrom(x.nodes).Draw(t, "node") }
		worker := rapid.SampledFrom([]string{"w1", "w2", "w3"})
		t.Repeat(map[string]func(*rapid.T){
			"credit": func(t *rapid.T) {
				n, w := node(), worker.Draw(t, "worker")
				n.free[w] += rapid.IntRange(1, 3).Draw(t, "credits")
				n.changed[w] = true
			},
			"finish": func(t *rapid.T) {
				n, w := node(), worker.Draw(t, "worker")
				if n.running[w] > 0 {
					n.running[w]--
					n.free[w]++
					n.changed[w] = true
				}
			},
			"reserve": func(t *rapid.T) { x.reserve() },
			"commit":  func(t *rapid.T) { x.commit(func(int) bool { return rapid.Bool().Draw(t, "holds") }) },
			"receive": func(t *rapid.T) { node().receive() },
			"report":  func(t *rapid.T) { node().report() },
			"hear":    func(t *rapid.T) { x.hear(node(), rapid.IntRange(0, 4).Draw(t, "lost") == 0) },
			"state": func(t *rapid.T) {
				x.m.setState(x.m.nodes[node().name], rapid.Bool().Draw(t, "silent"), rapid.Bool().Draw(t, "draining"))
			},
			"": func(t *rapid.T) {
				if err := x.consistent(); err != nil {
					t.Fatal(err)
				}
				for _, n := range x.nodes {
					if n.overruns > 0 {
						t.Fatalf("%s got an assignment beyond its room", n.name)
					}
				}
			},
		})
		x.quiet()
		if err := x.consistent(); err != nil {
			t.Fatal(err)
		}
		for _, n := range x.nodes {
			for w, free := range n.free {
				known := 0
				if s := x.m.nodes[n.name].seats[seatKey{mailRoom, w}]; s != nil {
					known = s.free()
				}
				if known != free {
					t.Fatalf("%s of %s has room for %d, the authority knows %d", w, n.name, free, known)
				}
			}
		}
	})
}

// quiet lets everything on its way arrive.
func (x *roomsModel) quiet() {
	x.commit(func(int) bool { return true })
	for _, n := range x.nodes {
		x.m.setState(x.m.nodes[n.name], false, false)
		for len(n.inbox) > 0 {
			n.receive()
		}
		for range 3 {
			n.report()
			for len(n.reports) > 0 {
				x.hear(n, false)
			}
		}
	}
}

func TestRooms_MissedOffersAreAskedFor(t *testing.T) {
	x := newRoomsModel()
	n := x.m.nodes["n0"]
	offer := func(free int) []job.Offer {
		return []job.Offer{{Kind: job.Overhop, Key: "mail", Worker: "w", Free: free}}
	}
	tests := []struct {
		name     string
		report   job.Report
		wantFull bool
		free     int
	}{
		{"first", job.Report{Rev: 1, Offers: offer(2)}, false, 2},
		{"no offers in it", job.Report{}, false, 2},
		{"one missed", job.Report{Rev: 3, Offers: offer(9)}, true, 2},
		{"all of them", job.Report{Rev: 4, Full: true, Offers: offer(3)}, false, 3},
		{"an old one", job.Report{Rev: 2, Offers: offer(7)}, false, 3},
		{"the same again", job.Report{Rev: 4, Full: true, Offers: offer(7)}, false, 3},
		{"withdrawn", job.Report{Rev: 5, Offers: offer(0)}, false, 0},
		{"told again", job.Report{Rev: 6, Offers: offer(1)}, false, 1},
		{"left out of all", job.Report{Rev: 8, Full: true}, false, 0},
	}
	for _, test := range tests {
		if got := x.m.hearOffers(n, &test.report); got != test.wantFull {
			t.Errorf("%s: wants all: %v", test.name, got)
		}
		free := 0
		if s := n.seats[seatKey{mailRoom, "w"}]; s != nil {
			free = s.free()
		}
		if free != test.free {
			t.Errorf("%s: room for %d, want %d", test.name, free, test.free)
		}
	}
}

// A node that took a batch and never says what room that left is asked.
func TestRooms_UnseenBatchIsAskedAfter(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.refuse = job.BodyLost; n.curt = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		for range 3 { // each ends without a change of the worker's room
			id := y.enqueue("mail", "", anyJob)
			y.until("it is dead", func() bool { return y.state(id) == job.Failed })
		}
	})
}

func TestRooms_SeatsTakeTurns(t *testing.T) {
	x := newRoomsModel()
	n := x.nodes[0]
	for _, w := range []string{"w1", "w2", "w3"} {
		n.free[w] = 4
	}
	n.report()
	x.hear(n, false)
	got := map[string]int{}
	for range 6 {
		got[x.m.rooms[mailRoom].reserve().worker]++
	}
	if got["w1"] != 2 || got["w2"] != 2 || got["w3"] != 2 {
		t.Errorf("placements by worker: %v", got)
	}
}

func TestRooms_EmptySeatsAreForgotten(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		for i := range 50 {
			n.offer(job.Overhop, "mail", fmt.Sprint("w", i), 1)
		}
		for i := range 50 {
			n.offer(job.Overhop, "mail", fmt.Sprint("w", i), 0)
		}
		y.pass(emptySeatFor + 2*time.Second)
		look, err := y.sched.Look(y.ctx)
		if err != nil || look.Nodes[0].Offers != 0 {
			t.Errorf("look %+v, error %v", look, err)
		}
	})
}
