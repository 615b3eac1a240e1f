package node

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge"
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

// handOff transfers to other members what they can do as well, while the running
// dispatches go on, so that no client has to wait for a timeout to notice that this
// node is gone. It asks workers and clients to move first, because they need time.
// Then it transfers the authority, because the authority would assign leadership of
// lanes to this node again, and then the leadership of streams. What fails is left
// to the failure detection of the other members. ctx ends when the node can no longer
// send.
//
// handOff reports whether there is another member to take over.
func (n *Node) handOff(ctx context.Context) bool {
	start := time.Now()
	n.drain.close()
	n.agent.Drain()
	if !n.otherMemberStays(ctx) { // the whole cluster stops
		n.edge.Drain(edge.DrainReasonStop)
		return false
	}
	n.awaitEdges(ctx)
	n.edge.Drain(edge.DrainReasonStop)
	if err := n.transferOwnAuthority(ctx); err != nil {
		n.log.Warn("authority not transferred", "err", err)
	}
	n.leaveStreams(ctx)
	clientCtx, cancel := context.WithTimeout(ctx, clientsTimeout)
	defer cancel()
	if err := n.cluster.DrainClients(clientCtx); err != nil {
		n.log.Info("clients not told that this node stops", "err", err)
	}
	n.log.Info("leadership and clients handed over", "duration", time.Since(start))
	return true
}

// otherMemberStays reports whether another member answers that is neither stopping
// nor drained.
func (n *Node) otherMemberStays(ctx context.Context) bool {
	others := slices.DeleteFunc(membershipAdapter{n}.Membership().PresentNodes(), func(name string) bool { return name == n.cfg.Node.Name })
	return anyStays(ctx, others, func(ctx context.Context, name string) (f followerStatus, err error) {
		raw, err := n.fleet.Request(ctx, name, verbFollowerStatus, nil)
		if err == nil {
			err = json.Unmarshal(raw, &f)
		}
		return f, err
	})
}

// anyStays asks all members at the same time and reports whether one of them stays.
// It returns with the first that does, or when all have answered, and after at most
// followerTimeout.
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
func (n *Node) awaitEdges(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, edgesTimeout)
	defer cancel()
	for len(n.agent.Edges()) == 0 && backoff.Sleep(ctx, 20*time.Millisecond) == nil {
	}
}

// transferOwnAuthority transfers the authority if this node holds it, which ends the
// tenure.
func (n *Node) transferOwnAuthority(ctx context.Context) error {
	if owner, _, _ := n.authority.current(); owner != n.cfg.Node.Name {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	start := time.Now()
	reply, err := n.transferAuthority(ctx, "")
	if err == nil {
		n.log.Info("authority transferred", "to", reply.To, "duration", time.Since(start))
	}
	return err
}

// leaveStreams transfers the leadership of all streams that this node leads.
func (n *Node) leaveStreams(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lanesTimeout)
	defer cancel()
	if err := n.cluster.TransferLeaders(ctx); err != nil {
		n.log.Warn("stream leadership not transferred before the stop", "err", err)
	}
}
