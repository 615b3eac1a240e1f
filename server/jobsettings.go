package server

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// changeableStates are the states of jobs whose settings can be changed. Delayed jobs
// come first: those that become waiting must not be selected again.
var changeableStates = []job.State{job.Delayed, job.Waiting}

// set changes the settings of a job that the request gives.
func (h *Jobs) set(ctx context.Context, q *api.JobChange) (*api.JobChanged, error) {
	c, err := changeCommand(&q.JobSettings)
	if err != nil {
		return nil, err
	}
	return h.change(ctx, &api.JobRequest{ID: q.ID, Queue: q.Queue}, func(id job.ID) ledger.Command {
		c.Job = id
		return &c
	})
}

// changeCommand returns a command with the settings of a request, for a job that is
// still to be set.
func changeCommand(s *api.JobSettings) (c ledger.ChangeJob, err error) {
	if *s == (api.JobSettings{}) {
		return c, &job.InvalidError{Reason: "the request changes nothing; give priority, run_at or delay_ms"}
	}
	asSpec := job.Spec{Function: "any", Priority: s.Priority, RunAt: s.RunAt, DelayMS: s.DelayMS}
	if err := asSpec.Validate(); err != nil {
		return c, err
	}
	switch {
	case s.RunAt != nil:
		c.RunAt = *s.RunAt
	case s.DelayMS == nil:
	case *s.DelayMS == 0:
		c.RunAt = time.Unix(0, 0) // now, also if the ledger's time is behind this node's
	default:
		c.Delay = time.Duration(*s.DelayMS) * time.Millisecond
	}
	if s.Priority != nil {
		c.Priority = new(uint8(*s.Priority))
	}
	return c, nil
}

// setJobs changes the settings of those waiting and delayed jobs of a queue that the
// request selects and that do not have these settings yet, so that a repeated request
// goes on with further jobs. It leaves one act for all of them.
func (h *Queues) setJobs(ctx context.Context, q *api.QueueJobsChange) (*api.QueueJobsReply, error) {
	c, err := changeCommand(&q.JobSettings)
	if err == nil && q.DelayMS != nil && *q.DelayMS > 0 {
		err = &job.InvalidError{Reason: "delay_ms is only 0 here, which means now; give run_at, so that the request can be repeated"}
	}
	if err != nil {
		return nil, err
	}
	hasSettings := func(v *job.View) bool {
		return (c.Priority == nil || v.Priority == *c.Priority) &&
			(c.RunAt.IsZero() || v.RunAt.Equal(c.RunAt) || v.State == job.Waiting && !c.RunAt.After(time.Now()))
	}
	withoutActor := cluster.WithActor(ctx, func() ledger.Actor { return ledger.Actor{} })
	reply, err := h.changeJobs(ctx, &q.QueueJobsRequest, changeableStates, hasSettings, func(_ context.Context, id job.ID) (job.State, error) {
		forJob := c
		forJob.Job = id
		d, err := commit(withoutActor, h.Authority, &forJob)
		return d.State, err
	})
	if err == nil && !q.DryRun && reply.Changed > 0 {
		h.Authority.RecordAct(ctx, &ledger.RecordAct{Action: "queue.set-jobs", Queue: q.Name, Target: fmt.Sprintf("%s, jobs changed: %d", c.Settings(), reply.Changed)})
	}
	return reply, err
}
