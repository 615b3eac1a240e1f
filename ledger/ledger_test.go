package ledger

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"yardmaster/job"
)

// led is a ledger with an authority and one lane, and the stamp to go on with.
func led(t testing.TB) (*Ledger, Stamp) {
	t.Helper()
	l := New()
	l.Apply(at(1, 0, 0), []Command{&Lead{Owner: "n1", Until: scriptStart.Add(time.Hour)}})
	stamp := at(2, 0, l.Authority().Epoch)
	if r := l.Apply(stamp, []Command{&Found{Secret: []byte("s"), Lanes: []string{"L0"}}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	stamp.Index++
	return l, stamp
}

// jobID is the id of the n-th job of a test.
func jobID(n int) (id job.ID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	id[0] = byte(n * 37) // spread, as real ids are
	return id
}

// batch folds, places and settles n jobs from first on; value is their result.
func batch(first, n int, value string) (*Fold, *Place, *Settle) {
	f := &Fold{Identity: "L0", From: uint64(first), To: uint64(first + n), CreateQueues: true}
	p, s := &Place{}, &Settle{}
	for i := first; i < first+n; i++ {
		f.Jobs = append(f.Jobs, job.Job{
			ID: jobID(i), Queue: "mail", Position: job.Position{Seq: uint64(i + 1)}, Priority: job.DefaultPriority,
			Accepted: scriptStart.Add(time.Duration(i) * time.Microsecond),
		})
		p.Placements = append(p.Placements, Placement{Job: jobID(i), N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
		s.Ends = append(s.Ends, End{Job: jobID(i), N: 1, Next: job.Done, Result: job.Value{Data: []byte(value)}})
	}
	return f, p, s
}

func TestLedger_ForgetsBeyondItsHorizon(t *testing.T) {
	l, stamp := led(t)
	const n = 3 * slabSize
	f, p, s := batch(0, n, "")
	l.Apply(stamp, []Command{f, p, s})
	stamp.At = stamp.At.Add(FinishedKeep)
	for l.jobs.ended.Len() > 0 {
		stamp.Index++
		before := l.jobs.ended.Len()
		l.Apply(stamp, nil)
		if gone := before - l.jobs.ended.Len(); gone == 0 || gone > maxForgotten {
			t.Fatalf("%d of %d jobs forgotten in one entry", gone, before)
		}
	}
	if _, known := l.Known(jobID(0)); !known || l.jobs.gone.size != n {
		t.Fatalf("%d ids remembered, first: %t", l.jobs.gone.size, known)
	}
	kept := l.Copy()
	before := encoded(t, kept)

	stamp.At = stamp.At.Add(DedupeHorizon + time.Second)
	l.Apply(stamp, nil)
	if _, known := l.Known(jobID(0)); known {
		t.Error("an id is remembered beyond the horizon")
	}
	if l.jobs.gone.size != len(l.jobs.gone.known) || l.jobs.gone.size > slabSize {
		t.Errorf("%d ids remembered, %d known", l.jobs.gone.size, len(l.jobs.gone.known))
	}
	if !bytes.Equal(before, encoded(t, kept)) {
		t.Error("a copy forgets with its original")
	}
	if err := holds(l); err != nil {
		t.Error(err)
	}
}

// TestLedger_FindsResults tells results in messages while old jobs are
// forgotten: what a kept job points to stays findable, the rest goes.
func TestLedger_FindsResults(t *testing.T) {
	l, stamp := led(t)
	const step = 100
	for i := range 30 {
		f, p, s := batch(i*step, step, fmt.Sprint(i))
		stamp.Index, stamp.At = stamp.Index+1, stamp.At.Add(time.Hour)
		l.Apply(stamp, []Command{f, p, s})
		told := &Told{Events: l.LastEvent(), Results: l.LastResult(), Messages: []ResultMessage{{First: uint64(i*step + 1), Seq: uint64(i + 100)}}}
		stamp.Index++
		l.Apply(stamp, []Command{told, told})
	}
	for i := range 30 * step {
		_, result, ok := l.Find(jobID(i))
		if !ok {
			continue
		}
		item, seq := l.FindResult(result)
		if want := uint64(i/step + 100); item != nil || seq != want {
			t.Fatalf("result %d of job %d lies in message %d, want %d", result, i, seq, want)
		}
	}
	if n := len(l.outbox.messages); n < 24 || n > 26 {
		t.Errorf("%d messages known for 24 hours of results", n)
	}
	if _, seq := l.FindResult(0); seq != 0 {
		t.Errorf("no result lies in message %d", seq)
	}
}

// TestLedger_KeepsResultTTL: how long a result is shown is known after a
// restore too.
func TestLedger_KeepsResultTTL(t *testing.T) {
	l, stamp := led(t)
	f, p, s := batch(0, 2, "1")
	f.Jobs[0].ResultTTL = 1500 * time.Millisecond
	l.Apply(stamp, []Command{f, p, s})
	var buf bytes.Buffer
	if err := l.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	restored, err := Decode(&buf)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []time.Duration{1500 * time.Millisecond, 0} {
		if view, _, ok := restored.Find(jobID(i)); !ok || view.ResultTTL != want || view.State != job.Completed {
			t.Errorf("job %d: %+v, want a result for %s", i, view, want)
		}
	}
}

func TestLedger_PromotesInSteps(t *testing.T) {
	l, stamp := led(t)
	f, _, _ := batch(0, maxPromotions+500, "")
	for i := range f.Jobs {
		f.Jobs[i].RunAt = stamp.At.Add(time.Second)
	}
	l.Apply(stamp, []Command{f})
	if due, ok := l.NextDue(); !ok || !due.Equal(stamp.At.Add(time.Second)) {
		t.Fatalf("next due %v, %t", due, ok)
	}
	stamp.Index, stamp.At = stamp.Index+1, stamp.At.Add(time.Second)
	for _, want := range []int{maxPromotions, maxPromotions + 500} {
		l.Apply(stamp, nil)
		if q, _ := l.Queue("mail"); q.Counts[job.Waiting] != want {
			t.Fatalf("%d jobs wait, want %d", q.Counts[job.Waiting], want)
		}
	}
}

// TestLedger_FoldsAheadOfTime: a lane whose clock is ahead delays nothing.
func TestLedger_FoldsAheadOfTime(t *testing.T) {
	l, stamp := led(t)
	f, _, _ := batch(0, 1, "")
	f.Jobs[0].Accepted = stamp.At.Add(time.Minute)
	if r := l.Apply(stamp, []Command{f}); r[0].Folded[0] != FoldedWaiting {
		t.Errorf("folded as %d", r[0].Folded[0])
	}
}

func TestLedger_ListsNoImpossiblePage(t *testing.T) {
	l, stamp := led(t)
	f, p, s := batch(0, 3, "")
	p.Placements, s.Ends = p.Placements[:2], s.Ends[:1]
	l.Apply(stamp, []Command{f, p, s})
	for _, state := range []job.State{job.New, job.Waiting, job.Delayed, job.Active, job.Completed, job.Failed} {
		for _, page := range [][2]int{{-1, 5}, {0, 0}, {0, -1}, {9, 5}, {1 << 62, 1 << 62}} {
			if views := l.List("mail", state, page[0], page[1]); len(views) > 0 {
				t.Errorf("%d %s jobs after %d, at most %d", len(views), state, page[0], page[1])
			}
		}
	}
	if views := l.List("mail", job.Completed, 0, 5); len(views) != 1 {
		t.Errorf("%d completed jobs listed", len(views))
	}
}

func TestLedger_ClipsReasons(t *testing.T) {
	l, stamp := led(t)
	f, p, s := batch(0, 1, "")
	long := strings.Repeat("ü", 2000)
	s.Ends[0] = End{Job: jobID(0), N: 1, Next: job.Dead, Reason: long}
	l.Apply(stamp, []Command{f, p, s})
	view, _, _ := l.Find(jobID(0))
	if len(view.Reason) > maxReason || !utf8.ValidString(view.Reason) || len(view.Reason) < maxReason-4 {
		t.Errorf("kept %q", view.Reason)
	}
	if letter := l.DeadAfter(0)[0]; letter.Reason != long {
		t.Errorf("dead letter says %q", letter.Reason)
	}
}

// TestLedger_SnapshotStandsAlone: a view does not change with the ledger.
func TestLedger_SnapshotStandsAlone(t *testing.T) {
	l, stamp := led(t)
	view := l.Snapshot(Surroundings{Now: stamp.At})
	until := *view.Authority.LeasedUntil
	l.Apply(stamp, []Command{&Renew{Until: stamp.At.Add(9 * time.Hour)}})
	if *view.Authority.LeasedUntil != until {
		t.Error("a snapshot follows the lease")
	}
}

// TestLedger_CopyWhileApplying reads copies while their original goes on; the
// race detector looks on.
func TestLedger_CopyWhileApplying(t *testing.T) {
	l, stamp := led(t)
	var readers sync.WaitGroup
	for i := range 20 {
		f, p, s := batch(i*50, 50, `{"a":1}`)
		stamp.Index++
		l.Apply(stamp, []Command{f, p})
		kept := l.Copy()
		want := hash(t, l)
		readers.Go(func() {
			kept.List("mail", job.Waiting, 10, 10)
			kept.EventsAfter(3, func(uint64, time.Time, *Event) bool { return true })
			kept.Snapshot(Surroundings{})
			if got, err := kept.Hash(); err != nil || got != want {
				t.Errorf("copy %d is not what it was: %v", i, err)
			}
		})
		stamp.Index++
		l.Apply(stamp, []Command{s, &Told{Events: uint64(i * 50), Results: uint64(i * 20)}})
	}
	readers.Wait()
}

// TestDecode_Refuses: cut short anywhere, an encoding is refused.
func TestDecode_Refuses(t *testing.T) {
	whole := busyEncoding(t)
	for n := range whole {
		if _, err := Decode(bytes.NewReader(whole[:n])); err == nil {
			t.Fatalf("%d of %d bytes are taken for a ledger", n, len(whole))
		}
	}
	for _, format := range []byte{0, formatVersion - 1, formatVersion + 1} {
		whole[0] = format
		if _, err := Decode(bytes.NewReader(whole)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("format %d,", format)) {
			t.Errorf("another format: %v", err)
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestEncode_Fails(t *testing.T) {
	l, stamp := led(t)
	f, p, s := batch(0, 2000, "x")
	l.Apply(stamp, []Command{f, p, s})
	if err := l.Encode(failingWriter{}); err == nil {
		t.Error("a full disk goes unnoticed")
	}
}

// busyEncoding holds something of everything.
func busyEncoding(t testing.TB) []byte {
	t.Helper()
	l, stamp := led(t)
	f, p, s := batch(0, 8, `{"a":1}`)
	f.Jobs[1].RunAt = stamp.At.Add(time.Hour)
	f.Jobs[2].Function, f.Jobs[2].MaxAttempts = "rust#x", 7
	f.Rejected = []Rejection{{ID: jobID(99), Queue: "mail", Seq: 9, Accepted: stamp.At, Reason: "bad"}}
	p.Placements, s.Ends = p.Placements[:6], s.Ends[:5]
	s.Ends[3] = End{Job: jobID(3), N: 1, Next: job.Dead, Reason: "x", Fault: &job.Fault{Message: "m", Details: []byte("[]")}}
	s.Ends[4].Blob = &job.Blob{Name: "b", Chunks: 1, Size: 1, SHA256: "00"}
	results := l.Apply(stamp, []Command{
		f, p, s, &RemoveJob{Job: jobID(7)},
		&QueueDispatch{RequestID: "r", Target: "t", Metadata: []byte(`{}`)},
		&QueueDispatch{RequestID: "q", Target: "t"}, &MarkFailed{RequestID: "q", Reason: "f"},
		&RequestReplay{Cursor: new("0@0")}, &Told{Events: 3, Results: 1, Messages: []ResultMessage{{First: 1, Seq: 1}}},
	})
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("command %d: %v", i, r.Err)
		}
	}
	return encoded(t, l)
}

// FuzzDecode: no bytes make a decoder panic or take memory out of proportion,
// and what is taken for a ledger can go on.
func FuzzDecode(f *testing.F) {
	f.Add(busyEncoding(f))
	f.Add(guardedEncoding(f))
	f.Add(encoded(f, New()))
	f.Fuzz(func(t *testing.T, text []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		l, err := Decode(bytes.NewReader(text))
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20+uint64(len(text))*2048 {
			t.Errorf("%d bytes made the decoder take %d", len(text), took)
		}
		if err != nil {
			return
		}
		again := encoded(t, l)
		if _, err := Decode(bytes.NewReader(again)); err != nil {
			t.Errorf("what was decoded does not come back: %v", err)
		}
	})
}
