package ledger

import (
	"bytes"
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

// TestFinished_StaysSmall checks that completed jobs are forgotten after minutes, so that the ledger does
// not grow while jobs end, and that failed ones are kept, and can be retried.
func TestFinished_StaysSmall(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	const rounds, perRound = 30, 2000
	sizes := make(map[int]int)
	for i := range rounds {
		stamp.Index, stamp.At = stamp.Index+1, stamp.At.Add(time.Minute)
		f, p, s := ingestBatch(i*perRound, perRound, "1")
		if i == 0 {
			s.Settlements[7].Next, s.Settlements[7].Fault = job.NextDead, &job.Fault{Message: "no"}
		}
		l.Apply(stamp, []Command{f, p, s})
		stamp.Index++
		l.Apply(stamp, []Command{&MarkPublished{Events: l.LastEvent(), Results: l.LastResult(), DeadLetters: l.LastDeadLetter()}})
		for l.PruneDue() {
			stamp.Index++
			l.Apply(stamp, nil)
		}
		sizes[i] = len(encoded(t, l)) - len(job.ID{})*l.ForgottenIDs().Count
	}
	if f := l.Finished(); f.Shared != 5*perRound+1 {
		t.Errorf("%+v", f)
	}
	if first, last := sizes[rounds/2], sizes[rounds-1]; last > first+first/20 {
		t.Errorf("without ids, the ledger has %d bytes after %d rounds and %d after %d", first, rounds/2+1, last, rounds)
	}
	want := [job.States]int{job.Completed: rounds*perRound - 1, job.Failed: 1}
	if q, _ := l.Queue("mail"); q.Counts != want {
		t.Errorf("counts are %v, want %v", q.Counts, want)
	}
	if _, known := l.Known(jobID(0)); !known {
		t.Error("the id of a completed job is forgotten")
	}
	stamp.Index++
	if r := l.Apply(stamp, []Command{&RetryJob{Job: jobID(7)}}); r[0].Err != nil || r[0].State != job.Waiting {
		t.Errorf("retry of a failed job: %+v", r[0])
	}
	if err := checkInvariants(l); err != nil {
		t.Error(err)
	}
	restored, err := Decode(bytes.NewReader(encoded(t, l)))
	if err != nil {
		t.Fatal(err)
	}
	if q, _ := restored.Queue("mail"); q.Counts[job.Completed] != want[job.Completed] {
		t.Errorf("restored counts are %v", q.Counts)
	}
}

// TestRaiseLevel_SplitsFinished checks that the first build that forgets completed jobs before others does so
// from its first tenure on.
func TestRaiseLevel_SplitsFinished(t *testing.T) {
	l := New()
	stamp := Stamp{Index: 1, Term: 1, At: scriptStart, Epoch: 1}
	f, p, s := ingestBatch(0, 4, "")
	s.Settlements[1].Next, s.Settlements[1].Fault = job.NextDead, &job.Fault{Message: "no"}
	l.Apply(stamp, []Command{&Lead{Owner: "n1", Until: stamp.At.Add(1000 * time.Hour)}, &Bootstrap{Lanes: []string{"L0"}}, f, p, s})
	stamp.Index, stamp.At = 2, stamp.At.Add(time.Hour)
	l.Apply(stamp, nil)
	if n := l.Finished().Shared; n != 4 {
		t.Fatalf("%d records before", n)
	}
	stamp.Index = 3
	l.Apply(stamp, []Command{&Lead{Owner: "n1", Until: stamp.At.Add(1000 * time.Hour), Level: Level}})
	if _, _, kept := l.Find(jobID(1)); !kept || l.Finished().Shared != 1 {
		t.Errorf("%+v; the failed job is kept: %t", l.Finished(), kept)
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
