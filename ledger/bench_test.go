package ledger

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// benchBatch is the number of jobs in each log entry.
const benchBatch = 64

// filledLedger returns a ledger with n waiting jobs in one queue, whose events are
// published.
func filledLedger(tb testing.TB, n int) (*Ledger, Stamp) {
	l, stamp := ledgerWithAuthority(tb)
	for first := 0; first < n; first += 1000 {
		f := &Ingest{Identity: "L0", From: uint64(first), To: uint64(first + 1000), CreateQueues: true}
		for i := first; i < first+1000; i++ {
			f.Jobs = append(f.Jobs, benchJob(i))
		}
		stamp.Index++
		l.Apply(stamp, []Command{f, &MarkPublished{Events: l.LastEvent()}})
	}
	stamp.Index++
	l.Apply(stamp, []Command{&MarkPublished{Events: l.LastEvent()}})
	return l, stamp
}

func benchJob(i int) job.Job {
	return job.Job{
		ID: benchID(i), Queue: "mail", Position: job.Position{Seq: uint64(i + 1)}, Priority: job.DefaultPriority,
		Accepted: scriptStart.Add(time.Duration(i) * 50 * time.Microsecond),
	}
}

// benchID returns the id of job i: random, as real ids are, but reproducible.
func benchID(i int) job.ID {
	r := rand.New(rand.NewPCG(uint64(i), 7))
	var id job.ID
	for k := range id {
		id[k] = byte(r.Uint32())
	}
	return id
}

// BenchmarkApply ingests, places and settles jobs while others wait, in entries as
// under high load. One operation is one job. The ledger keeps at most 200,000
// finished jobs, so its size is constant.
func BenchmarkApply(b *testing.B) {
	for _, waiting := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint("waiting=", waiting), func(b *testing.B) {
			l, stamp := filledLedger(b, waiting)
			runtime.GC()
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; {
				b.StopTimer() // entries are created in small numbers, so that they add little to the heap
				entries := make([][]Command, 0, 200)
				for len(entries) < cap(entries) && done < b.N {
					entries = append(entries, benchEntry(waiting, waiting+done))
					done += benchBatch
				}
				b.StartTimer()
				for _, entry := range entries {
					stamp.Index++
					stamp.At = stamp.At.Add(5 * time.Millisecond)
					l.Apply(stamp, entry)
					l.Apply(stamp, []Command{&MarkPublished{Events: l.LastEvent(), Results: l.LastResult()}})
				}
			}
			b.StopTimer()
			if got, _ := l.Queue("mail"); got.Counts[job.Waiting] != waiting {
				b.Fatalf("%d jobs wait", got.Counts[job.Waiting])
			}
		})
	}
}

// benchEntry returns an entry that ingests the jobs from next on, places the oldest
// waiting ones, and settles those.
func benchEntry(waiting, next int) []Command {
	f := &Ingest{Identity: "L0", From: uint64(next), To: uint64(next + benchBatch), CreateQueues: true}
	p, s := &Place{}, &Settle{}
	for i := next; i < next+benchBatch; i++ {
		f.Jobs = append(f.Jobs, benchJob(i))
		oldest := benchID(i - waiting)
		p.Placements = append(p.Placements, Placement{Job: oldest, N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
		s.Settlements = append(s.Settlements, Settlement{Job: oldest, N: 1, Next: job.NextDone})
	}
	return []Command{f, p, s}
}

// BenchmarkMillion measures a ledger of a million waiting jobs: the memory per job,
// and the time to copy, encode and decode it.
func BenchmarkMillion(b *testing.B) {
	const n = 1_000_000
	before := heapInUse()
	l, stamp := filledLedger(b, n)
	b.ReportMetric(float64(heapInUse()-before)/n, "bytes/job")
	var copies, longest, encode, decode time.Duration
	var size int
	for range b.N {
		start := time.Now()
		kept := l.Copy()
		longest = max(longest, time.Since(start))
		copies += time.Since(start)

		start = time.Now()
		var buf bytes.Buffer
		if err := kept.Encode(&buf); err != nil {
			b.Fatal(err)
		}
		encode += time.Since(start)
		size = buf.Len()

		start = time.Now()
		if _, err := Decode(&buf); err != nil {
			b.Fatal(err)
		}
		decode += time.Since(start)
		stamp.Index++
		l.Apply(stamp, nil)
	}
	per := float64(b.N)
	b.ReportMetric(float64(copies.Microseconds())/per, "µs/copy")
	b.ReportMetric(float64(longest.Microseconds()), "µs-longest-copy")
	b.ReportMetric(float64(encode.Milliseconds())/per, "ms/encode")
	b.ReportMetric(float64(decode.Milliseconds())/per, "ms/decode")
	b.ReportMetric(float64(size)/n, "encoded-bytes/job")
}

// BenchmarkStates measures the memory per job in each state.
func BenchmarkStates(b *testing.B) {
	const n = 200_000
	for _, state := range []job.State{job.Waiting, job.Delayed, job.Active, job.Completed} {
		b.Run(state.String(), func(b *testing.B) {
			var per float64
			for range b.N {
				before := heapInUse()
				l, stamp := ledgerWithAuthority(b)
				for first := 0; first < n; first += 1000 {
					f, p, s := ingestBatch(first, 1000, "")
					for i := range f.Jobs {
						f.Jobs[i].ID = benchID(first + i)
						p.Placements[i].Job, s.Settlements[i].Job = benchID(first+i), benchID(first+i)
						if state == job.Delayed {
							f.Jobs[i].RunAt = stamp.At.Add(time.Duration(first+i+1) * time.Second)
						}
					}
					cmds := []Command{f}
					if state >= job.Active {
						cmds = append(cmds, p)
					}
					if state == job.Completed {
						cmds = append(cmds, s)
					}
					stamp.Index++
					l.Apply(stamp, cmds)
					stamp.Index++
					l.Apply(stamp, []Command{&MarkPublished{Events: l.LastEvent()}})
				}
				if q, _ := l.Queue("mail"); q.Counts[state] != n {
					b.Fatalf("%d jobs are %s", q.Counts[state], state)
				}
				per = float64(heapInUse()-before) / n
				runtime.KeepAlive(l)
			}
			b.ReportMetric(per, "bytes/job")
		})
	}
}

// BenchmarkHash measures hashing a ledger, as done to compare replicas.
func BenchmarkHash(b *testing.B) {
	l, _ := filledLedger(b, 100_000)
	b.ResetTimer()
	for range b.N {
		if err := l.Encode(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkCopy_Queues measures copies of a ledger with as many queues as it may have,
// each with jobs, of which ten are changed before each copy.
func BenchmarkCopy_Queues(b *testing.B) {
	l, stamp := ledgerWithAuthority(b)
	for i := range MaxQueues - 1 {
		f, p, s := ingestBatch(i*3, 3, "")
		for k := range f.Jobs {
			f.Jobs[k].Queue = fmt.Sprint("queue-", i)
		}
		f.Jobs[1].RunAt = scriptStart.Add(time.Hour)
		p.Placements, s.Settlements = p.Placements[:1], s.Settlements[:1] // one job has ended, one is delayed, one waits
		stamp.Index++
		l.Apply(stamp, []Command{f, p, s, &MarkPublished{Events: l.LastEvent()}})
	}
	var spent time.Duration
	copies := 0
	for b.Loop() {
		stamp.Index++
		for i := range 10 {
			l.Apply(stamp, []Command{&ChangeQueue{Name: fmt.Sprint("queue-", (copies*10+i)%(MaxQueues-1))}})
		}
		start := time.Now()
		l.Copy()
		spent += time.Since(start)
		copies++
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(copies), "ns/copy")
}
