package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// priorityJob is a job to add: of a priority, and due for some time.
type priorityJob struct {
	queue, function string
	priority        uint8
	since           time.Time
}

// addJobs ingests jobs and returns their ids.
func (p *placeFixture) addJobs(jobs ...priorityJob) (ids []job.ID) {
	c := &ledger.Ingest{Identity: "lane", From: p.seq, To: p.seq + uint64(len(jobs)), CreateQueues: true}
	for _, j := range jobs {
		p.seq++
		id := job.RecordID("lane", job.Position{Seq: p.seq}, j.since)
		ids = append(ids, id)
		c.Jobs = append(c.Jobs, job.Job{ID: id, Queue: j.queue, Function: j.function, Position: job.Position{Seq: p.seq}, Accepted: j.since, Priority: j.priority})
	}
	p.apply(c)
	return ids
}

// start places jobs and has the ledger start them. It returns them in their order.
func (p *placeFixture) start() (started []ledger.WaitingJob) {
	p.place(p.raft.ledger, p.raft.ledger.Now())
	c := &ledger.Place{}
	for _, k := range p.pending {
		started = append(started, k.WaitingJob)
		c.Placements = append(c.Placements, ledger.Placement{Job: k.ID, N: k.N, Node: "n1", Incarnation: 1, Channel: k.slot.channel})
	}
	p.apply(c, &ledger.MarkPublished{Events: p.raft.ledger.LastEvent()})
	for _, k := range p.pending {
		p.forget(k)
		k.slot.unreserve()
	}
	p.pending, p.loop.entry = nil, pendingEntry{}
	return started
}

// Jobs start by priority, then in order. Only an overdue job may start before one of a
// higher priority, and not before an earlier one of its own.
func TestOverdue_Order(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlaceFixture(t, Config{})
		p.lottery.seed = rapid.Uint64().Draw(rt, "seed")
		now := time.Now()
		var jobs []priorityJob
		for range rapid.IntRange(1, 60).Draw(rt, "jobs") {
			waited := time.Duration(rapid.IntRange(0, 59).Draw(rt, "waited")) * time.Second
			if rapid.Bool().Draw(rt, "overdue") {
				waited += OverdueAfter + time.Second
			}
			jobs = append(jobs, priorityJob{
				rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "queue"), "py#f", rapid.Uint8Range(0, 9).Draw(rt, "priority"), now.Add(-waited),
			})
		}
		p.addJobs(jobs...)
		p.offer(job.RRQ, "py", "py/1", 1)
		var waiting []ledger.WaitingJob
		for _, queue := range []string{"a", "b"} {
			p.raft.ledger.WaitingJobs(ledger.WaitlistID{Queue: queue, Class: "py#"}, func(w ledger.WaitingJob) bool { waiting = append(waiting, w); return true })
		}
		for len(waiting) > 0 {
			slices.SortFunc(waiting, func(a, b ledger.WaitingJob) int {
				if a.Before(&b) {
					return -1
				}
				return 1
			})
			started := p.start()
			if len(started) != 1 {
				rt.Fatalf("%d jobs started on one slot, %d wait", len(started), len(waiting))
			}
			first := waiting[0]
			i := slices.IndexFunc(waiting, func(w ledger.WaitingJob) bool { return w.ID == started[0].ID })
			if chosen := waiting[i]; i > 0 {
				if due := p.raft.ledger.Now().Sub(chosen.Due); chosen.Priority >= first.Priority || due < OverdueAfter {
					rt.Errorf("a job of priority %d, due for %v, starts before one of priority %d", chosen.Priority, due, first.Priority)
				}
				for _, w := range waiting[:i] {
					if w.Queue == chosen.Queue && w.Priority == chosen.Priority {
						rt.Error("a job starts before an earlier one of its queue and priority")
					}
				}
			}
			waiting = slices.Delete(waiting, i, i+1)
		}
	})
}

// Under an endless stream of jobs of the highest priority, overdue jobs get their share of
// the starts, the longest due first; jobs that are not overdue wait.
func TestOverdue_Share(t *testing.T) {
	for _, slots := range []int{1, 100} {
		t.Run(fmt.Sprintf("slots=%d", slots), func(t *testing.T) {
			p := newPlaceFixture(t, Config{})
			now := time.Now()
			const starts, low = 4000, 400
			var overdue []priorityJob
			for i := range low {
				overdue = append(overdue, priorityJob{"a", "", uint8(i % 5), now.Add(time.Duration(i-2*low) * time.Second)})
			}
			ids := p.addJobs(overdue...)
			fresh := p.addJobs(priorityJob{"a", "", 0, now})[0]
			p.offer(job.Overhop, "a", "w", slots)
			var got []job.ID
			for range starts / slots {
				p.addJobs(slices.Repeat([]priorityJob{{"a", "", 9, now}}, slots)...)
				for _, w := range p.start() {
					if w.ID == fresh {
						t.Error("a job that is not overdue started before jobs of a higher priority")
					}
					if w.Priority < 9 {
						got = append(got, w.ID)
					}
				}
			}
			if n := len(got); n < starts/OverdueShare*3/4 || n > starts/OverdueShare*5/4 {
				t.Errorf("%d of %d starts were of overdue jobs", n, starts)
			}
			if !slices.Equal(got, ids[:len(got)]) {
				t.Error("overdue jobs did not start in the order in which they were due")
			}
		})
	}
}

// An overdue job whose queue has reached its limit holds nothing up, and leaves the limit
// as it is.
func TestOverdue_RespectsLimits(t *testing.T) {
	p := newPlaceFixture(t, Config{})
	p.apply(&ledger.AddQueue{ID: job.ID{1}, Name: "narrow", Config: job.QueueConfig{Limit: 1}})
	now := time.Now()
	p.addJobs(slices.Repeat([]priorityJob{{"narrow", "py#f", 0, now.Add(-time.Hour)}}, 50)...)
	p.addJobs(slices.Repeat([]priorityJob{{"wide", "py#f", 9, now}}, 500)...)
	p.offer(job.RRQ, "py", "py/1", 500)
	started := map[string]int{}
	for _, w := range p.start() {
		started[w.Queue]++
	}
	if started["narrow"] != 1 || started["wide"] != 499 {
		t.Errorf("started %v, want 1 of queue narrow and 499 of wide", started)
	}
}
