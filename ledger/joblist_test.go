package ledger

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// expectedList returns the jobs that a query selects and the totals, without an index.
func expectedList(l *Ledger, q *JobQuery) (ids []job.ID, totals [job.States]int) {
	var selected []*storedJob
	for number := range l.jobs.records.all {
		stored := l.jobs.at(number)
		if len(q.Queues) > 0 && !slices.Contains(q.Queues, stored.queue.name) {
			continue
		}
		totals[stored.state]++
		after := q.After == nil || stored.place().Compare(*q.After) > 0 == q.Oldest && stored.place() != *q.After
		if after && (len(q.States) == 0 || slices.Contains(q.States, stored.state)) && (q.Function == "" || q.Function == stored.function) {
			selected = append(selected, stored)
		}
	}
	for name, of := range l.queues.byName.Scan {
		if len(q.Queues) == 0 || slices.Contains(q.Queues, name) {
			totals[job.Completed] += int(of.completed)
		}
	}
	slices.SortFunc(selected, func(a, b *storedJob) int {
		if q.Oldest {
			return a.place().Compare(b.place())
		}
		return b.place().Compare(a.place())
	})
	for _, stored := range selected {
		ids = append(ids, stored.id)
	}
	return ids, totals
}

// listJobs returns a page of jobs.
func listJobs(l *Ledger, q *JobQuery) *JobPage {
	list := NewJobList(q)
	for !list.Step(l) {
	}
	return list.Page()
}

// checkLists draws a query and compares all pages of its answer with expectedList.
func checkLists(t *rapid.T, l *Ledger) {
	q := &JobQuery{
		Queues:   rapid.SliceOfN(rapid.SampledFrom([]string{"mail", "post", "_system", "no queue"}), 0, 3).Draw(t, "queues"),
		States:   rapid.SliceOfN(rapid.SampledFrom([]job.State{job.Waiting, job.Delayed, job.Active, job.Completed, job.Failed, job.Cancelled, job.Expired}), 0, 3).Draw(t, "states"),
		Function: rapid.SampledFrom([]string{"", "", "send", "rust#send"}).Draw(t, "function"),
		Oldest:   rapid.Bool().Draw(t, "oldest"),
		Limit:    rapid.IntRange(1, 5).Draw(t, "limit"),
		MaxScan:  rapid.IntRange(0, 5).Draw(t, "scan"),
	}
	want, totals := expectedList(l, q)
	var got []job.ID
	for {
		page := listJobs(l, q)
		if len(page.Jobs) > q.Limit || page.Totals != totals {
			t.Fatalf("%+v: page of %d jobs, totals %v, want %v", q, len(page.Jobs), page.Totals, totals)
		}
		for i := range page.Jobs {
			got = append(got, page.Jobs[i].ID)
		}
		if page.Next == nil {
			break
		}
		q.After = page.Next
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%+v:\n got %v\nwant %v", q, got, want)
	}
}

// TestListJobs_WhileJobsChange lists jobs page by page, while each changes its state
// between two pages and new ones are accepted. Every job is listed once.
func TestListJobs_WhileJobsChange(t *testing.T) {
	for _, oldest := range []bool{false, true} {
		t.Run(fmt.Sprint("oldest=", oldest), func(t *testing.T) {
			l, stamp := ledgerWithAuthority(t)
			apply := func(cmds ...Command) {
				t.Helper()
				stamp.Index++
				stamp.At = stamp.At.Add(time.Second)
				for i, r := range l.Apply(stamp, cmds) {
					if r.Err != nil {
						t.Fatalf("command %d: %v", i, r.Err)
					}
				}
			}
			const n = 60
			ingest, place, settle := ingestBatch(0, n, "send")
			for i := range ingest.Jobs {
				ingest.Jobs[i].Queue = fmt.Sprint("q", i%3)
				ingest.Jobs[i].Accepted = scriptStart.Add(time.Duration(i/4) * time.Second) // four at a time
				ingest.Jobs[i].Priority = uint8(i % 10)
			}
			apply(ingest)
			var want, got []job.ID
			want, _ = expectedList(l, &JobQuery{Oldest: oldest})

			q := &JobQuery{Oldest: oldest, Limit: 7}
			for pages := 0; ; pages++ {
				page := listJobs(l, q)
				for i := range page.Jobs {
					got = append(got, page.Jobs[i].ID)
				}
				if q.After = page.Next; q.After == nil {
					break
				}
				switch later, _, _ := ingestBatch(n+max(pages-2, 0), 1, ""); pages {
				case 0:
					apply(place)
				case 1:
					apply(settle)
				default:
					if !oldest {
						later.Jobs[0].Accepted = scriptStart.Add(time.Hour)
						apply(later)
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("listed %d jobs, want %d:\n%v\n%v", len(got), len(want), got, want)
			}
		})
	}
}

// BenchmarkListJobs measures a page of 50 jobs of a ledger with as many queues as it may
// have: the time in all and, in microseconds, that of a step and of the longest one, during
// which nothing can be applied. The number of queues makes a difference, that of jobs should
// not, except by what it takes to find them in memory.
func BenchmarkListJobs(b *testing.B) {
	for _, perQueue := range []int{3, 300} {
		l, stamp := ledgerWithAuthority(b)
		for i := range MaxQueues - 1 {
			fillQueue(l, &stamp, i, perQueue)
		}
		place := listJobs(l, &JobQuery{Limit: 1000}).Next
		for _, q := range []struct {
			name string
			JobQuery
		}{
			{"first", JobQuery{Limit: 50}},
			{"later", JobQuery{Limit: 50, After: place}},
			{"failed", JobQuery{Limit: 50, States: []job.State{job.Failed}}},
			{"queue", JobQuery{Limit: 50, Queues: []string{"queue-7"}}},
			{"no such function", JobQuery{Limit: 50, Function: "x", MaxScan: 10_000}},
		} {
			b.Run(fmt.Sprintf("jobs=%d/%s", l.jobs.records.count, q.name), func(b *testing.B) {
				var longest []float64
				var all time.Duration
				steps := 0
				runtime.GC()
				for b.Loop() {
					list, longestStep := NewJobList(&q.JobQuery), time.Duration(0)
					for done := false; !done; {
						began := time.Now()
						done = list.Step(l)
						took := time.Since(began)
						longestStep, all = max(longestStep, took), all+took
						steps++
					}
					longest = append(longest, float64(longestStep.Microseconds()))
				}
				slices.Sort(longest)
				b.ReportMetric(longest[len(longest)/2], "µs-longest-step")
				b.ReportMetric(float64(all.Microseconds())/float64(steps), "µs/step")
			})
		}
	}
}

// fillQueue adds n jobs to queue i of a benchmark, of which a third each has failed, is
// delayed, and waits.
func fillQueue(l *Ledger, stamp *Stamp, i, n int) {
	f, p, s := ingestBatch(i*n, n, "")
	for k := range f.Jobs {
		f.Jobs[k].ID = benchID(i*n + k)
		f.Jobs[k].Queue = fmt.Sprint("queue-", i)
		f.Jobs[k].Accepted = scriptStart.Add(time.Duration(k*MaxQueues+i) * time.Microsecond)
		p.Placements[k].Job, s.Settlements[k].Job, s.Settlements[k].Next = f.Jobs[k].ID, f.Jobs[k].ID, job.NextDead
		if k%3 == 1 {
			f.Jobs[k].RunAt = scriptStart.Add(time.Hour)
		}
		if k%3 != 0 {
			p.Placements[k].N, s.Settlements[k].N = 0, 0 // no such dispatch
		}
	}
	stamp.Index++
	l.Apply(*stamp, []Command{f, p, s})
	stamp.Index++
	l.Apply(*stamp, []Command{&MarkPublished{Events: l.LastEvent(), DeadLetters: l.LastDeadLetter()}})
}
