package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"yardmaster/cluster"
	"yardmaster/ledger"
)

// drain is an operator's wish that this node take no more work: what others can do
// as well goes to them, as when it stops, but it goes on to serve whoever asks it.
// It ends when it is taken back, and with the process.
type drain struct {
	changed chan struct{} // holds one notice
	leaving *atomic.Bool  // what others hear: the node stops, is drained, or asks whether it can be

	asking sync.Mutex // held while the others are asked

	mu    sync.Mutex // held also while a change is carried out: so one wish undoes another wholly or not at all
	since time.Time  // zero: the node takes work
	ended bool       // the node stops: nothing is taken back
}

// Why a node is not drained.
var (
	errStops       = errors.New("it is about to stop")
	errNobodyStays = errors.New("no other member takes work, so nothing could go there")
)

func newDrain(leaving *atomic.Bool) *drain {
	return &drain{changed: make(chan struct{}, 1), leaving: leaving}
}

// Since is when the node was drained; zero: it is not.
func (d *drain) Since() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since
}

// begin drains the node, by give, if stays finds somebody who goes on. Others hear
// that it leaves before they are asked: of several that are drained together, none
// counts on another. To begin twice changes nothing.
func (d *drain) begin(stays func() bool, give func()) error {
	d.asking.Lock()
	defer d.asking.Unlock()
	if d.under() {
		return nil
	}
	if !d.unlessEnded(func() { d.leaving.Store(true) }) {
		return errStops
	}
	stay := stays()
	ended := !d.unlessEnded(func() {
		if d.leaving.Store(stay); stay {
			d.since = time.Now()
			give()
		}
	})
	switch {
	case ended:
		return errStops
	case !stay:
		return errNobodyStays
	}
	d.notice()
	return nil
}

// end takes a drain back, by take.
func (d *drain) end(take func()) error {
	if !d.unlessEnded(func() {
		d.since = time.Time{}
		d.leaving.Store(false)
		take()
	}) {
		return errStops
	}
	d.notice()
	return nil
}

func (d *drain) notice() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// close leaves what remains to who stops the node.
func (d *drain) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.leaving.Store(true)
}

// unlessEnded does something that a stop must not meet half done; false: the node
// stops, and nothing was done.
func (d *drain) unlessEnded(do func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		do()
	}
	return !d.ended
}

// ifDrained does something while the node is drained, or while it is not.
func (d *drain) ifDrained(drained bool, do func()) {
	d.unlessEnded(func() {
		if drained == !d.since.IsZero() {
			do()
		}
	})
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
		err := n.drain.begin(func() bool { return n.staysWithOthers(ctx) }, n.hands.Drain)
		switch {
		case errors.Is(err, errNobodyStays):
			return nil, &cluster.APIError{Code: "409", Text: err.Error() + "; 'yardmaster queue pause' lets a whole yard come to rest"}
		case err != nil:
			return nil, &cluster.APIError{Code: "409", Text: n.cfg.Node.Name + ": " + err.Error()}
		}
		n.log.Warn("this node is drained: it takes no more work until it is resumed or starts again")
		n.awaitEdges(ctx)
		n.drain.ifDrained(true, func() { n.edge.Drain("node is drained") }) // or it was resumed meanwhile
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
	}
	err := n.drain.end(func() {
		n.messages.Return()
		n.hands.Resume()
		n.edge.Resume()
	})
	if err != nil {
		return nil, &cluster.APIError{Code: "409", Text: me + ": " + err.Error()}
	}
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
		if err := n.giveAway(ctx); err != nil {
			n.log.Debug("a drained node still holds the authority", "error", err)
		}
		inner, cancel := context.WithTimeout(ctx, lanesTime)
		if err := n.messages.Leave(inner); err != nil {
			n.log.Debug("a drained node still leads streams", "error", err)
		}
		cancel()
		n.drain.ifDrained(false, n.messages.Return) // it was resumed meanwhile
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
