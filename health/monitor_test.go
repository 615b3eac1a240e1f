package health

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// fakeMembers is three monitors that exchange statuses.
type fakeMembers struct {
	mu           sync.Mutex
	monitors     map[string]*Monitor
	published    map[string]NodeStatus
	conditions   map[string][]Condition
	partitioned  map[string]bool // cannot be reached
	leader       string
	moves        []string
	closed       map[string]string
	othersAccept map[string]bool
}

var memberNames = []string{"n1", "n2", "n3"}

func newFakeMembers(t *testing.T) *fakeMembers {
	f := &fakeMembers{
		monitors: map[string]*Monitor{}, published: map[string]NodeStatus{}, conditions: map[string][]Condition{}, partitioned: map[string]bool{},
		leader: "n1", closed: map[string]string{}, othersAccept: map[string]bool{},
	}
	for _, name := range memberNames {
		f.monitors[name] = New(Config{
			Node: name, Members: func() []string { return memberNames }, Disk: Disk{Dir: t.TempDir(), Thresholds: Thresholds{1, 1, 1, 1}},
			Check: func() NodeStatus {
				f.mu.Lock()
				defer f.mu.Unlock()
				return NodeStatus{Conditions: slices.Clone(f.conditions[name]), Leader: f.leader}
			},
			PublishStatus: func(w NodeStatus) { f.mu.Lock(); f.published[name] = w; f.mu.Unlock() },
			PeerStatus: func(member string) (NodeStatus, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				if f.partitioned[member] || f.partitioned[name] {
					return NodeStatus{}, errors.New("no answer")
				}
				return f.published[member], nil
			},
			HoldsAuthority: func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.leader == name },
			TransferAuthority: func(_ context.Context, to string) error {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.moves, f.leader = append(f.moves, name+"→"+to), to
				return nil
			},
			SetClosed: func(reason string, othersAccept bool) {
				f.mu.Lock()
				f.closed[name], f.othersAccept[name] = reason, othersAccept
				f.mu.Unlock()
			},
		}, testlog.New(t))
	}
	return f
}

// set replaces a node's conditions.
func (f *fakeMembers) set(name string, kinds ...Kind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conditions[name] = nil
	for _, m := range kinds {
		f.conditions[name] = append(f.conditions[name], Condition{m, string(m)})
	}
}

// run runs the monitors for d of simulated time.
func (f *fakeMembers) run(t *testing.T, d time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for _, m := range f.monitors {
		work.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(d)
	synctest.Wait()
	cancel()
	work.Wait()
}

func TestMonitor_TransfersToFitMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeMembers(t)
		f.run(t, 10*time.Second)
		if len(f.moves) > 0 {
			t.Fatalf("all members are fit, but the authority was transferred: %v", f.moves)
		}
		f.set("n1", NoLane)
		f.set("n2", JetStream)
		f.run(t, 4*time.Second)
		if len(f.moves) > 0 {
			t.Errorf("transferred after less than %s: %v", unfitGrace, f.moves)
		}
		f.run(t, 4*time.Second)
		if want := []string{"n1→n3"}; !slices.Equal(f.moves, want) {
			t.Errorf("moves %v, want %v: n2 is not fit either", f.moves, want)
		}
	})
}

// TestMonitor_TransfersSoonerWithoutRoutes checks that the grace period is shorter
// without routes, whose loss is only detected after some seconds.
func TestMonitor_TransfersSoonerWithoutRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeMembers(t)
		f.set("n1", Routes)
		f.run(t, routesGrace-time.Second/2)
		if len(f.moves) > 0 {
			t.Errorf("transferred after less than %s: %v", routesGrace, f.moves)
		}
		f.run(t, 2*time.Second)
		if want := []string{"n1→n2"}; !slices.Equal(f.moves, want) {
			t.Errorf("moves %v, want %v", f.moves, want)
		}
	})
}

// TestMonitor_TransferCooldown checks that members that become unfit in turn
// transfer the authority at most once a minute each, and less often over time.
func TestMonitor_TransferCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeMembers(t)
		for minute := range 60 { // the holder is always unfit, the others are fit
			for range 6 {
				f.mu.Lock()
				leader := f.leader
				f.mu.Unlock()
				for _, name := range memberNames {
					f.set(name)
				}
				f.set(leader, JetStream)
				f.run(t, 10*time.Second)
			}
			if minute == 0 && len(f.moves) == 0 {
				t.Fatal("the authority was never transferred")
			}
		}
		if most := 3 * 8; len(f.moves) > most { // 0, 1, 3, 7, 15, 30, 45, 60 minutes
			t.Errorf("%d transfers in an hour, want at most %d: %v", len(f.moves), most, f.moves)
		}
	})
}

func TestMonitor_NoFitSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeMembers(t)
		f.set("n1", Routes)
		f.set("n2", Routes)
		f.mu.Lock()
		f.partitioned["n3"] = true // fit, but not reachable
		f.mu.Unlock()
		f.run(t, time.Minute)
		if len(f.moves) > 0 {
			t.Errorf("transferred although no member is fit: %v", f.moves)
		}
	})
}

// TestMonitor_ClosesIntakeWithoutDiskMajority sets the disk levels directly.
func TestMonitor_ClosesIntakeWithoutDiskMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeMembers(t)
		m := f.monitors["n1"]
		setLevels := func(levels map[string]DiskLevel) {
			for name, level := range levels {
				w := NodeStatus{Node: name, DiskLevel: level}
				if name == "n1" {
					m.status = w
				} else {
					m.received[name] = receivedStatus{w, time.Now()}
				}
			}
			m.updateIntake()
		}
		for _, c := range []struct {
			levels map[string]DiskLevel
			reason string // part of it; "": open
			others bool
		}{
			{map[string]DiskLevel{"n1": LevelOK, "n2": LevelCritical}, "", true},
			{map[string]DiskLevel{"n2": LevelCritical, "n3": LevelLow}, "not enough free space on the disk of n2, n3: a job needs a majority", false},
			{map[string]DiskLevel{"n2": LevelOK, "n3": LevelLow}, "", true},
			{map[string]DiskLevel{"n1": LevelLow, "n3": LevelOK}, "the disk of this node, n1", true},
			{map[string]DiskLevel{"n3": LevelLow}, "the disk of n1, n3", false},
			{map[string]DiskLevel{"n1": LevelOK, "n2": LevelOK, "n3": LevelOK}, "", true},
		} {
			setLevels(c.levels)
			if reason := m.ClosedReason(); reason != f.closed["n1"] || !strings.Contains(reason, c.reason) || (reason == "") != (c.reason == "") || f.othersAccept["n1"] != c.others && reason != "" {
				t.Errorf("%v: closed for %q, SetClosed got %q, others %v; want %q, %v", c.levels, reason, f.closed["n1"], f.othersAccept["n1"], c.reason, c.others)
			}
		}
	})
}

func TestMonitor_IgnoresStaleStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeMembers(t)
		m := f.monitors["n1"]
		m.received["n2"] = receivedStatus{NodeStatus{Node: "n2", DiskLevel: LevelCritical}, time.Now()}
		if low := m.MembersAtLevel(LevelLow); !slices.Equal(low, []string{"n2"}) {
			t.Errorf("low: %v", low)
		}
		time.Sleep(StaleAfter)
		if low := m.MembersAtLevel(LevelLow); len(low) > 0 {
			t.Errorf("low by a stale status: %v", low)
		}
	})
}

func TestDisk_Conditions(t *testing.T) {
	d, r := Disk{Dir: "/data"}, FreeSpace{Refuse: 2 << 30, Stop: 100 << 20}
	for level, want := range map[DiskLevel]string{
		LevelLow:      "less than 2048 MiB is free where the data lies: this node takes no jobs in until there is more; free space, or run 'yardmaster node release-ballast --data-dir /data' there",
		LevelCritical: "less than 100 MiB is free where the data lies: this node takes no jobs in and decides nothing new; free space, or run 'yardmaster node release-ballast --data-dir /data' there",
	} {
		if got := d.conditions(level, r); len(got) != 1 || got[0].Text != want {
			t.Errorf("%s: %v; want %q", level, got, want)
		}
	}
	if got := d.conditions(LevelOK, r); len(got) > 0 {
		t.Errorf("conditions of a disk with enough space: %v", got)
	}
}

func TestMonitor_DiskUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeMembers(t)
		f.monitors["n1"].cfg.Disk.Dir += "/gone"
		f.run(t, 8*time.Second)
		if w := f.monitors["n1"].Status(); w.Fit() || w.DiskLevel != LevelCritical || !w.has(DiskFailed) {
			t.Errorf("status %+v", w)
		}
		if len(f.moves) != 1 || f.closed["n1"] == "" || f.closed["n2"] != "" {
			t.Errorf("transfers %v, closed %v: only n1 must transfer the authority and close its intake", f.moves, f.closed)
		}
		if reasons := f.monitors["n2"].Reasons(); len(reasons) != 1 || !strings.Contains(reasons[0], "node n1: measure the room in") {
			t.Errorf("reasons at another member: %v", reasons)
		}
	})
}

// TestBehind checks that a member counts as behind if it says so, or has not said recently
// that it is not.
func TestBehind(t *testing.T) {
	m := New(Config{Node: "n1"}, slog.New(slog.DiscardHandler))
	if m.Behind("n1") || !m.Behind("n2") {
		t.Errorf("at first: n1 is behind: %t, n2: %t", m.Behind("n1"), m.Behind("n2"))
	}
	for _, c := range []struct {
		behind bool
		age    time.Duration
		want   bool
	}{{false, 0, false}, {true, 0, true}, {false, freshFor + time.Second, true}} {
		m.received["n2"] = receivedStatus{NodeStatus{Node: "n2", Behind: c.behind}, time.Now().Add(-c.age)}
		if got := m.Behind("n2"); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
	if m.status.Behind = true; !m.Behind("n1") {
		t.Error("the node itself is behind, and does not know")
	}
}
