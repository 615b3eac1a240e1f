package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"yardmaster/internal/backoff"
)

// How a node leaves.
const (
	leaveAgain  = 50 * time.Millisecond  // between two looks at what is still led
	quietClient = 150 * time.Millisecond // without a word either way: no answer is outstanding
	clientLook  = 30 * time.Millisecond
)

// Leave hands every leadership this node holds to another member, so that its
// end interrupts nothing, and returns when it holds none: before ctx ends, or
// with what was in the way. From its call on, jobs that come in here go to lanes
// that others lead, as far as there are any.
func (c *Cluster) Leave(ctx context.Context) error {
	if !c.cfg.clustered() {
		return nil
	}
	c.publisher.state.leaving.Store(true)
	c.router.mapJobs()
	for {
		led, err := c.handOn(ctx)
		if led == 0 {
			return nil
		}
		if late := backoff.Sleep(ctx, leaveAgain); late != nil {
			return fmt.Errorf("%d streams are still led here: %w", led, errors.Join(late, err))
		}
	}
}

// Return takes back that this node leaves: it may lead again.
func (c *Cluster) Return() {
	c.publisher.state.leaving.Store(false)
	c.router.mapJobs()
}

// Leads lists the streams that this node leads, and "JetStream" if it leads what
// decides about streams.
func (c *Cluster) Leads() (led []string) {
	for _, stream := range c.ownStreams() {
		if c.srv.JetStreamIsStreamLeader(account, stream) {
			led = append(led, stream)
		}
	}
	if c.cfg.clustered() && c.srv.JetStreamIsLeader() {
		led = append(led, "JetStream")
	}
	return led
}

// ownStreams are all streams that the yard makes.
func (c *Cluster) ownStreams() []string {
	streams := []string{StreamBlobs, StreamEvents, StreamResults, StreamDLQ, StreamLogs}
	for _, bucket := range Boards {
		streams = append(streams, boardStream(bucket))
	}
	for lane := range c.Lanes() {
		streams = append(streams, LaneStream(uint8(lane)))
	}
	return streams
}

// handOn asks that others lead what this node leads, and counts what that is.
func (c *Cluster) handOn(ctx context.Context) (led int, err error) {
	var moves []move
	var errs []error
	for _, stream := range c.ownStreams() {
		if !c.srv.JetStreamIsStreamLeader(account, stream) {
			continue
		}
		led++
		m, err := c.heir(ctx, stream, func(node string) bool { return node != c.cfg.Node })
		if m.to != "" {
			moves = append(moves, m)
		}
		errs = append(errs, err)
	}
	errs = append(errs, c.carryOut(ctx, moves))
	if c.srv.JetStreamIsLeader() { // of all of JetStream: who makes consumers
		led++
		errs = append(errs, c.stepMetaDown(ctx, ""))
	}
	return led, errors.Join(errs...)
}

// Dismiss tells the clients of this node to go elsewhere, in NATS' own word for
// that, lame duck, and closes the connections of those that stay and are quiet:
// they connect to another node of those they know. It returns when none is left
// or ctx ends. Who never is quiet is served until the node stops.
func (c *Cluster) Dismiss(ctx context.Context) error {
	seen := make(map[uint64]clientSeen)
	for {
		left, err := c.dismissQuiet(seen, time.Now())
		if err != nil || left == 0 {
			return err
		}
		if backoff.Sleep(ctx, clientLook) != nil {
			return nil
		}
	}
}

// clientSeen is what a client had said and heard when that last changed.
type clientSeen struct {
	said, heard int64
	since       time.Time
}

// dismissQuiet looks once at every client.
func (c *Cluster) dismissQuiet(seen map[uint64]clientSeen, now time.Time) (left int, err error) {
	own := make(map[uint64]bool)
	for _, nc := range c.conns {
		id, err := nc.GetClientID()
		if err != nil {
			return 0, fmt.Errorf("tell clients from own connections: %w", err)
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
		was, known := seen[client.Cid]
		if !known {
			// One whose library is too old to be told is closed all the same.
			_ = c.srv.LDMClientByID(client.Cid)
		}
		if !known || was.said != client.InMsgs || was.heard != client.OutMsgs {
			seen[client.Cid] = clientSeen{client.InMsgs, client.OutMsgs, now}
			continue
		}
		if client.Pending == 0 && now.Sub(was.since) >= quietClient {
			_ = c.srv.DisconnectClientByID(client.Cid) // or it has just gone by itself
		}
	}
	return left, nil
}
