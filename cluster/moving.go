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
// all members hear which lanes are about to move, and send their publishers to
// others meanwhile.
const (
	verbMoves = "moves"                // of yard.node.<node>.: the payload is lanes, a byte each
	underWay  = 100 * time.Millisecond // in which publishes to a lane are answered
	movesFor  = 3 * time.Second        // in which a lane that was to move has moved
)

// move is a leadership that is to go to another member.
type move struct{ stream, to string }

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
		to, err := c.heir(ctx, stream, fits)
		if to != "" {
			all = append(all, move{stream, to})
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

// heir is the server that should lead a stream instead of the one that does; ""
// if that fits, or no replica could take its place.
func (c *Cluster) heir(ctx context.Context, stream string, fits func(node string) bool) (server string, err error) {
	info, err := c.streamInfo(ctx, stream)
	if err != nil {
		return "", err
	}
	if info.Cluster == nil || info.Cluster.Leader == "" || fits(NodeOf(info.Cluster.Leader)) {
		return "", nil
	}
	next := slices.IndexFunc(info.Cluster.Replicas, func(p *jetstream.PeerInfo) bool {
		return p.Current && !p.Offline && fits(NodeOf(p.Name))
	})
	if next < 0 {
		return "", nil
	}
	return info.Cluster.Replicas[next].Name, nil
}

// carryOut has leaders step down, those of lanes when no publisher is on its way
// to them.
func (c *Cluster) carryOut(ctx context.Context, moves []move) error {
	var lanes []uint8
	for lane := range c.Lanes() {
		if slices.ContainsFunc(moves, func(m move) bool { return m.stream == LaneStream(uint8(lane)) }) {
			lanes = append(lanes, uint8(lane))
		}
	}
	if err := c.clear(ctx, lanes); err != nil {
		return err
	}
	var errs []error
	for _, m := range moves {
		errs = append(errs, c.stepDown(ctx, m.stream, m.to))
	}
	return errors.Join(errs...)
}

// clear tells all members that lanes are about to move, and waits until they
// have heard it and what was on its way has its answer: a leader drops what it
// has taken and not yet given to its replicas.
func (c *Cluster) clear(ctx context.Context, lanes []uint8) error {
	if len(lanes) == 0 {
		return nil
	}
	for _, node := range c.members() {
		if err := c.fleet.nc.Publish(nodeSubject(node, verbMoves), lanes); err != nil {
			return fmt.Errorf("tell %s which lanes move: %w", node, err)
		}
	}
	return backoff.Sleep(ctx, underWay)
}

// hearMoves listens to which lanes are about to move.
func (c *Cluster) hearMoves() error {
	_, err := c.fleet.nc.Subscribe(nodeSubject(c.cfg.Node, verbMoves), func(m *nats.Msg) {
		c.publisher.state.moving(m.Data, time.Now().Add(movesFor))
		c.router.mapJobs()
	})
	return err
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
