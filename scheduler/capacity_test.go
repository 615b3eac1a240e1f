package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// modelNode models a node: batches and reports arrive in order, though some reports
// get lost.
type modelNode struct {
	name     string
	free     map[string]int // real free capacity of its workers, by name
	running  map[string]int
	changed  map[string]bool
	rev      uint64
	seen     uint64
	full     bool
	inbox    []modelBatch
	reports  []job.Report // in flight
	overruns int
}

type modelBatch struct {
	number  uint64
	workers []string
}

type capacityModel struct {
	c     *capacity
	nodes []*modelNode
	picks []*placement
	now   time.Time
}

var mailPool = poolKey{job.Overhop, "mail"}

func newCapacityModel() *capacityModel {
	m := &capacityModel{c: newCapacity(&eventLoop{epoch: 1}, nil), now: time.Now()}
	for i := range 2 {
		n := &modelNode{name: fmt.Sprint("n", i), free: map[string]int{}, running: map[string]int{}, changed: map[string]bool{}, full: true}
		m.nodes = append(m.nodes, n)
		m.c.setNodeState(m.c.nodeOf(n.name, 1), false, false)
	}
	return m
}

func (m *capacityModel) reserve() bool {
	p := m.c.pools[mailPool]
	if p == nil {
		return false
	}
	s := p.reserve()
	if s == nil {
		return false
	}
	m.picks = append(m.picks, &placement{slot: s})
	return true
}

// commit sends some of the oldest reservations and releases the others.
func (m *capacityModel) commit(keep func(int) bool) {
	batches := map[*node]*modelBatch{}
	for i, p := range m.picks {
		if !keep(i) {
			p.slot.unreserve()
			continue
		}
		n := p.slot.node
		b := batches[n]
		if b == nil {
			n.lastBatch++
			b = &modelBatch{number: n.lastBatch}
			batches[n] = b
		}
		p.slot.markSent(b.number, m.now)
		b.workers = append(b.workers, p.slot.worker)
	}
	m.picks = nil
	for n, b := range batches {
		for _, model := range m.nodes {
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
	r := job.Report{Node: n.name, Incarnation: 1, Rev: n.rev, Full: n.full, SeenBatch: n.seen}
	for w, free := range n.free {
		if n.changed[w] || n.full && free > 0 {
			r.Offers = append(r.Offers, job.Offer{Kind: job.Overhop, Key: "mail", Worker: w, Free: free})
		}
	}
	n.full = false
	clear(n.changed)
	n.reports = append(n.reports, r)
}

func (m *capacityModel) receive(n *modelNode, lose bool) {
	if len(n.reports) == 0 {
		return
	}
	r := n.reports[0]
	n.reports = n.reports[1:]
	if lose {
		n.full = true // as the next heartbeat will request
		return
	}
	if m.c.receiveOffers(m.c.nodes[n.name], &r) {
		n.full = true
	}
}

// consistent checks that every slot with free capacity is in its pool's ready list
// once, and that no count is negative.
func (m *capacityModel) consistent() error {
	queued := map[*slot]int{}
	for _, p := range m.c.pools {
		for _, s := range p.ready {
			queued[s]++
			if !s.ready {
				return fmt.Errorf("slot %s is in the ready list and not marked ready", s.worker)
			}
		}
		if listed := slices.Contains(m.c.workers, p); listed != p.listed || !listed && len(p.ready) > 0 {
			return fmt.Errorf("pool %s has %d ready slots; listed %t, marked %t", p.key.key, len(p.ready), listed, p.listed)
		}
	}
	for _, n := range m.c.nodes {
		for _, s := range n.slots {
			switch {
			case queued[s] > 1, s.ready != (queued[s] == 1):
				return fmt.Errorf("slot %s is in the ready list %d times, ready %v", s.worker, queued[s], s.ready)
			case s.available() > 0 && queued[s] == 0:
				return fmt.Errorf("slot %s has capacity %d and is not in the ready list", s.worker, s.available())
			case s.reserved < 0:
				return fmt.Errorf("slot %s has %d reservations", s.worker, s.reserved)
			}
		}
	}
	return nil
}

// TestCapacity_NeverOvercommittedNorLeaked checks, with messages delayed and
// lost, that a worker whose capacity only grows by finishing jobs never gets
// an assignment beyond it, and that in the end the authority knows the whole
// capacity.
func TestCapacity_NeverOvercommittedNorLeaked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newCapacityModel()
		node := func() *modelNode { return rapid.SampledFrom(m.nodes).Draw(t, "node") }
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
			"reserve": func(t *rapid.T) { m.reserve() },
			"commit":  func(t *rapid.T) { m.commit(func(int) bool { return rapid.Bool().Draw(t, "holds") }) },
			"receive": func(t *rapid.T) { node().receive() },
			"report":  func(t *rapid.T) { node().report() },
			"hear":    func(t *rapid.T) { m.receive(node(), rapid.IntRange(0, 4).Draw(t, "lost") == 0) },
			"state": func(t *rapid.T) {
				m.c.setNodeState(m.c.nodes[node().name], rapid.Bool().Draw(t, "silent"), rapid.Bool().Draw(t, "draining"))
			},
			"": func(t *rapid.T) {
				if err := m.consistent(); err != nil {
					t.Fatal(err)
				}
				for _, n := range m.nodes {
					if n.overruns > 0 {
						t.Fatalf("%s got an assignment beyond its capacity", n.name)
					}
				}
			},
		})
		m.settle()
		if err := m.consistent(); err != nil {
			t.Fatal(err)
		}
		for _, n := range m.nodes {
			for w, free := range n.free {
				known := 0
				if s := m.c.nodes[n.name].slots[slotKey{mailPool, w}]; s != nil {
					known = s.available()
				}
				if known != free {
					t.Fatalf("%s of %s has capacity %d, the authority counts %d", w, n.name, free, known)
				}
			}
		}
	})
}

// settle delivers everything in flight.
func (m *capacityModel) settle() {
	m.commit(func(int) bool { return true })
	for _, n := range m.nodes {
		m.c.setNodeState(m.c.nodes[n.name], false, false)
		for len(n.inbox) > 0 {
			n.receive()
		}
		for range 3 {
			n.report()
			for len(n.reports) > 0 {
				m.receive(n, false)
			}
		}
	}
}

func TestCapacity_RequestsMissedOffers(t *testing.T) {
	m := newCapacityModel()
	n := m.c.nodes["n0"]
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
		{"reported again", job.Report{Rev: 6, Offers: offer(1)}, false, 1},
		{"left out of all", job.Report{Rev: 8, Full: true}, false, 0},
	}
	for _, test := range tests {
		if got := m.c.receiveOffers(n, &test.report); got != test.wantFull {
			t.Errorf("%s: wants all offers: %v", test.name, got)
		}
		free := 0
		if s := n.slots[slotKey{mailPool, "w"}]; s != nil {
			free = s.available()
		}
		if free != test.free {
			t.Errorf("%s: capacity %d, want %d", test.name, free, test.free)
		}
	}
}

// TestCapacity_RequestsOffersAfterUnseenBatch checks that a node which took a
// batch and never offers its remaining capacity is asked for its offers.
func TestCapacity_RequestsOffersAfterUnseenBatch(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.refuse = job.BodyLost; n.noFullReports = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		for range 3 { // each ends without a change of the worker's capacity
			id := h.enqueue("mail", "", anyJob)
			h.until("it is dead", func() bool { return h.state(id) == job.Failed })
		}
	})
}

func TestCapacity_RoundRobin(t *testing.T) {
	m := newCapacityModel()
	n := m.nodes[0]
	for _, w := range []string{"w1", "w2", "w3"} {
		n.free[w] = 4
	}
	n.report()
	m.receive(n, false)
	got := map[string]int{}
	for range 6 {
		got[m.c.pools[mailPool].reserve().worker]++
	}
	if got["w1"] != 2 || got["w2"] != 2 || got["w3"] != 2 {
		t.Errorf("placements by worker: %v", got)
	}
}

func TestCapacity_ForgetsEmptySlots(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		for i := range 50 {
			n.offer(job.Overhop, "mail", fmt.Sprint("w", i), 1)
		}
		for i := range 50 {
			n.offer(job.Overhop, "mail", fmt.Sprint("w", i), 0)
		}
		h.advance(emptySlotTTL + 2*time.Second)
		status, err := h.sched.Status(h.ctx)
		if err != nil || status.Nodes[0].Offers != 0 {
			t.Errorf("status %+v, error %v", status, err)
		}
	})
}
