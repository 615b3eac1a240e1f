package ledger

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// bootstrappedLedger returns a ledger with authority n1 and one lane, and the stamp of
// its last entry.
func bootstrappedLedger(secret byte) (*Ledger, *Stamp) {
	l, at := New(), &Stamp{Index: 1, Term: 1, At: time.Unix(1000, 0)}
	l.Apply(*at, []Command{&Lead{Owner: "n1", Until: at.At.Add(time.Hour)}})
	at.Epoch = l.Authority().Epoch
	applyNext(l, at, &Bootstrap{Secret: []byte{secret}, Lanes: []string{"lane-" + string('a'+rune(secret))}, StreamsCreated: true})
	return l, at
}

// applyNext applies c in the next entry, one second later.
func applyNext(l *Ledger, at *Stamp, c ...Command) []Result {
	at.Index++
	at.At = at.At.Add(time.Second)
	return l.Apply(*at, c)
}

// encodedLedger returns a ledger with an active, a waiting and a completed job, and its
// encoding.
func encodedLedger(t *testing.T) (*Ledger, []byte) {
	t.Helper()
	l, at := bootstrappedLedger(1)
	jobs := make([]job.Job, 3)
	for i := range jobs {
		jobs[i] = job.Job{ID: job.ID{byte(i + 1)}, Queue: "mail", Accepted: at.At, Position: job.Position{Seq: uint64(i + 1)}}
	}
	applyNext(l, at, &Ingest{Identity: l.Lanes()[0].Identity, To: 3, Jobs: jobs, CreateQueues: true})
	applyNext(l, at, &Place{Placements: []Placement{{Job: jobs[0].ID, N: 1, Node: "n1", Channel: "w"}, {Job: jobs[1].ID, N: 1, Node: "n1", Channel: "w"}}})
	applyNext(l, at, &Settle{Settlements: []Settlement{{Job: jobs[0].ID, N: 1, Next: job.NextDone}}})
	var b bytes.Buffer
	if err := l.Encode(&b); err != nil {
		t.Fatal(err)
	}
	return l, b.Bytes()
}

// restore restores the ledger text into l, in parts, and returns the last result.
func restore(l *Ledger, at *Stamp, text []byte) Result {
	sum := sha256.Sum256(text)
	applyNext(l, at, &Restore{Stage: RestoreBegin, ID: "r", Source: "elsewhere"})
	for n := uint64(0); len(text) > 0; n++ {
		size := min(len(text), 100)
		part := &Restore{Stage: RestorePart, ID: "r", Number: n, Data: text[:size]}
		applyNext(l, at, part, part) // repeated
		text = text[size:]
	}
	return applyNext(l, at, &Restore{Stage: RestoreFinish, ID: "r", SHA256: sum[:], Lanes: []string{"further"}})[0]
}

func TestRestore(t *testing.T) {
	old, text := encodedLedger(t)
	l, at := bootstrappedLedger(2)
	if r := restore(l, at, text); r.Err != nil {
		t.Fatal(r.Err)
	}
	if id, _ := l.Restoring(); id != "" || l.Index() != at.Index || !bytes.Equal(l.Secret(), []byte{2}) {
		t.Errorf("restoring %q, index %d of %d, secret %v: want no restore, the entry's index, the new cluster's secret", id, l.Index(), at.Index, l.Secret())
	}
	if lanes := l.Lanes(); len(lanes) != 2 || lanes[0] != old.Lanes()[0] || lanes[1].Identity != "further" || lanes[1].Cursor != 0 {
		t.Errorf("lanes %+v", lanes)
	}
	running, _, _ := old.Find(job.ID{2})
	given, _, ok := l.Find(job.ID{2})
	if !ok || given.State != job.Waiting || given.Attempts != running.Attempts-1 {
		t.Errorf("the active job is now %v with %d attempts, of %d", given.State, given.Attempts, running.Attempts)
	}
	if r := applyNext(l, at, &PauseQueue{Name: "mail", Paused: true}); !errors.Is(r[0].Err, ErrStaleEpoch) {
		t.Errorf("command of the authority from before the restore: %v", r[0].Err)
	}
	applyNext(l, at, &Lead{Owner: "n2", Until: at.At.Add(time.Hour)})
	if at.Epoch = l.Authority().Epoch; at.Epoch < RestoreJump {
		t.Errorf("epoch %d did not jump", at.Epoch)
	}
	applyNext(l, at, &Place{Placements: []Placement{{Job: job.ID{2}, N: given.Dispatches, Node: "n2", Channel: "w"}}})
	if placed, _, _ := l.Find(job.ID{2}); placed.State != job.Active || placed.Attempts != running.Attempts {
		t.Errorf("given back, then placed: %v with %d attempts", placed.State, placed.Attempts)
	}
	l.ActiveDispatches(func(a ActiveDispatch) bool {
		if a.Fence <= old.Index()+RestoreJump/2 || a.Fence != l.FenceBase()+at.Index {
			t.Errorf("fence %d, base %d, entry %d", a.Fence, l.FenceBase(), at.Index)
		}
		return true
	})
	var numbers []uint64
	l.EventsAfter(old.LastEvent(), func(n uint64, _ time.Time, _ *Event) bool { numbers = append(numbers, n); return true })
	if len(numbers) == 0 || numbers[0] != old.LastEvent()+1 || numbers[len(numbers)-1] != l.LastEvent() || uint64(len(numbers)) != l.LastEvent()-old.LastEvent() {
		t.Errorf("event numbers %v after %d", numbers, old.LastEvent())
	}
}

// TestRestore_Interrupted checks that an unfinished restore is part of a snapshot, and
// that another one replaces it.
func TestRestore_Interrupted(t *testing.T) {
	_, text := encodedLedger(t)
	l, at := bootstrappedLedger(2)
	applyNext(l, at, &Restore{Stage: RestoreBegin, ID: "first", Source: "elsewhere"})
	applyNext(l, at, &Restore{Stage: RestorePart, ID: "first", Data: text[:50]})
	var b bytes.Buffer
	if err := l.Encode(&b); err != nil {
		t.Fatal(err)
	}
	l, err := Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	if id, source := l.Restoring(); id != "first" || source != "elsewhere" {
		t.Fatalf("after decoding: %q of %q", id, source)
	}
	reasons := l.Snapshot(SnapshotContext{Now: at.At}).Readiness.Reasons
	if len(reasons) != 1 || !strings.HasPrefix(reasons[0], "a restore of elsewhere was begun and has not ended: nothing is accepted") {
		t.Errorf("reasons %q", reasons)
	}
	sum := sha256.Sum256(text)
	for want, c := range map[error]*Restore{
		ErrNotRestoring:      {Stage: RestorePart, ID: "other", Number: 1},
		ErrRestoreIncomplete: {Stage: RestoreFinish, ID: "first", SHA256: sum[:]},
	} {
		if r := applyNext(l, at, c)[0]; !errors.Is(r.Err, want) {
			t.Errorf("%+v: %v, want %v", c, r.Err, want)
		}
	}
	if r := restore(l, at, text); r.Err != nil {
		t.Fatalf("second restore: %v", r.Err)
	}
	if r := applyNext(l, at, &Restore{Stage: RestoreBegin, ID: "second"})[0]; !errors.Is(r.Err, ErrStaleEpoch) {
		t.Errorf("restore under the old epoch: %v", r.Err)
	}
	applyNext(l, at, &Lead{Owner: "n1", Until: at.At.Add(time.Hour)})
	at.Epoch = l.Authority().Epoch
	if r := applyNext(l, at, &Restore{Stage: RestoreBegin, ID: "second"})[0]; !errors.Is(r.Err, ErrNotFresh) {
		t.Errorf("restore into a cluster with jobs: %v", r.Err)
	}
}

func TestHold(t *testing.T) {
	l, at := bootstrappedLedger(1)
	hold := func(holder string, d time.Duration) error {
		c := &Hold{Holder: holder}
		if d > 0 {
			c.Until = l.Now().Add(d)
		}
		return applyNext(l, at, c)[0].Err
	}
	if err := hold("a", time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, until := l.Holder(); until.Sub(l.Now()) > MaxHold {
		t.Errorf("held until %v, at %v", until, l.Now())
	}
	if err := hold("b", time.Minute); !errors.Is(err, ErrBackupRunning) {
		t.Errorf("second hold: %v", err)
	}
	at.At = at.At.Add(MaxHold) // not renewed
	if err := hold("b", time.Minute); err != nil {
		t.Errorf("hold after the first expired: %v", err)
	}
	if err := hold("b", 0); err != nil {
		t.Error(err)
	}
	if holder, _ := l.Holder(); holder != "" {
		t.Errorf("held by %q after it was released", holder)
	}
}

// TestRestore_RefusesOtherCommands checks that commands whose effects a restore would
// discard are refused while it runs.
func TestRestore_RefusesOtherCommands(t *testing.T) {
	l, at := bootstrappedLedger(2)
	member := func(name string) Member { return Member{Node: name, Dir: "d", State: MemberPresent} }
	applyNext(l, at, &SetMembers{Members: []Member{member("n1"), member("n2"), member("n3")}})
	joiner := member("n4")
	join := &ChangeMembers{Join: &joiner}
	if r := applyNext(l, at, join)[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	begin := &Restore{Stage: RestoreBegin, ID: "r", Source: "elsewhere"}
	if r := applyNext(l, at, begin)[0]; !errors.Is(r.Err, ErrMembersChanging) {
		t.Errorf("while n4 joins: %v", r.Err)
	}
	applyNext(l, at, &ChangeMembers{Cancel: true}, &AdvanceMember{ServerID: "n4-d", From: MemberLeaving, To: MemberOut})
	if r := applyNext(l, at, begin)[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	for _, c := range []Command{
		join, &AddQueue{Name: "q", ID: job.ID{9}}, &PauseQueue{Name: "mail", Paused: true}, &Ingest{Identity: l.Lanes()[0].Identity, To: 1},
		&SetCron{Cron: Cron{Name: "c"}}, &Hold{Holder: "h"}, &QueueDispatch{RequestID: "a", Target: "t"}, &RemoveQueue{Name: "mail"},
	} {
		if r := applyNext(l, at, c)[0]; !errors.Is(r.Err, ErrRestoring) && Check(c) == nil {
			t.Errorf("%T: %v", c, r.Err)
		}
	}
	for _, c := range []Command{&Renew{Until: at.At.Add(time.Hour)}, &CheckConsistency{}, &MarkPublished{Events: l.LastEvent()}, &Restore{Stage: RestoreAbandon, ID: "r"}, join} {
		if r := applyNext(l, at, c)[0]; r.Err != nil {
			t.Errorf("%T: %v", c, r.Err)
		}
	}
}
