package lanes

import (
	"strings"
	"testing"
	"time"
)

// TestInFlight_SlowLanes checks that an idle node takes a burst of publishes, that it takes
// no more than lanes store in a second while these are slow, and all again later.
func TestInFlight_SlowLanes(t *testing.T) {
	f, now := newInFlight(), time.Unix(1000, 0)
	ticks := func(n, answers int, took time.Duration) {
		for range n {
			for range answers {
				f.answered(took)
				f.release(1)
			}
			now = now.Add(TickInterval)
			f.tick(now)
		}
	}
	taken := func() (n int) { // as many publishes as there may be
		for f.reserve(1) == nil {
			n++
		}
		return n
	}
	ticks(20, 0, 0)
	if n := taken(); n != maxInFlight {
		t.Errorf("an idle node took %d publishes", n)
	}
	if err := f.reserve(1); !strings.Contains(err.Error(), "too many publishes") {
		t.Errorf("a publish too many: %v", err)
	}
	ticks(10, 80, laneTimeout) // not slow
	if n := taken(); n != 800 {
		t.Errorf("the node took %d publishes for 800 answers", n)
	}
	ticks(30, 80, 2*laneTimeout)
	if n := taken(); n != 0 || f.lowered() != 800 {
		t.Errorf("with slow lanes the node took %d further publishes, the limit is %d", n, f.lowered())
	}
	if err := f.reserve(1); !strings.Contains(err.Error(), "800 are in flight") || err.RetryAfter <= 0 {
		t.Errorf("a publish too many for slow lanes: %v", err)
	}
	for f.count.Load() > 0 {
		f.release(1)
	}
	if n := taken(); n != 800 {
		t.Errorf("the node took %d publishes for slow lanes", n)
	}
	now = now.Add(9 * time.Second) // the next tick is late
	if ticks(1, 80, 2*laneTimeout); f.lowered() != minInFlight {
		t.Errorf("lanes that store fewer than 100 jobs a second get %d", f.lowered())
	}
	ticks(10, 1, 2*laneTimeout)
	if f.lowered() != minInFlight {
		t.Errorf("lanes that store little get %d", f.lowered())
	}
	ticks(int(slowFor/TickInterval)-1, 1, 0)
	if f.lowered() == 0 {
		t.Error("the limit is raised too early")
	}
	ticks(1, 1, 0)
	if f.lowered() != 0 {
		t.Errorf("lanes that are fast again get %d", f.lowered())
	}
}

// TestInFlight_Bytes checks the limit of the bytes that publishes hold.
func TestInFlight_Bytes(t *testing.T) {
	f := newInFlight()
	if f.reserve(maxHeldBytes-1) != nil || f.reserve(2) == nil || f.reserve(1) != nil {
		t.Errorf("%d bytes are held of at most %d", f.bytes.Load(), maxHeldBytes)
	}
}

// TestInFlight_FewAreLate checks that late answers do not lower the limit while few publishes
// are in flight, as during an election.
func TestInFlight_FewAreLate(t *testing.T) {
	f, now := newInFlight(), time.Unix(1000, 0)
	for n := range minInFlight {
		if n < minInFlight-1 {
			f.answered(2 * laneTimeout)
			f.late()
		}
		if f.reserve(1) != nil {
			t.Fatal("the burst is refused")
		}
		now = now.Add(TickInterval)
		f.tick(now)
	}
	if f.lowered() != 0 {
		t.Errorf("the limit is %d", f.lowered())
	}
	if f.late(); f.full() != nil {
		t.Error("the limit is lowered before the tick")
	}
	if f.tick(now.Add(TickInterval)); f.full() == nil {
		t.Error("many are late, and one more is taken")
	}
}
