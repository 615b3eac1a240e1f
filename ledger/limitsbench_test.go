package ledger

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// BenchmarkLimits finds, starts and ends jobs of a queue in which others wait, without limits
// and with limits, keys, rates and fairness that permit all starts. One operation is one job: it
// is ingested, found, placed and settled. That with keys of which nearly all are blocked finds
// the few that are not.
func BenchmarkLimits(b *testing.B) {
	const many, few = 200_000, 1000
	limited := func(change job.LimitChange) []Command {
		return []Command{
			&SetLimit{Name: "stripe", Change: change},
			&ChangeQueue{Name: "mail", Change: job.QueueChange{Limits: &job.Names{Names: []string{"stripe"}}}},
		}
	}
	perKey := limited(job.LimitChange{Total: new(job.Slots(10_000)), PerKey: new(job.Slots(100))})
	fair := []Command{&ChangeQueue{Name: "mail", Change: job.QueueChange{Fair: new(true)}}}
	rates := limited(job.LimitChange{
		Rate: &job.Rate{Starts: 1_000_000, Per: time.Second}, RatePerKey: &job.Rate{Starts: 1_000_000, Per: time.Second},
		Burst: new(uint32(100_000)), BurstPerKey: new(uint32(100_000)),
	})
	for _, test := range []struct {
		name    string
		waiting int // jobs
		keys    int // of the jobs; 0: they have none
		blocked int // keys of which a job runs all the time, under a limit of one per key
		cmds    []Command
	}{
		{"none", many, 0, 0, nil},
		{"total", many, 0, 0, limited(job.LimitChange{Total: new(job.Slots(10_000))})},
		{"keys=10", many, 10, 0, perKey},
		{"keys=10000", many, 10_000, 0, perKey},
		{"keys=100000", many, 100_000, 0, perKey},
		{"rates keys=10000", many, 10_000, 0, rates},
		{"fair keys=10000", many, 10_000, 0, append(perKey, fair...)},
		{"single keys=10000", few, 10_000, 0, perKey},
		{"single fair keys=10000", few, 10_000, 0, append(perKey, fair...)},
		{"blocked keys=99900 of 100000", many, 100_000, 99_900, limited(job.LimitChange{PerKey: new(job.Slots(1))})},
	} {
		b.Run(test.name, func(b *testing.B) {
			l, stamp := ledgerWithAuthority(b)
			next := 0
			ingest := func(n int) *Ingest {
				c := &Ingest{Identity: "L0", From: uint64(next), To: uint64(next + n), CreateQueues: true}
				for range n {
					j := benchJob(next)
					if test.keys > 0 {
						j.LimitKey = fmt.Sprintf("key-%06d", next%test.keys)
					}
					c.Jobs = append(c.Jobs, j)
					next++
				}
				return c
			}
			apply := func(cmds ...Command) {
				stamp.Index++
				stamp.At = stamp.At.Add(5 * time.Millisecond)
				for _, r := range l.Apply(stamp, append(cmds, &MarkPublished{Events: l.LastEvent(), Results: l.LastResult()})) {
					if r.Err != nil {
						b.Fatal(r.Err)
					}
				}
			}
			apply(ingest(1000))
			apply(test.cmds...)
			for next < test.waiting {
				apply(ingest(1000))
			}
			for first := 0; first < test.blocked; first += 1000 {
				p := &Place{}
				for i := first; i < min(first+1000, test.blocked); i++ {
					p.Placements = append(p.Placements, Placement{Job: benchID(i), N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
				}
				apply(p)
			}
			var turn FairTurn
			runtime.GC()
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += benchBatch {
				b.StopTimer()
				in := ingest(benchBatch)
				b.StartTimer()
				p, s := &Place{}, &Settle{}
				find := func(w WaitingJob) bool {
					p.Placements = append(p.Placements, Placement{Job: w.ID, N: w.N, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
					s.Settlements = append(s.Settlements, Settlement{Job: w.ID, N: w.N, Next: job.NextDone})
					turn = turn.After(w.LimitKey, 1)
					return len(p.Placements) < benchBatch
				}
				ids := waitlistIDs(l, "mail")
				if l.IsFair("mail") {
					l.PlaceableFairly(ids, turn, noneInFlight{}, find)
				} else {
					l.Placeable(ids[len(ids)-1], noneInFlight{}, find)
				}
				apply(in, p, s)
			}
			b.StopTimer()
			if got, _ := l.Queue("mail"); got.Counts[job.Completed] == 0 || got.Counts[job.Active] != test.blocked {
				b.Fatalf("%v", got.Counts)
			}
		})
	}
}

// BenchmarkRebind changes which limits a queue has while jobs of 100,000 keys wait: one entry,
// during which nothing else is applied.
func BenchmarkRebind(b *testing.B) {
	const keys, jobs = 100_000, 200_000
	l, stamp := ledgerWithAuthority(b)
	apply := func(cmds ...Command) {
		stamp.Index++
		stamp.At = stamp.At.Add(5 * time.Millisecond)
		for _, r := range l.Apply(stamp, append(cmds, &MarkPublished{Events: l.LastEvent(), Results: l.LastResult()})) {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
	}
	for next := 0; next < jobs; next += 1000 {
		c := &Ingest{Identity: "L0", From: uint64(next), To: uint64(next + 1000), CreateQueues: true}
		for i := range 1000 {
			j := benchJob(next + i)
			j.LimitKey = fmt.Sprintf("key-%06d", (next+i)%keys)
			c.Jobs = append(c.Jobs, j)
		}
		apply(c)
	}
	apply(&SetLimit{Name: "stripe", Change: job.LimitChange{PerKey: new(job.Slots(2))}})
	for b.Loop() {
		for _, names := range [][]string{{"stripe"}, nil} {
			apply(&ChangeQueue{Name: "mail", Change: job.QueueChange{Limits: &job.Names{Names: names}}})
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N)/1e6, "ms/change")
}
