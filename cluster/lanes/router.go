package lanes

import (
	"encoding/json"
	"errors"
	"fmt"
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
	mapped int // lane that yard.jobs.* is mapped to, or noLane; unmapped before the first mapping
}

// unmapped is the value of router.mapped before the first mapping.
const unmapped = -2

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

// updateMapping maps yard.jobs.* to the best lane, or to the subject that refuses
// publishes if the intake is closed or no lane is suitable.
func (r *router) updateMapping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	lane := r.state.directRoute(now)
	if r.publisher.closedReason() != "" {
		lane = noLane
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
		if lane != noLane {
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

// subscribeMove calls record with the lane of each announcement with this verb, and
// then updates the mapping.
func (r *router) subscribeMove(verb string, record func(lane uint8)) error {
	_, err := r.local.Fleet.Conn.Subscribe(subjects.NodeSubject(r.local.Config.Node, verb), func(m *nats.Msg) {
		if len(m.Data) == 1 && m.Data[0] < subjects.MaxLanes {
			record(m.Data[0])
			r.updateMapping()
		}
	})
	return err
}

// closedRetryAfter is after how long a refused caller may retry. Disk space is not
// freed within moments.
const closedRetryAfter = 5 * time.Second

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

// closedIntakeSubject returns the subject that direct publishes are mapped to
// while they are refused.
func (r *router) closedIntakeSubject() string {
	return subjects.LocalSubject(r.local.Config.Node, "yard.shut")
}

// refuseDirectPublishes subscribes to the closed intake's subject and answers
// publishes as a full stream would.
func (r *router) refuseDirectPublishes() error {
	_, err := r.local.API.Conn.Subscribe(r.closedIntakeSubject()+".*", func(m *nats.Msg) {
		if m.Reply == "" {
			return // this publisher does not wait for an acknowledgement
		}
		reason := r.publisher.closedReason()
		if reason == "" {
			reason = "the node's intake was closed for a moment"
		}
		reply, err := json.Marshal(map[string]any{"stream": "", "seq": 0, "error": map[string]any{
			"code": 503, "err_code": embedded.CodeNoResources, "description": fmt.Sprintf("%s; try again in %s", reason, closedRetryAfter),
		}})
		if err == nil {
			err = m.Respond(reply)
		}
		if err != nil {
			r.local.Log.Debug("refusal of a direct publish not sent", "err", err)
		}
	})
	return err
}
