package server

import (
	"cmp"
	"context"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
)

// opener opens the content that a request names.
type opener func(context.Context, *api.ContentRequest) (*jobview.Content, error)

// OpenResult returns the result of the job that a request names.
func (h *Jobs) OpenResult(ctx context.Context, q *api.ContentRequest) (*jobview.Content, error) {
	id, err := h.find(ctx, &api.JobRequest{ID: q.ID, Queue: q.Queue})
	if err != nil {
		return nil, err
	}
	return h.Viewer.Result(ctx, id)
}

// OpenParams returns the params of the job that a request names.
func (h *Jobs) OpenParams(ctx context.Context, q *api.ContentRequest) (*jobview.Content, error) {
	id, err := h.find(ctx, &api.JobRequest{ID: q.ID, Queue: q.Queue})
	if err != nil {
		return nil, err
	}
	return h.Viewer.Params(ctx, id)
}

// part returns a handler that answers with a part of the content that open returns.
func part(open opener) func(context.Context, *api.ContentRequest) (*api.Content, error) {
	return func(ctx context.Context, q *api.ContentRequest) (*api.Content, error) {
		if q.Offset < 0 || q.Limit < 0 || q.Limit > api.MaxContentPart {
			return nil, &job.InvalidError{Reason: fmt.Sprintf("offset is %d and limit %d; offset must be at least 0, limit 0 to %d", q.Offset, q.Limit, api.MaxContentPart)}
		}
		content, err := open(ctx, q)
		if err != nil {
			return nil, err
		}
		data, err := content.Part(ctx, q.Offset, cmp.Or(q.Limit, api.MaxContentPart))
		if err != nil {
			return nil, err
		}
		encoding := "json"
		if content.Msgpack {
			encoding = "msgpack"
		}
		return &api.Content{ID: content.ID, Encoding: encoding, Size: content.Size, Version: content.Version, Offset: q.Offset, Data: data}, nil
	}
}
