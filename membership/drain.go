package membership

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/replication"
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
// takes work. It announces that the node is leaving before it calls otherStays, so that
// two members that are drained at the same time do not rely on each other. If no other
// member stays, it takes the announcement back and returns errNoOtherMember. It returns
// errStopping if the node is stopping. Draining a drained node has no effect.
func (d *drain) begin(otherStays func() bool, drainWork func()) error {
	d.beginMu.Lock()
	defer d.beginMu.Unlock()
	if d.active() {
		return nil
	}
	if !d.unlessStopping(func() { d.leaving.Store(true) }) {
		return errStopping
	}
	canDrain := otherStays()
	decided := d.unlessStopping(func() {
		d.leaving.Store(canDrain)
		if canDrain {
			d.since = time.Now()
			drainWork()
		}
	})
	if !decided {
		return errStopping
	}
	if !canDrain {
		return errNoOtherMember
	}
	d.notify()
	return nil
}

// end takes a drain back by calling resumeWork. It returns errStopping, without having
// called it, if the node is stopping.
func (d *drain) end(resumeWork func()) error {
	resumed := d.unlessStopping(func() {
		d.since = time.Time{}
		d.leaving.Store(false)
		resumeWork()
	})
	if !resumed {
		return errStopping
	}
	d.notify()
	return nil
}

// notify wakes [Drainer.Run].
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

// unlessStopping calls fn with d.mu held, so that a stop cannot interleave, and returns
// true. If the node is stopping it does nothing and returns false.
func (d *drain) unlessStopping(fn func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.stopping {
		fn()
	}
	return !d.stopping
}

// ifDrained calls fn, with d.mu held, if the node is drained and not stopping.
func (d *drain) ifDrained(fn func()) {
	d.unlessStopping(func() {
		if !d.since.IsZero() {
			fn()
		}
	})
}

// ifNotDrained calls fn, with d.mu held, if the node is neither drained nor stopping.
func (d *drain) ifNotDrained(fn func()) {
	d.unlessStopping(func() {
		if d.since.IsZero() {
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

// DrainConfig is what a [Drainer] moves work and leadership away from. All fields are
// required.
type DrainConfig struct {
	Clustered    bool // the node has been configured with members
	Agent        Agent
	Edge         Edge
	Streams      *replication.Replication
	DrainClients func(context.Context) error // moves NATS clients to other nodes
	// ActiveJobs returns jobs of this node that the ledger has as active, at most as
	// many as are worth listing.
	ActiveJobs func() []api.ActiveJob
	StopReason string // sent to Overhop clients when the node stops
	Log        *slog.Logger
}

// Agent runs the dispatches of this node.
type Agent interface {
	Drain()
	Resume()
	Running() int
	Edges() []string // addresses of other nodes' edges
}

// Edge is the listener for Overhop clients.
type Edge interface {
	Drain(reason string)
	Resume()
}

// Drainer moves work, clients and leadership from this node to other members: when an
// operator drains it, when it is removed from the cluster, and when it stops.
type Drainer struct {
	*drain
	cfg      DrainConfig
	transfer *Transferer
	removing bool // the node is being removed; used by setRemoving only
}

// NewDrainer returns a drainer that transfers the authority by t, and announces by
// t.Leaving that the node is stopping or drained.
func NewDrainer(t *Transferer, cfg DrainConfig) *Drainer {
	return &Drainer{drain: newDrain(t.Leaving), cfg: cfg, transfer: t}
}

// Drained reports whether the node is drained and not yet stopping.
func (d *Drainer) Drained() bool { return d.active() }

// Status returns the progress of the drain, or nil if the node is not drained.
func (d *Drainer) Status() *api.DrainStatus {
	since := d.Since()
	if since.IsZero() {
		return nil
	}
	s := &api.DrainStatus{
		Since: since.UTC(), Running: d.cfg.Agent.Running(), Jobs: append([]api.ActiveJob{}, d.cfg.ActiveJobs()...),
		Leads: append([]string{}, d.cfg.Streams.LedStreams()...), Authority: d.transfer.Owner() == d.transfer.Node,
	}
	s.Running = max(s.Running, len(s.Jobs)) // the agent has done those whose outcome is not committed yet
	s.Done = s.Running == 0 && len(s.Leads) == 0 && !s.Authority
	return s
}

// HandleDrain begins a drain, or returns the progress of the one under way.
func (d *Drainer) HandleDrain(ctx context.Context) (*api.DrainStatus, error) {
	if !d.active() {
		err := d.begin(func() bool { return d.otherMemberStays(ctx) }, d.cfg.Agent.Drain)
		switch {
		case errors.Is(err, errNoOtherMember):
			return nil, &api.Error{Code: api.CodeConflict, Text: err.Error() + "; use 'yardmaster queue pause' to bring a whole yard to rest"}
		case err != nil:
			return nil, &api.Error{Code: api.CodeConflict, Text: d.transfer.Node + ": " + err.Error()}
		}
		d.cfg.Log.Warn("node drained: it takes no more work until it is resumed or restarted")
		d.transfer.RecordAct(ctx, "node.drain", d.transfer.Node)
		d.awaitEdges(ctx)
		d.ifDrained(func() { d.cfg.Edge.Drain("node is drained") }) // it may have been resumed meanwhile
	}
	return d.Status(), nil
}

// HandleResume handles a request to take the node's drain back: the node may lead
// streams and takes jobs again. The error is a conflict if the node is not drained, is
// stopping, or is being removed from the cluster.
func (d *Drainer) HandleResume(ctx context.Context) (*api.Resumed, error) {
	node, since := d.transfer.Node, d.Since()
	switch {
	case since.IsZero():
		return nil, &api.Error{Code: api.CodeConflict, Text: node + " is not drained: it takes work"}
	case d.cfg.Clustered && !slices.Contains(presentNodes(d.transfer.Raft), node):
		return nil, &api.Error{Code: api.CodeConflict, Text: node + " is being removed from the yard"}
	}
	err := d.end(func() {
		d.cfg.Streams.ResumeLeading()
		d.cfg.Agent.Resume()
		d.cfg.Edge.Resume()
	})
	if err != nil {
		return nil, &api.Error{Code: api.CodeConflict, Text: node + ": " + err.Error()}
	}
	d.cfg.Log.Info("node resumed", "duration", time.Since(since))
	d.transfer.RecordAct(ctx, "node.resume", node)
	return &api.Resumed{Node: node, Drained: since.UTC()}, nil
}

// Run transfers the authority and the leadership of streams from a drained node to other
// members, until ctx ends. It repeats this every second, because leadership returns when
// other members fail.
func (d *Drainer) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.changed:
		case <-tick.C:
		}
		if !d.active() {
			continue
		}
		if err := d.transferOwnAuthority(ctx); err != nil {
			d.cfg.Log.Debug("drained node still holds the authority", "err", err)
		}
		leaveCtx, cancel := context.WithTimeout(ctx, lanesTimeout)
		if err := d.cfg.Streams.TransferLeaders(leaveCtx); err != nil {
			d.cfg.Log.Debug("drained node still leads streams", "err", err)
		}
		cancel()
		d.ifNotDrained(d.cfg.Streams.ResumeLeading) // undo: it was resumed meanwhile
	}
}

// setRemoving is called with each change of the membership; removing reports whether
// this member is about to be removed. When that becomes true, setRemoving drains the
// node. When it becomes false again, because the replacement was not admitted, the node
// takes work again unless an operator has drained it.
func (d *Drainer) setRemoving(removing bool) {
	switch {
	case removing == d.removing:
		return
	case removing:
		d.cfg.Log.Warn("member is being removed from the cluster and takes no more work")
		d.cfg.Agent.Drain()
		d.cfg.Edge.Drain("this member is taken out of the yard")
	default:
		d.cfg.Log.Info("removal of this member was taken back and it takes work again")
		d.ifNotDrained(func() {
			d.cfg.Agent.Resume()
			d.cfg.Edge.Resume()
		})
	}
	d.removing = removing
}

// ActiveJobs returns jobs of a node that the ledger that view reads has as
// active, at most [api.MaxActiveJobs]. defaultTimeout is that of a job that sets none.
func ActiveJobs(view func(func(*ledger.Ledger)), node string, defaultTimeout time.Duration) (jobs []api.ActiveJob) {
	view(func(l *ledger.Ledger) {
		l.ActiveDispatches(func(a ledger.ActiveDispatch) bool {
			if a.Node == node {
				jobs = append(jobs, api.NewActiveJob(&a, defaultTimeout))
			}
			return len(jobs) < api.MaxActiveJobs
		})
	})
	return jobs
}
