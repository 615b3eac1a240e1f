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

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// drain is the state of an operator's request that this node take no more work. Work
// moves to other members as if the node stopped, but it still serves requests. A drain
// ends by a resume, or with the process.
type drain struct {
	changed chan struct{} // holds one notification
	leaving *atomic.Bool  // shown to other members: the node is stopping or drained, or about to be drained

	beginMu sync.Mutex // held by begin while it asks other members

	mu       sync.Mutex // held also while a change is carried out, so that changes do not overlap
	since    time.Time  // zero: the node takes work
	stopping bool       // the node is stopping: no more changes
}

// Reasons why a node cannot be drained.
var (
	errStopping      = errors.New("it is about to stop")
	errNoOtherMember = errors.New("no other member takes work that could take over")
)

func newDrain(leaving *atomic.Bool) *drain {
	return &drain{changed: make(chan struct{}, 1), leaving: leaving}
}

// Since returns when the node was drained, or the zero time.
func (d *drain) Since() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since
}

// begin drains the node by calling drainWork, if otherStays reports that another member
// takes work. The node announces that it is leaving before otherStays is called: of
// several members that are drained at the same time, none counts on another. Draining
// a drained node does nothing.
func (d *drain) begin(otherStays func() bool, drainWork func()) error {
	d.beginMu.Lock()
	defer d.beginMu.Unlock()
	if d.active() {
		return nil
	}
	if !d.unlessStopping(func() { d.leaving.Store(true) }) {
		return errStopping
	}
	ok := otherStays()
	stopping := !d.unlessStopping(func() {
		if d.leaving.Store(ok); ok {
			d.since = time.Now()
			drainWork()
		}
	})
	switch {
	case stopping:
		return errStopping
	case !ok:
		return errNoOtherMember
	}
	d.notify()
	return nil
}

// end takes a drain back by calling resumeWork.
func (d *drain) end(resumeWork func()) error {
	if !d.unlessStopping(func() {
		d.since = time.Time{}
		d.leaving.Store(false)
		resumeWork()
	}) {
		return errStopping
	}
	d.notify()
	return nil
}

// notify wakes maintainDrain.
func (d *drain) notify() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// close prevents further changes, because the node is stopping.
func (d *drain) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopping = true
	d.leaving.Store(true)
}

// unlessStopping calls fn with d.mu held, so that a stop cannot interleave. It reports
// false and does nothing if the node is stopping.
func (d *drain) unlessStopping(fn func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.stopping {
		fn()
	}
	return !d.stopping
}

// ifDrained calls fn, with d.mu held, if the node is drained, or if it is not, as
// drained says, and is not stopping.
func (d *drain) ifDrained(drained bool, fn func()) {
	d.unlessStopping(func() {
		if drained == !d.since.IsZero() {
			fn()
		}
	})
}

// active reports whether the node is drained and not yet stopping.
func (d *drain) active() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.since.IsZero() && !d.stopping
}

// DrainStatus is the progress of a drain.
type DrainStatus struct {
	Since     time.Time `json:"since"`
	Done      bool      `json:"done"`      // nothing remains on this node
	Running   int       `json:"running"`   // active jobs on this node
	Jobs      []holder  `json:"jobs"`      // those that have run longest, at most 20
	Leads     []string  `json:"leads"`     // streams that it still leads
	Authority bool      `json:"authority"` // it still holds the authority
}

// drainStatus returns the progress of the drain, or nil if the node is not drained.
func (n *Node) drainStatus() *DrainStatus {
	since := n.drain.Since()
	if since.IsZero() {
		return nil
	}
	me := n.cfg.Node.Name
	owner, _, _ := n.authority.current()
	s := &DrainStatus{Since: since.UTC(), Running: n.agent.Running(), Jobs: []holder{}, Leads: append([]string{}, n.cluster.LedStreams()...), Authority: owner == me}
	n.raft.View(func(l *ledger.Ledger) {
		l.ActiveDispatches(func(a ledger.ActiveDispatch) bool {
			if a.Node == me {
				s.Jobs = append(s.Jobs, holderOf(&a, n.cfg.Scheduler.DefaultTimeout))
			}
			return len(s.Jobs) < maxHolders
		})
	})
	s.Running = max(s.Running, len(s.Jobs)) // the agent has done those whose outcome is not committed yet
	s.Done = s.Running == 0 && len(s.Leads) == 0 && !s.Authority
	return s
}

// handleDrain begins a drain, or returns the progress of the one under way.
func (n *Node) handleDrain(ctx context.Context, _ *cluster.Request) (any, error) {
	if !n.drain.active() {
		err := n.drain.begin(func() bool { return n.otherMemberStays(ctx) }, n.agent.Drain)
		switch {
		case errors.Is(err, errNoOtherMember):
			return nil, &cluster.APIError{Code: "409", Text: err.Error() + "; use 'yardmaster queue pause' to bring a whole yard to rest"}
		case err != nil:
			return nil, &cluster.APIError{Code: "409", Text: n.cfg.Node.Name + ": " + err.Error()}
		}
		n.log.Warn("node drained: it takes no more work until it is resumed or restarted")
		n.awaitEdges(ctx)
		n.drain.ifDrained(true, func() { n.edge.Drain("node is drained") }) // or it was resumed meanwhile
	}
	return n.drainStatus(), nil
}

// resumeReply reports that a drained node takes work again.
type resumeReply struct {
	Node    string    `json:"node"`
	Drained time.Time `json:"drained_at"` // when the drain began
}

func (n *Node) handleResume(context.Context, *cluster.Request) (any, error) {
	me, since := n.cfg.Node.Name, n.drain.Since()
	switch {
	case since.IsZero():
		return nil, &cluster.APIError{Code: "409", Text: me + " is not drained: it takes work"}
	case !slices.Contains(membershipAdapter{n}.Membership().PresentNodes(), me) && n.cfg.Clustered():
		return nil, &cluster.APIError{Code: "409", Text: me + " is being removed from the yard"}
	}
	err := n.drain.end(func() {
		n.cluster.ResumeLeading()
		n.agent.Resume()
		n.edge.Resume()
	})
	if err != nil {
		return nil, &cluster.APIError{Code: "409", Text: me + ": " + err.Error()}
	}
	n.log.Info("node resumed", "duration", time.Since(since))
	return resumeReply{me, since.UTC()}, nil
}

// maintainDrain transfers what a drained node leads to other members, and again what
// returns to it when other members fail.
func (n *Node) maintainDrain(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.drain.changed:
		case <-tick.C:
		}
		if !n.drain.active() {
			continue
		}
		if err := n.transferOwnAuthority(ctx); err != nil {
			n.log.Debug("drained node still holds the authority", "err", err)
		}
		leaveCtx, cancel := context.WithTimeout(ctx, lanesTimeout)
		if err := n.cluster.TransferLeaders(leaveCtx); err != nil {
			n.log.Debug("drained node still leads streams", "err", err)
		}
		cancel()
		n.drain.ifDrained(false, n.cluster.ResumeLeading) // undo: it was resumed meanwhile
	}
}

// drainWarnings returns a warning for each drained member, because a drain is easily
// forgotten.
func (n *Node) drainWarnings() (warnings []string) {
	for _, w := range append(n.monitor.PeerStatuses(), n.monitor.Status()) {
		if !w.Drained.IsZero() {
			warnings = append(warnings, fmt.Sprintf("%s is drained since %s: it takes no work until 'yardmaster node resume %s', or until it starts again",
				w.Node, formatTime(w.Drained), w.Node))
		}
	}
	slices.SortFunc(warnings, strings.Compare)
	return warnings
}
