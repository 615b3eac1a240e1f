package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Bounds of a change of many jobs of a queue.
const (
	maxQueueJobs     = 1000             // in one request
	maxParallelJobs  = 32               // the authority commits concurrent commands in one entry
	queueJobsPage    = 5000             // jobs read at once
	queueJobsTimeout = 10 * time.Second // of the search for the jobs
)

// cancelStates are the states of jobs that can be cancelled. Active jobs come last:
// cancelling them first would free slots that waiting jobs would take.
var cancelStates = []job.State{job.Waiting, job.Delayed, job.Active}

// clearStates are the states of jobs that can be removed.
var clearStates = []job.State{job.Waiting, job.Delayed, job.Completed, job.Failed, job.Cancelled, job.Expired}

// cancelJobs cancels the jobs of a queue that the request selects.
func (h *Queues) cancelJobs(ctx context.Context, q *api.QueueJobsRequest) (*api.QueueJobsReply, error) {
	return h.changeJobs(ctx, q, cancelStates, nil, func(ctx context.Context, id job.ID) (job.State, error) {
		d, err := commit(ctx, h.Authority, &ledger.CancelJob{Job: id, Reason: q.Reason})
		return d.State, err
	})
}

// clear removes the jobs of a queue that the request selects. It leaves one act for all
// of them.
func (h *Queues) clear(ctx context.Context, q *api.QueueJobsRequest) (*api.QueueJobsReply, error) {
	withoutActor := cluster.WithActor(ctx, func() ledger.Actor { return ledger.Actor{} })
	reply, err := h.changeJobs(ctx, q, clearStates, nil, func(_ context.Context, id job.ID) (job.State, error) {
		d, err := commit(withoutActor, h.Authority, &ledger.RemoveJob{Job: id})
		return d.State, err
	})
	if err == nil && !q.DryRun && reply.Changed > 0 {
		h.Authority.RecordAct(ctx, &ledger.RecordAct{Action: "queue.clear", Queue: q.Name, Target: fmt.Sprintf("jobs removed: %d", reply.Changed)})
	}
	return reply, err
}

// changeJobs calls change for each job of a queue that the request selects, several at the
// same time, or for none in a dry run. A job that is no longer in such a state is skipped,
// and so are those for which leftOut, which may be nil, returns true.
func (h *Queues) changeJobs(ctx context.Context, q *api.QueueJobsRequest, possible []job.State, leftOut func(*job.View) bool, change func(context.Context, job.ID) (job.State, error)) (*api.QueueJobsReply, error) {
	states, err := selectedStates(q, possible)
	if err != nil {
		return nil, err
	}
	if _, err := findQueue(ctx, h.Authority, q.Name); err != nil {
		return nil, err
	}
	limit := cmp.Or(q.Limit, maxQueueJobs)
	if limit < 1 || limit > maxQueueJobs {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", q.Limit, maxQueueJobs)}
	}
	selected, err := h.selectJobs(q, states, leftOut, limit+1)
	if err != nil {
		return nil, err
	}
	reply := &api.QueueJobsReply{Queue: q.Name, DryRun: q.DryRun, More: len(selected) > limit}
	reply.Jobs = selected[:min(limit, len(selected))]
	if q.DryRun {
		return reply, nil
	}
	group, ctx := crash.WithContext(ctx)
	group.SetLimit(maxParallelJobs)
	for i := range reply.Jobs {
		item := &reply.Jobs[i]
		group.Go(func() error {
			state, err := change(ctx, item.ID)
			switch {
			case err == nil:
				item.State, item.Changed = state.String(), true
			case errors.Is(err, job.ErrJobNotFound), errors.Is(err, job.ErrJobEnded), errors.Is(err, job.ErrNotRemovable), errors.Is(err, job.ErrNotChangeable), errors.Is(err, job.ErrExpiresBefore):
			default:
				return err
			}
			return nil
		})
	}
	err = group.Wait()
	for i := range reply.Jobs {
		if reply.Jobs[i].Changed {
			reply.Changed++
		}
	}
	if err != nil && reply.Changed == 0 {
		return nil, err
	}
	if err != nil {
		reply.Stopped, reply.More = err.Error(), true
	}
	return reply, nil
}

// selectedStates returns the states that a request names, all possible ones if it names
// none, in the order of possible. A request must select something.
func selectedStates(q *api.QueueJobsRequest, possible []job.State) ([]job.State, error) {
	if q.All == (len(q.States) > 0 || q.Function != "") {
		return nil, &job.InvalidError{Reason: `no jobs are named: set states, function or both, or "all": true and none of them`}
	}
	if len(q.States) == 0 {
		return possible, nil
	}
	var states []job.State
	for _, state := range possible {
		if slices.Contains(q.States, state.String()) {
			states = append(states, state)
		}
	}
	slices.Sort(q.States)
	if len(states) < len(slices.Compact(q.States)) {
		names := make([]string, len(possible))
		for i, state := range possible {
			names[i] = state.String()
		}
		return nil, &job.InvalidError{Reason: fmt.Sprintf("states are %s; must be some of %s", strings.Join(q.States, ", "), strings.Join(names, ", "))}
	}
	return states, nil
}

// selectJobs returns the first jobs of a queue in some states that the request selects, at
// most limit. It leaves out active jobs that are being cancelled already, and those for
// which leftOut, which may be nil, returns true.
func (h *Queues) selectJobs(q *api.QueueJobsRequest, states []job.State, leftOut func(*job.View) bool, limit int) (selected []api.QueueJob, err error) {
	deadline := time.Now().Add(queueJobsTimeout)
	for _, state := range states {
		for skip, more := 0, true; more; skip += queueJobsPage {
			if time.Now().After(deadline) {
				return nil, &job.UnavailableError{Reason: fmt.Sprintf("queue %s has too many jobs to search all of them: name one state", q.Name), RetryAfter: time.Second}
			}
			h.View(func(l *ledger.Ledger) {
				page := l.List(q.Name, state, skip, queueJobsPage)
				more = len(page) == queueJobsPage
				for i := range page {
					v := &page[i]
					if len(selected) == limit || q.Function != "" && v.Function != q.Function || leftOut != nil && leftOut(v) {
						continue
					}
					if state == job.Active { // may be recalled already
						if d, ok := l.Diagnose(v.ID); ok && d.Recalled != "" {
							continue
						}
					}
					selected = append(selected, api.QueueJob{ID: v.ID, State: state.String()})
				}
			})
			if len(selected) == limit {
				return selected, nil
			}
		}
	}
	return selected, nil
}
