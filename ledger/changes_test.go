package ledger

import (
	"bytes"
	"cmp"
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// changeReader reads a list of changes, and keeps the jobs that it has read.
type changeReader struct {
	list  *ChangeList
	batch ChangeBatch
	jobs  map[JobPlace]*job.Document

	labels, wanted map[job.ID]string // of the jobs, as read and as ingested
	lost           bool              // forgotten jobs may be missing
	again          map[JobPlace]bool // jobs that the ledger had when the list began again, and that are still to be read
}

func newChangeReader() *changeReader {
	return &changeReader{list: NewChangeList(ChangeMark{}), jobs: make(map[JobPlace]*job.Document), labels: make(map[job.ID]string), wanted: make(map[job.ID]string)}
}

// next reads at most limit changes of a ledger.
func (r *changeReader) next(t failer, l *Ledger, limit int) {
	if r.list.restarted {
		r.again = make(map[JobPlace]bool)
		for _, stored := range l.jobs.records.all {
			r.again[JobPlace{stored.accepted, stored.id}] = true
		}
	}
	r.list.Next(l, &r.batch, limit)
	r.lost = r.lost || r.batch.Restarted
	for i := range r.batch.Changes {
		c := &r.batch.Changes[i]
		place := JobPlace{c.Created.UnixNano(), c.ID}
		before := ChangeBefore{}
		if known := r.jobs[place]; known != nil {
			before = ChangeBefore{known.Dispatches, known.State}
		}
		if !r.lost && !c.Scanned && before != c.Before {
			t.Fatalf("job %s was %v, and the change has %v", c.ID, before, c.Before)
		}
		delete(r.again, place)
		if c.Labels != "" {
			r.labels[c.ID] = c.Labels
		}
		doc := c.Document
		if r.jobs[place] = &doc; c.Removed {
			delete(r.jobs, place)
		}
	}
}

// ingested notes the labels of ingested jobs.
func (r *changeReader) ingested(l *Ledger, cmds []Command, results []Result) {
	for i, c := range cmds {
		ingest, ok := c.(*Ingest)
		for k, became := range results[i].Ingested {
			switch j := &ingest.Jobs[k]; {
			case !ok || became != IngestedWaiting && became != IngestedDelayed && became != IngestedDebounced:
			case became == IngestedDebounced:
				d, _ := l.Decision(j.Position)
				r.wanted[d.Job] = cmp.Or(j.Labels, job.NoLabels)
			case j.Labels != "":
				r.wanted[j.ID] = j.Labels
			}
		}
	}
}

// check reads all changes, and compares the jobs with those of the ledger.
func (r *changeReader) check(t failer, l *Ledger) {
	for r.next(t, l, 3); r.batch.More; r.next(t, l, 3) {
	}
	if r.batch.Scanning || r.batch.Mark.Index != l.index || r.batch.Mark.Event != l.LastEvent() {
		t.Fatalf("at entry %d all changes were read to %+v, scanning %v", l.index, r.batch.Mark, r.batch.Scanning)
	}
	if len(r.again) > 0 {
		t.Fatalf("%d jobs were not read again", len(r.again))
	}
	for _, stored := range l.jobs.records.all {
		var want Change
		l.jobs.find(stored.id).change(&want)
		got := r.jobs[JobPlace{stored.accepted, stored.id}]
		if diff := gocmp.Diff(&want.Document, got); diff != "" {
			t.Fatalf("job %s: (-ledger +changes)\n%s", stored.id, diff)
		}
	}
	for id, want := range r.wanted {
		if got := r.labels[id]; got != want && !r.lost {
			t.Fatalf("job %s has labels %q, want %q", id, got, want)
		}
	}
	for _, d := range r.jobs {
		if _, _, ok := l.Find(d.ID); !ok && !r.lost && (!d.State.Ended() || l.Removed(d.ID)) {
			t.Fatalf("job %s is %s, and the ledger has removed it", d.ID, d.State)
		}
	}
	if dirty, carried := len(r.list.entries), len(r.list.carried)+r.list.dropped; dirty+carried > 0 {
		t.Fatalf("%d entries and %d forgotten jobs remain", dirty, carried)
	}
}

// TestChangeList_Properties reads the changes of random entries at random points, while lists
// become full and ledgers are replaced by decoded ones.
func TestChangeList_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, r := newGenerator(), newChangeReader()
		g.ledger.RecordChanges(r.list)
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			cmds := g.entry(t)
			r.ingested(g.ledger, cmds, g.ledger.Apply(g.at, cmds))
			switch rapid.IntRange(0, 12).Draw(t, "then") {
			case 0:
				r.list.restart()
				r.list.full = rapid.Bool().Draw(t, "full")
			case 1: // as by a snapshot of another node
				g.ledger = roundTrip(t, g.ledger)
				if rapid.Bool().Draw(t, "missed") {
					g.ledger.Apply(g.at, g.entry(t))
				}
				g.ledger.RecordChanges(r.list)
			case 2, 3, 4:
				r.next(t, g.ledger, rapid.IntRange(0, 3).Draw(t, "limit"))
			case 5, 6:
				r.check(t, g.ledger)
			}
		}
		r.check(t, g.ledger)
	})
}

// TestChangeList_Resume applies entries again whose changes were read, as after a restart.
func TestChangeList_Resume(t *testing.T) {
	run := func(l *Ledger, r *changeReader, from, to int) {
		for i := from; i < to; i++ {
			l.Apply(Stamp{Index: uint64(i + 10), Term: 1, Epoch: l.Authority().Epoch, At: scriptStart.Add(time.Duration(i) * time.Second)}, benchEntry(0, i*benchBatch))
		}
	}
	first, stamp := ledgerWithAuthority(t)
	start := encoded(t, first)
	if stamp.Index >= 10 {
		t.Fatalf("the ledger is at entry %d", stamp.Index)
	}
	r := newChangeReader()
	first.RecordChanges(r.list)
	run(first, r, 0, 5)
	for r.next(t, first, 100); r.batch.More; r.next(t, first, 100) {
	}
	read := len(r.jobs)
	r.lost = false // the list began with a ledger that had entries
	run(first, r, 5, 8)

	again, err := Decode(bytes.NewReader(start))
	if err != nil {
		t.Fatal(err)
	}
	r.list = NewChangeList(r.batch.Mark)
	again.RecordChanges(r.list)
	run(again, r, 0, 5)
	if r.next(t, again, 1); len(r.batch.Changes) > 0 || r.batch.Mark.Index != 14 {
		t.Fatalf("changes that were read are read again: %+v", r.batch)
	}
	run(again, r, 5, 8)
	if r.check(t, again); r.lost || read == 0 || len(r.jobs) <= read {
		t.Fatalf("%d jobs were read, then %d", read, len(r.jobs))
	}
}

// TestChangeList_Full adds more changes than a list may have.
func TestChangeList_Full(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	r := newChangeReader()
	l.RecordChanges(r.list)
	retention := &SetRetention{Settings: []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundCount}, Value: 1}}}
	stamp.Index++
	l.Apply(stamp, []Command{retention})
	for i := 0; !r.list.full; i++ {
		stamp.Index++
		l.Apply(stamp, append(benchEntry(0, i*benchBatch), &MarkPublished{Events: l.LastEvent(), Results: l.LastResult()}))
		if r.list.dropped > maxDropped {
			t.Fatalf("the list has %d forgotten jobs", r.list.dropped)
		}
	}
	if r.check(t, l); !r.lost {
		t.Error("the reader did not learn that changes are missing")
	}
}

// BenchmarkChanges is what a list of changes costs an entry of jobs that run at once, and its reader.
func BenchmarkChanges(b *testing.B) {
	for _, recorded := range []bool{false, true} {
		b.Run(fmt.Sprint("recorded=", recorded), func(b *testing.B) {
			l, stamp := filledLedger(b, 1000)
			var batch ChangeBatch
			list := NewChangeList(ChangeMark{})
			if recorded {
				l.RecordChanges(list)
			}
			reading := time.Duration(0)
			b.ReportAllocs()
			for done := 0; done < b.N; done += benchBatch {
				b.StopTimer()
				entry := benchEntry(1000, 1000+done)
				b.StartTimer()
				stamp.Index++
				stamp.At = stamp.At.Add(5 * time.Millisecond)
				l.Apply(stamp, entry)
				l.Apply(stamp, []Command{&MarkPublished{Events: l.LastEvent(), Results: l.LastResult()}})
				if !recorded || done/benchBatch%20 > 0 {
					continue
				}
				start := time.Now()
				for list.Next(l, &batch, 100); batch.More; list.Next(l, &batch, 100) {
				}
				reading += time.Since(start)
			}
			b.ReportMetric(float64(reading.Nanoseconds())/float64(b.N), "ns-reading/op")
		})
	}
}

// TestDocument_Due checks that a delayed job has the same due time in its document as in its view, also if it
// waits for its next attempt.
func TestDocument_Due(t *testing.T) {
	l, stamp := explainLedger(t)
	due := stamp.At.Add(time.Minute)
	l.Apply(stamp, []Command{&Settle{Settlements: []Settlement{{Job: jobID(0), N: 1, Next: job.NextRetry, At: due, Reason: "boom"}}}})
	for i, want := range map[int]time.Time{0: due, 2: scriptStart.Add(2 * time.Second), 6: scriptStart.Add(4 * time.Hour)} {
		d, _ := l.Document(jobID(i))
		v, _, _ := l.Find(jobID(i))
		if !d.View().RunAt.Equal(want) || !v.RunAt.Equal(want) {
			t.Errorf("job %d is found as due at %s, and shown as due at %s, want %s", i, d.View().RunAt, v.RunAt, want)
		}
	}
}
