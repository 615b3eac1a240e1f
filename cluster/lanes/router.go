package lanes

import (
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

const (
	probeInterval = 300 * time.Millisecond
	probeTimeout  = 500 * time.Millisecond
	MoveTimeout   = 2 * time.Second // after which a move of a leader no longer affects routing
)

// router routes the direct publishes of this node's clients by mapping their
// subjects. A mapping exists on this server only and takes effect at once, also
// for open connections.
type router struct {
	local     *embedded.Server
	publisher *Publisher
	state     *laneStates

	lastProbe time.Time

	mu     sync.Mutex
	mapped int // lane that yard.jobs.* is mapped to, or routeNone; -1: not mapped yet
}

// tick updates which lanes this node leads, probes the others every probeInterval,
// and updates the mapping of yard.jobs.*.
func (r *router) tick(now time.Time) {
	r.refreshLed(now)
	if r.local.Config.Clustered() && now.Sub(r.lastProbe) >= probeInterval {
		r.lastProbe = now
		r.probe(now)
	}
	r.updateMapping()
}

// refreshLed updates which lanes this node leads.
func (r *router) refreshLed(now time.Time) {
	r.state.updateLed(now, func(lane uint8) bool {
		return r.local.NATS.JetStreamIsStreamLeader(embedded.AccountYard, subjects.LaneStream(lane))
	})
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
	acc, err := r.local.NATS.LookupAccount(embedded.AccountYard)
	if err == nil {
		dest := r.closedIntakeSubject() + ".$1"
		if lane != routeNone {
			dest = subjects.LaneSubject(uint8(lane), subjects.DirectPublish, "$1")
		}
		err = acc.AddWeightedMappings(subjects.Jobs+".*", server.NewMapDest(dest, 100))
	}
	if err != nil {
		r.local.Log.Error("mapping of direct publishes failed", "lane", lane, "err", err)
		return
	}
	r.mapped = lane
}

// probe sends a message to each lane whose state is doubtful. The message expects
// another stream name, so the leader refuses it and stores nothing. Without a
// leader there is no reply, or "no responders".
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

func (p *laneProbe) Receive(m *nats.Msg) bool {
	switch {
	case m == nil:
		p.state.markNoAnswer(p.lane, time.Now())
	case embedded.IsNoResponders(m):
		p.state.markLeaderless(p.lane, time.Now())
	default:
		p.state.markHealthy(p.lane)
	}
	return true
}

// subscribeMoves handles the notifications about moves of leaders.
func (r *router) subscribeMoves() error {
	state := r.state
	for verb, record := range map[string]func(lane uint8, now time.Time){
		subjects.VerbLeaderMoves: func(lane uint8, now time.Time) { state.setMoving(lane, now.Add(MoveTimeout)) },
		subjects.VerbLeaderMoved: func(lane uint8, now time.Time) {
			r.refreshLed(now)
			state.setMoving(lane, time.Time{})
			state.markHealthy(lane)
		},
	} {
		_, err := r.local.Fleet.Conn.Subscribe(subjects.NodeSubject(r.local.Config.Node, verb), func(m *nats.Msg) {
			if len(m.Data) == 1 && m.Data[0] < subjects.MaxLanes {
				record(m.Data[0], time.Now())
				r.updateMapping()
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
