package pages

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Queues loads the page.
func Queues(ctx context.Context, e *Env, v *View) (any, error) {
	return ask[api.QueueList](ctx, e, v, "queue-list", &api.QueueListRequest{Limit: 200, After: v.Query.Get("after")})
}

// queueData is the data of the page of a queue.
type queueData struct {
	api.QueueExplanation
	Limits []api.LimitDetail // that all jobs of the queue use
}

// Queue loads the page.
func Queue(ctx context.Context, e *Env, v *View) (any, error) {
	q := &queueData{}
	var err error
	q.QueueExplanation, err = ask[api.QueueExplanation](ctx, e, v, "queue-explain", &api.QueueRequest{Name: v.Name})
	if err != nil {
		return nil, err
	}
	for _, name := range q.Queue.Limits {
		limit, err := ask[api.LimitDetail](ctx, e, v, "limit-show", &api.LimitRequest{Name: name})
		if err != nil {
			return nil, err
		}
		q.Limits = append(q.Limits, limit)
	}
	return q, nil
}
