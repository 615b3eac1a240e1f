package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"yardmaster/internal/backoff"
)

// How lanes change their leaders. A plain publish to a lane that has none at the
// moment fails in its publisher's hands, because there is nobody to repeat it. So
// all members hear which lane is about to move, and send their publishers to
// others until it has; and one moves after the other, so that there are others.
const (
	verbMoves = "moves" // of yard.node.<node>.: the payload is the lane, a byte
	verbMoved = "moved" // likewise, when its new leader answers

	underWay = 100 * time.Millisecond // in which publishes to a lane are answered
	movesFor = 2 * time.Second        // longest time for which a lane is taken for moving
	moveLook = 10 * time.Millisecond
)

// move is a leadership that is to go from one server to another.
type move struct{ stream, from, to string }

// SpreadLeaders moves the lanes' leaders to one per member, lane i to member
// i, and the history's away from the authority's node, or history would stop
// with it. A member that poor tells of, because its disk is low, leads no lane. It
// only asks leaders to step down in favour of a replica that is online and
// current, and returns how many moves it asked for.
func (c *Cluster) SpreadLeaders(ctx context.Context, authority string, poor func(node string) bool) (moves int, err error) {
	if !c.cfg.clustered() {
		return 0, nil
	}
	members := slices.DeleteFunc(c.members(), poor)
	if len(members) == 0 {
		members = c.members() // none is better than another
	}
	want := map[string]func(node string) bool{}
	for lane := range c.Lanes() {
		owner := ownerOf(lane, c.members(), members)
		want[LaneStream(uint8(lane))] = func(node string) bool { return node == owner }
	}
	notHere := func(node string) bool { return node != authority }
	want[StreamEvents], want[StreamResults] = notHere, notHere
	var all []move
	var errs []error
	for stream, fits := range want {
		m, err := c.heir(ctx, stream, fits)
		if m.to != "" {
			all = append(all, m)
		}
		errs = append(errs, err)
	}
	return len(all), errors.Join(append(errs, c.carryOut(ctx, all))...)
}

// ownerOf is who is to lead a lane: the member of its number, or another one in
// its place if that is not among the able.
func ownerOf(lane int, members, able []string) string {
	if owner := members[lane%len(members)]; slices.Contains(able, owner) {
		return owner
	}
	return able[lane%len(able)]
}

// heir finds a server that should lead a stream instead of the one that does; to
// is "" if that fits, or no replica could take its place.
func (c *Cluster) heir(ctx context.Context, stream string, fits func(node string) bool) (m move, err error) {
	info, err := c.streamInfo(ctx, stream)
	if err != nil {
		return m, err
	}
	if info.Cluster == nil || info.Cluster.Leader == "" || fits(NodeOf(info.Cluster.Leader)) {
		return m, nil
	}
	m = move{stream: stream, from: info.Cluster.Leader}
	next := slices.IndexFunc(info.Cluster.Replicas, func(p *jetstream.PeerInfo) bool {
		return p.Current && !p.Offline && fits(NodeOf(p.Name))
	})
	if next >= 0 {
		m.to = info.Cluster.Replicas[next].Name
	}
	return m, nil
}

// carryOut moves leaderships, lanes last and one by one. While another member
// moves lanes it leaves them to it.
func (c *Cluster) carryOut(ctx context.Context, moves []move) error {
	var errs []error
	lanes := map[string]uint8{}
	for lane := range c.Lanes() {
		lanes[LaneStream(uint8(lane))] = uint8(lane)
	}
	busy := c.publisher.state.anyMoves(time.Now())
	for _, m := range moves {
		if _, lane := lanes[m.stream]; !lane {
			errs = append(errs, c.stepDown(ctx, m.stream, m.to))
		}
	}
	for _, m := range moves {
		if lane, ok := lanes[m.stream]; ok && !busy {
			errs = append(errs, c.moveLane(ctx, lane, m))
		}
	}
	return errors.Join(errs...)
}

// moveLane has a lane's leader step down when no publisher is on its way there,
// and returns when another one answers, or movesFor has passed: a leader drops what
// it has taken and not yet given to its replicas.
func (c *Cluster) moveLane(ctx context.Context, lane uint8, m move) error {
	ctx, cancel := context.WithTimeout(ctx, movesFor)
	defer cancel()
	if err := c.tellMembers(verbMoves, lane); err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, underWay); err != nil {
		return err
	}
	if err := c.stepDown(ctx, m.stream, m.to); err != nil {
		return err
	}
	for {
		info, err := c.streamInfo(ctx, m.stream)
		if err == nil && info.Cluster != nil && info.Cluster.Leader != "" && info.Cluster.Leader != m.from {
			return c.tellMembers(verbMoved, lane) // who does not hear it waits for movesFor
		}
		if late := backoff.Sleep(ctx, moveLook); late != nil {
			return fmt.Errorf("lane %d has no new leader yet: %w", lane, errors.Join(late, err))
		}
	}
}

func (c *Cluster) tellMembers(verb string, lane uint8) error {
	for _, node := range c.members() {
		if err := c.fleet.nc.Publish(nodeSubject(node, verb), []byte{lane}); err != nil {
			return fmt.Errorf("tell %s of lane %d: %w", node, lane, err)
		}
	}
	return nil
}

// hearMoves listens to which lanes are about to move, and have.
func (c *Cluster) hearMoves() error {
	state := c.publisher.state
	for verb, note := range map[string]func(lane uint8, now time.Time){
		verbMoves: func(lane uint8, now time.Time) { state.moving(lane, now.Add(movesFor)) },
		verbMoved: func(lane uint8, now time.Time) {
			c.router.lookWhoLeads(now)
			state.moving(lane, time.Time{})
			state.answered(lane)
		},
	} {
		_, err := c.fleet.nc.Subscribe(nodeSubject(c.cfg.Node, verb), func(m *nats.Msg) {
			if len(m.Data) == 1 && m.Data[0] < MaxLanes {
				note(m.Data[0], time.Now())
				c.router.mapJobs()
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) stepDown(ctx context.Context, stream, preferred string) error {
	body, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": preferred}})
	if err != nil {
		return err
	}
	m, err := c.api.ask(ctx, &nats.Msg{Subject: apiStepDown + stream, Data: body}, 2*time.Second)
	if err != nil {
		return fmt.Errorf("ask the leader of %s to step down: %w", stream, err)
	}
	var answer struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return fmt.Errorf("read the answer of %s's leader: %w", stream, err)
	}
	if answer.Error != nil {
		return fmt.Errorf("leader of %s does not step down: %w", stream, answer.Error)
	}
	return nil
}
