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

// prober finds out which lanes answer and which of them this node leads.
type prober struct {
	local *embedded.Server
	state *laneStates

	lastProbe time.Time
}

// tick updates which lanes this node leads, and probes the others every probeInterval.
func (p *prober) tick(now time.Time) {
	p.refreshLed(now)
	if p.local.Config.Clustered() && now.Sub(p.lastProbe) >= probeInterval {
		p.lastProbe = now
		p.probe(now)
	}
}

// refreshLed updates which lanes this node leads.
func (p *prober) refreshLed(now time.Time) {
	p.state.updateLed(now, func(lane uint8) bool {
		return p.local.NATS.JetStreamIsStreamLeader(embedded.AccountYard, subjects.LaneStream(lane))
	})
}

// probe sends a message to each lane of which the node does not know whether it has a
// leader. The message names another stream as the one that it is for, so a leader refuses
// it and stores nothing. Without a leader there is no reply, or "no responders"; laneProbe
// records the result.
func (p *prober) probe(now time.Time) {
	for i := range p.local.Lanes() {
		lane := uint8(i)
		if !p.state.needsProbe(lane) {
			continue
		}
		reply, token := p.local.API.Expect(&laneProbe{p.state, lane}, now.Add(probeTimeout), false)
		err := p.local.API.Conn.PublishMsg(&nats.Msg{
			Subject: subjects.LaneSubject(lane, subjects.NodePublish, "_probe"), Reply: reply,
			Header: nats.Header{subjects.HeaderExpectName: []string{"probe-" + strconv.Itoa(i)}},
		})
		if err != nil {
			p.local.API.Cancel(token)
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
func (p *prober) subscribeMoves() error {
	moves := func(lane uint8) { p.state.setMoving(lane, time.Now().Add(MoveTimeout)) }
	moved := func(lane uint8) {
		p.refreshLed(time.Now())
		p.state.setMoving(lane, time.Time{})
		p.state.markHealthy(lane)
	}
	return errors.Join(p.subscribeMove(subjects.VerbLeaderMoves, moves), p.subscribeMove(subjects.VerbLeaderMoved, moved))
}

// subscribeMove calls record with the lane of each announcement with this verb.
func (p *prober) subscribeMove(verb string, record func(lane uint8)) error {
	_, err := p.local.Fleet.Conn.Subscribe(subjects.NodeSubject(p.local.Config.Node, verb), func(m *nats.Msg) {
		if len(m.Data) == 1 && m.Data[0] < subjects.MaxLanes {
			record(m.Data[0])
		}
	})
	return err
}
