// Package replication moves the leaderships and replicas of streams between members, adds
// and removes JetStream's servers, detects replicas that do not catch up, and makes the
// snapshots that help them.
package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Moving the leadership of a lane. A direct publish to a lane that has no leader at
// the moment fails, because no node retries it. So all members are notified before a
// lane's leadership moves and route direct publishes to other lanes until it has
// moved. Lanes move one at a time, so that other lanes remain.
const (
	publishGrace     = 100 * time.Millisecond // for publishes in flight to be acknowledged before the move
	movePollInterval = 10 * time.Millisecond
	stepDownTimeout  = 2 * time.Second
)

// leaderMove moves the leadership of a stream from one server to another.
type leaderMove struct{ stream, from, to string }

// Replication moves the leaderships and replicas of streams between the members, and
// reports on replicas. Its methods may be called concurrently.
type Replication struct {
	local *embedded.Server
	lanes *lanes.Publisher
}

// New returns a Replication that uses l's connections. p reports whether lanes are
// moving, and sends jobs elsewhere while this node transfers its leaderships.
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
// online and current, on nodes for which behind returns false: a new leader answers nothing
// until it has applied what it received. It returns how many moves it has requested.
func (r *Replication) SpreadLeaders(ctx context.Context, authority string, unfit, behind func(node string) bool) (moves int, err error) {
	if !r.local.Config.Clustered() {
		return 0, nil
	}
	eligible := slices.DeleteFunc(r.local.Members(), unfit)
	if len(eligible) == 0 {
		eligible = r.local.Members() // all are equally unfit
	}
	mayLead := map[string]func(node string) bool{} // by stream
	for lane := range r.local.Lanes() {
		leader := preferredLeader(lane, r.local.Members(), eligible)
		mayLead[subjects.LaneStream(uint8(lane))] = func(node string) bool { return node == leader }
	}
	notAuthority := func(node string) bool { return node != authority }
	mayLead[subjects.StreamEvents], mayLead[subjects.StreamResults] = notAuthority, notAuthority

	var due []leaderMove
	var errs []error
	for stream, fits := range mayLead {
		m, err := r.successor(ctx, stream, fits, behind)
		if m.to != "" {
			due = append(due, m)
		}
		errs = append(errs, err)
	}
	return len(due), errors.Join(append(errs, r.moveLeaders(ctx, due))...)
}

// preferredLeader returns the member that should lead a lane: the one with the
// lane's number if it is eligible, otherwise another eligible one.
func preferredLeader(lane int, members, eligible []string) string {
	if preferred := members[lane%len(members)]; slices.Contains(eligible, preferred) {
		return preferred
	}
	return eligible[lane%len(eligible)]
}

// successor returns a move of a stream's leadership to a current replica, on a node that fits
// and is not behind. The move's field to is "" if the present leader fits or no replica does.
func (r *Replication) successor(ctx context.Context, stream string, fits, behind func(node string) bool) (leaderMove, error) {
	info, err := streams.Info(ctx, r.local.JS, stream)
	if err != nil {
		return leaderMove{}, err
	}
	to := fitReplica(info.Cluster, fits, behind)
	if to == "" {
		return leaderMove{}, nil
	}
	return leaderMove{stream: stream, from: info.Cluster.Leader, to: to}, nil
}

// fitReplica returns the server of a current replica, on a node that fits and is not behind;
// "" if the present leader fits or no replica does.
func fitReplica(c *jetstream.ClusterInfo, fits, behind func(node string) bool) string {
	if c == nil || c.Leader == "" || fits(subjects.NodeOf(c.Leader)) {
		return ""
	}
	for _, replica := range c.Replicas {
		if node := subjects.NodeOf(replica.Name); replica.Current && !replica.Offline && fits(node) && !behind(node) {
			return replica.Name
		}
	}
	return ""
}

// moveLeaders moves leaderships: lanes last and one at a time. It skips the lanes
// while another move is in progress.
func (r *Replication) moveLeaders(ctx context.Context, moves []leaderMove) error {
	var errs []error
	alreadyMoving := r.lanes.Moving()
	for _, m := range moves {
		if _, isLane := subjects.ParseLaneStream(m.stream); !isLane {
			errs = append(errs, r.stepDown(ctx, m.stream, m.to))
		}
	}
	for _, m := range moves {
		if lane, isLane := subjects.ParseLaneStream(m.stream); isLane && !alreadyMoving {
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
			return fmt.Errorf("lane %d has no new leader after %s: %w", lane, duration.Format(lanes.MoveTimeout), errors.Join(late, err))
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
	elsewhere := func(node string) bool { return node != r.local.Config.Node }
	m, err := r.successor(ctx, stream, elsewhere, func(string) bool { return false })
	if err != nil || m.to == "" {
		return err
	}
	return r.stepDown(ctx, stream, m.to)
}

// stepDown makes a stream's leader step down in favour of the preferred server.
func (r *Replication) stepDown(ctx context.Context, stream, preferred string) error {
	err := r.local.API.RequestAPI(ctx, subjects.APIStepDown+stream, stepDownRequest(preferred), stepDownTimeout, new(embedded.APIReply))
	if err != nil {
		return fmt.Errorf("ask the leader of %s to step down: %w", stream, err)
	}
	return nil
}

// leavePollInterval is the time between two attempts to move leaderships.
const leavePollInterval = 50 * time.Millisecond

// TransferLeaders moves every leadership that this node holds to another member,
// so that stopping the node interrupts nothing. It returns when the node leads
// nothing, or an error that names the obstacle when ctx ends. From the call on,
// new jobs are sent to lanes that other members lead, if there are any.
func (r *Replication) TransferLeaders(ctx context.Context) error {
	if !r.local.Config.Clustered() {
		return nil
	}
	r.lanes.SetLeaving(true)
	for {
		led, err := r.transferOnce(ctx)
		if led == 0 {
			return nil
		}
		if ctxErr := backoff.Sleep(ctx, leavePollInterval); ctxErr != nil {
			return fmt.Errorf("this node still leads %d streams: %w", led, errors.Join(ctxErr, err))
		}
	}
}

// ResumeLeading ends the effect of [Replication.TransferLeaders]: this node may lead
// again.
func (r *Replication) ResumeLeading() { r.lanes.SetLeaving(false) }

// LedStreams returns the streams that this node leads, and "JetStream" if it is
// the meta leader.
func (r *Replication) LedStreams() (led []string) {
	led = r.ledStreams()
	if r.local.Config.Clustered() && r.local.NATS.JetStreamIsLeader() {
		led = append(led, "JetStream")
	}
	return led
}

// ledStreams returns the streams of the yard that this node leads.
func (r *Replication) ledStreams() []string {
	return slices.DeleteFunc(subjects.Streams(r.local.Lanes()), func(stream string) bool {
		return !r.local.NATS.JetStreamIsStreamLeader(embedded.AccountYard, stream)
	})
}

// transferOnce requests one move for each leadership that this node holds, and
// returns how many it holds.
func (r *Replication) transferOnce(ctx context.Context) (led int, err error) {
	var moves []leaderMove
	var errs []error
	for _, stream := range r.ledStreams() {
		led++
		elsewhere := func(node string) bool { return node != r.local.Config.Node }
		m, err := r.successor(ctx, stream, elsewhere, func(string) bool { return false })
		if m.to != "" {
			moves = append(moves, m)
		}
		errs = append(errs, err)
	}
	errs = append(errs, r.moveLeaders(ctx, moves))
	if r.local.NATS.JetStreamIsLeader() { // the meta leader, which creates consumers
		led++
		errs = append(errs, r.stepDownMeta(ctx, ""))
	}
	return led, errors.Join(errs...)
}
