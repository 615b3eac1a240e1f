// Package replication moves the leaderships and replicas of streams between members, adds
// and removes JetStream's servers, detects replicas that do not catch up, and makes the
// snapshots that help them.
package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Moving the leadership of a lane. A direct publish to a lane that has no leader at
// the moment fails, because no node retries it. So all members are notified before a
// lane's leadership moves and route direct publishes to other lanes until it has
// moved. Lanes move one at a time, so that other lanes remain.
const (
	publishGrace     = 100 * time.Millisecond // for publishes in flight to be acknowledged before the move
	movePollInterval = 10 * time.Millisecond
)

// leaderMove moves the leadership of a stream from one server to another.
type leaderMove struct{ stream, from, to string }

// Replication moves the leaderships and replicas of streams between the members, and
// reports on replicas. Its methods may be called concurrently.
type Replication struct {
	local *embedded.Server
	lanes *lanes.Publisher
}

// New returns what moves leaderships and replicas over l's connections. p is
// notified when lanes must not be used.
func New(l *embedded.Server, p *lanes.Publisher) *Replication {
	return &Replication{local: l, lanes: p}
}

// SendSnapshots makes snapshots of streams that this node leads if a replica does not
// catch up, until ctx ends.
func (r *Replication) SendSnapshots(ctx context.Context) { (&snapshotSender{local: r.local}).run(ctx) }

// SpreadLeaders gives each member the leadership of its lane, lane i to member i,
// and moves the leaders of the history streams away from the authority's node, so
// that history outlives that node. Members for which unfit returns true, because
// their disk is low, lead no lane. It only moves leaderships to replicas that are
// online and current, and returns how many moves it has requested.
func (r *Replication) SpreadLeaders(ctx context.Context, authority string, unfit func(node string) bool) (moves int, err error) {
	if !r.local.Config.Clustered() {
		return 0, nil
	}
	members := slices.DeleteFunc(r.local.Members(), unfit)
	if len(members) == 0 {
		members = r.local.Members() // all are equally unfit
	}
	want := map[string]func(node string) bool{}
	for lane := range r.local.Lanes() {
		owner := preferredLeader(lane, r.local.Members(), members)
		want[subjects.LaneStream(uint8(lane))] = func(node string) bool { return node == owner }
	}
	notHere := func(node string) bool { return node != authority }
	want[subjects.StreamEvents], want[subjects.StreamResults] = notHere, notHere
	var wanted []leaderMove
	var errs []error
	for stream, fits := range want {
		m, err := r.successor(ctx, stream, fits)
		if m.to != "" {
			wanted = append(wanted, m)
		}
		errs = append(errs, err)
	}
	return len(wanted), errors.Join(append(errs, r.moveLeaders(ctx, wanted))...)
}

// preferredLeader returns the member that should lead a lane: the one with the
// lane's number if it is eligible, otherwise another eligible one.
func preferredLeader(lane int, members, eligible []string) string {
	if preferred := members[lane%len(members)]; slices.Contains(eligible, preferred) {
		return preferred
	}
	return eligible[lane%len(eligible)]
}

// successor returns a move of a stream's leadership to a current replica on a node
// that fits. The move's to is "" if the present leader fits or no replica does.
func (r *Replication) successor(ctx context.Context, stream string, fits func(node string) bool) (m leaderMove, err error) {
	info, err := streams.Info(ctx, r.local.JS, stream)
	if err != nil {
		return m, err
	}
	if info.Cluster == nil || info.Cluster.Leader == "" || fits(subjects.NodeOf(info.Cluster.Leader)) {
		return m, nil
	}
	m = leaderMove{stream: stream, from: info.Cluster.Leader}
	next := slices.IndexFunc(info.Cluster.Replicas, func(p *jetstream.PeerInfo) bool {
		return p.Current && !p.Offline && fits(subjects.NodeOf(p.Name))
	})
	if next >= 0 {
		m.to = info.Cluster.Replicas[next].Name
	}
	return m, nil
}

// moveLeaders moves leaderships: lanes last and one at a time. It skips the lanes
// while another move is in progress.
func (r *Replication) moveLeaders(ctx context.Context, moves []leaderMove) error {
	var errs []error
	laneOf := map[string]uint8{}
	for lane := range r.local.Lanes() {
		laneOf[subjects.LaneStream(uint8(lane))] = uint8(lane)
	}
	moving := r.lanes.Moving()
	for _, m := range moves {
		if _, lane := laneOf[m.stream]; !lane {
			errs = append(errs, r.stepDown(ctx, m.stream, m.to))
		}
	}
	for _, m := range moves {
		if lane, ok := laneOf[m.stream]; ok && !moving {
			errs = append(errs, r.moveLane(ctx, lane, m))
		}
	}
	return errors.Join(errs...)
}

// moveLane makes a lane's leader step down and returns when there is a new leader,
// or with an error after MoveTimeout. Before that it notifies all members and
// waits for publishes in flight, because a leader that steps down drops messages
// that it has not yet replicated.
func (r *Replication) moveLane(ctx context.Context, lane uint8, m leaderMove) error {
	ctx, cancel := context.WithTimeout(ctx, lanes.MoveTimeout)
	defer cancel()
	if err := r.notifyMembers(subjects.VerbLeaderMoves, lane); err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, publishGrace); err != nil {
		return err
	}
	if err := r.stepDown(ctx, m.stream, m.to); err != nil {
		return err
	}
	for {
		info, err := streams.Info(ctx, r.local.JS, m.stream)
		if err == nil && info.Cluster != nil && info.Cluster.Leader != "" && info.Cluster.Leader != m.from {
			return r.notifyMembers(subjects.VerbLeaderMoved, lane) // a member that misses this waits for MoveTimeout
		}
		if late := backoff.Sleep(ctx, movePollInterval); late != nil {
			return fmt.Errorf("lane %d has no new leader after %s: %w", lane, lanes.MoveTimeout, errors.Join(late, err))
		}
	}
}

// notifyMembers notifies all members, including this one, about a move of a lane's
// leader.
func (r *Replication) notifyMembers(verb string, lane uint8) error {
	for _, node := range r.local.Members() {
		if err := r.local.Fleet.Conn.Publish(subjects.NodeSubject(node, verb), []byte{lane}); err != nil {
			return fmt.Errorf("notify %s about lane %d: %w", node, lane, err)
		}
	}
	return nil
}

// MoveLeaderAway asks another member to take over a stream that this node leads.
func (r *Replication) MoveLeaderAway(ctx context.Context, stream string) error {
	m, err := r.successor(ctx, stream, func(node string) bool { return node != r.local.Config.Node })
	if err != nil || m.to == "" {
		return err
	}
	return r.stepDown(ctx, stream, m.to)
}

// stepDown makes a stream's leader step down in favour of the preferred server.
func (r *Replication) stepDown(ctx context.Context, stream, preferred string) error {
	body, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": preferred}})
	if err != nil {
		return err
	}
	m, err := r.local.API.Request(ctx, &nats.Msg{Subject: subjects.APIStepDown + stream, Data: body}, 2*time.Second)
	if err != nil {
		return fmt.Errorf("ask the leader of %s to step down: %w", stream, err)
	}
	var reply struct {
		Error *embedded.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return fmt.Errorf("malformed reply of the leader of %s: %w", stream, err)
	}
	if reply.Error != nil {
		return fmt.Errorf("leader of %s does not step down: %w", stream, reply.Error)
	}
	return nil
}
