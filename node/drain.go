package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/ledger"
)

// drain is an operator's wish that this node take no more work: what others can do
// as well goes to them, as when it stops, but it goes on to serve whoever asks it.
// It ends when it is taken back, and with the process.
type drain struct {
	changed chan struct{} // holds one notice

	mu    sync.Mutex
	since time.Time // zero: the node takes work
	ended bool      // the node stops: nothing is taken back
}

func newDrain() *drain { return &drain{changed: make(chan struct{}, 1)} }

// Since is when the node was drained; zero: it is not.
func (d *drain) Since() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since
}

// set changes the wish and tells whether it may be changed. A drain that goes on
// keeps its time.
func (d *drain) set(since time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false
	}
	if since.IsZero() || d.since.IsZero() {
		d.since = since
	}
	select {
	case d.changed <- struct{}{}:
	default:
	}
	return true
}

// close leaves what remains to who stops the node.
func (d *drain) close() {
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
}

// under tells that the node is drained and does not stop yet.
func (d *drain) under() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.since.IsZero() && !d.ended
}

// DrainStatus is how far a drain is.
type DrainStatus struct {
	Since     time.Time `json:"since"`
	Done      bool      `json:"done"`      // nothing is left
	Running   int       `json:"running"`   // jobs in this node's hands
	Jobs      []holder  `json:"jobs"`      // those that have run longest, 20 at most
	Leads     []string  `json:"leads"`     // streams that it still leads
	Authority bool      `json:"authority"` // it still holds the authority
}

func (n *Node) drainStatus() *DrainStatus {
	since := n.drain.Since()
	if since.IsZero() {
		return nil
	}
	me := n.cfg.Node.Name
	owner, _, _ := n.watch.authority()
	s := &DrainStatus{Since: since.UTC(), Running: n.hands.Running(), Jobs: []holder{}, Leads: append([]string{}, n.messages.Leads()...), Authority: owner == me}
	n.raft.View(func(l *ledger.Ledger) {
		l.Active(func(a ledger.Active) bool {
			if a.Node == me {
				s.Jobs = append(s.Jobs, holderOf(&a, n.cfg.Scheduler.DefaultTimeout))
			}
			return len(s.Jobs) < maxHolders
		})
	})
	s.Running = max(s.Running, len(s.Jobs)) // an outcome may be under way
	s.Done = s.Running == 0 && len(s.Leads) == 0 && !s.Authority
	return s
}

// handleDrain begins a drain, or tells how far it is.
func (n *Node) handleDrain(ctx context.Context, _ *cluster.Request) (any, error) {
	if !n.drain.under() {
		switch {
		case !n.staysWithOthers(ctx):
			return nil, &cluster.APIError{Code: "409", Text: "no other member takes work, so nothing could go there; 'yardmaster queue pause' lets a whole yard come to rest"}
		case !n.drain.set(time.Now()):
			return nil, &cluster.APIError{Code: "409", Text: n.cfg.Node.Name + " is about to stop"}
		}
		n.log.Warn("this node is drained: it takes no more work until it is resumed or starts again")
		n.commander.leaving.Store(true)
		n.hands.Drain()
		n.awaitEdges(ctx)
		n.edge.Drain("node is drained")
	}
	return n.drainStatus(), nil
}

// resumed says since when a node that was drained takes work again.
type resumed struct {
	Node    string    `json:"node"`
	Drained time.Time `json:"drained_at"` // since when it did not
}

func (n *Node) handleResume(context.Context, *cluster.Request) (any, error) {
	me, since := n.cfg.Node.Name, n.drain.Since()
	switch {
	case since.IsZero():
		return nil, &cluster.APIError{Code: "409", Text: me + " is not drained: it takes work"}
	case !slices.Contains(roster{n}.Roll().Present(), me) && n.cfg.Clustered():
		return nil, &cluster.APIError{Code: "409", Text: me + " is being taken out of the yard"}
	case !n.drain.set(time.Time{}):
		return nil, &cluster.APIError{Code: "409", Text: me + " is about to stop"}
	}
	n.messages.Return()
	n.commander.leaving.Store(false)
	n.hands.Resume()
	n.edge.Resume()
	n.log.Info("this node takes work again", "after", time.Since(since))
	return resumed{me, since.UTC()}, nil
}

// keepDrained gives away what a drained node leads, and again what comes back
// when others fail.
func (n *Node) keepDrained(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.drain.changed:
		case <-tick.C:
		}
		if !n.drain.under() {
			continue
		}
		n.giveAway(ctx)
		inner, cancel := context.WithTimeout(ctx, lanesTime)
		if err := n.messages.Leave(inner); err != nil {
			n.log.Debug("a drained node still leads streams", "error", err)
		}
		cancel()
		if n.drain.Since().IsZero() { // it was resumed meanwhile
			n.messages.Return()
		}
	}
}

// drainWarnings tell of members that take no work because somebody wished so: it
// is easily forgotten.
func (n *Node) drainWarnings() (warnings []string) {
	for _, w := range append(n.keeper.Others(), n.keeper.Mine()) {
		if !w.Drained.IsZero() {
			warnings = append(warnings, fmt.Sprintf("%s is drained since %s: it takes no work until 'yardmaster node resume %s', or until it starts again",
				w.Node, clock(w.Drained), w.Node))
		}
	}
	slices.SortFunc(warnings, strings.Compare)
	return warnings
}
