package client

import (
	"context"
	"crypto/rand"
	"iter"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Operations starts, shows and changes operations: actions on all jobs that match a query. The
// cluster carries them out, also if the program ends or a node dies.
type Operations struct{ c *Client }

// Operations returns the operations on many jobs.
func (c *Client) Operations() Operations { return Operations{c} }

// Preview returns what an operation would do: how many jobs match, to how many the action applies,
// and the first ones. It changes nothing.
func (o Operations) Preview(ctx context.Context, request api.OperationStart) (api.OperationPreview, error) {
	return operate[api.OperationPreview](ctx, o.c, "operation.preview", request)
}

// Start starts an operation. With a Key, it can be repeated: a second operation is not started.
func (o Operations) Start(ctx context.Context, request api.OperationStart) (api.Operation, error) {
	if request.Key == "" {
		request.Key = "auto-" + rand.Text() // so that a repeated request starts one operation
	}
	return operate[api.Operation](ctx, o.c, "operation.start", request)
}

// Get returns an operation, how far it is, and the first jobs that it could not change.
func (o Operations) Get(ctx context.Context, id uint64) (api.Operation, error) {
	return operate[api.Operation](ctx, o.c, "operation.show", api.OperationRequest{ID: id})
}

// Wait returns an operation once it has ended, which may be because it was cancelled.
func (o Operations) Wait(ctx context.Context, id uint64) (api.Operation, error) {
	pause := backoff.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second}
	for {
		op, err := o.Get(ctx, id)
		if err != nil || op.Ended != nil {
			return op, err
		}
		if err := backoff.Sleep(ctx, pause.Next()); err != nil {
			return op, err
		}
	}
}

// List returns the operations that have not ended, and those of the last 7 days, newest first. It
// reads one page after the other.
func (o Operations) List(ctx context.Context) iter.Seq2[api.Operation, error] {
	return pages(func(after string) ([]api.Operation, string, error) {
		var request api.OperationRequest
		if after != "" {
			request.After, _ = strconv.ParseUint(after, 10, 64)
		}
		page, err := operate[api.OperationList](ctx, o.c, "operation.list", request)
		return page.Operations, nextOperation(page.Next), err
	})
}

func nextOperation(next uint64) string {
	if next == 0 {
		return ""
	}
	return strconv.FormatUint(next, 10)
}

// Pause makes an operation change no more jobs until it is resumed.
func (o Operations) Pause(ctx context.Context, id uint64) (api.Operation, error) {
	return operate[api.Operation](ctx, o.c, "operation.pause", api.OperationRequest{ID: id})
}

// Resume makes a paused operation go on where it was.
func (o Operations) Resume(ctx context.Context, id uint64) (api.Operation, error) {
	return operate[api.Operation](ctx, o.c, "operation.resume", api.OperationRequest{ID: id})
}

// Cancel ends an operation. The jobs that it has changed stay changed. The error is [ErrConflict]
// if it is done.
func (o Operations) Cancel(ctx context.Context, id uint64) (api.Operation, error) {
	return operate[api.Operation](ctx, o.c, "operation.cancel", api.OperationRequest{ID: id})
}

// SetRate changes how many jobs per second an operation changes; 0 is as many as the cluster takes
// beside its other work.
func (o Operations) SetRate(ctx context.Context, id uint64, rate uint32) (api.Operation, error) {
	return operate[api.Operation](ctx, o.c, "operation.set", api.OperationChange{ID: id, Rate: rate})
}
