package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Jobs shows and changes jobs. In all of its methods id is what [Client.Enqueue] has
// returned, a UUID alone, or "<queue>:<key>".
type Jobs struct{ c *Client }

// Jobs returns the operations on jobs.
func (c *Client) Jobs() Jobs { return Jobs{c} }

// Get returns a job with its params and its result, unless they are large: see
// [Client.Params] and [Client.Wait].
func (j Jobs) Get(ctx context.Context, id string) (api.Job, error) {
	return operate[api.Job](ctx, j.c, "job.show", api.JobRequest{ID: id})
}

// Explain returns why a job is where it is, when that will change, and what has happened to
// it: History has the job's latest events, at most 1000, as JSON.
func (j Jobs) Explain(ctx context.Context, id string) (api.JobExplanation, error) {
	return operate[api.JobExplanation](ctx, j.c, "job.explain", api.JobRequest{ID: id})
}

// Logs returns the last lines of a job's log, at most n; 0 means 1000.
func (j Jobs) Logs(ctx context.Context, id string, n int) (api.LogReply, error) {
	return operate[api.LogReply](ctx, j.c, "job.logs", api.LogRequest{ID: id, Lines: n})
}

// Errors returns the errors that a job's last attempts reported with details, such as a stack, newest
// first and at most n; 0 means 100.
func (j Jobs) Errors(ctx context.Context, id string, n int) (api.JobErrors, error) {
	return operate[api.JobErrors](ctx, j.c, "job.errors", api.JobErrorsRequest{ID: id, Limit: n})
}

// List returns the selected jobs, newest first unless the request says otherwise. It reads
// one page after the other while the caller iterates; Limit is the size of a page.
func (j Jobs) List(ctx context.Context, request api.JobListRequest) iter.Seq2[api.Job, error] {
	return pages(func(after string) ([]api.Job, string, error) {
		request.After = after
		page, err := operate[api.JobList](ctx, j.c, "job.list", request)
		return page.Jobs, page.Next, err
	})
}

// Find returns the jobs that a query finds, such as "queue:mail state:failed since:1h", also those
// that ended days ago; they have no params and results. It reads one page after the other while
// the caller iterates; Limit is the size of a page. The error of a query that is wrong is an
// [*Error] with a Query.
func (j Jobs) Find(ctx context.Context, request api.JobFindRequest) iter.Seq2[api.Job, error] {
	return pages(func(after string) ([]api.Job, string, error) {
		if after != "" {
			request.Cursor = after
		}
		page, err := operate[api.FoundJobs](ctx, j.c, "job.find", request)
		return page.Jobs, page.Next, err
	})
}

// Cancel cancels a job: a waiting one ends at once, a running one is stopped. It returns the
// job's state. The reason is kept in the history.
func (j Jobs) Cancel(ctx context.Context, id, reason string) (state string, err error) {
	reply, err := operate[api.JobChanged](ctx, j.c, "job.cancel", api.JobRequest{ID: id, Reason: reason})
	return reply.State, err
}

// Retry runs a failed, cancelled or expired job again, and returns its state.
func (j Jobs) Retry(ctx context.Context, id string) (state string, err error) {
	reply, err := operate[api.JobChanged](ctx, j.c, "job.retry", api.JobRequest{ID: id})
	return reply.State, err
}

// Remove removes a job that is not active.
func (j Jobs) Remove(ctx context.Context, id string) error {
	_, err := operate[api.JobRemoved](ctx, j.c, "job.remove", api.JobRequest{ID: id})
	return err
}

// Replay enqueues a copy of a job that has ended, and returns the id of the copy. The
// request may change its queue and its params.
func (j Jobs) Replay(ctx context.Context, request api.ReplayRequest) (id string, err error) {
	if request.NewID == "" {
		request.NewID = "auto-" + rand.Text() // so that a repeated request makes one copy
	}
	reply, err := operate[api.ReplayReply](ctx, j.c, "job.replay", request)
	if err != nil {
		return "", err
	}
	return reply.Queue + ":" + reply.ID.String(), nil
}

// JobSettings are settings of a job that has not started. Those that are nil, zero or
// false stay as they are. Now, RunAt and Delay exclude each other.
type JobSettings struct {
	// Priority is 0 to 9; 9 starts first.
	Priority *int
	// Now lets the job start as soon as possible. It also skips the delay before the next
	// attempt of a job that is retried.
	Now bool
	// RunAt is the earliest start; a time that has passed means now.
	RunAt time.Time
	// Delay is the time from now until the earliest start.
	Delay time.Duration
}

// Set changes when a waiting or delayed job starts, or its priority, and returns its
// state, "waiting" or "delayed". Repeating it is safe. The error wraps [ErrInvalidJob] if a
// setting is invalid, and is [ErrConflict] if the job runs or has ended.
func (j Jobs) Set(ctx context.Context, id string, settings JobSettings) (state string, err error) {
	change, err := settings.change()
	if err != nil {
		return "", err
	}
	reply, err := operate[api.JobChanged](ctx, j.c, "job.set", api.JobChange{ID: id, JobSettings: change})
	return reply.State, err
}

// change returns the settings as the API takes them. The error wraps [ErrInvalidJob].
func (s *JobSettings) change() (change api.JobSettings, err error) {
	given := 0
	if s.Priority != nil {
		if *s.Priority < 0 || *s.Priority > 9 {
			return change, fmt.Errorf("%w: Priority is %d; it is 0 to 9", ErrInvalidJob, *s.Priority)
		}
		change.Priority = new(int64(*s.Priority))
	}
	if s.Now {
		change.DelayMS = new(int64(0))
		given++
	}
	if !s.RunAt.IsZero() {
		change.RunAt = &s.RunAt
		given++
	}
	if s.Delay != 0 {
		change.DelayMS = new(s.Delay.Milliseconds())
		given++
	}
	switch {
	case s.Delay < 0:
		return change, fmt.Errorf("%w: Delay is %s; it is not negative", ErrInvalidJob, duration.Format(s.Delay))
	case given > 1:
		return change, fmt.Errorf("%w: give one of Now, RunAt and Delay", ErrInvalidJob)
	case given == 0 && s.Priority == nil:
		return change, fmt.Errorf("%w: no setting is given", ErrInvalidJob)
	}
	return change, nil
}
