package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// The sizes of the benchmarks of the ledger alone, without disk and network.
const (
	million   = 1_000_000
	batch     = 64      // jobs per entry
	appliedBy = 200_000 // jobs settled in a round
)

// benchLedger is a ledger with the state that the next entry needs.
type benchLedger struct {
	*ledger.Ledger
	stamp ledger.Stamp // of the last entry
	ids   *rand.ChaCha8
	queue []job.ID // waiting jobs, oldest first
	seq   uint64   // last sequence of the lane
}

// newBenchLedger returns a ledger with n waiting jobs.
func newBenchLedger(n int) (*benchLedger, error) {
	b := &benchLedger{Ledger: ledger.New(), ids: rand.NewChaCha8([32]byte{1})}
	b.stamp = ledger.Stamp{Index: 1, Term: 1, At: time.Unix(1_750_000_000, 0).UTC()}
	lead := &ledger.Lead{Owner: "n1", Until: b.stamp.At.Add(time.Hour)}
	if err := refused(b.Apply(b.stamp, []ledger.Command{lead})); err != nil {
		return nil, err
	}
	b.stamp.Epoch = b.Authority().Epoch
	bootstrap := &ledger.Bootstrap{Secret: make([]byte, 32), Lanes: []string{"L0"}}
	if err := b.entry(bootstrap); err != nil {
		return nil, err
	}
	for b.seq < uint64(n) {
		if err := b.entry(b.ingest(min(1000, n-int(b.seq)))); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// entry applies commands as one entry, and marks all events as published with a
// second one.
func (b *benchLedger) entry(commands ...ledger.Command) error {
	b.stamp.Index++
	if err := refused(b.Apply(b.stamp, commands)); err != nil {
		return err
	}
	b.stamp.Index++
	return refused(b.Apply(b.stamp, []ledger.Command{&ledger.MarkPublished{Events: b.LastEvent(), Results: b.LastResult()}}))
}

// refused returns the first error of the results.
func refused(results []ledger.Result) error {
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// ingest returns a command that ingests n new jobs.
func (b *benchLedger) ingest(n int) *ledger.Ingest {
	f := &ledger.Ingest{Identity: "L0", From: b.seq, To: b.seq + uint64(n), CreateQueues: true, Jobs: make([]job.Job, n)}
	for i := range f.Jobs {
		b.seq++
		var id job.ID
		binary.LittleEndian.PutUint64(id[:8], b.ids.Uint64())
		binary.LittleEndian.PutUint64(id[8:], b.ids.Uint64())
		f.Jobs[i] = job.Job{
			ID: id, Queue: "bench", Position: job.Position{Seq: b.seq}, Priority: job.DefaultPriority,
			Accepted: b.stamp.At.Add(time.Duration(b.seq) * 50 * time.Microsecond),
		}
		b.queue = append(b.queue, id)
	}
	return f
}

// jobLifecycle returns the commands of an entry of a busy cluster: a batch of jobs is
// ingested, one is placed, and one is settled.
func (b *benchLedger) jobLifecycle() []ledger.Command {
	f := b.ingest(batch)
	place, settle := &ledger.Place{}, &ledger.Settle{}
	for _, id := range b.queue[:batch] {
		place.Placements = append(place.Placements, ledger.Placement{Job: id, N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
		settle.Settlements = append(settle.Settlements, ledger.Settlement{Job: id, N: 1, Next: job.NextDone})
	}
	b.queue = b.queue[batch:]
	return []ledger.Command{f, place, settle}
}

// measureApply measures the ingest, placement and settlement of jobs while others
// wait, in ns per command and job.
func measureApply(t *task, waiting int) round {
	b := must.Get(newBenchLedger(waiting))
	var entries [][]ledger.Command
	for n := 0; n < appliedBy; n += batch {
		entries = append(entries, b.jobLifecycle())
	}
	runtime.GC()
	began := time.Now()
	for _, e := range entries {
		must.Do(t.Err())
		b.stamp.At = b.stamp.At.Add(5 * time.Millisecond)
		must.Do(b.entry(e...))
	}
	took := time.Since(began)
	if q, _ := b.Queue("bench"); q.Counts[job.Waiting] != waiting {
		must.Do(fmt.Errorf("%d jobs are waiting, want %d", q.Counts[job.Waiting], waiting))
	}
	return round{value: float64(took.Nanoseconds()) / float64(3*batch*len(entries))}
}

// measureSize measures the heap per waiting job, in bytes, of a ledger with a million.
func measureSize(*task) round {
	before := heapInUse()
	b := must.Get(newBenchLedger(million))
	b.queue = nil // not part of the ledger
	per := float64(heapInUse()-before) / million
	runtime.KeepAlive(b)
	return round{value: per}
}

// heapInUse returns the bytes of live heap objects after a collection.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// measureCopy measures the longest of several copies of a ledger with a million jobs,
// in ms: the time for which a snapshot blocks the ledger. Between two copies an entry
// is applied, which copies the parts it changes.
func measureCopy(*task) round {
	b := must.Get(newBenchLedger(million))
	var longest time.Duration
	for range 20 {
		began := time.Now()
		kept := b.Copy()
		longest = max(longest, time.Since(began))
		must.Do(b.entry(b.jobLifecycle()...))
		runtime.KeepAlive(kept)
	}
	return round{value: float64(longest) / 1e6}
}
