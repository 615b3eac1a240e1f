package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/cronspec"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/intake"
)

// Page sizes of cron entries.
const (
	defaultCronPageSize = 50
	maxCronPageSize     = 100 // with the largest jobs, half of a NATS message
	cronUpcoming        = 3   // ticks shown of each entry
)

// Crons answers requests about cron entries. All fields are required.
type Crons struct {
	Authority    *authority.Client
	View         func(func(*ledger.Ledger)) // reads the local ledger
	Intake       *intake.Intake
	CreateQueues bool                                            // jobs may create their queues
	FindJob      func(context.Context, job.ID) (job.View, error) // returns a job, without its body
}

// Handlers returns the handlers by the name of the endpoint.
func (h *Crons) Handlers() map[string]Handler {
	return map[string]Handler{
		"cron-list": JSON(h.list), "cron-show": JSON(h.show), "cron-add": JSON(h.add), "cron-remove": JSON(h.remove),
		"cron-pause": JSON(h.pause), "cron-resume": JSON(h.resume), "cron-run": JSON(h.run),
	}
}

// cronOf returns v as the API shows it.
func cronOf(v *ledger.CronView) api.Cron {
	c := api.Cron{
		Name: v.Name, Schedule: v.Schedule, Zone: v.TimeZone, Queue: v.Queue, Job: v.Body, Declared: v.Declared,
		Missed: api.CronSkip, Overlap: api.CronAllow, State: api.CronState(v), Upcoming: []time.Time{},
		Fired: v.Fired, Skipped: v.Skipped, Overdue: v.Missed,
	}
	c.Zone = cmp.Or(c.Zone, "UTC")
	if v.CatchUp {
		c.Missed = api.CronOnce
	}
	if v.NoOverlap {
		c.Overlap = api.CronSkip
	}
	if c.State == "running" {
		c.Next = &v.Next
	}
	if !v.Last.IsZero() {
		c.Last, c.LastJob = &v.Last, &v.LastJob
	}
	if !v.LastUnfired.IsZero() {
		c.LastSkipped = &api.SkippedTick{At: v.LastUnfired, Reason: "missed"}
		if v.UnfiredFor != (job.ID{}) {
			c.LastSkipped.Reason, c.LastSkipped.Job = "overlap", &v.UnfiredFor
		}
	}
	if times, err := cronspec.Parse(v.Schedule, v.TimeZone); err == nil {
		for at := v.Next; !at.IsZero() && len(c.Upcoming) < cronUpcoming; at = times.After(at) {
			c.Upcoming = append(c.Upcoming, at)
		}
	}
	return c
}

func (h *Crons) list(_ context.Context, q *api.CronRequest) (*api.CronPage, error) {
	q.Limit = cmp.Or(q.Limit, defaultCronPageSize)
	if q.Limit < 1 || q.Limit > maxCronPageSize {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", q.Limit, maxCronPageSize)}
	}
	var views []ledger.CronView
	more := false
	h.View(func(l *ledger.Ledger) {
		l.Crons(q.After, func(c ledger.CronView) bool {
			if c.Name == q.After {
				return true
			}
			if more = len(views) == q.Limit; !more {
				views = append(views, c)
			}
			return !more
		})
	})
	entries := make([]api.Cron, len(views))
	for i := range views {
		entries[i] = cronOf(&views[i])
	}
	return &api.CronPage{Entries: entries, More: more}, nil
}

func (h *Crons) show(ctx context.Context, q *api.CronRequest) (*api.CronDetail, error) {
	view, err := h.find(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	c := api.CronDetail{Cron: cronOf(&view)}
	switch found, err := h.FindJob(ctx, view.LastJob); {
	case view.Last.IsZero():
	case err == nil:
		c.LastState = found.State.String()
	case view.Publishing:
		c.LastState = job.New.String()
	}
	return &c, nil
}

func (h *Crons) add(ctx context.Context, q *api.CronRequest) (*api.Cron, error) {
	c := ledger.Cron{Name: q.Name, Schedule: q.Schedule, TimeZone: q.Zone, Queue: q.Queue, Body: q.Job, CatchUp: q.Missed == api.CronOnce, NoOverlap: q.Overlap == api.CronSkip}
	if c.TimeZone == "UTC" { // the API shows "" as UTC
		c.TimeZone = ""
	}
	switch {
	case q.Missed != "" && q.Missed != api.CronSkip && q.Missed != api.CronOnce:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("missed is %q; must be skip or once", q.Missed)}
	case q.Overlap != "" && q.Overlap != api.CronAllow && q.Overlap != api.CronSkip:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("overlap is %q; must be allow or skip", q.Overlap)}
	case len(q.Job) == 0:
		return nil, &job.InvalidError{Reason: `job is missing; give what an enqueue takes, {"job": {"function": "send"}}`}
	}
	if err := job.UnmarshalStrict("job", q.Job, new(job.Spec)); err != nil {
		return nil, err
	}
	if err := cronspec.Check(&c); err != nil {
		return nil, err
	}
	if !h.CreateQueues {
		if _, ok, err := h.Authority.Queue(ctx, c.Queue); err != nil || !ok {
			return nil, cmp.Or(err, fmt.Errorf("queue %q: %w", c.Queue, job.ErrQueueNotFound))
		}
	}
	return h.change(ctx, c.Name, &ledger.SetCron{Cron: c, Replace: q.Replace})
}

func (h *Crons) pause(ctx context.Context, q *api.CronRequest) (*api.Cron, error) {
	return h.change(ctx, q.Name, &ledger.PauseCron{Name: q.Name, Paused: true})
}

func (h *Crons) resume(ctx context.Context, q *api.CronRequest) (*api.Cron, error) {
	return h.change(ctx, q.Name, &ledger.PauseCron{Name: q.Name})
}

func (h *Crons) remove(ctx context.Context, q *api.CronRequest) (*api.Removed, error) {
	if _, err := commit(ctx, h.Authority, &ledger.RemoveCron{Name: q.Name}); err != nil {
		return nil, cronError(q.Name, err)
	}
	return &api.Removed{Name: q.Name, Removed: true}, nil
}

// run creates a job of the entry in addition to the jobs of its ticks. With an
// id of the caller it is the same job however often it is requested.
func (h *Crons) run(ctx context.Context, q *api.CronRequest) (*api.EnqueueReply, error) {
	c, err := h.find(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	spec, err := job.ParseSpec(c.Body)
	if err != nil {
		return nil, err
	}
	a, err := h.Intake.Publish(ctx, intake.Job{Queue: c.Queue, Spec: spec, Key: q.NewID})
	return &api.EnqueueReply{ID: a.ID, Queue: c.Queue, Duplicate: a.Duplicate}, err
}

// change carries out a command about an entry and returns the changed entry.
func (h *Crons) change(ctx context.Context, name string, c ledger.Command) (*api.Cron, error) {
	if _, err := commit(ctx, h.Authority, c); err != nil {
		return nil, cronError(name, err)
	}
	view, err := h.find(ctx, name)
	if err != nil {
		return nil, err
	}
	reply := cronOf(&view)
	return &reply, nil
}

// find returns an entry. It returns ErrCronNotFound only after a read barrier.
func (h *Crons) find(ctx context.Context, name string) (view ledger.CronView, err error) {
	ok := false
	read := func() { h.View(func(l *ledger.Ledger) { view, ok = l.Cron(name) }) }
	if read(); !ok {
		if err := h.Authority.ReadBarrier(ctx); err != nil {
			return view, err
		}
		read()
	}
	if !ok {
		return view, cronError(name, ledger.ErrCronNotFound)
	}
	return view, nil
}

// cronError adds the error code to an error of the ledger.
func cronError(name string, err error) error {
	text := fmt.Sprintf("cron entry %q: %v", name, err)
	switch {
	case errors.Is(err, ledger.ErrCronNotFound):
		return &api.Error{Code: api.CodeNotFound, Text: text}
	case errors.Is(err, ledger.ErrCronExists), errors.Is(err, ledger.ErrCronDeclared), errors.Is(err, ledger.ErrTooManyCrons):
		return &api.Error{Code: api.CodeConflict, Text: text}
	}
	return err
}
