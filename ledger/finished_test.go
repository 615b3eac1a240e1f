package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestSetRetention_PrunesInSteps checks that a lowered count removes a bounded number of
// records per entry, the oldest of all queues first, and that a queue with a setting of
// its own keeps its records.
func TestSetRetention_PrunesInSteps(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	apply := func(cmds ...Command) {
		t.Helper()
		stamp.Index, stamp.At = stamp.Index+1, stamp.At.Add(time.Millisecond)
		for i, r := range l.Apply(stamp, cmds) {
			if r.Err != nil {
				t.Fatalf("command %d: %v", i, r.Err)
			}
		}
		if err := l.Apply(stamp, []Command{&MarkPublished{Events: l.LastEvent()}})[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	apply(&AddQueue{Name: "kept", Config: job.QueueConfig{Retention: job.Retention{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundAge}, Value: int64(time.Hour)}}}})
	const rounds, perRound = 12, 1000
	for i := range rounds {
		f, p, s := ingestBatch(i*perRound, perRound, "")
		for k := range f.Jobs {
			f.Jobs[k].Queue = [...]string{"mail", "post", "kept"}[k%3]
		}
		apply(f, p, s)
	}
	setCount := func(n int64) {
		apply(&SetRetention{Settings: []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundCount}, Value: n}}})
	}
	own := l.Finished().Own
	setCount(5000) // also the bound of the queue "kept", which has fewer
	for before := rounds * perRound; l.Finished().Shared > 5000; {
		now := l.Finished().Shared
		if now >= before || before-now > maxPruned {
			t.Fatalf("%d records, before %d", now, before)
		}
		before = now
		apply()
	}
	if f := l.Finished(); f.Shared != 5000 || f.Own != own || own < rounds*perRound/4 {
		t.Errorf("%+v; the queue with its own setting had %d records", f, own)
	}
	oldest := rounds // the first round of which jobs remain; the jobs of one ended together
	for i := range rounds * perRound {
		view, _, ok := l.Find(jobID(i))
		switch {
		case ok && view.Queue != "kept":
			oldest = min(oldest, i/perRound)
		case !ok && i/perRound > oldest:
			t.Fatalf("job %d is forgotten, some of round %d are not", i, oldest)
		}
	}
	if err := checkInvariants(l); err != nil {
		t.Error(err)
	}
}

// BenchmarkFinished measures the memory of the records of a million finished jobs with
// results, in 100 queues, and the time to encode them.
func BenchmarkFinished(b *testing.B) {
	const n, batch = 100_000, 1000
	before := heapInUse()
	l, stamp := ledgerWithAuthority(b)
	set := []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundCount}, Value: n}}
	l.Apply(stamp, []Command{&SetRetention{Settings: set}})
	for first := 0; first < n; first += batch {
		f, p, s := ingestBatch(first, batch, "1")
		for k := range f.Jobs {
			f.Jobs[k].Queue, f.Jobs[k].ID = fmt.Sprint("q", k%100), benchID(first+k)
			p.Placements[k].Job, s.Settlements[k].Job = f.Jobs[k].ID, f.Jobs[k].ID
		}
		stamp.Index++
		l.Apply(stamp, []Command{f, p, s})
		l.Apply(stamp, []Command{&MarkPublished{Events: l.LastEvent(), Results: l.LastResult()}})
	}
	if l.Finished().Shared != n {
		b.Fatalf("%+v", l.Finished())
	}
	b.ReportMetric(float64(heapInUse()-before)/n, "bytes/job")
	var written countWriter
	for range b.N {
		written = 0
		if err := l.Encode(&written); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(written)/n, "encoded-bytes/job")
}

// countWriter counts the bytes that are written to it.
type countWriter int

func (w *countWriter) Write(p []byte) (int, error) {
	*w += countWriter(len(p))
	return len(p), nil
}
