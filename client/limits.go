package client

import (
	"context"
	"errors"
	"iter"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Limits shows and changes named limits: how many jobs run at once, in all and of each key, and how
// many start in a time. A queue uses the limits of its setting Limits: see [Queues.Set].
type Limits struct{ c *Client }

// Limits returns the operations on limits.
func (c *Client) Limits() Limits { return Limits{c} }

// Set creates a limit, or changes settings of it: those that are given, with [api.SetTo] or
// [api.Reset]. A lowered bound stops no running job.
func (l Limits) Set(ctx context.Context, change api.LimitChange) (api.LimitDetail, error) {
	return operate[api.LimitDetail](ctx, l.c, "limit.set", change)
}

// Get returns a limit, the queues and keys that use it, and the jobs that hold its slots.
func (l Limits) Get(ctx context.Context, name string) (api.LimitDetail, error) {
	return operate[api.LimitDetail](ctx, l.c, "limit.show", api.LimitRequest{Name: name})
}

// List returns all limits by name, and how much of each is used. It reads one page after the other.
func (l Limits) List(ctx context.Context) iter.Seq2[api.Limit, error] {
	return pages(func(after string) ([]api.Limit, string, error) {
		page, err := operate[api.LimitList](ctx, l.c, "limit.list", api.LimitListRequest{After: after})
		return page.Limits, page.Next, err
	})
}

// Pause starts no more jobs that use a limit. It does nothing if the limit is paused.
func (l Limits) Pause(ctx context.Context, name string) error {
	return l.change(ctx, "limit.pause", name)
}

// Resume starts jobs that use a limit again. It does nothing if the limit is not paused.
func (l Limits) Resume(ctx context.Context, name string) error {
	return l.change(ctx, "limit.resume", name)
}

// change pauses or resumes a limit, unless it is already so.
func (l Limits) change(ctx context.Context, op, name string) error {
	_, err := operate[api.LimitDetail](ctx, l.c, op, api.LimitRequest{Name: name})
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// Remove removes a limit. The error is [ErrConflict] if queues use it, unless force is set: then it
// is taken from them.
func (l Limits) Remove(ctx context.Context, name string, force bool) error {
	_, err := operate[api.Removed](ctx, l.c, "limit.remove", api.LimitRequest{Name: name, Force: force})
	return err
}
