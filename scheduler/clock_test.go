package scheduler

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

func (h *harness) ledgerNow() (now time.Time) {
	h.raft.View(func(l *ledger.Ledger) { now = l.Now() })
	return now
}

func (h *harness) reasons() []string {
	h.t.Helper()
	l, err := h.sched.Status(h.ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	return l.Reasons
}

// setClocks sets the clocks of n2 and n3; the clock of n1 is the bubble's.
func (h *harness) setClocks(ahead time.Duration) {
	for _, name := range []string{"n2", "n3"} {
		n := h.node(name)
		n.do(func() { n.clockOffset = ahead })
	}
}

// TestClock_AheadAtTakeOver lets a member whose clock is an hour ahead become
// the authority: the ledger's time must follow the other members' clocks and
// keep advancing.
func TestClock_AheadAtTakeOver(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		h.end()
		before := h.ledgerNow()
		h.advance(time.Hour) // on n1's clock only
		h.setClocks(time.Until(before))
		h.advance(3 * time.Second)
		wrong := time.Since(before) - 3*time.Second // n1's clock
		h.sched.lastEpoch = 0                       // another member was the authority
		h.begin()
		h.node("n2").offer(job.Overhop, "mail", "w1", 8)
		id := h.enqueue("mail", "", anyJob)
		h.advance(time.Second) // every node sends a heartbeat in that time
		if got := h.state(id); got != job.Completed {
			t.Errorf("a job enqueued at the start is %s", got)
		}
		if ahead := time.Until(h.ledgerNow()) + wrong; ahead > 6*time.Second {
			t.Fatalf("the ledger's time is %s ahead", ahead)
		}
		last := h.ledgerNow()
		for range 120 {
			h.advance(time.Second)
			h.propose(&ledger.Observe{})
			if step := h.ledgerNow().Sub(last); step <= 0 || step > 1100*time.Millisecond {
				t.Fatalf("in a second the ledger's time moved by %s", step)
			}
			last = h.ledgerNow()
		}
		if off := time.Until(last) + wrong; off.Abs() > time.Second {
			t.Errorf("two minutes later the ledger's time is off by %s", off)
		}
		if !slices.Contains(h.reasons(), "member n1's clock is off by 1h: set it, and let a time service keep it") {
			t.Errorf("reasons %q", h.reasons())
		}
	})
}

// TestClock_BehindAtTakeOver lets a member whose clock is behind become the
// authority: the ledger's time, and the lease with it, must follow the other
// members' clocks after their first heartbeats.
func TestClock_BehindAtTakeOver(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		h.end()
		h.setClocks(time.Hour)
		h.advance(3 * time.Second)
		h.begin()
		h.advance(3 * time.Second)
		if off := time.Until(h.ledgerNow()) - time.Hour; off.Abs() > 4*time.Second {
			t.Errorf("the ledger's time is off by %s", off)
		}
		h.raft.View(func(l *ledger.Ledger) {
			if l.Authority().Expired {
				t.Error("the lease in the ledger has expired")
			}
		})
	})
}

// TestClock_ShownAtTakeOver checks that a new authority's first event is shown when it happens, as far as
// the node knows how much time has passed, and that nothing starts by that: neither run_at nor a delay.
func TestClock_ShownAtTakeOver(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		h.advance(3 * time.Second)
		h.setClocks(0)
		h.end()
		var before ledger.Clock
		h.raft.View(func(l *ledger.Ledger) { before = l.Clock() })
		h.advance(5 * time.Second)
		h.sched.lastEpoch = 0 // another member was the authority
		h.raft.set(func() { h.raft.passed = 5 * time.Second })
		entries := len(h.raft.log)
		h.begin()
		lead := h.raft.log[entries].Proposal
		if shown := lead.At.Sub(before.Now); shown < 5*time.Second-clockSlack || shown > 5*time.Second {
			t.Errorf("5 s later the authority is acquired %s after the last entry", shown)
		}
		at := ledger.Clock{Now: lead.At, Elapsed: lead.At.Add(lead.Offsets.Elapsed), Wall: lead.At.Add(lead.Offsets.Wall)}
		if at.Elapsed.Sub(before.Elapsed) > 10*time.Millisecond || at.Wall.Sub(before.Wall) > 10*time.Millisecond {
			t.Errorf("the times that decide have advanced from %+v to %+v", before, at)
		}
		h.advance(3 * time.Second) // heartbeats have arrived
		h.propose(&ledger.Observe{})
		var after ledger.Clock
		h.raft.View(func(l *ledger.Ledger) { after = l.Clock() })
		if after.Offsets() != (ledger.Offsets{}) {
			t.Errorf("the clocks differ: %+v", after)
		}
		if off := time.Until(after.Now); off.Abs() > clockSlack {
			t.Errorf("the ledger's time is off by %s", off)
		}
	})
}

// TestClock_StepNoticed checks when the wall clock that run_at is compared with follows a step of the
// members' clocks: within one heartbeat forward, and within three back.
func TestClock_StepNoticed(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		h.advance(3 * time.Second)
		want := func(what string, ahead time.Duration) {
			t.Helper()
			h.propose(&ledger.Observe{})
			h.raft.View(func(l *ledger.Ledger) {
				if off := time.Until(l.Clock().Wall) - ahead; off.Abs() > time.Second {
					t.Errorf("%s the wall clock is off by %s", what, off)
				}
			})
		}
		h.setClocks(time.Hour)
		h.advance(1100 * time.Millisecond)
		want("1 s after a step forward", time.Hour)
		h.advance(3 * time.Second)
		h.setClocks(0)
		h.advance(3100 * time.Millisecond)
		want("3 s after a step back", 0)
	})
}

func TestClock_OneOfThreeSkewed(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		h.advance(3 * time.Second)
		if got := h.reasons(); len(got) > 0 {
			t.Errorf("reasons with good clocks: %q", got)
		}
		n := h.node("n3")
		n.do(func() { n.clockOffset = -5 * time.Second })
		h.advance(4 * time.Second)
		if got := h.reasons(); !slices.Equal(got, []string{"member n3's clock is off by -5s: set it, and let a time service keep it"}) {
			t.Errorf("reasons %q", got)
		}
		if off := time.Until(h.ledgerNow()); off > 0 || off < -4*time.Second {
			t.Errorf("the ledger's time is off by %s", off)
		}
	})
}

func TestClock_SingleMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		last := now.Add(-24 * time.Hour)
		same := ledger.SameClock
		for _, test := range []struct {
			name   string
			last   ledger.Clock
			passed time.Duration
			single bool
			want   ledger.Clock
		}{
			{"a single member that was down", same(last), 0, true, same(now)},
			{"one of several members", same(last), 0, false, same(last)},
			{"a single member whose clock was set forward meanwhile", same(last), time.Second, true,
				ledger.Clock{Now: now, Elapsed: last.Add(time.Second), Wall: now}},
			{"a single member whose clock was set back", same(now.Add(time.Hour)), 0, true,
				ledger.Clock{Now: now.Add(time.Hour), Elapsed: now.Add(time.Hour), Wall: now}},
			{"several members, whose clocks are not known yet", same(now.Add(time.Hour)), 0, false, same(now.Add(time.Hour))},
			{"the first tenure", same(time.Unix(0, 0)), 0, false, same(now)},
		} {
			if got := newStampClock(test.last, test.passed, test.single).times(); got.Offsets() != test.want.Offsets() || !got.Now.Equal(test.want.Now) {
				t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
			}
		}
	})
}

// TestClock_Kept checks which elapsed times a new authority continues from: those of all epochs before
// it, but not those from before a restore.
func TestClock_Kept(t *testing.T) {
	at := time.Unix(1000, 0)
	epoch := uint64(ledger.RestoreJump + 50)
	for _, test := range []struct {
		name string
		b    job.Heartbeat
		want bool
	}{
		{"of the last authority", job.Heartbeat{Elapsed: at, ElapsedEpoch: epoch}, true},
		{"of an earlier one", job.Heartbeat{Elapsed: at, ElapsedEpoch: epoch - 40}, true},
		{"of this one", job.Heartbeat{Elapsed: at, ElapsedEpoch: epoch + 1}, false},
		{"from before a restore", job.Heartbeat{Elapsed: at, ElapsedEpoch: 40}, false},
		{"none", job.Heartbeat{}, false},
	} {
		if got := (&memberClocks{epoch: epoch}).kept(&test.b); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
}

// TestMedianOffset_FirstHeartbeat verifies that the median of the members' clocks is known from the
// first heartbeat of the member on that makes a majority, although that member was silent until then.
func TestMedianOffset_FirstHeartbeat(t *testing.T) {
	c := &capacity{members: []string{"n1", "n2", "n3"}, nodes: map[string]*node{"n1": {name: "n1"}, "n2": {name: "n2", silent: true}}}
	c.nodes["n1"].clock.add(3 * time.Second)
	c.nodes["n2"].clock.add(time.Second)
	if _, ok := c.medianOffset(nil); ok {
		t.Error("a median is known of one member of three")
	}
	if median, ok := c.medianOffset(c.nodes["n2"]); !ok || median != time.Second {
		t.Errorf("the median is %s, %t, want 1s", median, ok)
	}
}
