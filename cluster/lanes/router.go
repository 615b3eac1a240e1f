package lanes

import (
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

const (
	probeInterval = 300 * time.Millisecond
	probeTimeout  = 500 * time.Millisecond
	MoveTimeout   = 2 * time.Second // after which a move of a leader no longer affects routing
)

// router knows which lanes answer, and serves the direct publishes of this node's clients.
type router struct {
	local     *embedded.Server
	publisher *Publisher
	state     *laneStates

	lastProbe time.Time
}

// tick updates which lanes this node leads, and probes the others every probeInterval.
func (r *router) tick(now time.Time) {
	r.refreshLed(now)
	if r.local.Config.Clustered() && now.Sub(r.lastProbe) >= probeInterval {
		r.lastProbe = now
		r.probe(now)
	}
}

// refreshLed updates which lanes this node leads.
func (r *router) refreshLed(now time.Time) {
	r.state.updateLed(now, func(lane uint8) bool {
		return r.local.NATS.JetStreamIsStreamLeader(embedded.AccountYard, subjects.LaneStream(lane))
	})
}

// probe sends a message to each lane of which the node does not know whether it has a
// leader. The message names another stream as the one that it is for, so a leader refuses
// it and stores nothing. Without a leader there is no reply, or "no responders"; laneProbe
// records the result.
func (r *router) probe(now time.Time) {
	for i := range r.local.Lanes() {
		lane := uint8(i)
		if !r.state.needsProbe(lane) {
			continue
		}
		reply, token := r.local.API.Expect(&laneProbe{r.state, lane}, now.Add(probeTimeout), false)
		err := r.local.API.Conn.PublishMsg(&nats.Msg{
			Subject: subjects.LaneSubject(lane, subjects.NodePublish, "_probe"), Reply: reply,
			Header: nats.Header{subjects.HeaderExpectName: []string{"probe-" + strconv.Itoa(i)}},
		})
		if err != nil {
			r.local.API.Cancel(token)
		}
	}
}

// laneProbe handles the reply to a probe.
type laneProbe struct {
	state *laneStates
	lane  uint8
}

// Receive implements [embedded.ReplyHandler].
func (p *laneProbe) Receive(m *nats.Msg) bool {
	if m == nil || embedded.IsNoResponders(m) {
		p.state.markDown(p.lane, time.Now())
	} else {
		p.state.markHealthy(p.lane)
	}
	return true
}

// subscribeMoves subscribes to the announcements that the leadership of a lane moves
// and that it has moved.
func (r *router) subscribeMoves() error {
	moves := func(lane uint8) { r.state.setMoving(lane, time.Now().Add(MoveTimeout)) }
	moved := func(lane uint8) {
		r.refreshLed(time.Now())
		r.state.setMoving(lane, time.Time{})
		r.state.markHealthy(lane)
	}
	return errors.Join(r.subscribeMove(subjects.VerbLeaderMoves, moves), r.subscribeMove(subjects.VerbLeaderMoved, moved))
}

// subscribeMove calls record with the lane of each announcement with this verb.
func (r *router) subscribeMove(verb string, record func(lane uint8)) error {
	_, err := r.local.Fleet.Conn.Subscribe(subjects.NodeSubject(r.local.Config.Node, verb), func(m *nats.Msg) {
		if len(m.Data) == 1 && m.Data[0] < subjects.MaxLanes {
			record(m.Data[0])
		}
	})
	return err
}

// SetIntakeClosed makes this node refuse new jobs from all sources with the given
// reason; "" opens the intake again. Publishes in flight complete. If othersAccept
// is true, direct publishes are routed to a lane that another member leads;
// otherwise they are refused with a JetStream error.
func (p *Publisher) SetIntakeClosed(reason string, othersAccept bool) {
	p.othersAccept.Store(othersAccept)
	p.closedFor.Store(&reason)
}

// closedReason returns why the intake is closed, "" if it is open.
func (p *Publisher) closedReason() string {
	if reason := p.closedFor.Load(); reason != nil {
		return *reason
	}
	return ""
}
