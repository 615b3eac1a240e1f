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
func (c *Cluster) TransferLeaders(ctx context.Context) error {
	if !c.cfg.clustered() {
		return nil
	}
	c.publisher.state.leaving.Store(true)
	c.router.updateMapping()
	for {
		led, err := c.transferOnce(ctx)
		if led == 0 {
			return nil
		}
		if ctxErr := backoff.Sleep(ctx, leavePollInterval); ctxErr != nil {
			return fmt.Errorf("this node still leads %d streams: %w", led, errors.Join(ctxErr, err))
		}
	}
}

// ResumeLeading ends the effect of [Cluster.TransferLeaders]: this node may lead
// again.
func (c *Cluster) ResumeLeading() {
	c.publisher.state.leaving.Store(false)
	c.router.updateMapping()
}

// LedStreams returns the streams that this node leads, and "JetStream" if it is
// the meta leader.
func (c *Cluster) LedStreams() (led []string) {
	for _, stream := range c.systemStreams() {
		if c.srv.JetStreamIsStreamLeader(accountYard, stream) {
			led = append(led, stream)
		}
	}
	if c.cfg.clustered() && c.srv.JetStreamIsLeader() {
		led = append(led, "JetStream")
	}
	return led
}

// systemStreams returns the names of all streams that belong to the yard.
func (c *Cluster) systemStreams() []string {
	streams := []string{StreamBlobs, StreamEvents, StreamResults, StreamDLQ, StreamLogs}
	for _, bucket := range Boards {
		streams = append(streams, boardStream(bucket))
	}
	for lane := range c.Lanes() {
		streams = append(streams, LaneStream(uint8(lane)))
	}
	return streams
}

// transferOnce requests one move for each leadership that this node holds, and
// returns how many it holds.
func (c *Cluster) transferOnce(ctx context.Context) (led int, err error) {
	var moves []leaderMove
	var errs []error
	for _, stream := range c.systemStreams() {
		if !c.srv.JetStreamIsStreamLeader(accountYard, stream) {
			continue
		}
		led++
		m, err := c.successor(ctx, stream, func(node string) bool { return node != c.cfg.Node })
		if m.to != "" {
			moves = append(moves, m)
		}
		errs = append(errs, err)
	}
	errs = append(errs, c.moveLeaders(ctx, moves))
	if c.srv.JetStreamIsLeader() { // the meta leader, which creates consumers
		led++
		errs = append(errs, c.stepDownMeta(ctx, ""))
	}
	return led, errors.Join(errs...)
}

// DrainClients notifies this node's clients that it is going away, with NATS's
// lame duck mode, and closes the remaining connections as soon as they are idle, so
// that they reconnect to another node. It returns when there are none left or ctx
// ends. A client that is never idle is served until the node stops.
func (c *Cluster) DrainClients(ctx context.Context) error {
	seen := make(map[uint64]clientActivity)
	for {
		left, err := c.closeIdleClients(seen, time.Now())
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
func (c *Cluster) closeIdleClients(seen map[uint64]clientActivity, now time.Time) (left int, err error) {
	own := make(map[uint64]bool)
	for _, nc := range c.conns {
		id, err := nc.GetClientID()
		if err != nil {
			return 0, fmt.Errorf("identify the node's own connections: %w", err)
		}
		own[id] = true
	}
	list, err := c.srv.Connz(&server.ConnzOptions{Limit: maxClients})
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
			_ = c.srv.LDMClientByID(client.Cid)
		}
		if !known || last.received != client.InMsgs || last.sent != client.OutMsgs {
			seen[client.Cid] = clientActivity{client.InMsgs, client.OutMsgs, now}
			continue
		}
		if client.Pending == 0 && now.Sub(last.since) >= idleClientAfter {
			_ = c.srv.DisconnectClientByID(client.Cid) // it may have disconnected already
		}
	}
	return left, nil
}
