package scheduler

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

func (y *yard) now() (now time.Time) {
	y.raft.View(func(l *ledger.Ledger) { now = l.Now() })
	return now
}

func (y *yard) reasons() []string {
	y.t.Helper()
	l, err := y.sched.Look(y.ctx)
	if err != nil {
		y.t.Fatal(err)
	}
	return l.Reasons
}

// clocks sets the clocks of n2 and n3; n1's is the bubble's.
func (y *yard) clocks(ahead time.Duration) {
	for _, name := range []string{"n2", "n3"} {
		n := y.node(name)
		n.look(func() { n.ahead = ahead })
	}
}

// A member whose clock is an hour ahead wins an election: the ledger's time
// stays with the others', and it goes on all the while.
func TestClock_AheadAtTakeOver(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		y.end()
		before := y.now()
		y.pass(time.Hour) // on n1's clock alone
		y.clocks(time.Until(before))
		y.pass(3 * time.Second)
		wrong := time.Since(before) - 3*time.Second // n1's clock
		y.begin()
		y.node("n2").offer(job.Overhop, "mail", "w1", 8)
		id := y.enqueue("mail", "", anyJob)
		y.pass(time.Second) // by then every node has beaten
		if got := y.state(id); got != job.Completed {
			t.Errorf("a job of the first moment is %s", got)
		}
		if ahead := time.Until(y.now()) + wrong; ahead > 6*time.Second {
			t.Fatalf("the ledger's time went %s ahead", ahead)
		}
		last := y.now()
		for range 120 {
			y.pass(time.Second)
			y.do(&ledger.Observe{})
			if step := y.now().Sub(last); step <= 0 || step > 1100*time.Millisecond {
				t.Fatalf("in a second the ledger's time moved by %s", step)
			}
			last = y.now()
		}
		if off := time.Until(last) + wrong; off.Abs() > time.Second {
			t.Errorf("two minutes later the ledger's time is off by %s", off)
		}
		if !slices.Contains(y.reasons(), "member n1's clock is off by 1h0m0s: set it, and let a time service keep it") {
			t.Errorf("reasons %q", y.reasons())
		}
	})
}

// A member whose clock is behind wins: stamps go to the others' time as soon
// as they are heard, and the lease with them.
func TestClock_BehindAtTakeOver(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		y.end()
		y.clocks(time.Hour)
		y.pass(3 * time.Second)
		y.begin()
		y.pass(3 * time.Second)
		if off := time.Until(y.now()) - time.Hour; off.Abs() > 4*time.Second {
			t.Errorf("the ledger's time is off by %s", off)
		}
		y.raft.View(func(l *ledger.Ledger) {
			if l.Authority().Expired {
				t.Error("the lease in the ledger has expired")
			}
		})
	})
}

func TestClock_OneOfThreeIsOff(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		y.pass(3 * time.Second)
		if got := y.reasons(); len(got) > 0 {
			t.Errorf("reasons with good clocks: %q", got)
		}
		n := y.node("n3")
		n.look(func() { n.ahead = -5 * time.Second })
		y.pass(4 * time.Second)
		if got := y.reasons(); !slices.Equal(got, []string{"member n3's clock is off by -5s: set it, and let a time service keep it"}) {
			t.Errorf("reasons %q", got)
		}
		if off := time.Until(y.now()); off > 0 || off < -4*time.Second {
			t.Errorf("the ledger's time is off by %s", off)
		}
	})
}

func TestClock_AloneCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		past := time.Now().Add(-24 * time.Hour)
		if got := newStampClock(past, true).now(); !got.Equal(time.Now()) {
			t.Errorf("alone: %s", got)
		}
		if got := newStampClock(past, false).now(); !got.Equal(past.Add(takeOverAhead)) {
			t.Errorf("one of several: %s", got)
		}
		future := time.Now().Add(time.Hour)
		if got := newStampClock(future, true).now(); !got.Equal(future) {
			t.Errorf("behind the ledger: %s", got)
		}
	})
}
