package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
)

// Jobs answers requests about jobs. All fields are required.
type Jobs struct {
	Authority  *authority.Client
	Viewer     *jobview.Viewer
	Retrier    *jobview.Retrier
	Waiters    *ledgerwait.Waiters
	WaitReason func(context.Context, job.ID) string // returns why a job that waits does not start
}

// Handlers returns the handlers by the name of the endpoint.
func (h *Jobs) Handlers() map[string]Handler {
	return map[string]Handler{
		"job-result": JSON(part(h.OpenResult)), "job-params": JSON(part(h.OpenParams)),
		"job-show": JSON(h.show), "job-wait": JSON(h.wait), "job-list": JSON(h.list),
		"job-cancel": JSON(h.cancel), "job-retry": JSON(h.retry), "job-set": JSON(h.set), "job-remove": JSON(h.remove),
	}
}

// find returns the id of the job that a request names.
func (h *Jobs) find(ctx context.Context, q *api.JobRequest) (job.ID, error) {
	if q.ID == "" {
		return job.ID{}, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	return h.Viewer.Locate(ctx, q.ID, q.Queue)
}

// show returns a job with its body and result, and if it waits the reason for that.
func (h *Jobs) show(ctx context.Context, q *api.JobRequest) (*api.Job, error) {
	id, err := h.find(ctx, q)
	if err != nil {
		return nil, err
	}
	view, err := h.Viewer.Full(ctx, id, api.MaxShownBytes)
	if err != nil {
		return nil, err
	}
	reply := api.JobOf(&view)
	if view.State == job.Waiting || view.State == job.Delayed {
		reply.Because = h.WaitReason(ctx, id)
	}
	return &reply, nil
}

// Bounds of a wait for a job to end.
const (
	defaultWait = 30 * time.Second
	MaxWait     = 10 * time.Minute // the most that a request may wait
)

// wait returns a job once it has ended, or an error after the timeout of the request.
// While it is not certain whether the job exists, wait keeps looking for it.
func (h *Jobs) wait(ctx context.Context, q *api.JobRequest) (*api.Job, error) {
	wait := defaultWait
	if q.TimeoutMS != 0 {
		if q.TimeoutMS < 0 || q.TimeoutMS > MaxWait.Milliseconds() {
			return nil, &job.InvalidError{Reason: fmt.Sprintf("timeout_ms is %d; must be 0, which means %s, or 1 to %d", q.TimeoutMS, duration.Format(defaultWait), MaxWait.Milliseconds())}
		}
		wait = time.Duration(q.TimeoutMS) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	id, err := h.find(ctx, q)
	for isUnavailable(err) && backoff.Sleep(ctx, 100*time.Millisecond) == nil {
		id, err = h.find(ctx, q)
	}
	if err != nil {
		return nil, err
	}
	if err := h.Waiters.JobEnd(ctx, id, job.Position{}); err != nil && !errors.Is(err, job.ErrJobNotFound) { // which the index may have
		return nil, waitError(err, id, wait)
	}
	h.Viewer.Ledger.View(func(l *ledger.Ledger) { Shows(ctx, l) }) // includes the end of the job
	view, err := h.Viewer.Full(ctx, id, api.MaxShownBytes)
	if err != nil {
		return nil, err
	}
	return new(api.JobOf(&view)), nil
}

// isUnavailable reports whether err means that a retry may succeed.
func isUnavailable(err error) bool {
	_, unavailable := errors.AsType[*job.UnavailableError](err)
	return unavailable
}

func (h *Jobs) cancel(ctx context.Context, q *api.JobRequest) (*api.JobChanged, error) {
	return h.change(ctx, q, func(id job.ID) ledger.Command { return &ledger.CancelJob{Job: id, Reason: q.Reason} })
}

func (h *Jobs) retry(ctx context.Context, q *api.JobRequest) (*api.JobChanged, error) {
	return h.changed(ctx, q, func(id job.ID) (authority.Result, error) {
		return h.Retrier.Retry(ctx, &ledger.RetryJob{Job: id})
	})
}

// change commits a command about the job of a request and returns the job's new state.
func (h *Jobs) change(ctx context.Context, q *api.JobRequest, command func(job.ID) ledger.Command) (*api.JobChanged, error) {
	return h.changed(ctx, q, func(id job.ID) (authority.Result, error) { return h.Authority.Propose(ctx, command(id)) })
}

// changed calls commit with the job of a request and returns the job's new state.
func (h *Jobs) changed(ctx context.Context, q *api.JobRequest, commit func(job.ID) (authority.Result, error)) (*api.JobChanged, error) {
	id, err := h.find(ctx, q)
	if err != nil {
		return nil, err
	}
	result, err := commit(id)
	if err != nil {
		return nil, h.Viewer.Explain(ctx, err, id)
	}
	SetIndex(ctx, result.Index)
	return &api.JobChanged{ID: id, State: result.State.String()}, nil
}

// remove removes a job that is not active.
func (h *Jobs) remove(ctx context.Context, q *api.JobRequest) (*api.JobRemoved, error) {
	id, err := h.find(ctx, q)
	if err != nil {
		return nil, err
	}
	if _, err := commit(ctx, h.Authority, &ledger.RemoveJob{Job: id}); err != nil {
		return nil, h.Viewer.Explain(ctx, err, id)
	}
	return &api.JobRemoved{ID: id, Removed: true}, nil
}
