package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// leavePollInterval is the time between two attempts to move leaderships.
const leavePollInterval = 50 * time.Millisecond

// TransferLeaders moves every leadership that this node holds to another member,
// so that stopping the node interrupts nothing. It returns when the node leads
// nothing, or an error that names the obstacle when ctx ends. From the call on,
// new jobs are sent to lanes that other members lead, if there are any.
func (r *Replication) TransferLeaders(ctx context.Context) error {
	if !r.local.cfg.clustered() {
		return nil
	}
	r.lanes.setLeaving(true)
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
func (r *Replication) ResumeLeading() {
	r.lanes.setLeaving(false)
}

// LedStreams returns the streams that this node leads, and "JetStream" if it is
// the meta leader.
func (r *Replication) LedStreams() (led []string) {
	for _, stream := range r.systemStreams() {
		if r.local.srv.JetStreamIsStreamLeader(accountYard, stream) {
			led = append(led, stream)
		}
	}
	if r.local.cfg.clustered() && r.local.srv.JetStreamIsLeader() {
		led = append(led, "JetStream")
	}
	return led
}

// systemStreams returns the names of all streams that belong to the yard.
func (r *Replication) systemStreams() []string {
	streams := []string{StreamBlobs, StreamEvents, StreamResults, StreamDLQ, StreamLogs}
	for _, bucket := range Boards {
		streams = append(streams, boardStream(bucket))
	}
	for lane := range r.local.laneCount() {
		streams = append(streams, LaneStream(uint8(lane)))
	}
	return streams
}

// transferOnce requests one move for each leadership that this node holds, and
// returns how many it holds.
func (r *Replication) transferOnce(ctx context.Context) (led int, err error) {
	var moves []leaderMove
	var errs []error
	for _, stream := range r.systemStreams() {
		if !r.local.srv.JetStreamIsStreamLeader(accountYard, stream) {
			continue
		}
		led++
		m, err := r.successor(ctx, stream, func(node string) bool { return node != r.local.cfg.Node })
		if m.to != "" {
			moves = append(moves, m)
		}
		errs = append(errs, err)
	}
	errs = append(errs, r.moveLeaders(ctx, moves))
	if r.local.srv.JetStreamIsLeader() { // the meta leader, which creates consumers
		led++
		errs = append(errs, r.stepDownMeta(ctx, ""))
	}
	return led, errors.Join(errs...)
}
