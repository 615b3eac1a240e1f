package lanes

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// retryInterval is after what time one job is sent to a lane that failed.
const retryInterval = 500 * time.Millisecond

// laneStates records which lanes accept jobs, according to the results of publishes
// and probes.
type laneStates struct {
	local   *embedded.Server
	leaving atomic.Bool // this node is transferring its leaderships

	lastSeq  [subjects.MaxLanes]atomic.Uint64 // highest known sequence of each lane
	answered [subjects.MaxLanes]atomic.Int64  // how long acknowledgements of each lane take of late, in nanoseconds

	mu   crash.Mutex
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
	position := slices.IndexFunc(s.local.Peers(), func(p embedded.Peer) bool { return p.Node == s.local.Config.Node })
	return max(position, 0) % s.local.Lanes()
}

// pick returns the lane for the next publish: this node's own lane if it is stable,
// otherwise another one that answers, preferably one that this node leads. While the node
// is leaving, lanes that other members lead come first. If no lane answers, pick returns
// each lane once per retryInterval, so that its next publish probes it, and otherwise
// noLane.
func (s *laneStates) pick(now time.Time) int {
	count, own := s.local.Lanes(), s.ownLane()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving.Load() {
		if lane := s.bestRemote(now); lane != noLane {
			return lane
		}
	}
	if s.lane[own].stable(now) {
		return own
	}
	best := noLane
	for i := range count {
		lane := (own + i) % count
		if s.lane[lane].available() && (best == noLane || s.lane[lane].led && !s.lane[best].led) {
			best = lane
		}
	}
	if best != noLane {
		return best
	}

	for i := range count {
		lane := (own + i) % count
		if now.After(s.lane[lane].downUntil) && !s.lane[lane].mismatched {
			s.lane[lane].downUntil = now.Add(retryInterval)
			return lane
		}
	}
	return noLane
}

// usable reports whether the lane answered last and is the ledger's.
func (s *laneStates) usable(lane uint8) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lane[lane].available()
}

// markHealthy records that the lane answered.
func (s *laneStates) markHealthy(lane uint8) { s.setDownUntil(lane, time.Time{}) }

// markDown records that the lane did not take a job or did not answer at the time now.
func (s *laneStates) markDown(lane uint8, now time.Time) {
	s.setDownUntil(lane, now.Add(retryInterval))
}

// noteLate records that the lane has not acknowledged a job for a time, unless it usually
// takes longer.
func (s *laneStates) noteLate(lane uint8, waited time.Duration) {
	if int64(waited) > s.answered[lane].Load() {
		s.noteAnswer(lane, waited)
	}
}

// noteAnswer records how long the lane took to acknowledge a job.
func (s *laneStates) noteAnswer(lane uint8, took time.Duration) {
	of := &s.answered[lane]
	of.Store(of.Load() + (int64(took)-of.Load())/8)
}

// timeout returns how long to wait for the lane's acknowledgement before a job is sent to
// another lane, at most PublishTimeout. Of a lane that answers slowly, a job sent to another
// one as well would make all lanes slower.
func (s *laneStates) timeout(lane uint8) time.Duration {
	usual := time.Duration(s.answered[lane].Load())
	return min(max(laneTimeout, slowLaneFactor*usual), s.local.Config.PublishTimeout)
}

// setDownUntil records until when no jobs are sent to the lane; the zero time means
// that it answers.
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

// updateLed records which lanes this node leads, as reported by isLed. A lane that the
// node has just begun to lead counts as healthy. A lane that it no longer leads counts
// as down until the new leader answers.
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

// needsProbe reports whether the lane must be probed. Only a lane that this node leads
// and that answers needs no probe.
func (s *laneStates) needsProbe(lane uint8) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.lane[lane].led || !s.lane[lane].downUntil.IsZero()
}

// noLane is the number of a lane where no lane is suitable.
const noLane = -1

// remoteRoute returns the lane for direct publishes while this node's intake is
// closed: one that another member leads, or noLane.
func (s *laneStates) remoteRoute(now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bestRemote(now)
}

// bestRemote returns an available lane that another member leads, preferably a stable
// one, or noLane. The caller holds s.mu.
func (s *laneStates) bestRemote(now time.Time) int {
	best := noLane
	for i := range s.local.Lanes() {
		lane := &s.lane[i]
		if lane.led || !lane.available() {
			continue
		}
		if best == noLane || lane.stable(now) && !s.lane[best].stable(now) {
			best = i
		}
	}
	return best
}

// directRoute returns the best lane for the publishes that clients send straight to a
// lane's stream and that the node cannot retry: the one with the highest rank, or noLane
// if none may be used. While the node is leaving, lanes that other members lead come
// first.
func (s *laneStates) directRoute(now time.Time) int {
	count, own := s.local.Lanes(), s.ownLane()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving.Load() {
		if lane := s.bestRemote(now); lane != noLane {
			return lane
		}
	}
	best, bestRank := noLane, -1
	for i := range count {
		lane := (own + i) % count
		if rank := s.lane[lane].rank(now); rank > bestRank {
			best, bestRank = lane, rank
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

// LedLanes returns the lanes that this node leads.
func (p *Publisher) LedLanes() (led []uint8) {
	s := p.state
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.local.Lanes() {
		if s.lane[i].led {
			led = append(led, uint8(i))
		}
	}
	return led
}

// AvailableLanes returns the number of lanes that accept jobs, as far as this node
// knows.
func (p *Publisher) AvailableLanes() (count int) {
	s := p.state
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.local.Lanes() {
		lane := &s.lane[i]
		if !lane.mismatched && (lane.led || lane.downUntil.IsZero()) {
			count++
		}
	}
	return count
}

// Moving reports whether the leadership of a lane is being moved.
func (p *Publisher) Moving() bool {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	return slices.ContainsFunc(p.state.lane[:], func(l laneState) bool { return time.Now().Before(l.movingUntil) })
}
