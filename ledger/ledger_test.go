package ledger

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/job"
)

// ledgerWithAuthority returns a ledger with an authority and one lane, and the stamp
// of the next entry.
func ledgerWithAuthority(t testing.TB) (*Ledger, Stamp) {
	t.Helper()
	l := New()
	l.Apply(stampAt(1, 0, 0), []Command{&Lead{Owner: "n1", Until: scriptStart.Add(time.Hour), Level: Level}})
	stamp := stampAt(2, 0, l.Authority().Epoch)
	if r := l.Apply(stamp, []Command{&Bootstrap{Secret: []byte("s"), Lanes: []string{"L0"}}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	stamp.Index++
	return l, stamp
}

// jobID returns the id of the n-th job of a test.
func jobID(n int) (id job.ID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	id[0] = byte(n * 37) // spread, as real ids are
	return id
}

// ingestBatch returns commands that ingest, place and settle n jobs from first on;
// value is their result.
func ingestBatch(first, n int, value string) (*Ingest, *Place, *Settle) {
	f := &Ingest{Identity: "L0", From: uint64(first), To: uint64(first + n), CreateQueues: true}
	p, s := &Place{}, &Settle{}
	for i := first; i < first+n; i++ {
		f.Jobs = append(f.Jobs, job.Job{
			ID: jobID(i), Queue: "mail", Position: job.Position{Seq: uint64(i + 1)}, Priority: job.DefaultPriority,
			Accepted: scriptStart.Add(time.Duration(i) * time.Microsecond),
		})
		p.Placements = append(p.Placements, Placement{Job: jobID(i), N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
		s.Settlements = append(s.Settlements, Settlement{Job: jobID(i), N: 1, Next: job.NextDone, Result: job.Value{Data: []byte(value)}})
	}
	return f, p, s
}

func TestLedger_ForgetsBeyondItsHorizon(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	const n = 3 * slabSize
	f, p, s := ingestBatch(0, n, "")
	l.Apply(stamp, []Command{f, p, s})
	stamp.At = stamp.At.Add(FinishedRetention)
	for l.Finished().Shared > 0 {
		stamp.Index++
		before := l.Finished().Shared
		l.Apply(stamp, nil)
		if dropped := before - l.Finished().Shared; dropped == 0 || dropped > maxPruned {
			t.Fatalf("%d of %d jobs forgotten in one entry", dropped, before)
		}
	}
	if _, known := l.Known(jobID(0)); !known || l.jobs.forgotten.size != n {
		t.Fatalf("%d ids remembered, first: %t", l.jobs.forgotten.size, known)
	}
	kept := l.Copy()
	before := encoded(t, kept)

	for _, id := range []job.ID{jobID(0), jobID(n - 1)} { // they are few
		stamp.At = stamp.At.Add(DedupeHorizon)
		l.Apply(stamp, []Command{&MarkIngested{Lanes: []LaneEnd{{Last: n, At: stamp.At}}}})
		if _, known := l.Known(id); !known {
			t.Errorf("id %s is forgotten", id)
		}
	}
	stamp.At = stamp.At.Add(DedupeAge)
	l.Apply(stamp, []Command{&MarkIngested{Lanes: []LaneEnd{{Last: n, At: stamp.At}}}})
	if _, known := l.Known(jobID(0)); known || l.jobs.forgotten.size > 0 {
		t.Errorf("%d ids are remembered beyond the horizon", l.jobs.forgotten.size)
	}
	if !bytes.Equal(before, encoded(t, kept)) {
		t.Error("a copy changes with its original")
	}
	if err := checkInvariants(l); err != nil {
		t.Error(err)
	}
}

// TestLedger_FindsResults publishes results, and checks that the places of the last ones
// are kept.
func TestLedger_FindsResults(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	const step = 100
	for i := range 30 {
		f, p, s := ingestBatch(i*step, step, fmt.Sprint(i))
		stamp.Index, stamp.At = stamp.Index+1, stamp.At.Add(time.Hour)
		l.Apply(stamp, []Command{f, p, s})
		published := &MarkPublished{Events: l.LastEvent(), Results: l.LastResult(), Messages: []ResultMessage{{First: uint64(i*step + 1), Seq: uint64(i + 100)}}}
		stamp.Index++
		l.Apply(stamp, []Command{published, published})
	}
	for i := range 30 * step {
		_, result, ok := l.Find(jobID(i))
		if !ok {
			continue
		}
		item, seq := l.FindResult(result)
		if want := uint64(i/step + 100); item != nil || seq != want {
			t.Fatalf("result %d of job %d is in message %d, want %d", result, i, seq, want)
		}
	}
	if n, ended := len(l.outbox.messages), l.Finished().Shared; n > ended/step+2 {
		t.Errorf("%d messages are located, of %d jobs", n, ended)
	}
	last := l.LastResult()
	for i := range uint64(maxResultMessages) {
		stamp.Index++
		l.Apply(stamp, []Command{&MarkPublished{Messages: []ResultMessage{{First: last + 1 + i, Seq: 1000 + i}}}})
	}
	if _, seq := l.FindResult(last); seq != 0 || len(l.outbox.messages) != maxResultMessages {
		t.Errorf("%d messages are located; result %d is in message %d", len(l.outbox.messages), last, seq)
	}
	if _, seq := l.FindResult(last + 5); seq != 1004 {
		t.Errorf("result %d is in message %d", last+5, seq)
	}
	if _, seq := l.FindResult(0); seq != 0 {
		t.Errorf("result 0 is in message %d", seq)
	}
}

// TestLedger_KeepsResultTTL checks that a snapshot contains the TTL of results.
func TestLedger_KeepsResultTTL(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	f, p, s := ingestBatch(0, 2, "1")
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
	l, stamp := ledgerWithAuthority(t)
	f, _, _ := ingestBatch(0, maxPromotions+500, "")
	for i := range f.Jobs {
		f.Jobs[i].RunAt = stamp.At.Add(time.Second)
	}
	l.Apply(stamp, []Command{f})
	if wait, _ := l.NextDue().Wait(SameClock(stamp.At)); wait != time.Second {
		t.Fatalf("next due in %v", wait)
	}
	stamp.Index, stamp.At = stamp.Index+1, stamp.At.Add(time.Second)
	for _, want := range []int{maxPromotions, maxPromotions + 500} {
		l.Apply(stamp, nil)
		if q, _ := l.Queue("mail"); q.Counts[job.Waiting] != want {
			t.Fatalf("%d jobs wait, want %d", q.Counts[job.Waiting], want)
		}
	}
}

// TestLedger_IngestsAheadOfTime checks that a job is due immediately even if its lane's
// clock is ahead.
func TestLedger_IngestsAheadOfTime(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	f, _, _ := ingestBatch(0, 1, "")
	f.Jobs[0].Accepted = stamp.At.Add(time.Minute)
	if r := l.Apply(stamp, []Command{f}); r[0].Ingested[0] != IngestedWaiting {
		t.Errorf("ingested as %d", r[0].Ingested[0])
	}
}

func TestLedger_ListRefusesBadPages(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	f, p, s := ingestBatch(0, 3, "")
	p.Placements, s.Settlements = p.Placements[:2], s.Settlements[:1]
	l.Apply(stamp, []Command{f, p, s})
	for _, state := range []job.State{job.New, job.Waiting, job.Delayed, job.Active, job.Completed, job.Failed, job.Cancelled, job.Expired} {
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

func TestLedger_TruncatesReasons(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	f, p, s := ingestBatch(0, 1, "")
	long := strings.Repeat("ü", 2000)
	s.Settlements[0] = Settlement{Job: jobID(0), N: 1, Next: job.NextDead, Reason: long}
	l.Apply(stamp, []Command{f, p, s})
	view, _, _ := l.Find(jobID(0))
	if len(view.Reason) > MaxKeptReason || !utf8.ValidString(view.Reason) || len(view.Reason) < MaxKeptReason-4 {
		t.Errorf("kept %q", view.Reason)
	}
	if letter := l.DeadLettersAfter(0)[0]; letter.Reason != long {
		t.Errorf("reason in the dead letter: %q", letter.Reason)
	}
}

// A job has the code and the details of its last failure, between two attempts and at its
// end, also after a restart. Details that are too long lose their middle.
func TestLedger_KeepsFaults(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	f, p, s := ingestBatch(0, 2, "")
	long := json.RawMessage(`"` + strings.Repeat("d", 3000) + `the end"`)
	s.Settlements[0] = Settlement{
		Job: jobID(0), N: 1, Next: job.NextRetry, At: stamp.At.Add(time.Hour), Reason: "busy",
		Fault: &job.Fault{Message: "busy", Type: "smtp", Code: "451", Details: json.RawMessage(`{"wait":1.50}`)},
	}
	s.Settlements[1] = Settlement{
		Job: jobID(1), N: 1, Next: job.NextDead, Reason: "no", Fault: &job.Fault{Message: "no", Code: "550", Details: long},
	}
	l.Apply(stamp, []Command{f, p, s})
	restored, err := Decode(bytes.NewReader(encoded(t, l)))
	if err != nil {
		t.Fatal(err)
	}
	for _, ledger := range []*Ledger{l, restored} {
		retried, _, _ := ledger.Find(jobID(0))
		if want := s.Settlements[0].Fault; retried.Fault == nil || !reflect.DeepEqual(retried.Fault, want) {
			t.Errorf("between two attempts the error is %+v", retried.Fault)
		}
		failed, _, _ := ledger.Find(jobID(1))
		if fault := failed.Fault; fault.Code != "550" || len(fault.Details) > MaxKeptDetails || !strings.HasPrefix(string(fault.Details), `"ddd`) || !strings.HasSuffix(string(fault.Details), `the end"`) {
			t.Errorf("the error of the failed job is %+v with details %s", fault, fault.Details)
		}
	}
	if letter := l.DeadLettersAfter(0)[0]; string(letter.Fault.Details) != string(long) {
		t.Errorf("details in the dead letter: %s", letter.Fault.Details)
	}
}

// TestLedger_SnapshotSharesNothing checks that a snapshot does not change with the
// ledger.
func TestLedger_SnapshotSharesNothing(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	view := l.Snapshot(SnapshotContext{Now: stamp.At})
	until := *view.Authority.LeasedUntil
	l.Apply(stamp, []Command{&Renew{Until: stamp.At.Add(9 * time.Hour)}})
	if *view.Authority.LeasedUntil != until {
		t.Error("the snapshot changed with the lease")
	}
}

// TestLedger_CopyWhileApplying reads copies while entries are applied to the
// original, for the race detector.
func TestLedger_CopyWhileApplying(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	var readers sync.WaitGroup
	for i := range 20 {
		f, p, s := ingestBatch(i*50, 50, `{"a":1}`)
		stamp.Index++
		l.Apply(stamp, []Command{f, p})
		kept := l.Copy()
		want := hash(t, l)
		readers.Go(func() {
			kept.List("mail", job.Waiting, 10, 10)
			kept.EventsAfter(3, func(uint64, time.Time, *Event) bool { return true })
			kept.Snapshot(SnapshotContext{})
			if got, err := kept.Hash(); err != nil || got != want {
				t.Errorf("copy %d has changed: %v", i, err)
			}
		})
		stamp.Index++
		l.Apply(stamp, []Command{s, &MarkPublished{Events: uint64(i * 50), Results: uint64(i * 20)}})
	}
	readers.Wait()
}

// TestDecode_Refuses checks that a truncated encoding, and an unknown format, are errors.
func TestDecode_Refuses(t *testing.T) {
	whole := busyEncoding(t)
	for n := range whole {
		if _, err := Decode(bytes.NewReader(whole[:n])); err == nil {
			t.Fatalf("%d of %d bytes are accepted", n, len(whole))
		}
	}
	for _, format := range []byte{0, oldestFormat - 1, formatVersion + 1} {
		whole[0] = format
		if _, err := Decode(bytes.NewReader(whole)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("format %d,", format)) {
			t.Errorf("unknown format: %v", err)
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestEncode_Fails(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	f, p, s := ingestBatch(0, 2000, "x")
	l.Apply(stamp, []Command{f, p, s})
	if err := l.Encode(failingWriter{}); err == nil {
		t.Error("a write error is not returned")
	}
}

// busyEncoding returns an encoded ledger with every kind of record.
func busyEncoding(t testing.TB) []byte {
	t.Helper()
	l, stamp := ledgerWithAuthority(t)
	f, p, s := ingestBatch(0, 8, `{"a":1}`)
	f.Jobs[1].RunAt = stamp.At.Add(time.Hour)
	f.Jobs[2].Function, f.Jobs[2].MaxAttempts = "rust#x", 7
	f.Rejected = []Rejection{{ID: jobID(99), Queue: "mail", Seq: 9, Accepted: stamp.At, Reason: "bad"}}
	p.Placements, s.Settlements = p.Placements[:6], s.Settlements[:5]
	s.Settlements[3] = Settlement{Job: jobID(3), N: 1, Next: job.NextDead, Reason: "x", Fault: &job.Fault{Message: "m", Details: []byte("[]")}}
	s.Settlements[4].Blob = &job.Blob{Name: "b", Chunks: 1, Size: 1, SHA256: "00"}
	results := l.Apply(stamp, []Command{
		f, p, s, &RemoveJob{Job: jobID(7)},
		&QueueDispatch{RequestID: "r", Target: "t", Metadata: []byte(`{}`)},
		&QueueDispatch{RequestID: "q", Target: "t"}, &MarkFailed{RequestID: "q", Reason: "f"},
		&RequestReplay{Cursor: new("0@0")}, &MarkPublished{Events: 3, Results: 1, Messages: []ResultMessage{{First: 1, Seq: 1}}},
	})
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("command %d: %v", i, r.Err)
		}
	}
	return encoded(t, l)
}

// FuzzDecode checks that no input makes the decoder panic or allocate memory out of
// proportion, and that a decoded ledger can be encoded again.
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
			t.Errorf("decoding %d bytes allocated %d", len(text), took)
		}
		if err != nil {
			return
		}
		again := encoded(t, l)
		if _, err := Decode(bytes.NewReader(again)); err != nil {
			t.Errorf("encoding of a decoded ledger: %v", err)
		}
	})
}
