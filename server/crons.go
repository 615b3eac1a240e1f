package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/cronspec"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/intake"
)

// Page sizes of cron entries.
const (
	defaultCronPageSize = 50
	maxCronPageSize     = 100 // with the largest jobs, a quarter of a NATS message
)

// Crons answers requests about cron entries. All fields but NewQueues are required.
type Crons struct {
	Authority    *authority.Client
	View         func(func(*ledger.Ledger)) // reads the local ledger
	Intake       *intake.Intake
	NewQueues    *intake.NewQueues
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

// cronOf returns v as the API shows it, with at most the given number of next ticks.
func cronOf(v *ledger.CronView, ticks int) api.Cron {
	c := api.CronOf(v)
	schedule, err := cronspec.Parse(v.Schedule, v.TimeZone)
	if err != nil { // another release, which accepts the schedule, has set it
		return c
	}
	for at := v.Next; !at.IsZero() && len(c.Upcoming) < ticks; at = schedule.After(at) {
		c.Upcoming = append(c.Upcoming, at)
		c.Ticks = append(c.Ticks, api.CronTick{At: at, Local: schedule.Local(at).Format(time.RFC3339), Note: schedule.Note(at)})
	}
	return c
}

// list returns a page of the entries in the order of their names: those after the name
// After of the request, at most Limit. More reports whether further entries follow.
func (h *Crons) list(_ context.Context, q *api.CronListRequest) (*api.CronPage, error) {
	q.Limit = cmp.Or(q.Limit, defaultCronPageSize)
	if q.Limit < 1 || q.Limit > maxCronPageSize {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", q.Limit, maxCronPageSize)}
	}
	var views []ledger.CronView
	more := false
	h.View(func(l *ledger.Ledger) {
		l.Crons(q.After, func(c ledger.CronView) bool {
			if c.Name == q.After { // the ledger begins with it
				return true
			}
			if len(views) == q.Limit {
				more = true
				return false
			}
			views = append(views, c)
			return true
		})
	})
	entries := make([]api.Cron, len(views))
	for i := range views {
		entries[i] = cronOf(&views[i], api.CronTicks)
	}
	return &api.CronPage{Entries: entries, More: more}, nil
}

// show returns an entry with the state of its last job, as far as that is known.
func (h *Crons) show(ctx context.Context, q *api.CronShowRequest) (*api.CronDetail, error) {
	if q.Next < 0 || q.Next > api.MaxCronTicks {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("next is %d; must be 1 to %d", q.Next, api.MaxCronTicks)}
	}
	view, err := h.find(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	c := api.CronDetail{Cron: cronOf(&view, cmp.Or(q.Next, api.CronTicks))}
	if view.Last.IsZero() { // there was no job
		return &c, nil
	}
	lastJob, err := h.FindJob(ctx, view.LastJob)
	if err == nil {
		c.LastState = lastJob.State.String()
	} else if view.Publishing { // the ledger does not have the job yet
		c.LastState = job.New.String()
	}
	return &c, nil
}

// add adds or replaces the entry that the request describes, after it has checked it.
func (h *Crons) add(ctx context.Context, q *api.CronChange) (*api.Cron, error) {
	c := ledger.Cron{
		Name: q.Name, Schedule: q.Schedule, TimeZone: q.Zone, Queue: q.Queue, Body: q.Job,
		CatchUp: q.Missed == api.CronOnce, NoOverlap: q.Overlap == api.CronSkip,
	}
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
	spec, err := job.ParseJob(q.Job)
	if err == nil {
		err = spec.CheckProducer()
	}
	if err == nil {
		err = h.Intake.CheckLimits(&spec)
	}
	if err == nil {
		err = h.Intake.CheckPayload(c.Queue, &spec)
	}
	if err != nil {
		return nil, err
	}
	if !h.CreateQueues {
		_, err = h.Authority.Queue(ctx, c.Queue)
	} else {
		err = h.NewQueues.Check(cluster.QuotaOf(ctx), c.Queue)
	}
	if err != nil {
		return nil, err
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
func (h *Crons) run(ctx context.Context, q *api.CronRunRequest) (*api.EnqueueReply, error) {
	c, err := h.find(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	spec, err := job.ParseJob(c.Body)
	if err != nil {
		return nil, err
	}
	a, err := h.Intake.Publish(ctx, intake.Job{Queue: c.Queue, Spec: spec, Key: q.NewID, Quota: cluster.QuotaOf(ctx)})
	if err == nil && !a.Duplicate {
		h.Authority.RecordAct(ctx, &ledger.RecordAct{Action: "cron.run", Job: a.ID, Queue: c.Queue, Target: q.Name})
	}
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
	return new(cronOf(&view, api.CronTicks)), nil
}

// find returns an entry. It returns ErrCronNotFound only after a read barrier.
func (h *Crons) find(ctx context.Context, name string) (view ledger.CronView, err error) {
	exists, err := h.Authority.Find(ctx, func(l *ledger.Ledger) (ok bool) {
		view, ok = l.Cron(name)
		return ok
	})
	if err == nil && !exists {
		err = cronError(name, ledger.ErrCronNotFound)
	}
	return view, err
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
