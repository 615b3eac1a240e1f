package node

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"yardmaster/edge"
	"yardmaster/internal/backoff"
)

// How long what a node does when it is told to stop may take. Its supervisor has
// to leave it that, what runs its time, and some seconds to close.
const (
	edgesTime    = 1500 * time.Millisecond // for a beat that names where workers may go
	handOverTime = 3 * time.Second
	lanesTime    = 3 * time.Second
	clientsTime  = time.Second
)

// leave gives to others what they can do as well, while what runs here goes on:
// so that nobody waits for a timeout to find out that this node is gone. Workers
// and clients are told first, because they need time; then the authority moves,
// because a new one would give this node its lanes back; then what else it leads.
// Whatever fails is left to the others' own watch. ctx ends when the node cannot
// speak any more.
//
// It tells whether there is anybody.
func (n *Node) leave(ctx context.Context) bool {
	began := time.Now()
	n.drain.close()
	n.hands.Drain()
	if !n.staysWithOthers(ctx) { // a whole yard stops
		n.edge.Drain(edge.Stops)
		return false
	}
	n.awaitEdges(ctx)
	n.edge.Drain(edge.Stops)
	if err := n.giveAway(ctx); err != nil {
		n.log.Warn("the authority is not handed over", "error", err)
	}
	n.abandon(ctx)
	inner, cancel := context.WithTimeout(ctx, clientsTime)
	defer cancel()
	if err := n.messages.Dismiss(inner); err != nil {
		n.log.Info("clients are not told that this node stops", "error", err)
	}
	n.log.Info("what others can do is with them", "took", time.Since(began))
	return true
}

// staysWithOthers tells whether a member answers that neither stops nor is
// drained, too.
func (n *Node) staysWithOthers(ctx context.Context) bool {
	others := slices.DeleteFunc(roster{n}.Roll().Present(), func(name string) bool { return name == n.cfg.Node.Name })
	return anyStays(ctx, others, func(ctx context.Context, name string) (f following, err error) {
		raw, err := n.fleet.Request(ctx, name, verbFollow, nil)
		if err == nil {
			err = json.Unmarshal(raw, &f)
		}
		return f, err
	})
}

// anyStays asks all at once, and waits for the first that stays, or for all to have
// answered, followAnswer at most.
func anyStays(ctx context.Context, members []string, ask func(ctx context.Context, name string) (following, error)) bool {
	ctx, cancel := context.WithTimeout(ctx, followAnswer)
	defer cancel()
	stays := make(chan bool, len(members))
	for _, name := range members {
		go func() { // ends with ctx
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

// awaitEdges waits until this node knows where its workers may go: one that has
// just started has not heard it yet.
func (n *Node) awaitEdges(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, edgesTime)
	defer cancel()
	for len(n.hands.Edges()) == 0 && backoff.Sleep(ctx, 20*time.Millisecond) == nil {
	}
}

// giveAway hands the authority on if this node holds it. The tenure ends by that.
func (n *Node) giveAway(ctx context.Context) error {
	if owner, _, _ := n.watch.authority(); owner != n.cfg.Node.Name {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTime)
	defer cancel()
	began := time.Now()
	given, err := n.giveAuthority(ctx, "")
	if err == nil {
		n.log.Info("the authority is handed over", "to", given.To, "took", time.Since(began))
	}
	return err
}

// abandon has others lead what this node leads of streams.
func (n *Node) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lanesTime)
	defer cancel()
	if err := n.messages.Leave(ctx); err != nil {
		n.log.Warn("streams are not handed over before the node stops", "error", err)
	}
}
