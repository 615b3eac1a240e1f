package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// Pages of cron entries.
const (
	defaultCronPage = 50
	maxCronPage     = 100 // entries of the largest jobs fill half a message
	cronUpcoming    = 3   // ticks shown of each entry
)

// cronQuestion names a cron entry, or says what a new one is to be.
type cronQuestion struct {
	Name     string          `json:"name"`
	Schedule string          `json:"schedule"`
	Zone     string          `json:"time_zone"`
	Queue    string          `json:"queue"`
	Missed   string          `json:"missed"`
	Overlap  string          `json:"overlap"`
	Replace  bool            `json:"replace"`
	Job      json.RawMessage `json:"job"`
	NewID    string          `json:"new_id"` // key of the job that is made now; "": the yard makes one up

	After string `json:"after"` // of a page: the last name of the one before
	Limit int    `json:"limit"`
}

// cronJSON is a cron entry as people and programs see it.
type cronJSON struct {
	Name     string          `json:"name"`
	Schedule string          `json:"schedule"`
	Zone     string          `json:"time_zone"`
	Queue    string          `json:"queue"`
	Job      json.RawMessage `json:"job"`
	Missed   string          `json:"missed"`
	Overlap  string          `json:"overlap"`
	Declared bool            `json:"declared"`
	State    string          `json:"state"` // running, paused, or ended: no tick will come
	Next     *time.Time      `json:"next"`
	Upcoming []time.Time     `json:"upcoming"` // the next ticks, the first of them Next
	Last     *time.Time      `json:"last"`
	LastJob  *job.ID         `json:"last_job"`
	Left     *leftOutJSON    `json:"last_left_out"` // the last tick that made no job
	Fired    uint64          `json:"fired"`
	Skipped  uint64          `json:"skipped"`
	Overdue  uint64          `json:"missed_count"`
}

// leftOutJSON says why a tick made no job.
type leftOutJSON struct {
	At     time.Time `json:"at"`            // of missed ticks, the first
	Why    string    `json:"why"`           // overlap or missed
	Beside *job.ID   `json:"job,omitempty"` // which had not ended
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
		Name: v.Name, Schedule: v.Times, Zone: v.Zone, Queue: v.Queue, Job: v.Body, Declared: v.Declared,
		Missed: cronSkip, Overlap: cronAllow, State: cronState(v), Upcoming: []time.Time{},
		Fired: v.Fired, Skipped: v.Skipped, Overdue: v.Overdue,
	}
	fill(&c.Zone, "UTC")
	if v.CatchUp {
		c.Missed = cronOnce
	}
	if v.Alone {
		c.Overlap = cronSkip
	}
	if c.State == "running" {
		c.Next = &v.Next
	}
	if !v.Last.IsZero() {
		c.Last, c.LastJob = &v.Last, &v.LastJob
	}
	if !v.Left.IsZero() {
		c.Left = &leftOutJSON{At: v.Left, Why: "missed"}
		if v.LeftFor != (job.ID{}) {
			c.Left.Why, c.Left.Beside = "overlap", &v.LeftFor
		}
	}
	if times, err := scheduler.ParseCron(v.Times, v.Zone); err == nil {
		for at := v.Next; !at.IsZero() && len(c.Upcoming) < cronUpcoming; at = times.After(at) {
			c.Upcoming = append(c.Upcoming, at)
		}
	}
	return c
}

func (n *Node) handleCronList(_ context.Context, r *cluster.Request) (any, error) {
	q, err := ask[cronQuestion](r)
	if err != nil {
		return nil, err
	}
	fill(&q.Limit, defaultCronPage)
	if q.Limit < 1 || q.Limit > maxCronPage {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", q.Limit, maxCronPage)}
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
	More    bool       `json:"more"` // there are some after these
}

func (n *Node) handleCronShow(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[cronQuestion](r)
	if err != nil {
		return nil, err
	}
	view, err := n.cron(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	c := cronShown{cronJSON: cronToJSON(&view)}
	switch found, err := n.viewer.look(ctx, view.LastJob); {
	case view.Last.IsZero():
	case err == nil:
		c.LastState = found.State.String()
	case view.Emerging:
		c.LastState = job.New.String()
	}
	return c, nil
}

// cronShown is one cron entry with how its last job stands; "" if there is none
// or the yard has forgotten it.
type cronShown struct {
	cronJSON
	LastState string `json:"last_job_state,omitempty"`
}

func (n *Node) handleCronAdd(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[cronQuestion](r)
	if err != nil {
		return nil, err
	}
	c := ledger.Cron{Name: q.Name, Times: q.Schedule, Zone: q.Zone, Queue: q.Queue, Body: q.Job, CatchUp: q.Missed == cronOnce, Alone: q.Overlap == cronSkip}
	if c.Zone == "UTC" { // as it is shown
		c.Zone = ""
	}
	switch {
	case q.Missed != "" && q.Missed != cronSkip && q.Missed != cronOnce:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("missed is %q; must be skip or once", q.Missed)}
	case q.Overlap != "" && q.Overlap != cronAllow && q.Overlap != cronSkip:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("overlap is %q; must be allow or skip", q.Overlap)}
	case len(q.Job) == 0:
		return nil, &job.InvalidError{Reason: `job is missing; give what an enqueue takes, {"job": {"function": "send"}}`}
	}
	if err := job.ReadAsked("job", q.Job, new(job.Spec)); err != nil {
		return nil, err
	}
	if err := scheduler.CheckCron(&c); err != nil {
		return nil, err
	}
	if !*n.cfg.Scheduler.CreateQueues {
		if _, err := n.queue(ctx, c.Queue); err != nil {
			return nil, err
		}
	}
	return n.changeCron(ctx, r, c.Name, &ledger.SetCron{Cron: c, Replace: q.Replace})
}

func (n *Node) handleCronPause(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[cronQuestion](r)
	if err != nil {
		return nil, err
	}
	return n.changeCron(ctx, r, q.Name, &ledger.PauseCron{Name: q.Name, Paused: true})
}

func (n *Node) handleCronResume(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[cronQuestion](r)
	if err != nil {
		return nil, err
	}
	return n.changeCron(ctx, r, q.Name, &ledger.PauseCron{Name: q.Name})
}

func (n *Node) handleCronRemove(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[cronQuestion](r)
	if err != nil {
		return nil, err
	}
	if _, err := n.decide(ctx, r, &ledger.RemoveCron{Name: q.Name}); err != nil {
		return nil, cronRefusal(q.Name, err)
	}
	return removed{q.Name, true}, nil
}

// handleCronRun makes a job beside those of the entry's ticks; under a caller's
// own id, one job however often it is asked for.
func (n *Node) handleCronRun(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[cronQuestion](r)
	if err != nil {
		return nil, err
	}
	c, err := n.cron(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	spec, err := job.ParseSpec(c.Body)
	if err != nil {
		return nil, err
	}
	a, err := n.door.take(ctx, c.Queue, spec, q.NewID, false)
	return enqueueReply{ID: a.id, Queue: c.Queue, Duplicate: a.duplicate}, err
}

// changeCron carries out a command about an entry and shows what it has become.
func (n *Node) changeCron(ctx context.Context, r *cluster.Request, name string, c ledger.Command) (any, error) {
	if _, err := n.decide(ctx, r, c); err != nil {
		return nil, cronRefusal(name, err)
	}
	view, err := n.cron(ctx, name)
	if err != nil {
		return nil, err
	}
	return cronToJSON(&view), nil
}

// cron finds an entry, and says that there is none only if that is sure.
func (n *Node) cron(ctx context.Context, name string) (view ledger.CronView, err error) {
	ok := false
	look := func() { n.raft.View(func(l *ledger.Ledger) { view, ok = l.Cron(name) }) }
	if look(); !ok {
		if err := n.commander.current(ctx); err != nil {
			return view, err
		}
		look()
	}
	if !ok {
		return view, cronRefusal(name, ledger.ErrCronNotFound)
	}
	return view, nil
}

// cronRefusal gives the ledger's refusals their codes.
func cronRefusal(name string, err error) error {
	text := fmt.Sprintf("cron entry %q: %v", name, err)
	switch {
	case errors.Is(err, ledger.ErrCronNotFound):
		return &cluster.APIError{Code: "404", Text: text}
	case errors.Is(err, ledger.ErrCronExists), errors.Is(err, ledger.ErrCronDeclared), errors.Is(err, ledger.ErrTooManyCrons):
		return &cluster.APIError{Code: "409", Text: text}
	}
	return err
}
