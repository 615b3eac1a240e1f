package ledger

import (
	"bytes"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// clockHarness applies entries whose clocks differ.
type clockHarness struct {
	t  *testing.T
	l  *Ledger
	at Clock
	n  uint64
}

func newClockHarness(t *testing.T) *clockHarness {
	h := &clockHarness{t: t, l: New(), at: SameClock(scriptStart)}
	h.apply(&Lead{Owner: "n1", Until: scriptStart.Add(time.Hour), Level: Level})
	h.apply(&Bootstrap{Lanes: []string{"lane"}})
	return h
}

// apply applies an entry and checks that its effect on a decoded copy of the ledger is the same.
func (h *clockHarness) apply(cmds ...Command) []Result {
	h.t.Helper()
	h.n++
	stamp := Stamp{Index: h.n, Term: 1, At: h.at.Now, Offsets: h.at.Offsets(), Epoch: h.l.Authority().Epoch}
	copied := decoded(h.t, h.l)
	copied.Apply(stamp, cmds)
	results := h.l.Apply(stamp, cmds)
	for _, r := range results {
		if r.Err != nil {
			h.t.Fatal(r.Err)
		}
	}
	if hash(h.t, copied) != hash(h.t, h.l) {
		h.t.Fatal("the effect on a decoded ledger is another one")
	}
	if err := checkInvariants(h.l); err != nil {
		h.t.Fatal(err)
	}
	return results
}

// pass lets time pass, and set sets the members' wall clocks: the ledger's time follows forward.
func (h *clockHarness) pass(d time.Duration) {
	h.at = Clock{h.at.Now.Add(d), h.at.Elapsed.Add(d), h.at.Wall.Add(d)}
	h.apply()
}

func (h *clockHarness) set(by time.Duration) {
	if h.at.Wall = h.at.Wall.Add(by); h.at.Wall.After(h.at.Now) {
		h.at.Now = h.at.Wall
	}
	h.apply()
}

// ingest ingests a job whose record was accepted some time ago by the wall clock.
func (h *clockHarness) ingest(j job.Job, ago time.Duration) Ingested {
	h.t.Helper()
	cursor := h.l.Lanes()[0].Cursor
	j.ID, j.Queue, j.Position.Seq = job.ID{byte(cursor + 1)}, "mail", cursor+1
	j.Accepted = h.at.Wall.Add(-ago)
	return h.apply(&Ingest{Identity: "lane", From: cursor, To: cursor + 1, CreateQueues: true, Jobs: []job.Job{j}})[0].Ingested[0]
}

// want checks the state of the job with a number.
func (h *clockHarness) want(what string, number byte, state job.State) {
	h.t.Helper()
	if view, _, _ := h.l.Find(job.ID{number}); view.State != state {
		h.t.Errorf("%s: the job is %s, want %s", what, view.State, state)
	}
}

// TestClock_RelativeTimes checks that neither a step of the wall clocks forward nor one back changes
// when a delay, a wait before a retry, a debounce window, an expiry and a held key end.
func TestClock_RelativeTimes(t *testing.T) {
	for _, step := range []time.Duration{0, 24 * time.Hour, -24 * time.Hour} {
		h := newClockHarness(t)
		unique := &job.Guards{Unique: job.Guard{Key: job.GuardKey{1}, TTL: time.Hour}}
		h.ingest(job.Job{Delay: time.Hour}, 0)
		h.ingest(job.Job{ExpiresIn: time.Hour, Expires: h.at.Wall.Add(time.Hour)}, 0)
		h.ingest(job.Job{Guards: &job.Guards{Debounce: job.Guard{Key: job.GuardKey{2}, TTL: time.Hour}}}, 0)
		h.ingest(job.Job{Guards: unique}, 0)
		h.ingest(job.Job{}, 0)
		h.apply(&Place{Placements: []Placement{{Job: job.ID{5}, N: 1, Node: "n1"}, {Job: job.ID{4}, N: 1, Node: "n1"}}},
			&Settle{Settlements: []Settlement{
				{Job: job.ID{5}, N: 1, Next: job.NextRetry, At: h.at.Now.Add(time.Hour), Reason: "x"}, {Job: job.ID{4}, N: 1, Next: job.NextDone},
			}})
		h.apply(&ChangeJob{Job: job.ID{1}, Delay: time.Hour})
		h.pass(30 * time.Minute)
		h.set(step)
		h.pass(30*time.Minute - time.Second)
		for number, state := range map[byte]job.State{1: job.Delayed, 2: job.Waiting, 3: job.Delayed, 5: job.Delayed} {
			h.want("before "+step.String(), number, state)
		}
		if got := h.ingest(job.Job{Guards: unique}, 0); got != IngestedDuplicate {
			t.Errorf("%s: while the key is held, %d", step, got)
		}
		if wait, _ := h.l.NextDue().Wait(h.at); wait != time.Second {
			t.Errorf("%s: the next is due in %s", step, wait)
		}
		h.pass(time.Second)
		for number, state := range map[byte]job.State{1: job.Waiting, 2: job.Expired, 3: job.Waiting, 5: job.Waiting} {
			h.want("after "+step.String(), number, state)
		}
		if got := h.ingest(job.Job{Guards: unique}, 0); got != IngestedWaiting {
			t.Errorf("%s: when the key has ended, %d", step, got)
		}
	}
}

// TestClock_WallTimes checks that run_at and expires_at follow the wall clock in both directions.
func TestClock_WallTimes(t *testing.T) {
	h := newClockHarness(t)
	at := h.at.Wall.Add(2 * time.Hour)
	h.ingest(job.Job{RunAt: at}, 0)
	h.ingest(job.Job{RunAt: at}, 0)
	h.ingest(job.Job{Expires: at}, 0)
	h.set(time.Hour)
	h.want("an hour before", 1, job.Delayed)
	h.set(-time.Hour)
	h.pass(time.Hour + time.Minute)
	h.want("an hour before, and the clock was set back", 1, job.Delayed)
	h.want("an hour before, and the clock was set back", 3, job.Waiting)
	h.apply(&ChangeJob{Job: job.ID{2}, RunAt: at.Add(time.Hour)})
	h.pass(time.Hour)
	h.want("at its time", 1, job.Waiting)
	h.want("an hour before", 2, job.Delayed)
	h.want("at its time", 3, job.Expired)
	h.set(time.Hour)
	h.want("at its time", 2, job.Waiting)
}

// TestClock_Age checks that the delay of a record that waited in its lane began when it was accepted,
// and that the wrong clock of a publisher does not shorten it while the lane is read.
func TestClock_Age(t *testing.T) {
	h := newClockHarness(t)
	h.ingest(job.Job{Delay: time.Hour}, 30*time.Minute) // by a clock that is behind
	h.pass(40 * time.Minute)
	h.want("the lane is empty until then", 1, job.Delayed)
	h.ingest(job.Job{Delay: time.Hour}, 30*time.Minute) // the lane was not ingested meanwhile
	h.pass(30 * time.Minute)
	h.want("an hour and 10 minutes later", 1, job.Waiting)
	h.want("an hour after acceptance", 2, job.Waiting)
	h.apply(&MarkIngested{Lanes: []LaneEnd{{Last: 2, At: h.at.Elapsed}}})
	h.ingest(job.Job{Delay: time.Hour}, 2*time.Hour)
	h.want("a lane that was just ingested", 3, job.Delayed)
}

// TestPassed checks that a member knows how much time has passed since the last entry, also if this one
// was applied late, and no more than that.
func TestPassed(t *testing.T) {
	h := newClockHarness(t)
	var p Passed
	start := time.Now()
	made := time.Duration(0)
	apply := func(d, late time.Duration) { // d after the last entry, applied some time after it was made
		made += d
		h.pass(d)
		p.Applied(h.l, start.Add(made+late))
	}
	want := func(what string, at, passed time.Duration) {
		t.Helper()
		if got := p.Since(h.l, start.Add(made+at)); got != passed {
			t.Errorf("%s: %s have passed, want %s", what, got, passed)
		}
	}
	want("nothing was applied", time.Hour, 0)
	apply(time.Second, 2*time.Millisecond)
	want("an entry", 5*time.Second, 5*time.Second-2*time.Millisecond)
	apply(time.Second, 4*time.Second)
	want("a late entry", 5*time.Second, 5*time.Second-2*time.Millisecond)
	apply(time.Second, time.Millisecond)
	want("a fast entry", 5*time.Second, 5*time.Second-time.Millisecond)
	h.apply(&Lead{Owner: "n1", Until: h.at.Now.Add(time.Hour), Level: Level})
	p.Applied(h.l, start.Add(made+time.Second))
	want("another authority", 5*time.Second, 4*time.Second)
}

// TestClock_Rates checks that a step of the wall clocks gives no rate a further start, and closes no
// circuit.
func TestClock_Rates(t *testing.T) {
	h := newClockHarness(t)
	h.apply(&SetLimit{Name: "paced", Change: job.LimitChange{Rate: &job.Rate{Starts: 1, Per: time.Hour}, Burst: new(uint32(1))}},
		&SetLimit{Name: "fragile", Change: job.LimitChange{OpenAfter: new(uint32(1)), Within: new(time.Minute), ProbeAfter: new(time.Hour)}})
	for range 2 {
		h.ingest(job.Job{Limits: []job.LimitUse{{Limit: "paced"}}}, 0)
		h.ingest(job.Job{Limits: []job.LimitUse{{Limit: "fragile"}}}, 0)
	}
	place := func(number byte) bool {
		return h.apply(&Place{Placements: []Placement{{Job: job.ID{number}, N: 1, Node: "n1"}}})[0].Placed[0]
	}
	if !place(1) || !place(2) {
		t.Fatal("the first jobs do not start")
	}
	h.apply(&Settle{Settlements: []Settlement{{Job: job.ID{2}, N: 1, Next: job.NextDead, Reason: "x", Fault: &job.Fault{Message: "x"}}}})
	h.set(24 * time.Hour)
	h.pass(59 * time.Minute)
	if place(3) || place(4) {
		t.Error("a job starts within the hour")
	}
	h.pass(time.Minute)
	if !place(3) || !place(4) {
		t.Error("no job starts after the hour")
	}
	h.apply(&Settle{Settlements: []Settlement{{Job: job.ID{4}, N: 1, Next: job.NextDone}}})
	if usage, _ := h.l.LimitUsage("fragile", h.at.Wall); !usage.Circuit.OpenedAt.IsZero() {
		t.Error("the probe has not closed the circuit")
	}
}

// TestClock_Restore checks that the delays of a backup go on from when it was made, however far the
// clocks of the two clusters differ.
func TestClock_Restore(t *testing.T) {
	h := newClockHarness(t)
	h.set(-12 * time.Hour)
	h.ingest(job.Job{Delay: 3 * time.Hour}, 0)
	var backup bytes.Buffer
	if err := h.l.Encode(&backup); err != nil {
		t.Fatal(err)
	}
	made := h.at.Wall

	restored := newClockHarness(t)
	restored.set(100 * 24 * time.Hour)
	restored.set(made.Add(2 * time.Hour).Sub(restored.at.Wall))
	from, err := Decode(&backup)
	if err != nil {
		t.Fatal(err)
	}
	restored.l.replaceWith(from, nil, func() {})
	restored.at = restored.l.Clock()
	restored.n = restored.l.Index()
	restored.apply(&Lead{Owner: "n1", Until: restored.at.Now.Add(time.Hour), Level: Level})
	restored.pass(time.Hour - time.Second)
	restored.want("within three hours", 1, job.Delayed)
	restored.pass(time.Second)
	restored.want("after three hours", 1, job.Waiting)
}
