package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Intervals while a node leaves.
const (
	leavePollInterval  = 50 * time.Millisecond  // between two attempts to move leaderships
	idleClientAfter    = 150 * time.Millisecond // without traffic in either direction: no reply is outstanding
	clientPollInterval = 30 * time.Millisecond
)

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

// DrainClients notifies this node's clients that it is going away, with NATS's
// lame duck mode, and closes the remaining connections as soon as they are idle, so
// that they reconnect to another node. It returns when there are none left or ctx
// ends. A client that is never idle is served until the node stops.
func (s *Server) DrainClients(ctx context.Context) error {
	seen := make(map[uint64]clientActivity)
	for {
		left, err := s.closeIdleClients(seen, time.Now())
		if err != nil || left == 0 {
			return err
		}
		if backoff.Sleep(ctx, clientPollInterval) != nil {
			return nil
		}
	}
}

// clientActivity holds a client's message counts and when they last changed.
type clientActivity struct {
	received, sent int64
	since          time.Time
}

// closeIdleClients notifies new clients, closes those that have been idle since
// the previous calls, and returns how many were still connected.
func (s *Server) closeIdleClients(seen map[uint64]clientActivity, now time.Time) (left int, err error) {
	own := make(map[uint64]bool)
	for _, nc := range s.local.conns {
		id, err := nc.GetClientID()
		if err != nil {
			return 0, fmt.Errorf("identify the node's own connections: %w", err)
		}
		own[id] = true
	}
	list, err := s.local.srv.Connz(&server.ConnzOptions{Limit: maxClients})
	if err != nil {
		return 0, fmt.Errorf("list clients: %w", err)
	}
	for _, client := range list.Conns {
		if own[client.Cid] {
			continue
		}
		left++
		last, known := seen[client.Cid]
		if !known {
			// It fails for old client libraries; those are closed as well.
			_ = s.local.srv.LDMClientByID(client.Cid)
		}
		if !known || last.received != client.InMsgs || last.sent != client.OutMsgs {
			seen[client.Cid] = clientActivity{client.InMsgs, client.OutMsgs, now}
			continue
		}
		if client.Pending == 0 && now.Sub(last.since) >= idleClientAfter {
			_ = s.local.srv.DisconnectClientByID(client.Cid) // it may have disconnected already
		}
	}
	return left, nil
}
