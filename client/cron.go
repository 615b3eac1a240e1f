package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"iter"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Cron shows and changes cron entries.
type Cron struct{ c *Client }

// Cron returns the operations on cron entries.
func (c *Client) Cron() Cron { return Cron{c} }

// AddCron adds a cron entry whose ticks enqueue a job with these args and options. Queue and
// Job of the change are set from them. The options may set neither a start nor a key.
func AddCron[A Args](ctx context.Context, c *Client, change api.CronChange, args A, options ...Option) (api.Cron, error) {
	s := NewSpec(args, options...)
	if err := s.validate(); err != nil {
		return api.Cron{}, err
	}
	if s.Key != "" || !s.RunAt.IsZero() || s.Delay != 0 {
		return api.Cron{}, invalidJob("the job of a cron entry has neither a key nor a start")
	}
	r, err := s.apiRequest()
	if err != nil {
		return api.Cron{}, err
	}
	change.Queue = s.Queue
	if change.Job, err = json.Marshal(r.Spec); err != nil {
		return api.Cron{}, invalidJob("%w", err)
	}
	return c.Cron().Add(ctx, change)
}

// Add adds a cron entry. The error is [ErrConflict] if there is a different one of this
// name, unless the change replaces it.
func (cr Cron) Add(ctx context.Context, change api.CronChange) (api.Cron, error) {
	return operate[api.Cron](ctx, cr.c, "cron.add", change)
}

// Get returns a cron entry and the state of its last job.
func (cr Cron) Get(ctx context.Context, name string) (api.CronDetail, error) {
	return operate[api.CronDetail](ctx, cr.c, "cron.show", api.CronRequest{Name: name})
}

// Ticks returns the next n ticks of a cron entry, at most [api.MaxCronTicks], in UTC and in the
// entry's time zone. A tick has a note if the clocks change then: "skipped hour: runs at 03:00", for
// example.
func (cr Cron) Ticks(ctx context.Context, name string, n int) ([]api.CronTick, error) {
	detail, err := operate[api.CronDetail](ctx, cr.c, "cron.show", api.CronShowRequest{Name: name, Next: n})
	return detail.Ticks, err
}

// List returns all cron entries by name. It reads one page after the other.
func (cr Cron) List(ctx context.Context) iter.Seq2[api.Cron, error] {
	return pages(func(after string) ([]api.Cron, string, error) {
		page, err := operate[api.CronPage](ctx, cr.c, "cron.list", api.CronListRequest{After: after})
		if !page.More || len(page.Entries) == 0 {
			return page.Entries, "", err
		}
		return page.Entries, page.Entries[len(page.Entries)-1].Name, err
	})
}

// Pause stops the ticks of a cron entry.
func (cr Cron) Pause(ctx context.Context, name string) (api.Cron, error) {
	return operate[api.Cron](ctx, cr.c, "cron.pause", api.CronRequest{Name: name})
}

// Resume starts the ticks of a cron entry again.
func (cr Cron) Resume(ctx context.Context, name string) (api.Cron, error) {
	return operate[api.Cron](ctx, cr.c, "cron.resume", api.CronRequest{Name: name})
}

// Run enqueues the job of a cron entry now, and returns the job's id.
func (cr Cron) Run(ctx context.Context, name string) (id string, err error) {
	request := api.CronRunRequest{Name: name, NewID: "auto-" + rand.Text()} // a repeated request makes one job
	reply, err := operate[api.EnqueueReply](ctx, cr.c, "cron.run", request)
	if err != nil {
		return "", err
	}
	return reply.Queue + ":" + reply.ID.String(), nil
}

// Remove removes a cron entry.
func (cr Cron) Remove(ctx context.Context, name string) error {
	_, err := operate[api.Removed](ctx, cr.c, "cron.remove", api.CronRequest{Name: name})
	return err
}
