package client

import (
	"context"
	"errors"
	"iter"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Queues shows and changes queues.
type Queues struct{ c *Client }

// Queues returns the operations on queues.
func (c *Client) Queues() Queues { return Queues{c} }

// Create creates a queue with default settings, unless it exists.
func (q Queues) Create(ctx context.Context, name string) error {
	_, err := q.Add(ctx, api.QueueRequest{Name: name})
	if errors.Is(err, ErrConflict) {
		if _, shown := q.Get(ctx, name); shown == nil {
			return nil
		}
	}
	return err
}

// Add creates a queue. The error is [ErrConflict] if it exists.
func (q Queues) Add(ctx context.Context, request api.QueueRequest) (api.Queue, error) {
	return operate[api.Queue](ctx, q.c, "queue.add", request)
}

// Get returns a queue, its settings, and how many jobs it has in each state.
func (q Queues) Get(ctx context.Context, name string) (api.Queue, error) {
	return operate[api.Queue](ctx, q.c, "queue.show", api.QueueRequest{Name: name})
}

// List returns all queues by name. It reads one page after the other.
func (q Queues) List(ctx context.Context) iter.Seq2[api.Queue, error] {
	return pages(func(after string) ([]api.Queue, string, error) {
		page, err := operate[api.QueueList](ctx, q.c, "queue.list", api.QueueListRequest{After: after})
		return page.Queues, page.Next, err
	})
}

// Set changes settings of a queue: those that are given, with [api.SetTo] or [api.Reset].
// Lowering a limit stops no running job.
func (q Queues) Set(ctx context.Context, change api.QueueChange) (api.Queue, error) {
	return operate[api.Queue](ctx, q.c, "queue.set", change)
}

// Explain returns why a queue's jobs run or do not.
func (q Queues) Explain(ctx context.Context, name string) (api.QueueExplanation, error) {
	return operate[api.QueueExplanation](ctx, q.c, "queue.explain", api.QueueRequest{Name: name})
}

// Pause starts no more jobs of a queue. It does nothing if the queue is paused.
func (q Queues) Pause(ctx context.Context, name string) error {
	return q.change(ctx, "queue.pause", name)
}

// Resume starts jobs of a queue again. It does nothing if the queue is not paused.
func (q Queues) Resume(ctx context.Context, name string) error {
	return q.change(ctx, "queue.resume", name)
}

// change pauses or resumes a queue, unless it is already so.
func (q Queues) change(ctx context.Context, op, name string) error {
	_, err := operate[api.Queue](ctx, q.c, op, api.QueueRequest{Name: name})
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// Remove removes a queue. The error is [ErrConflict] if not all of its jobs have ended.
func (q Queues) Remove(ctx context.Context, name string) error {
	_, err := operate[api.Removed](ctx, q.c, "queue.remove", api.QueueRequest{Name: name})
	return err
}

// CancelJobs cancels the selected jobs of a queue, at most a thousand in one call: repeat
// it as long as the reply has More.
func (q Queues) CancelJobs(ctx context.Context, request api.QueueJobsRequest) (api.QueueJobsReply, error) {
	return operate[api.QueueJobsReply](ctx, q.c, "queue.cancel", request)
}

// SetJobs changes when the selected jobs of a queue start, or their priority, as
// CancelJobs.
func (q Queues) SetJobs(ctx context.Context, change api.QueueJobsChange) (api.QueueJobsReply, error) {
	return operate[api.QueueJobsReply](ctx, q.c, "queue.set-jobs", change)
}

// ClearJobs removes the selected jobs of a queue that are not active, as CancelJobs.
func (q Queues) ClearJobs(ctx context.Context, request api.QueueJobsRequest) (api.QueueJobsReply, error) {
	return operate[api.QueueJobsReply](ctx, q.c, "queue.clear", request)
}

// Retention returns how long what is left of ended jobs is kept, in the cluster or of one
// queue.
func (c *Client) Retention(ctx context.Context, request api.RetentionRequest) (api.Retention, error) {
	return operate[api.Retention](ctx, c, "retention.show", request)
}

// SetRetention changes retention settings of the cluster: those that are given.
func (c *Client) SetRetention(ctx context.Context, change api.RetentionChange) (api.Retention, error) {
	return operate[api.Retention](ctx, c, "retention.set", change)
}
