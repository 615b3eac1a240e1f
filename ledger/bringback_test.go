package ledger

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"yardmaster/job"
)

// freshLedger is a ledger whose authority is n1, with one lane; at goes on with it.
func freshLedger(secret byte) (*Ledger, *Stamp) {
	l, at := New(), &Stamp{Index: 1, Term: 1, At: time.Unix(1000, 0)}
	l.Apply(*at, []Command{&Lead{Owner: "n1", Until: at.At.Add(time.Hour)}})
	at.Epoch = l.Authority().Epoch
	appended(l, at, &Found{Secret: []byte{secret}, Lanes: []string{"lane-" + string('a'+rune(secret))}, Made: true})
	return l, at
}

func appended(l *Ledger, at *Stamp, c ...Command) []Result {
	at.Index++
	at.At = at.At.Add(time.Second)
	return l.Apply(*at, c)
}

// savedLedger is a ledger with a job that runs, one that waits and one that is done.
func savedLedger(t *testing.T) (*Ledger, []byte) {
	t.Helper()
	l, at := freshLedger(1)
	jobs := make([]job.Job, 3)
	for i := range jobs {
		jobs[i] = job.Job{ID: job.ID{byte(i + 1)}, Queue: "mail", Accepted: at.At, Position: job.Position{Seq: uint64(i + 1)}}
	}
	appended(l, at, &Fold{Identity: l.Lanes()[0].Identity, To: 3, Jobs: jobs, CreateQueues: true})
	appended(l, at, &Place{Placements: []Placement{{Job: jobs[0].ID, N: 1, Node: "n1", Channel: "w"}, {Job: jobs[1].ID, N: 1, Node: "n1", Channel: "w"}}})
	appended(l, at, &Settle{Ends: []End{{Job: jobs[0].ID, N: 1, Next: job.Done}}})
	var b bytes.Buffer
	if err := l.Encode(&b); err != nil {
		t.Fatal(err)
	}
	return l, b.Bytes()
}

func bring(l *Ledger, at *Stamp, text []byte) Result {
	sum := sha256.Sum256(text)
	appended(l, at, &BringBack{Stage: BringBegin, ID: "r", Source: "elsewhere"})
	for n := uint64(0); len(text) > 0; n++ {
		size := min(len(text), 100)
		part := &BringBack{Stage: BringPart, ID: "r", Number: n, Data: text[:size]}
		appended(l, at, part, part) // repeated
		text = text[size:]
	}
	return appended(l, at, &BringBack{Stage: BringFinish, ID: "r", SHA256: sum[:], Lanes: []string{"further"}})[0]
}

func TestBringBack(t *testing.T) {
	old, text := savedLedger(t)
	l, at := freshLedger(2)
	if r := bring(l, at, text); r.Err != nil {
		t.Fatal(r.Err)
	}
	if id, _ := l.Bringing(); id != "" || l.Index() != at.Index || !bytes.Equal(l.Secret(), []byte{2}) {
		t.Errorf("restoring %q, index %d of %d, secret %v: want none, this entry's, this yard's", id, l.Index(), at.Index, l.Secret())
	}
	if lanes := l.Lanes(); len(lanes) != 2 || lanes[0] != old.Lanes()[0] || lanes[1].Identity != "further" || lanes[1].Cursor != 0 {
		t.Errorf("lanes %+v", lanes)
	}
	running, _, _ := old.Find(job.ID{2})
	given, _, ok := l.Find(job.ID{2})
	if !ok || given.State != job.Waiting || given.Attempts != running.Attempts-1 {
		t.Errorf("the job that ran is %v with %d attempts, of %d", given.State, given.Attempts, running.Attempts)
	}
	if r := appended(l, at, &PauseQueue{Name: "mail", Paused: true}); !errors.Is(r[0].Err, ErrStaleEpoch) {
		t.Errorf("the authority of before the restore decided: %v", r[0].Err)
	}
	appended(l, at, &Lead{Owner: "n2", Until: at.At.Add(time.Hour)})
	if at.Epoch = l.Authority().Epoch; at.Epoch < BringStep {
		t.Errorf("epoch %d did not jump", at.Epoch)
	}
	appended(l, at, &Place{Placements: []Placement{{Job: job.ID{2}, N: given.Dispatches, Node: "n2", Channel: "w"}}})
	if again, _, _ := l.Find(job.ID{2}); again.State != job.Active || again.Attempts != running.Attempts {
		t.Errorf("given back, then started: %v with %d attempts", again.State, again.Attempts)
	}
	l.Active(func(a Active) bool {
		if a.Fence <= old.Index()+BringStep/2 || a.Fence != l.FenceBase()+at.Index {
			t.Errorf("fence %d, base %d, entry %d", a.Fence, l.FenceBase(), at.Index)
		}
		return true
	})
	var numbers []uint64
	l.EventsAfter(old.LastEvent(), func(n uint64, _ time.Time, _ *Event) bool { numbers = append(numbers, n); return true })
	if len(numbers) == 0 || numbers[0] != old.LastEvent()+1 || numbers[len(numbers)-1] != l.LastEvent() || uint64(len(numbers)) != l.LastEvent()-old.LastEvent() {
		t.Errorf("history goes on with %v after %d", numbers, old.LastEvent())
	}
}

// What a crash may leave in between is state like any other.
func TestBringBack_Interrupted(t *testing.T) {
	_, text := savedLedger(t)
	l, at := freshLedger(2)
	appended(l, at, &BringBack{Stage: BringBegin, ID: "first", Source: "elsewhere"})
	appended(l, at, &BringBack{Stage: BringPart, ID: "first", Data: text[:50]})
	var b bytes.Buffer
	if err := l.Encode(&b); err != nil {
		t.Fatal(err)
	}
	l, err := Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	if id, source := l.Bringing(); id != "first" || source != "elsewhere" {
		t.Fatalf("after a snapshot: %q of %q", id, source)
	}
	reasons := l.Snapshot(Surroundings{Now: at.At}).Readiness.Reasons
	if len(reasons) != 1 || !strings.HasPrefix(reasons[0], "a restore of elsewhere was begun and has not ended: nothing is accepted") {
		t.Errorf("reasons %q", reasons)
	}
	sum := sha256.Sum256(text)
	for want, c := range map[error]*BringBack{
		ErrBringSeat: {Stage: BringPart, ID: "other", Number: 1},
		ErrBringPart: {Stage: BringFinish, ID: "first", SHA256: sum[:]},
	} {
		if r := appended(l, at, c)[0]; !errors.Is(r.Err, want) {
			t.Errorf("%+v: %v, want %v", c, r.Err, want)
		}
	}
	if r := bring(l, at, text); r.Err != nil {
		t.Fatalf("taken again: %v", r.Err)
	}
	if r := appended(l, at, &BringBack{Stage: BringBegin, ID: "second"})[0]; !errors.Is(r.Err, ErrStaleEpoch) {
		t.Errorf("under the old epoch: %v", r.Err)
	}
	appended(l, at, &Lead{Owner: "n1", Until: at.At.Add(time.Hour)})
	at.Epoch = l.Authority().Epoch
	if r := appended(l, at, &BringBack{Stage: BringBegin, ID: "second"})[0]; !errors.Is(r.Err, ErrNotFresh) {
		t.Errorf("into a yard with jobs: %v", r.Err)
	}
}

func TestHold(t *testing.T) {
	l, at := freshLedger(1)
	hold := func(holder string, d time.Duration) error {
		c := &Hold{Holder: holder}
		if d > 0 {
			c.Until = l.Now().Add(d)
		}
		return appended(l, at, c)[0].Err
	}
	if err := hold("a", time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, until := l.Held(); until.Sub(l.Now()) > MaxHold {
		t.Errorf("held until %v, at %v", until, l.Now())
	}
	if err := hold("b", time.Minute); !errors.Is(err, ErrHeld) {
		t.Errorf("a second hold: %v", err)
	}
	at.At = at.At.Add(MaxHold) // its holder is gone
	if err := hold("b", time.Minute); err != nil {
		t.Errorf("after it ran out: %v", err)
	}
	if err := hold("b", 0); err != nil {
		t.Error(err)
	}
	if holder, _ := l.Held(); holder != "" {
		t.Errorf("held by %q after its end", holder)
	}
}

// While a ledger is brought back nothing else is changed: it would be forgotten.
func TestBringBack_Alone(t *testing.T) {
	l, at := freshLedger(2)
	member := func(name string) Member { return Member{Node: name, Dir: "d", State: Present} }
	appended(l, at, &SetMembers{Members: []Member{member("n1"), member("n2"), member("n3")}})
	joiner := member("n4")
	join := &ChangeMembers{Join: &joiner}
	if r := appended(l, at, join)[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	begin := &BringBack{Stage: BringBegin, ID: "r", Source: "elsewhere"}
	if r := appended(l, at, begin)[0]; !errors.Is(r.Err, ErrMembersChanging) {
		t.Errorf("while n4 joins: %v", r.Err)
	}
	appended(l, at, &ChangeMembers{Cancel: true}, &StepMember{ID: "n4-d", From: Leaving, To: Out})
	if r := appended(l, at, begin)[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	for _, c := range []Command{
		join, &AddQueue{Name: "q", ID: job.ID{9}}, &PauseQueue{Name: "mail", Paused: true}, &Fold{Identity: l.Lanes()[0].Identity, To: 1},
		&SetCron{Cron: Cron{Name: "c"}}, &Hold{Holder: "h"}, &QueueDispatch{RequestID: "a", Target: "t"}, &RemoveQueue{Name: "mail"},
	} {
		if r := appended(l, at, c)[0]; !errors.Is(r.Err, ErrBringing) && Check(c) == nil {
			t.Errorf("%T: %v", c, r.Err)
		}
	}
	for _, c := range []Command{&Renew{Until: at.At.Add(time.Hour)}, &Prove{}, &Told{Events: l.LastEvent()}, &BringBack{Stage: BringAbandon, ID: "r"}, join} {
		if r := appended(l, at, c)[0]; r.Err != nil {
			t.Errorf("%T: %v", c, r.Err)
		}
	}
}
