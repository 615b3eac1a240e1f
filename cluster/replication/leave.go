package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

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
func (r *Replication) ResumeLeading() {
	r.lanes.SetLeaving(false)
}

// LedStreams returns the streams that this node leads, and "JetStream" if it is
// the meta leader.
func (r *Replication) LedStreams() (led []string) {
	for _, stream := range r.systemStreams() {
		if r.local.NATS.JetStreamIsStreamLeader(embedded.AccountYard, stream) {
			led = append(led, stream)
		}
	}
	if r.local.Config.Clustered() && r.local.NATS.JetStreamIsLeader() {
		led = append(led, "JetStream")
	}
	return led
}

// systemStreams returns the names of all streams that belong to the yard.
func (r *Replication) systemStreams() []string {
	streams := []string{subjects.StreamBlobs, subjects.StreamEvents, subjects.StreamResults, subjects.StreamDLQ, subjects.StreamLogs}
	for _, bucket := range subjects.Boards {
		streams = append(streams, subjects.BoardStream(bucket))
	}
	for lane := range r.local.Lanes() {
		streams = append(streams, subjects.LaneStream(uint8(lane)))
	}
	return streams
}

// transferOnce requests one move for each leadership that this node holds, and
// returns how many it holds.
func (r *Replication) transferOnce(ctx context.Context) (led int, err error) {
	var moves []leaderMove
	var errs []error
	for _, stream := range r.systemStreams() {
		if !r.local.NATS.JetStreamIsStreamLeader(embedded.AccountYard, stream) {
			continue
		}
		led++
		m, err := r.successor(ctx, stream, func(node string) bool { return node != r.local.Config.Node })
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
