package lanes

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

const (
	retryInterval = 500 * time.Millisecond // until one job is sent to a lane that failed
)

// laneStates records which lanes accept jobs, according to the results of publishes
// and probes.
type laneStates struct {
	local   *embedded.Server
	leaving atomic.Bool // this node is transferring its leaderships

	lastSeq [subjects.MaxLanes]atomic.Uint64 // highest known sequence of each lane

	mu   sync.Mutex
	lane [subjects.MaxLanes]laneState
}

// laneState is what this node knows about one lane.
type laneState struct {
	led         bool      // this node leads it
	downUntil   time.Time // no publishes before then; zero: it answers
	movingUntil time.Time // its leadership is being moved; other lanes are preferred until then

	mismatched bool // its stream is not the one recorded in the ledger; no publishes
}

// available reports whether the lane answered last and is the ledger's.
func (l *laneState) available() bool { return l.downUntil.IsZero() && !l.mismatched }

// stable reports whether the lane is available and its leadership is not being
// moved.
func (l *laneState) stable(now time.Time) bool { return l.available() && !now.Before(l.movingUntil) }

// ownLane returns this node's lane. Members beyond the number of lanes share one;
// a node that is not a member uses lane 0.
func (s *laneStates) ownLane() int {
	return max(slices.IndexFunc(s.local.Peers(), func(p embedded.Peer) bool { return p.Node == s.local.Config.Node }), 0) % s.local.Lanes()
}

// pick returns the lane for the next publish: this node's own lane, then one that this
// node leads, then any that answers. It returns false if no lane may be tried now.
func (s *laneStates) pick(now time.Time) (uint8, bool) {
	n, own := s.local.Lanes(), s.ownLane()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving.Load() {
		if lane, ok := s.remoteLane(now); ok {
			return lane, true
		}
	}
	if s.lane[own].stable(now) {
		return uint8(own), true
	}
	best := -1
	for i := range n {
		lane := (own + i) % n
		if s.lane[lane].available() && (best < 0 || s.lane[lane].led && !s.lane[best].led) {
			best = lane
		}
	}
	if best >= 0 {
		return uint8(best), true
	}
	// All lanes are down: send one job to each per retryInterval.
	for i := range n {
		if lane := (own + i) % n; now.After(s.lane[lane].downUntil) && !s.lane[lane].mismatched {
			s.lane[lane].downUntil = now.Add(retryInterval)
			return uint8(lane), true
		}
	}
	return 0, false
}

// markHealthy records that the lane answered. The other mark methods record why it
// is down.
func (s *laneStates) markHealthy(lane uint8) { s.setDownUntil(lane, time.Time{}) }
func (s *laneStates) markLeaderless(lane uint8, now time.Time) {
	s.setDownUntil(lane, now.Add(retryInterval))
}
func (s *laneStates) markNoAnswer(lane uint8, now time.Time) {
	s.setDownUntil(lane, now.Add(retryInterval))
}
func (s *laneStates) markFull(lane uint8, now time.Time) {
	s.setDownUntil(lane, now.Add(retryInterval))
}

func (s *laneStates) setDownUntil(lane uint8, until time.Time) {
	s.mu.Lock()
	s.lane[lane].downUntil = until
	s.mu.Unlock()
}

// setMoving records until when the lane's leadership may be moving; the zero time
// means that the move is complete.
func (s *laneStates) setMoving(lane uint8, until time.Time) {
	s.mu.Lock()
	s.lane[lane].movingUntil = until
	s.mu.Unlock()
}

// anyMoving reports whether the leadership of any lane is being moved.
func (s *laneStates) anyMoving(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.lane[:], func(l laneState) bool { return now.Before(l.movingUntil) })
}

// updateLed records which lanes this node leads, as reported by isLed. A lane
// that it has just begun to lead counts as healthy. A lane that it has just lost
// counts as down until the new leader answers.
func (s *laneStates) updateLed(now time.Time, isLed func(lane uint8) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.local.Lanes() {
		lane, led := &s.lane[i], isLed(uint8(i))
		switch {
		case led && !lane.led:
			lane.downUntil = time.Time{}
		case !led && lane.led:
			lane.downUntil = now
		}
		lane.led = led
	}
}

// needsProbe reports whether the lane must be probed: all but those that this node
// leads and that answer.
func (s *laneStates) needsProbe(lane uint8) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.lane[lane].led || !s.lane[lane].downUntil.IsZero()
}

// routeNone is the route of direct publishes that are to be refused.
const routeNone = -2

// remoteRoute returns the lane for direct publishes while this node's intake is
// closed: one that another member leads, or routeNone.
func (s *laneStates) remoteRoute(now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lane, ok := s.remoteLane(now); ok {
		return int(lane)
	}
	return routeNone
}

// remoteLane returns an available lane that another member leads, preferably a
// stable one. The caller holds s.mu.
func (s *laneStates) remoteLane(now time.Time) (uint8, bool) {
	best := -1
	for i := range s.local.Lanes() {
		lane := &s.lane[i]
		if !lane.led && lane.available() && (best < 0 || lane.stable(now) && !s.lane[best].stable(now)) {
			best = i
		}
	}
	return uint8(max(best, 0)), best >= 0
}

// directRoute returns the best lane for direct publishes, which the node cannot
// retry; routeNone if no lane is usable.
func (s *laneStates) directRoute(now time.Time) int {
	n, own := s.local.Lanes(), s.ownLane()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving.Load() {
		if lane, ok := s.remoteLane(now); ok {
			return int(lane)
		}
	}
	best, rank := routeNone, -1
	for i := range n {
		lane := (own + i) % n
		if r := s.lane[lane].rank(now); r > rank {
			best, rank = lane, r
		}
	}
	return best
}

// rank returns how suitable the lane is for direct publishes, -1 if it must not be
// used. Being available and stable counts more than being led by this node.
func (l *laneState) rank(now time.Time) int {
	switch {
	case l.mismatched:
		return -1
	case l.led && l.stable(now):
		return 4
	case l.stable(now):
		return 3
	case l.led:
		return 2
	case l.downUntil.IsZero():
		return 1
	}
	return 0
}

func (s *laneStates) ledLanes() (led []uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.local.Lanes() {
		if s.lane[i].led {
			led = append(led, uint8(i))
		}
	}
	return led
}
