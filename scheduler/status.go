package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// AuthorityStatus is the state of a tenure that the ledger does not hold.
type AuthorityStatus struct {
	Epoch         uint64        `json:"epoch"`
	Pending       uint64        `json:"pending"`  // records received and not ingested
	OldestPending time.Duration `json:"oldest"`   // age of the oldest of them, in nanoseconds
	Deferred      bool          `json:"deferred"` // a lane is not verified yet
	// Dispatching reports whether jobs are started. A lane with a problem stops
	// only its own jobs.
	Dispatching bool             `json:"dispatching"`
	Reasons     []string         `json:"reasons"`            // texts of all conditions
	Warnings    []string         `json:"warnings,omitempty"` // what needs attention and stops nothing
	Nodes       []api.NodeStatus `json:"nodes"`
	Error       string           `json:"error,omitempty"` // why the status could not be read; set by callers

	// RetentionIndex is the index of the ledger whose retention settings were last applied
	// to the streams, and RetentionProblem why not all of them were; "": they were.
	RetentionIndex   uint64 `json:"retention_index,omitempty"`
	RetentionProblem string `json:"retention_problem,omitempty"`
}

// setAvailable sets Available, Credits, Slots and Pools of s from n's slots.
func setAvailable(s *api.NodeStatus, n *node) {
	free := map[string]int{}
	for runner := range n.runners {
		free[runner] = 0
	}
	for k, slot := range n.slots {
		available := slot.available()
		s.Available += available
		if k.kind == job.RRQ {
			s.Slots += available
			free[k.key] += available
		} else {
			s.Credits += available
		}
	}
	s.Pools = make([]api.RunnerSlots, 0, len(free))
	for runner, slots := range free {
		s.Pools = append(s.Pools, api.RunnerSlots{Runner: runner, Slots: slots})
	}
	slices.SortFunc(s.Pools, func(a, b api.RunnerSlots) int { return strings.Compare(a.Runner, b.Runner) })
}

// Status returns the status of the current tenure. Without a tenure it returns
// [ErrNotAuthority].
func (s *Scheduler) Status(ctx context.Context) (AuthorityStatus, error) {
	return ask(ctx, s, func(t *tenure) AuthorityStatus { return t.status(time.Now()) })
}

// ask returns what fn returns for the current tenure, in whose event loop it is called.
// Without a tenure, or if the tenure ends first, it returns [ErrNotAuthority].
func ask[T any](ctx context.Context, s *Scheduler, fn func(*tenure) T) (answer T, err error) {
	t := s.current()
	if t == nil {
		return answer, ErrNotAuthority
	}
	answers := make(chan T, 1)
	t.loop.post(func() { answers <- fn(t) })
	select {
	case answer = <-answers:
		return answer, nil
	case <-t.loop.done:
		return answer, ErrNotAuthority
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// status implements [Scheduler.Status].
func (t *tenure) status(now time.Time) AuthorityStatus {
	st := AuthorityStatus{Epoch: t.loop.epoch, Dispatching: t.lanes.blocked == "" && t.restoring == "" && t.lease.trusted().After(now), Reasons: []string{}}
	for _, c := range t.conditions(now) {
		st.Reasons = append(st.Reasons, c.text)
	}
	st.RetentionIndex, st.RetentionProblem = t.retention.index, t.retention.problem
	if t.retention.problem != "" {
		st.Warnings = append(st.Warnings, "retention settings are not applied to all streams: "+t.retention.problem)
	}
	st.Warnings = append(st.Warnings, t.ledgerTimeWarnings(now)...)
	for _, lane := range t.lanes.all {
		if lane.problem == "" && !lane.ready {
			st.Deferred = true
		}
		if lane.lastReceived >= lane.next { // from next on: not received in order yet
			st.Pending += lane.lastReceived + 1 - lane.next // at least: a message may hold several records
		}
		if len(lane.pending) > 0 { // before next: to be ingested
			st.Pending += uint64(lane.pendingRecords)
			st.OldestPending = max(st.OldestPending, now.Sub(lane.receivedAt))
		}
	}
	running := map[string]int{}
	for _, d := range t.dispatches.running {
		running[d.node]++
	}
	median, known := t.capacity.medianOffset(nil)
	for _, n := range t.capacity.nodes {
		s := api.NodeStatus{
			Name: n.name, Incarnation: n.incarnation, Silent: n.silent, Draining: n.draining,
			BeatAgoMS: -1, Offers: len(n.slots), Running: running[n.name], Edge: n.edge,
		}
		if !n.heartbeatAt.IsZero() {
			s.BeatAgoMS = now.Sub(n.heartbeatAt).Milliseconds()
		}
		if ahead, ok := n.clockDeviation(median); ok && known {
			offset := ahead.Milliseconds()
			s.ClockOffsetMS = &offset
		}
		setAvailable(&s, n)
		st.Nodes = append(st.Nodes, s)
	}
	slices.SortFunc(st.Nodes, func(a, b api.NodeStatus) int { return strings.Compare(a.Name, b.Name) })
	return st
}

// PlacementQuery asks what keeps a job, or any job of a queue and function, from
// being started.
type PlacementQuery struct {
	Queue    string `json:"queue"`
	Function string `json:"function,omitempty"`
	Job      job.ID `json:"job,omitzero"`      // zero: any job
	Dispatch uint32 `json:"dispatch,omitzero"` // of Job
}

// PlacementExplanation answers a [PlacementQuery] with the state that only the
// authority has. Pauses, limits and the order of jobs are in every node's ledger.
type PlacementExplanation struct {
	Blocked        string          `json:"blocked,omitempty"` // why nothing is started; "": jobs are
	LeaseUncertain bool            `json:"unsure,omitempty"`  // the lease may have expired: nothing is started meanwhile
	WorkerQueue    string          `json:"workers,omitempty"` // the queue whose Overhop workers may run it; "": none may
	Runner         string          `json:"runner,omitempty"`  // the RRQ runner that may run it; "": none may
	Available      int             `json:"room,omitempty"`    // number of jobs that these workers would take now
	Placing        bool            `json:"placing,omitempty"` // a worker is chosen, and the commit is in flight
	Dispatch       *DispatchStatus `json:"sent,omitempty"`    // of the running dispatch; nil: the tenure has none
	Lanes          []string        `json:"lanes,omitempty"`   // problems of lanes, by number; "": none
	Epoch          uint64          `json:"epoch"`
}

// DispatchStatus is the authority's state of a running dispatch.
type DispatchStatus struct {
	Confirmed bool  `json:"taken"`   // its node has confirmed it
	Silent    bool  `json:"silent"`  // its node sends no heartbeats
	SentMS    int64 `json:"sent_ms"` // milliseconds since it was last sent; 0: not sent by this tenure
}

// ExplainPlacement answers q from the current tenure. Without a tenure it returns
// [ErrNotAuthority].
func (s *Scheduler) ExplainPlacement(ctx context.Context, q PlacementQuery) (PlacementExplanation, error) {
	return ask(ctx, s, func(t *tenure) PlacementExplanation { return t.explainPlacement(&q, time.Now()) })
}

// explainPlacement implements [Scheduler.ExplainPlacement].
func (t *tenure) explainPlacement(q *PlacementQuery, now time.Time) PlacementExplanation {
	k := job.DispatchID{Job: q.Job, N: q.Dispatch}
	e := PlacementExplanation{Blocked: t.lanes.blocked, LeaseUncertain: !t.lease.trusted().After(now), Epoch: t.loop.epoch}
	e.WorkerQueue, e.Runner = t.loop.cfg.Route(q.Queue, q.Function)
	for _, key := range []poolKey{{job.Overhop, e.WorkerQueue}, {job.RRQ, e.Runner}} {
		if pool := t.capacity.pools[key]; key.key != "" && pool != nil {
			e.Available += pool.available()
		}
	}
	_, e.Placing = t.placer.inFlight[k]
	if d := t.dispatches.running[k]; d != nil {
		n := t.capacity.nodes[d.node]
		e.Dispatch = &DispatchStatus{Confirmed: d.confirmed, Silent: n == nil || n.silent}
		if !d.sentAt.IsZero() {
			e.Dispatch.SentMS = now.Sub(d.sentAt).Milliseconds()
		}
	}
	for i, lane := range t.lanes.all {
		if lane.problem == "" {
			continue
		}
		for len(e.Lanes) < i { // by lane number, with "" for lanes without a problem
			e.Lanes = append(e.Lanes, "")
		}
		e.Lanes = append(e.Lanes, fmt.Sprintf("lane %d is not read: %s", i, lane.problem))
	}
	return e
}

// Route returns the queue whose Overhop workers may run a job, and the RRQ runner that may
// run it; "" for none. The function is "" for a job without one.
func (c *Config) Route(queue, function string) (workers, runner string) {
	if runner, _ := job.SplitFunction(function); runner != "" {
		return "", runner
	}
	if runner := c.Routes[queue]; runner != "" {
		return "", runner
	}
	if function != "" {
		runner = c.DefaultRunner
	}
	return queue, runner
}

// Counts counts what this node has decided as the authority since it started. The
// cluster's totals are the sums over all nodes.
type Counts struct {
	// Settled dispatches. GivenBack counts those whose job waits again without
	// a used attempt; Stale, outcomes of dispatches that were no longer current.
	Done, Retried, GivenBack, Dead, Cancelled, Stale uint64
	// Ingested records. Only those counted by Jobs have made a job. Known counts
	// records of a job that the ledger already has; Duplicate, records whose unique
	// key another job has.
	Jobs, Known, Duplicate, RateLimited, Debounced, Rejected uint64
}

// counters holds the growing [Counts]. Any goroutine may use it.
type counters struct {
	mu crash.Mutex
	Counts
}

// Counts returns the current counts.
func (s *Scheduler) Counts() Counts {
	s.counters.mu.Lock()
	defer s.counters.mu.Unlock()
	return s.counters.Counts
}

// countSettled counts a committed settlement. An outcome that was reported twice counts
// once.
func (c *counters) countSettled(next job.Next, v ledger.Settled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case v.Duplicate:
	case v.Stale:
		c.Stale++
	case next == job.NextDone:
		c.Done++
	case v.State == job.Cancelled: // whatever the policy said
		c.Cancelled++
	case v.State == job.Failed:
		c.Dead++
	case next == job.NextRetry:
		c.Retried++
	default:
		c.GivenBack++
	}
}

// countIngested counts the results of an ingest and the records rejected before it.
func (c *counters) countIngested(results []ledger.Ingested, rejected int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Rejected += uint64(rejected)
	for _, result := range results {
		switch result {
		case ledger.IngestedWaiting, ledger.IngestedDelayed:
			c.Jobs++
		case ledger.IngestedKnown:
			c.Known++
		case ledger.IngestedDuplicate:
			c.Duplicate++
		case ledger.IngestedRateLimited:
			c.RateLimited++
		case ledger.IngestedDebounced:
			c.Debounced++
		case ledger.IngestedRejected, ledger.IngestedKeysFull:
			c.Rejected++
		}
	}
}
