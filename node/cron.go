package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Page sizes of cron entries.
const (
	defaultCronPageSize = 50
	maxCronPageSize     = 100 // with the largest jobs, half of a NATS message
	cronUpcoming        = 3   // ticks shown of each entry
)

// cronRequest names a cron entry, or describes a new one.
type cronRequest struct {
	Name     string          `json:"name"`
	Schedule string          `json:"schedule"`
	Zone     string          `json:"time_zone"`
	Queue    string          `json:"queue"`
	Missed   string          `json:"missed"`
	Overlap  string          `json:"overlap"`
	Replace  bool            `json:"replace"`
	Job      json.RawMessage `json:"job"`
	NewID    string          `json:"new_id"` // key of the job that cron.run creates; "": a new one

	After string `json:"after"` // last name of the previous page
	Limit int    `json:"limit"`
}

// cronJSON is a cron entry in the API.
type cronJSON struct {
	Name        string           `json:"name"`
	Schedule    string           `json:"schedule"`
	Zone        string           `json:"time_zone"`
	Queue       string           `json:"queue"`
	Job         json.RawMessage  `json:"job"`
	Missed      string           `json:"missed"`
	Overlap     string           `json:"overlap"`
	Declared    bool             `json:"declared"`
	State       string           `json:"state"` // running, paused, or ended (no more ticks)
	Next        *time.Time       `json:"next"`
	Upcoming    []time.Time      `json:"upcoming"` // the next ticks, the first of them Next
	Last        *time.Time       `json:"last"`
	LastJob     *job.ID          `json:"last_job"`
	LastSkipped *skippedTickJSON `json:"last_left_out"` // the last tick that created no job
	Fired       uint64           `json:"fired"`
	Skipped     uint64           `json:"skipped"`
	Overdue     uint64           `json:"missed_count"`
}

// skippedTickJSON is why a tick created no job.
type skippedTickJSON struct {
	At     time.Time `json:"at"`            // the first, if several were missed
	Reason string    `json:"why"`           // overlap or missed
	Job    *job.ID   `json:"job,omitempty"` // the one that had not ended
}

func cronState(v *ledger.CronView) string {
	switch {
	case v.Paused:
		return "paused"
	case v.Next.IsZero():
		return "ended"
	}
	return "running"
}

func cronToJSON(v *ledger.CronView) cronJSON {
	c := cronJSON{
		Name: v.Name, Schedule: v.Schedule, Zone: v.TimeZone, Queue: v.Queue, Job: v.Body, Declared: v.Declared,
		Missed: cronSkip, Overlap: cronAllow, State: cronState(v), Upcoming: []time.Time{},
		Fired: v.Fired, Skipped: v.Skipped, Overdue: v.Missed,
	}
	setDefault(&c.Zone, "UTC")
	if v.CatchUp {
		c.Missed = cronOnce
	}
	if v.NoOverlap {
		c.Overlap = cronSkip
	}
	if c.State == "running" {
		c.Next = &v.Next
	}
	if !v.Last.IsZero() {
		c.Last, c.LastJob = &v.Last, &v.LastJob
	}
	if !v.LastUnfired.IsZero() {
		c.LastSkipped = &skippedTickJSON{At: v.LastUnfired, Reason: "missed"}
		if v.UnfiredFor != (job.ID{}) {
			c.LastSkipped.Reason, c.LastSkipped.Job = "overlap", &v.UnfiredFor
		}
	}
	if times, err := scheduler.ParseCron(v.Schedule, v.TimeZone); err == nil {
		for at := v.Next; !at.IsZero() && len(c.Upcoming) < cronUpcoming; at = times.After(at) {
			c.Upcoming = append(c.Upcoming, at)
		}
	}
	return c
}

func (n *Node) handleCronList(_ context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[cronRequest](r)
	if err != nil {
		return nil, err
	}
	setDefault(&q.Limit, defaultCronPageSize)
	if q.Limit < 1 || q.Limit > maxCronPageSize {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", q.Limit, maxCronPageSize)}
	}
	var views []ledger.CronView
	more := false
	n.raft.View(func(l *ledger.Ledger) {
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
	entries := make([]cronJSON, len(views))
	for i := range views {
		entries[i] = cronToJSON(&views[i])
	}
	return cronPage{entries, more}, nil
}

// cronPage is a page of cron entries.
type cronPage struct {
	Entries []cronJSON `json:"entries"`
	More    bool       `json:"more"` // there are further entries
}

func (n *Node) handleCronShow(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[cronRequest](r)
	if err != nil {
		return nil, err
	}
	view, err := n.findCron(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	c := cronDetail{cronJSON: cronToJSON(&view)}
	switch found, err := n.viewer.summary(ctx, view.LastJob); {
	case view.Last.IsZero():
	case err == nil:
		c.LastState = found.State.String()
	case view.Publishing:
		c.LastState = job.New.String()
	}
	return c, nil
}

// cronDetail is one cron entry with the state of its last job, which is "" if there
// was none or the ledger no longer has it.
type cronDetail struct {
	cronJSON
	LastState string `json:"last_job_state,omitempty"`
}

func (n *Node) handleCronAdd(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[cronRequest](r)
	if err != nil {
		return nil, err
	}
	c := ledger.Cron{Name: q.Name, Schedule: q.Schedule, TimeZone: q.Zone, Queue: q.Queue, Body: q.Job, CatchUp: q.Missed == cronOnce, NoOverlap: q.Overlap == cronSkip}
	if c.TimeZone == "UTC" { // the API shows "" as UTC
		c.TimeZone = ""
	}
	switch {
	case q.Missed != "" && q.Missed != cronSkip && q.Missed != cronOnce:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("missed is %q; must be skip or once", q.Missed)}
	case q.Overlap != "" && q.Overlap != cronAllow && q.Overlap != cronSkip:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("overlap is %q; must be allow or skip", q.Overlap)}
	case len(q.Job) == 0:
		return nil, &job.InvalidError{Reason: `job is missing; give what an enqueue takes, {"job": {"function": "send"}}`}
	}
	if err := job.UnmarshalStrict("job", q.Job, new(job.Spec)); err != nil {
		return nil, err
	}
	if err := scheduler.CheckCron(&c); err != nil {
		return nil, err
	}
	if !*n.cfg.Scheduler.CreateQueues {
		if _, err := n.findQueue(ctx, c.Queue); err != nil {
			return nil, err
		}
	}
	return n.changeCron(ctx, r, c.Name, &ledger.SetCron{Cron: c, Replace: q.Replace})
}

func (n *Node) handleCronPause(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[cronRequest](r)
	if err != nil {
		return nil, err
	}
	return n.changeCron(ctx, r, q.Name, &ledger.PauseCron{Name: q.Name, Paused: true})
}

func (n *Node) handleCronResume(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[cronRequest](r)
	if err != nil {
		return nil, err
	}
	return n.changeCron(ctx, r, q.Name, &ledger.PauseCron{Name: q.Name})
}

func (n *Node) handleCronRemove(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[cronRequest](r)
	if err != nil {
		return nil, err
	}
	if _, err := n.propose(ctx, r, &ledger.RemoveCron{Name: q.Name}); err != nil {
		return nil, cronError(q.Name, err)
	}
	return removedReply{q.Name, true}, nil
}

// handleCronRun creates a job of the entry in addition to the jobs of its ticks. With an
// id of the caller it is the same job however often it is requested.
func (n *Node) handleCronRun(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[cronRequest](r)
	if err != nil {
		return nil, err
	}
	c, err := n.findCron(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	spec, err := job.ParseSpec(c.Body)
	if err != nil {
		return nil, err
	}
	a, err := n.intake.enqueueWait(ctx, c.Queue, spec, q.NewID, false)
	return enqueueReply{ID: a.id, Queue: c.Queue, Duplicate: a.duplicate}, err
}

// changeCron carries out a command about an entry and returns the changed entry.
func (n *Node) changeCron(ctx context.Context, r *cluster.Request, name string, c ledger.Command) (any, error) {
	if _, err := n.propose(ctx, r, c); err != nil {
		return nil, cronError(name, err)
	}
	view, err := n.findCron(ctx, name)
	if err != nil {
		return nil, err
	}
	return cronToJSON(&view), nil
}

// findCron returns an entry. It returns ErrCronNotFound only after a read barrier.
func (n *Node) findCron(ctx context.Context, name string) (view ledger.CronView, err error) {
	ok := false
	read := func() { n.raft.View(func(l *ledger.Ledger) { view, ok = l.Cron(name) }) }
	if read(); !ok {
		if err := n.proposer.readBarrier(ctx); err != nil {
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
		return &cluster.APIError{Code: "404", Text: text}
	case errors.Is(err, ledger.ErrCronExists), errors.Is(err, ledger.ErrCronDeclared), errors.Is(err, ledger.ErrTooManyCrons):
		return &cluster.APIError{Code: "409", Text: text}
	}
	return err
}
