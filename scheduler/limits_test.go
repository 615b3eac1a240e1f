package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// addKeyed ingests jobs of a queue with these keys, and limits of their own.
func (p *placeFixture) addKeyed(queue string, uses []job.LimitUse, keys ...string) {
	c := &ledger.Ingest{Identity: "lane", From: p.seq, To: p.seq + uint64(len(keys)), CreateQueues: true}
	for _, key := range keys {
		p.seq++
		now := time.Now()
		c.Jobs = append(c.Jobs, job.Job{
			ID: job.RecordID("lane", job.Position{Seq: p.seq}, now), Queue: queue, Position: job.Position{Seq: p.seq},
			Accepted: now, Priority: job.DefaultPriority, LimitKey: key, Limits: uses,
		})
	}
	p.apply(c)
}

// commit applies the placements of an entry, forgets them, and returns those that the ledger has
// refused.
func (p *placeFixture) commit(placements []*placement) (refused []*placement) {
	c := &ledger.Place{}
	for _, k := range placements {
		c.Placements = append(c.Placements, ledger.Placement{Job: k.ID, N: k.N, Node: "n1", Incarnation: 1, Channel: k.slot.channel})
	}
	p.raft.index++
	stamp := ledger.Stamp{Index: p.raft.index, Term: 1, At: time.Now(), Epoch: p.loop.epoch}
	placed := p.raft.ledger.Apply(stamp, []ledger.Command{c})[0].Placed
	for i, k := range placements {
		p.forget(k)
		if !placed[i] {
			refused = append(refused, k)
		}
		k.slot.unreserve()
	}
	return refused
}

// take returns the placements of the next entry.
func (p *placeFixture) take() (placements []*placement) {
	p.place(p.raft.ledger, time.Now())
	placements, p.pending = p.pending, nil
	return placements
}

// settleSome ends active jobs that rapid draws.
func (p *placeFixture) settleSome(t *rapid.T) {
	c := &ledger.Settle{}
	p.raft.ledger.ActiveDispatches(func(a ledger.ActiveDispatch) bool {
		if rapid.Bool().Draw(t, "ends") {
			c.Settlements = append(c.Settlements, ledger.Settlement{Job: a.ID, N: a.N, Next: job.NextDone})
		}
		return true
	})
	p.apply(c)
}

// stuck returns a waiting job that could start, "" if there is none: its queue and all limits
// that it uses have room.
func (p *placeFixture) stuck() (found string) {
	l := p.raft.ledger
	for _, q := range l.Queues() {
		if l.Headroom(q.Name) == 0 {
			continue
		}
		l.WaitlistsOfQueue(q.Name, ledger.ClassPlain, func(id ledger.WaitlistID) bool {
			l.WaitingJobs(id, func(w ledger.WaitingJob) bool {
				blocked := slices.ContainsFunc(l.Uses(&w), func(use ledger.Use) bool {
					room := use.Room(l.Now())
					return room.All <= 0 || room.OfKey <= 0
				})
				if !blocked {
					found = fmt.Sprintf("job %s of queue %s with key %q", w.ID, w.Queue, w.LimitKey)
				}
				return found == ""
			})
			return found == ""
		})
	}
	return found
}

// TestPlace_Limits checks, for random limits, keys and queues, that every placement is one that
// the ledger accepts, also with others in flight, and that no job waits that could start.
func TestPlace_Limits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlaceFixture(t, Config{})
		slots := rapid.SampledFrom([]job.Slots{job.Unbounded, 1, 2, 5})
		for _, name := range []string{"gpu", "stripe"} {
			p.apply(&ledger.SetLimit{Name: name, Change: job.LimitChange{Total: new(slots.Draw(rt, "total")), PerKey: new(slots.Draw(rt, "per key"))}})
		}
		queues := []string{"a", "b"}
		for i, queue := range queues {
			config := job.QueueConfig{Fair: rapid.Bool().Draw(rt, "fair"), Limit: rapid.SampledFrom([]uint32{0, 0, 3}).Draw(rt, "limit")}
			if rapid.Bool().Draw(rt, "ages") {
				config.Age = time.Minute
			}
			for _, name := range []string{"gpu", "stripe"} {
				if rapid.Bool().Draw(rt, "uses "+name) {
					config.Limits = append(config.Limits, name)
				}
			}
			p.apply(&ledger.AddQueue{ID: job.ID{byte(i) + 1}, Name: queue, Config: config})
			p.offer(job.Overhop, queue, "worker-"+queue, 50)
		}
		for range rapid.IntRange(1, 6).Draw(rt, "rounds") {
			for _, queue := range queues {
				var uses []job.LimitUse
				if rapid.IntRange(0, 2).Draw(rt, "own") == 0 {
					uses = append(uses, job.LimitUse{Limit: "gpu", Key: rapid.SampledFrom([]string{"", "x"}).Draw(rt, "own key")})
				}
				p.addKeyed(queue, uses, rapid.SliceOfN(rapid.SampledFrom([]string{"", "acme", "beta"}), 0, 8).Draw(rt, "keys")...)
			}
			var inFlight [][]*placement
			for range rapid.IntRange(1, 3).Draw(rt, "entries") {
				inFlight = append(inFlight, p.take())
			}
			for _, placements := range inFlight {
				if refused := p.commit(placements); len(refused) > 0 {
					rt.Fatalf("the ledger refuses to start job %s of queue %s with key %q", refused[0].ID, refused[0].Queue, refused[0].LimitKey)
				}
			}
			p.commit(p.take()) // some of the keys were passed over while others were in flight
			if stuck := p.stuck(); stuck != "" {
				rt.Fatalf("%s waits and could start", stuck)
			}
			p.settleSome(rt)
			if len(p.limits.byUse) > 0 && len(p.inFlight) == 0 {
				rt.Fatalf("nothing is in flight, but %v", p.limits.byUse)
			}
		}
	})
}

// TestPlace_WakesForRate checks that the placer names the time of the next start that a rate
// permits, and starts a job then.
func TestPlace_WakesForRate(t *testing.T) {
	p := newPlaceFixture(t, Config{})
	p.apply(&ledger.SetLimit{Name: "stripe", Change: job.LimitChange{Rate: &job.Rate{Starts: 10, Per: time.Second}, Burst: new(uint32(1))}})
	p.apply(&ledger.AddQueue{ID: job.ID{1}, Name: "a", Config: job.QueueConfig{Limits: []string{"stripe"}}})
	p.offer(job.Overhop, "a", "w", 10)
	p.addKeyed("a", nil, "", "", "")
	if refused := p.commit(p.take()); len(refused) > 0 {
		t.Fatal("the first start is refused")
	}
	started := p.raft.ledger.Now()
	if placements := p.take(); len(placements) > 0 || !p.wakeAt.Equal(started.Add(100*time.Millisecond)) {
		t.Fatalf("%d placements, next at %s after the first start", len(placements), p.wakeAt.Sub(started))
	}
	p.place(p.raft.ledger, p.wakeAt)
	if len(p.pending) != 1 || !p.wakeAt.After(started.Add(100*time.Millisecond)) && !p.wakeAt.IsZero() {
		t.Fatalf("%d placements at the time of the next start", len(p.pending))
	}
}

// TestPlace_Fair checks that a key with a long backlog delays a job of another one by at most
// a round.
func TestPlace_Fair(t *testing.T) {
	p := newPlaceFixture(t, Config{})
	p.apply(&ledger.AddQueue{ID: job.ID{1}, Name: "a", Config: job.QueueConfig{Fair: true, Limit: 1}})
	p.offer(job.Overhop, "a", "w", 10)
	for range 5 {
		p.addKeyed("a", nil, slices.Repeat([]string{"heavy"}, 100)...)
	}
	started := map[string]int{}
	run := func() {
		for _, k := range p.take() {
			started[k.LimitKey]++
			p.commit([]*placement{k})
			p.apply(&ledger.Settle{Settlements: []ledger.Settlement{{Job: k.ID, N: k.N, Next: job.NextDone}}})
		}
	}
	run()
	p.addKeyed("a", nil, "light", "light")
	for range 4 {
		run()
	}
	if want := map[string]int{"heavy": 3, "light": 2}; !maps.Equal(started, want) {
		t.Errorf("started %v, want %v", started, want)
	}
}

// TestPlace_QueuesShareLimit checks that queues that share a limit take turns with its slots.
func TestPlace_QueuesShareLimit(t *testing.T) {
	p := newPlaceFixture(t, Config{})
	p.apply(&ledger.SetLimit{Name: "stripe", Change: job.LimitChange{Total: new(job.Slots(3))}})
	queues := []string{"a", "b", "c"}
	for i, queue := range queues {
		p.apply(&ledger.AddQueue{ID: job.ID{byte(i) + 1}, Name: queue, Config: job.QueueConfig{Limits: []string{"stripe"}}})
		p.offer(job.Overhop, queue, "w-"+queue, 10)
		p.addKeyed(queue, nil, slices.Repeat([]string{""}, 100-40*i)...)
	}
	started := map[string]int{}
	for range 45 {
		placements := p.take()
		p.commit(placements)
		for _, k := range placements {
			started[k.Queue]++
		}
		c := &ledger.Settle{}
		p.raft.ledger.ActiveDispatches(func(a ledger.ActiveDispatch) bool {
			c.Settlements = append(c.Settlements, ledger.Settlement{Job: a.ID, N: a.N, Next: job.NextDone})
			return false // one slot is free at a time
		})
		p.apply(c)
	}
	for _, queue := range queues {
		if n := started[queue]; n < 14 || n > 18 {
			t.Errorf("%d jobs of queue %s started, of %v; want about a third", n, queue, started)
		}
	}
}

// TestPlace_FairShares checks that 100 keys with backlogs of very unequal length get equal shares
// of a fair queue, however many jobs run at the same time and in whatever order they end. Shares
// are compared by Jain's index, (Σx)² / (n·Σx²), which is 1 if all are equal and 1/n if one key
// has everything.
func TestPlace_FairShares(t *testing.T) {
	const keys, shortest = 100, 12
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlaceFixture(t, Config{})
		slots := rapid.SampledFrom([]uint32{1, 7, 64, 250}).Draw(rt, "slots")
		config := job.QueueConfig{Fair: true, Limit: slots}
		if rapid.Bool().Draw(rt, "limited") {
			p.apply(&ledger.SetLimit{Name: "stripe", Change: job.LimitChange{PerKey: new(job.Slots(4))}})
			config.Limits = []string{"stripe"}
		}
		p.apply(&ledger.AddQueue{ID: job.ID{1}, Name: "a", Config: config})
		p.offer(job.Overhop, "a", "w", 300)
		for key := keys - 1; key >= 0; key-- { // the longest first
			p.addKeyed("a", nil, slices.Repeat([]string{fmt.Sprint("key ", key)}, shortest+key*key/100)...)
		}
		shares, total := map[string]float64{}, 0
		for total < keys*(shortest-2) {
			placements := p.take()
			if refused := p.commit(placements); len(refused) > 0 {
				rt.Fatalf("the ledger refuses to start job %s", refused[0].ID)
			}
			for _, k := range placements {
				shares[k.LimitKey]++
			}
			total += len(placements)
			c, stride, i := &ledger.Settle{}, rapid.IntRange(1, 3).Draw(rt, "stride"), 0
			p.raft.ledger.ActiveDispatches(func(a ledger.ActiveDispatch) bool {
				if i++; i%stride == 0 || stride > 1 && i == 1 {
					c.Settlements = append(c.Settlements, ledger.Settlement{Job: a.ID, N: a.N, Next: job.NextDone})
				}
				return true
			})
			p.apply(c)
		}
		sum, squares := 0.0, 0.0
		for _, share := range shares {
			sum += share
			squares += share * share
		}
		if index := sum * sum / (keys * squares); index < 0.99 {
			rt.Fatalf("Jain's index of the shares of %d keys is %.4f after %d starts: %v", keys, index, total, shares)
		}
	})
}
