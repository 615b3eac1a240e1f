package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

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
	t := s.current()
	if t == nil {
		return PlacementExplanation{}, ErrNotAuthority
	}
	answer := make(chan PlacementExplanation, 1)
	t.loop.post(func() { answer <- t.explainPlacement(&q, time.Now()) })
	select {
	case w := <-answer:
		return w, nil
	case <-t.loop.done:
		return PlacementExplanation{}, ErrNotAuthority
	case <-ctx.Done():
		return PlacementExplanation{}, ctx.Err()
	}
}

func (t *tenure) explainPlacement(q *PlacementQuery, now time.Time) PlacementExplanation {
	k := job.DispatchID{Job: q.Job, N: q.Dispatch}
	e := PlacementExplanation{Blocked: t.lanes.blocked, LeaseUncertain: !t.lease.trusted().After(now), Epoch: t.loop.epoch}
	e.WorkerQueue, e.Runner = t.loop.cfg.Route(q.Queue, q.Function)
	for _, r := range []poolKey{{job.Overhop, e.WorkerQueue}, {job.RRQ, e.Runner}} {
		if pool := t.capacity.pools[r]; r.key != "" && pool != nil {
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
		if lane.problem != "" {
			for len(e.Lanes) < i {
				e.Lanes = append(e.Lanes, "")
			}
			e.Lanes = append(e.Lanes, fmt.Sprintf("lane %d is not read: %s", i, lane.problem))
		}
	}
	return e
}

// Route returns where a job may run: the queue whose Overhop workers may run it, and
// the RRQ runner that may; "" for none.
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
