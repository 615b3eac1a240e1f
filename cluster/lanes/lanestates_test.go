package lanes

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
)

func TestLaneStates(t *testing.T) {
	l := &embedded.Server{Config: embedded.Config{Node: "n2", RouteListen: "x", Peers: []embedded.Peer{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}}}}
	l.SetPeers(l.Config.Peers)
	l.SetLanes(3)
	now := time.Unix(1000, 0)
	s := &laneStates{local: l}
	pick := func(at time.Time, want int) {
		t.Helper()
		if got := s.pick(at); got != want {
			t.Fatalf("picked lane %d, want %d", got, want)
		}
	}
	pick(now, 1) // its own lane
	s.markDown(1, now)
	pick(now, 2)
	s.updateLed(now, func(lane uint8) bool { return lane == 0 }) // it has taken over another lane
	pick(now, 0)
	if s.directRoute(now) != 0 {
		t.Fatal("direct publishes are not routed to the lane that it leads")
	}
	s.markDown(0, now)
	s.markDown(2, now)
	pick(now, noLane)
	pick(now.Add(time.Second), 1) // one job is sent to each
	pick(now.Add(time.Second), 2)
	pick(now.Add(time.Second), 0)
	pick(now.Add(time.Second), noLane)
	s.markHealthy(2)
	pick(now, 2)
	s.updateLed(now, func(lane uint8) bool { return lane == 1 }) // it leads its own lane again
	pick(now, 1)
}

// TestLaneStates_DirectRoute checks that direct publishes, which nodes cannot
// retry, are routed to lanes that have and keep a leader.
func TestLaneStates_DirectRoute(t *testing.T) {
	l := &embedded.Server{Config: embedded.Config{Node: "n2", RouteListen: "x", Peers: []embedded.Peer{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}}}}
	l.SetPeers(l.Config.Peers)
	l.SetLanes(3)
	now := time.Unix(1000, 0)
	s := &laneStates{local: l}
	leads := func(lanes ...uint8) { s.updateLed(now, func(lane uint8) bool { return slices.Contains(lanes, lane) }) }
	route := func(want uint8, name string) {
		t.Helper()
		if got := s.directRoute(now); got != int(want) {
			t.Errorf("%s: routed to lane %d, want %d", name, got, want)
		}
	}
	leads(1)
	route(1, "it leads its own lane")
	s.setMoving(1, now.Add(time.Second))
	route(2, "its lane is about to move")
	leads()
	now = now.Add(2 * time.Second)
	route(2, "its lane has moved, and its new leader has not answered")
	s.markHealthy(1)
	route(1, "the new leader answers")
	leads(1)
	s.leaving.Store(true)
	s.setMoving(0, now.Add(time.Second))
	route(2, "it leaves, and another lane moves as well")
	s.markDown(2, now)
	route(0, "the only one that answers is about to move")
	s.markDown(0, now)
	route(1, "no other lane answers")
}

func TestLaneStates_RemoteRoute(t *testing.T) {
	s := &laneStates{local: &embedded.Server{Config: embedded.Config{Node: "n1", Peers: []embedded.Peer{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}}}}}
	s.local.SetLanes(3)
	now := time.Now()
	s.updateLed(now, func(lane uint8) bool { return lane == 0 })
	if got := s.remoteRoute(now); got != 1 {
		t.Errorf("route %d; want lane 1, which another member leads", got)
	}
	s.markDown(1, now)
	if got := s.remoteRoute(now); got != 2 {
		t.Errorf("route %d; want lane 2, which answers", got)
	}
	s.markDown(2, now)
	if got := s.remoteRoute(now); got != noLane {
		t.Errorf("route %d; want none", got)
	}
	if got := (&Publisher{state: s}).AvailableLanes(); got != 1 {
		t.Errorf("%d lanes available; want the one that this node leads", got)
	}
}

// TestStreamMismatch_RolledBack checks that a lane that was rolled back accepts
// jobs again when it has reached its highest known sequence.
func TestStreamMismatch_RolledBack(t *testing.T) {
	l := &embedded.Server{Config: embedded.Config{Node: "solo"}, Log: slog.New(slog.DiscardHandler)}
	l.SetPeers(nil)
	l.SetLanes(2)
	s := &laneStates{local: l}
	s.raiseLast(1, 100)
	s.raiseLast(1, 90)
	s.markMismatched(1)
	for _, step := range []struct {
		own  bool
		last uint64
		want bool
	}{{true, 99, true}, {false, 200, true}, {true, 100, false}, {true, 50, false}, {false, 300, true}} {
		s.setIdentityMatch(1, step.own, step.last)
		if got := s.lane[1].mismatched; got != step.want {
			t.Errorf("after %+v: mismatched %t", step, got)
		}
	}
	if at := s.lastSeq[1].Load(); at != 100 {
		t.Errorf("highest known sequence %d", at)
	}
	s.reset(1)
	if lane := s.pick(time.Now()); lane == noLane || s.lane[1].mismatched || s.lastSeq[1].Load() != 0 {
		t.Errorf("a replaced lane: picked %d", lane)
	}
}

// TestStreamMismatch_AllLanes checks that direct publishes have no route if no
// lane is the ledger's.
func TestStreamMismatch_AllLanes(t *testing.T) {
	l := &embedded.Server{Config: embedded.Config{Node: "solo"}, Log: slog.New(slog.DiscardHandler)}
	l.SetPeers(nil)
	l.SetLanes(2)
	s := &laneStates{local: l}
	s.markMismatched(0)
	if got := s.directRoute(time.Now()); got != 1 {
		t.Errorf("routed to %d", got)
	}
	s.markDown(1, time.Now().Add(time.Hour))
	if got := s.directRoute(time.Now()); got != 1 {
		t.Errorf("routed to %d, while the only valid lane does not answer", got)
	}
	s.markMismatched(1)
	if lane := s.pick(time.Now().Add(2 * time.Hour)); lane != noLane || s.directRoute(time.Now()) != noLane {
		t.Errorf("picked lane %d, direct route %d", lane, s.directRoute(time.Now()))
	}
}
