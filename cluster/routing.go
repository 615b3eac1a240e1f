package cluster

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	probeEvery  = 300 * time.Millisecond
	probeAnswer = 500 * time.Millisecond
	retryEvery  = 500 * time.Millisecond // a lane that failed is tried again with one job
)

// laneStates knows which lanes take jobs, from what publishes and probes met.
type laneStates struct {
	c       *Cluster
	leaving atomic.Bool // this node gives away what it leads

	stored [MaxLanes]atomic.Uint64 // the highest place in each that is known to be taken

	mu   sync.Mutex
	lane [MaxLanes]laneState
}

type laneState struct {
	led   bool      // this node leads it
	down  time.Time // not before then; zero: it answers
	moves time.Time // until then it is about to change its leader, and any other is better

	foreign bool // its stream is not the one that the ledger knows: nothing goes there
}

// up tells that a lane answers, as far as is known, and is the yard's own.
func (l *laneState) up() bool { return l.down.IsZero() && !l.foreign }

// sound tells that a lane answers and will go on to.
func (l *laneState) sound(now time.Time) bool { return l.up() && !now.Before(l.moves) }

func newLaneStates(c *Cluster) *laneStates { return &laneStates{c: c} }

// own is this node's lane. Members that came later, beyond the number of
// lanes, share one; who is no member any more has the first.
func (s *laneStates) own() int {
	peers := *s.c.peers.Load()
	return max(slices.IndexFunc(peers, func(p Peer) bool { return p.Node == s.c.cfg.Node }), 0) % s.c.Lanes()
}

// pick chooses the lane for the next publish: the primary one while few are
// under way, this node's own, one that this node leads, any other that
// answers.
func (s *laneStates) pick(now time.Time, outstanding int) (uint8, bool) {
	n, own := s.c.Lanes(), s.own()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving.Load() {
		if lane, ok := s.elsewhere(now); ok {
			return lane, true
		}
	}
	if s.c.cfg.PrimaryLane && outstanding < primaryUntil && s.lane[0].sound(now) {
		return 0, true
	}
	if s.lane[own].sound(now) {
		return uint8(own), true
	}
	best := -1
	for i := range n {
		lane := (own + i) % n
		if s.lane[lane].up() && (best < 0 || s.lane[lane].led && !s.lane[best].led) {
			best = lane
		}
	}
	if best >= 0 {
		return uint8(best), true
	}
	// All have failed: let one job in a while try each.
	for i := range n {
		if lane := (own + i) % n; now.After(s.lane[lane].down) && !s.lane[lane].foreign {
			s.lane[lane].down = now.Add(retryEvery)
			return uint8(lane), true
		}
	}
	return 0, false
}

func (s *laneStates) answered(lane uint8)                  { s.mark(lane, time.Time{}) }
func (s *laneStates) leaderless(lane uint8, now time.Time) { s.mark(lane, now.Add(retryEvery)) }
func (s *laneStates) silent(lane uint8, now time.Time)     { s.mark(lane, now.Add(retryEvery)) }
func (s *laneStates) full(lane uint8, now time.Time)       { s.mark(lane, now.Add(retryEvery)) }

func (s *laneStates) mark(lane uint8, down time.Time) {
	s.mu.Lock()
	s.lane[lane].down = down
	s.mu.Unlock()
}

// moving notes until when a lane is about to change its leader; zero: it has.
func (s *laneStates) moving(lane uint8, until time.Time) {
	s.mu.Lock()
	s.lane[lane].moves = until
	s.mu.Unlock()
}

// anyMoves tells that a lane is about to change its leader.
func (s *laneStates) anyMoves(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.lane[:], func(l laneState) bool { return now.Before(l.moves) })
}

// lead notes which lanes this node leads and returns them. A lane it has just
// begun to lead answers; one that it has just lost does not until it is heard to.
func (s *laneStates) lead(at time.Time, led func(lane uint8) bool) []uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var mine []uint8
	for lane := range s.c.Lanes() {
		now := led(uint8(lane))
		if now {
			mine = append(mine, uint8(lane))
		}
		switch {
		case now && !s.lane[lane].led:
			s.lane[lane].down = time.Time{}
		case !now && s.lane[lane].led:
			s.lane[lane].down = at
		}
		s.lane[lane].led = now
	}
	return mine
}

func (s *laneStates) doubtful(lane uint8) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.lane[lane].led || !s.lane[lane].down.IsZero()
}

// shutOff is the route of plain publishes that nobody is to store.
const shutOff = -2

// routeElsewhere is where plain publishes go while this node is shut: to a lane
// that another member leads.
func (s *laneStates) routeElsewhere(now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lane, ok := s.elsewhere(now); ok {
		return int(lane)
	}
	return shutOff
}

// elsewhere is a lane that another member leads and that answers, one that stays
// there if there is one. The lock is held.
func (s *laneStates) elsewhere(now time.Time) (uint8, bool) {
	best := -1
	for i := range s.c.Lanes() {
		lane := &s.lane[i]
		if !lane.led && lane.up() && (best < 0 || lane.sound(now) && !s.lane[best].sound(now)) {
			best = i
		}
	}
	return uint8(max(best, 0)), best >= 0
}

// route is where plain publishes go, which nobody repeats for their publishers;
// shutOff if no lane is the yard's own.
func (s *laneStates) route(now time.Time) int {
	n, own := s.c.Lanes(), s.own()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving.Load() {
		if lane, ok := s.elsewhere(now); ok {
			return int(lane)
		}
	}
	best, rank := shutOff, -1
	for i := range n {
		lane := (own + i) % n
		if r := s.lane[lane].rank(now); r > rank {
			best, rank = lane, r
		}
	}
	return best
}

// rank is how good a lane is for plain publishes: first of all that it answers
// and stays where it is, then that this node leads it.
func (l *laneState) rank(now time.Time) int {
	switch {
	case l.foreign:
		return -1
	case l.led && l.sound(now):
		return 4
	case l.sound(now):
		return 3
	case l.led:
		return 2
	case l.down.IsZero():
		return 1
	}
	return 0
}

// router steers this node's plain clients by mapping their subjects. The
// mappings are this server's alone and hold at once, also for connections
// that are open.
type router struct {
	c     *Cluster
	state *laneStates

	probing time.Time

	mu     sync.Mutex
	led    []uint8
	mapped int // lane yard.jobs.* leads to; -1: none yet; or shutOff
}

func newRouter(c *Cluster) *router { return &router{c: c, state: c.publisher.state, mapped: -1} }

// Led lists the lanes this node leads.
func (c *Cluster) Led() []uint8 {
	c.router.mu.Lock()
	defer c.router.mu.Unlock()
	return c.router.led
}

// mapLocal leads what nodes answer to this node's own ears. A queue group over
// all nodes would also pick one that has just died.
func (r *router) mapLocal() error {
	acc, err := r.c.srv.LookupAccount(account)
	if err != nil {
		return err
	}
	node := r.c.cfg.Node
	mapped := map[string]string{
		SubjectEnqueue + ".*":   localSubject(node, SubjectEnqueue) + ".$1",
		SubjectCall + ".*":      localSubject(node, SubjectCall) + ".$1",
		SubjectExec:             localSubject(node, SubjectExec),
		SubjectExec + ".*":      localSubject(node, SubjectExec) + ".$1",
		SubjectSnapshot:         localSubject(node, SubjectSnapshot),
		SubjectStatus:           localSubject(node, SubjectStatus),
		SubjectAPI + ".>":       localSubject(node, SubjectAPI) + ".>",
		SubjectConsumers + ".>": localSubject(node, SubjectConsumers) + ".>",
	}
	for _, verb := range nodeVerbs { // to the node that is named, not to this one
		mapped[nodeSubject("*", verb)] = nodeVerbSubject("$1", verb)
	}
	for src, dest := range mapped {
		if err := acc.AddMapping(src, dest); err != nil {
			return err
		}
	}
	return r.refusePlain()
}

// turn looks who leads, asks the lanes led elsewhere whether they answer, and
// maps yard.jobs.* where it should go.
func (r *router) turn(now time.Time) {
	r.lookWhoLeads(now)
	if r.c.cfg.clustered() && now.Sub(r.probing) >= probeEvery {
		r.probing = now
		r.probe(now)
	}
	r.mapJobs()
}

// lookWhoLeads notes which lanes this node leads.
func (r *router) lookWhoLeads(now time.Time) {
	led := r.state.lead(now, func(lane uint8) bool { return r.c.srv.JetStreamIsStreamLeader(account, LaneStream(lane)) })
	r.mu.Lock()
	r.led = led
	r.mu.Unlock()
}

func (r *router) mapJobs() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	lane := r.state.route(now)
	if r.c.publisher.whyShut() != "" {
		lane = shutOff
		if r.c.publisher.others.Load() {
			lane = r.state.routeElsewhere(now)
		}
	}
	if lane == r.mapped {
		return
	}
	acc, err := r.c.srv.LookupAccount(account)
	if err == nil {
		dest := r.subjectShut() + ".$1"
		if lane != shutOff {
			dest = laneSubject(uint8(lane), plainPublish, "$1")
		}
		err = acc.AddWeightedMappings(SubjectJobs+".*", server.NewMapDest(dest, 100))
	}
	if err != nil {
		r.c.log.Error("cannot map the publishers' subject", "lane", lane, "error", err)
		return
	}
	r.mapped = lane
}

// probe sends each doubtful lane a message for a stream of another name. Its
// leader refuses it and stores nothing; without a leader there is no answer,
// and that is what it finds out. A lane that this node leads and that answers
// needs no question.
func (r *router) probe(now time.Time) {
	for i := range r.c.Lanes() {
		lane := uint8(i)
		if !r.state.doubtful(lane) {
			continue
		}
		reply, token := r.c.api.expect(&laneProbe{r.state, lane}, now.Add(probeAnswer), false)
		err := r.c.api.nc.PublishMsg(&nats.Msg{
			Subject: laneSubject(lane, nodePublish, "_probe"), Reply: reply,
			Header: nats.Header{headerExpectName: []string{"probe-" + strconv.Itoa(i)}},
		})
		if err != nil {
			r.c.api.forget(token)
		}
	}
}

type laneProbe struct {
	state *laneStates
	lane  uint8
}

func (p *laneProbe) heard(m *nats.Msg) bool {
	switch {
	case m == nil:
		p.state.silent(p.lane, time.Now())
	case isNoResponders(m):
		p.state.leaderless(p.lane, time.Now())
	default:
		p.state.answered(p.lane)
	}
	return true
}
