package membership

import (
	"context"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Bounds of the steps of a hand-off. A supervisor must allow the sum of these, the
// time for running jobs, and some seconds for closing.
const (
	edgesTimeout    = 1500 * time.Millisecond // for a heartbeat answer that names other nodes' edges
	transferTimeout = 3 * time.Second
	lanesTimeout    = 3 * time.Second
	clientsTimeout  = time.Second
)

// HandOff transfers to other members what they can do as well, while the running
// dispatches go on, so that no client has to wait for a timeout to notice that this
// node is gone. It asks workers and clients to move first, because they need time.
// Then it transfers the authority, because the authority would assign leadership of
// lanes to this node again, and then the leadership of streams. What fails is left
// to the failure detection of the other members. ctx ends when the node can no longer
// send.
//
// HandOff reports whether there is another member to take over.
func (d *Drainer) HandOff(ctx context.Context) bool {
	start := time.Now()
	d.close()
	d.cfg.Agent.Drain()
	if !d.otherMemberStays(ctx) { // the whole cluster stops
		d.cfg.Edge.Drain(d.cfg.StopReason)
		return false
	}
	d.awaitEdges(ctx)
	d.cfg.Edge.Drain(d.cfg.StopReason)
	if err := d.transferOwnAuthority(ctx); err != nil {
		d.cfg.Log.Warn("authority not transferred", "err", err)
	}
	d.LeaveStreams(ctx)
	clientCtx, cancel := context.WithTimeout(ctx, clientsTimeout)
	defer cancel()
	if err := d.cfg.DrainClients(clientCtx); err != nil {
		d.cfg.Log.Info("clients not told that this node stops", "err", err)
	}
	d.cfg.Log.Info("leadership and clients handed over", "duration", time.Since(start))
	return true
}

// otherMemberStays reports whether another member answers that is neither stopping
// nor drained.
func (d *Drainer) otherMemberStays(ctx context.Context) bool {
	return anyStays(ctx, othersPresent(d.transfer.Raft, d.transfer.Node), d.transfer.followerStatus)
}

// anyStays calls ask for all members at the same time and reports whether one of them
// answers that it is neither stopping nor drained. It returns as soon as one has, or when
// all calls have ended, after at most followerTimeout.
func anyStays(ctx context.Context, members []string, ask func(ctx context.Context, name string) (followerStatus, error)) bool {
	ctx, cancel := context.WithTimeout(ctx, followerTimeout)
	defer cancel()
	stays := make(chan bool, len(members))
	for _, name := range members {
		go func() { // ends with ctx, which ask obeys
			f, err := ask(ctx, name)
			stays <- err == nil && !f.Leaving
		}()
	}
	for range members {
		if <-stays {
			return true
		}
	}
	return false
}

// awaitEdges waits until this node knows the edges of other nodes, to which its
// workers can move. A node that has just started does not know them yet.
func (d *Drainer) awaitEdges(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, edgesTimeout)
	defer cancel()
	for len(d.cfg.Agent.Edges()) == 0 && backoff.Sleep(ctx, 20*time.Millisecond) == nil {
	}
}

// transferOwnAuthority transfers the authority if this node holds it, which ends the
// tenure.
func (d *Drainer) transferOwnAuthority(ctx context.Context) error {
	if d.transfer.Owner() != d.transfer.Node {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	start := time.Now()
	reply, err := d.transfer.transferTo(ctx, "")
	if err == nil {
		d.cfg.Log.Info("authority transferred", "to", reply.To, "duration", time.Since(start))
	}
	return err
}

// LeaveStreams transfers the leadership of all streams that this node leads. Call it
// again after [Drainer.HandOff], because leadership may return.
func (d *Drainer) LeaveStreams(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lanesTimeout)
	defer cancel()
	if err := d.cfg.Streams.TransferLeaders(ctx); err != nil {
		d.cfg.Log.Warn("stream leadership not transferred before the stop", "err", err)
	}
}
