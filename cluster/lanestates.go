package cluster

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	probeInterval = 300 * time.Millisecond
	probeTimeout  = 500 * time.Millisecond
	retryInterval = 500 * time.Millisecond // until one job is sent to a lane that failed
)

// laneStates records which lanes accept jobs, according to the results of publishes
// and probes.
type laneStates struct {
	local   *local
	leaving atomic.Bool // this node is transferring its leaderships

	lastSeq [MaxLanes]atomic.Uint64 // highest known sequence of each lane

	mu   sync.Mutex
	lane [MaxLanes]laneState
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

func newLaneStates(l *local) *laneStates { return &laneStates{local: l} }

// ownLane returns this node's lane. Members beyond the number of lanes share one;
// a node that is not a member uses lane 0.
func (s *laneStates) ownLane() int {
	peers := *s.local.peers.Load()
	return max(slices.IndexFunc(peers, func(p Peer) bool { return p.Node == s.local.cfg.Node }), 0) % s.local.laneCount()
}

// pick returns the lane for the next publish: this node's own lane, then one that this
// node leads, then any that answers. It returns false if no lane may be tried now.
func (s *laneStates) pick(now time.Time) (uint8, bool) {
	n, own := s.local.laneCount(), s.ownLane()
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
	for i := range s.local.laneCount() {
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
	for i := range s.local.laneCount() {
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
	n, own := s.local.laneCount(), s.ownLane()
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

// router routes the direct publishes of this node's clients by mapping their
// subjects. A mapping exists on this server only and takes effect at once, also
// for open connections.
type router struct {
	local     *local
	publisher *Publisher
	state     *laneStates

	lastProbe time.Time

	mu     sync.Mutex
	mapped int // lane that yard.jobs.* is mapped to, or routeNone; -1: not mapped yet
}

func newRouter(l *local, p *Publisher) *router {
	return &router{local: l, publisher: p, state: p.state, mapped: -1}
}

// LedLanes returns the lanes that this node leads.
func (p *Publisher) LedLanes() []uint8 { return p.state.ledLanes() }

func (s *laneStates) ledLanes() (led []uint8) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.local.laneCount() {
		if s.lane[i].led {
			led = append(led, uint8(i))
		}
	}
	return led
}

// mapLocalSubjects maps the public request subjects to subjects of this node, so
// that each node serves its own clients. A queue group over all nodes would also
// pick a node that has just died.
func (r *router) mapLocalSubjects() error {
	acc, err := r.local.srv.LookupAccount(accountYard)
	if err != nil {
		return err
	}
	node := r.local.cfg.Node
	mapped := map[string]string{
		api.SubjectEnqueue + ".*": localSubject(node, api.SubjectEnqueue) + ".$1",
		api.SubjectCall + ".*":    localSubject(node, api.SubjectCall) + ".$1",
		api.SubjectExec:           localSubject(node, api.SubjectExec),
		api.SubjectExec + ".*":    localSubject(node, api.SubjectExec) + ".$1",
		api.SubjectSnapshot:       localSubject(node, api.SubjectSnapshot),
		api.SubjectStatus:         localSubject(node, api.SubjectStatus),
		api.SubjectAPI + ".>":     localSubject(node, api.SubjectAPI) + ".>",
		SubjectConsumers + ".>":   localSubject(node, SubjectConsumers) + ".>",
	}
	for _, verb := range nodeVerbs { // to the node in the subject
		mapped[nodeSubject("*", verb)] = nodeVerbSubject("$1", verb)
	}
	for src, dest := range mapped {
		if err := acc.AddMapping(src, dest); err != nil {
			return err
		}
	}
	return r.refuseDirectPublishes()
}

// tick updates which lanes this node leads, probes the others every probeInterval,
// and updates the mapping of yard.jobs.*.
func (r *router) tick(now time.Time) {
	r.refreshLed(now)
	if r.local.cfg.clustered() && now.Sub(r.lastProbe) >= probeInterval {
		r.lastProbe = now
		r.probe(now)
	}
	r.updateMapping()
}

// refreshLed updates which lanes this node leads.
func (r *router) refreshLed(now time.Time) {
	r.state.updateLed(now, func(lane uint8) bool { return r.local.srv.JetStreamIsStreamLeader(accountYard, LaneStream(lane)) })
}

// updateMapping maps yard.jobs.* to the best lane, or to the closed intake.
func (r *router) updateMapping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	lane := r.state.directRoute(now)
	if r.publisher.closedReason() != "" {
		lane = routeNone
		if r.publisher.othersAccept.Load() {
			lane = r.state.remoteRoute(now)
		}
	}
	if lane == r.mapped {
		return
	}
	acc, err := r.local.srv.LookupAccount(accountYard)
	if err == nil {
		dest := r.closedIntakeSubject() + ".$1"
		if lane != routeNone {
			dest = laneSubject(uint8(lane), directPublish, "$1")
		}
		err = acc.AddWeightedMappings(SubjectJobs+".*", server.NewMapDest(dest, 100))
	}
	if err != nil {
		r.local.log.Error("mapping of direct publishes failed", "lane", lane, "err", err)
		return
	}
	r.mapped = lane
}

// probe sends a message to each lane whose state is doubtful. The message expects
// another stream name, so the leader refuses it and stores nothing. Without a
// leader there is no reply, or "no responders".
func (r *router) probe(now time.Time) {
	for i := range r.local.laneCount() {
		lane := uint8(i)
		if !r.state.needsProbe(lane) {
			continue
		}
		reply, token := r.local.api.expect(&laneProbe{r.state, lane}, now.Add(probeTimeout), false)
		err := r.local.api.nc.PublishMsg(&nats.Msg{
			Subject: laneSubject(lane, nodePublish, "_probe"), Reply: reply,
			Header: nats.Header{headerExpectName: []string{"probe-" + strconv.Itoa(i)}},
		})
		if err != nil {
			r.local.api.cancel(token)
		}
	}
}

// laneProbe handles the reply to a probe.
type laneProbe struct {
	state *laneStates
	lane  uint8
}

func (p *laneProbe) receive(m *nats.Msg) bool {
	switch {
	case m == nil:
		p.state.markNoAnswer(p.lane, time.Now())
	case isNoResponders(m):
		p.state.markLeaderless(p.lane, time.Now())
	default:
		p.state.markHealthy(p.lane)
	}
	return true
}
