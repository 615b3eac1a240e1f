package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/yardmaster-dev/yardmaster/api"
)

// operate carries out an operation of the API. The error is an [*Error] if the cluster refuses
// the request.
func operate[Reply any](ctx context.Context, c *Client, op string, request any) (reply Reply, err error) {
	body, err := json.Marshal(request)
	if err == nil {
		body, err = c.operate(ctx, op, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &reply)
	}
	if err != nil {
		return reply, fmt.Errorf("%s: %w", op, refusalOf(err))
	}
	return reply, nil
}

// pages returns the items of all pages of a list. next requests the page after a cursor, ""
// for the first one, and returns the cursor of the page after it, "" on the last page.
func pages[Item any](next func(after string) (items []Item, after2 string, err error)) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for after := ""; ; {
			items, following, err := next(after)
			if err != nil {
				var none Item
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if following == "" {
				return
			}
			after = following
		}
	}
}

// Status returns the state of the whole cluster: members, authority, lanes, backlog and
// readiness.
func (c *Client) Status(ctx context.Context) (api.Status, error) {
	return operate[api.Status](ctx, c, "status", struct{}{})
}

// Workers returns the connected workers and the runner processes, and what they run.
func (c *Client) Workers(ctx context.Context, request api.WorkerRequest) (api.WorkerList, error) {
	return operate[api.WorkerList](ctx, c, "worker.list", request)
}

// DrainWorker gives a worker or runner process no more jobs; those that it runs go on. It is
// named as in [api.Worker]. The drain ends with [Client.ResumeWorker], or when the worker
// connects again or the process is replaced.
func (c *Client) DrainWorker(ctx context.Context, worker string) (api.WorkerDrain, error) {
	return operate[api.WorkerDrain](ctx, c, "worker.drain", api.WorkerRequest{Worker: worker})
}

// ResumeWorker ends the drain of a worker or runner process.
func (c *Client) ResumeWorker(ctx context.Context, worker string) (api.WorkerDrain, error) {
	return operate[api.WorkerDrain](ctx, c, "worker.resume", api.WorkerRequest{Worker: worker})
}
