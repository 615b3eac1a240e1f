package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// placeFixture is a placer without a tenure, on a ledger with waiting jobs.
type placeFixture struct {
	*placer
	raft *fakeRaft
	seq  uint64
}

func newPlaceFixture(t testing.TB, cfg Config) *placeFixture {
	p := &placeFixture{raft: newFakeRaft(t)}
	loop := &eventLoop{cfg: cfg, ledger: p.raft, epoch: 1} // the index of the entry with Lead
	p.placer = newPlacer(loop, newLanes(loop, nil, nil, nil), newCapacity(loop, nil))
	p.apply(&ledger.Lead{Owner: "n1", Until: time.Now().Add(time.Hour)}, &ledger.Bootstrap{Lanes: []string{"lane"}})
	return p
}

func (p *placeFixture) apply(cmds ...ledger.Command) {
	p.raft.index++
	for _, r := range p.raft.ledger.Apply(ledger.Stamp{Index: p.raft.index, Term: 1, At: time.Now(), Epoch: p.loop.epoch}, cmds) {
		if r.Err != nil {
			p.raft.t.Fatal(r.Err)
		}
	}
}

// addWaiting ingests jobs of a queue.
func (p *placeFixture) addWaiting(queue, function string, count int) {
	for count > 0 {
		n := min(count, 1000)
		c := &ledger.Ingest{Identity: "lane", From: p.seq, To: p.seq + uint64(n), CreateQueues: true}
		for range n {
			p.seq++
			j := job.Job{Queue: queue, Function: function, Position: job.Position{Seq: p.seq}, Accepted: time.Unix(int64(p.seq), 0), Priority: 5}
			j.ID = job.RecordID("lane", job.Position{Seq: p.seq}, j.Accepted)
			c.Jobs = append(c.Jobs, j)
		}
		p.apply(c)
		count -= n
	}
	p.apply(&ledger.MarkPublished{Events: p.raft.ledger.LastEvent()})
}

func (p *placeFixture) offer(kind job.Kind, key, worker string, free int) {
	n := p.capacity.nodeOf("n1", 1)
	p.capacity.setNodeState(n, false, false)
	p.capacity.receiveOffer(n, &job.Offer{Kind: kind, Key: key, Worker: worker, Free: free})
}

// placed runs place and returns the placements: queue, function and worker of each.
func (p *placeFixture) placed() map[string]int {
	p.place(p.raft.ledger, p.raft.ledger.Now())
	picked := map[string]int{}
	for _, k := range p.pending {
		picked[k.Queue+" "+k.Function+" "+k.slot.worker]++
	}
	return picked
}

func TestPlace(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		set  func(p *placeFixture)
		want map[string]int
	}{
		{"no jobs", Config{}, func(p *placeFixture) { p.offer(job.Overhop, "a", "w", 3) }, map[string]int{}},
		{"no capacity", Config{}, func(p *placeFixture) { p.addWaiting("a", "", 3) }, map[string]int{}},
		{"as many as there is capacity", Config{}, func(p *placeFixture) {
			p.addWaiting("a", "", 9)
			p.offer(job.Overhop, "a", "w1", 2)
			p.offer(job.Overhop, "a", "w2", 3)
			p.offer(job.Overhop, "b", "w3", 3)
		}, map[string]int{"a  w1": 2, "a  w2": 3}},
		{"workers of a queue take plain and bare jobs", Config{}, func(p *placeFixture) {
			p.addWaiting("a", "", 2)
			p.addWaiting("a", "f", 2)
			p.addWaiting("a", "py#f", 2)
			p.offer(job.Overhop, "a", "w1", 9)
		}, map[string]int{"a  w1": 2, "a f w1": 2}},
		{"a runner takes its own", Config{}, func(p *placeFixture) {
			p.addWaiting("a", "", 2)
			p.addWaiting("a", "f", 2)
			p.addWaiting("a", "py#f", 2)
			p.addWaiting("b", "py#g", 2)
			p.offer(job.RRQ, "py", "py/1", 9)
		}, map[string]int{"a py#f py/1": 2, "b py#g py/1": 2}},
		{"the default runner takes bare ones", Config{DefaultRunner: "py", Routes: map[string]string{"r": "go"}}, func(p *placeFixture) {
			p.addWaiting("a", "", 2)
			p.addWaiting("a", "f", 2)
			p.addWaiting("r", "f", 2)
			p.offer(job.RRQ, "py", "py/1", 9)
		}, map[string]int{"a f py/1": 2}},
		{"a routed queue is the runner's", Config{Routes: map[string]string{"r": "go"}}, func(p *placeFixture) {
			p.addWaiting("r", "", 2)
			p.addWaiting("r", "f", 2)
			p.offer(job.Overhop, "r", "w", 9)
			p.offer(job.RRQ, "go", "go/1", 3)
		}, map[string]int{"r  go/1": 2, "r f go/1": 1}},
		{"a limit over two lines", Config{}, func(p *placeFixture) {
			p.apply(&ledger.AddQueue{ID: job.ID{1}, Name: "a", Config: job.QueueConfig{Limit: 3}})
			p.addWaiting("a", "", 2)
			p.addWaiting("a", "f", 9)
			p.offer(job.Overhop, "a", "w", 9)
		}, map[string]int{"a  w": 2, "a f w": 1}},
		{"paused", Config{}, func(p *placeFixture) {
			p.addWaiting("a", "", 2)
			p.apply(&ledger.PauseQueue{Name: "a", Paused: true})
			p.offer(job.Overhop, "a", "w", 9)
		}, map[string]int{}},
		{"silent", Config{}, func(p *placeFixture) {
			p.addWaiting("a", "", 2)
			p.offer(job.Overhop, "a", "w", 9)
			p.capacity.setNodeState(p.capacity.nodes["n1"], true, false)
		}, map[string]int{}},
		{"draining", Config{}, func(p *placeFixture) {
			p.addWaiting("a", "", 2)
			p.offer(job.Overhop, "a", "w", 9)
			p.capacity.setNodeState(p.capacity.nodes["n1"], false, true)
		}, map[string]int{}},
		{"no more than an entry takes", Config{}, func(p *placeFixture) {
			p.addWaiting("a", "", maxPlacements+500)
			p.offer(job.Overhop, "a", "w", maxPlacements+500)
		}, map[string]int{"a  w": maxPlacements}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newPlaceFixture(t, test.cfg)
			test.set(p)
			if got := p.placed(); fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("placed %v, want %v", got, test.want)
			}
			before := len(p.pending)
			if p.place(p.raft.ledger, p.raft.ledger.Now()); len(p.pending) != before {
				t.Errorf("a second call places %d more", len(p.pending)-before)
			}
		})
	}
}

// TestPlace_TurnsOfQueues fills several entries from queues with more jobs and capacity than
// an entry takes, and checks that a queue with one job is served all the same.
func TestPlace_TurnsOfQueues(t *testing.T) {
	for _, idle := range []int{0, 10} { // place starts from the pools or from the waitlists
		t.Run(fmt.Sprintf("idle=%d", idle), func(t *testing.T) {
			p := newPlaceFixture(t, Config{})
			for _, queue := range []string{"a", "b", "z"} {
				p.addWaiting(queue, "", 9*maxPlacements)
				p.offer(job.Overhop, queue, "w", 9*maxPlacements)
			}
			p.addWaiting("c", "", 1)
			p.offer(job.Overhop, "c", "w", 1)
			for i := range idle {
				p.offer(job.Overhop, fmt.Sprint("idle", i), "w", 1)
			}
			served := map[string]int{}
			for range 8 {
				for k, n := range p.placed() {
					served[k] += n
				}
				p.pending = nil // as when they are submitted, and still in flight
			}
			if served["c  w"] != 1 || len(served) != 4 {
				t.Errorf("placements after eight entries: %v", served)
			}
		})
	}
}

// BenchmarkPlace_ManyQueues places one job where ten thousand queues have free capacity or
// waiting jobs.
func BenchmarkPlace_ManyQueues(b *testing.B) {
	for _, test := range []struct{ free, waiting int }{{10_000, 1}, {1, 10_000}} {
		b.Run(fmt.Sprintf("free=%d/waiting=%d", test.free, test.waiting), func(b *testing.B) {
			p := newPlaceFixture(b, Config{})
			for i := range test.free {
				p.offer(job.Overhop, fmt.Sprint("q", i), "w", 1)
			}
			for i := range test.waiting {
				p.addWaiting(fmt.Sprint("q", i), "", 1)
			}
			b.ReportAllocs()
			for b.Loop() {
				p.place(p.raft.ledger, p.raft.ledger.Now())
				for _, k := range p.pending {
					p.forget(k)
					k.slot.unreserve()
				}
				if len(p.pending) != 1 {
					b.Fatalf("%d placements", len(p.pending))
				}
				p.pending, p.loop.entry = nil, pendingEntry{}
			}
		})
	}
}

// BenchmarkPlace places a hundred jobs out of backlogs of very different size.
func BenchmarkPlace(b *testing.B) {
	for _, backlog := range []int{1_000, 1_000_000} {
		for _, lines := range []int{1, 3} {
			b.Run(fmt.Sprintf("waiting=%d/lines=%d", backlog, lines), func(b *testing.B) {
				p := newPlaceFixture(b, Config{})
				for i := range lines {
					p.addWaiting("a", []string{"", "f", "py#f"}[i], backlog/lines)
				}
				p.offer(job.Overhop, "a", "w1", 50)
				p.offer(job.Overhop, "a", "w2", 50)
				b.ReportAllocs()
				picks := 0
				for b.Loop() {
					p.place(p.raft.ledger, p.raft.ledger.Now())
					picks += len(p.pending)
					for _, k := range p.pending {
						p.forget(k)
						k.slot.unreserve()
					}
					p.pending, p.loop.entry = nil, pendingEntry{}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(picks), "ns/pick")
			})
		}
	}
}
