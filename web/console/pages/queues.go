package pages

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// Queues loads the page.
func Queues(ctx context.Context, e *Env, v *View) (any, error) {
	return ask[api.QueueList](ctx, e, v, "queue-list", &api.QueueListRequest{Limit: 200, After: v.Query.Get("after")})
}

// shownWeights is how many weights of keys the page of a queue shows.
const shownWeights = 100

// queueData is the data of the page of a queue.
type queueData struct {
	api.QueueExplanation
	Limits  []api.LimitDetail // that all jobs of the queue use
	Schemas []api.QueueSchema
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
	shown, err := ask[api.Queue](ctx, e, v, "queue-show", &api.QueueRequest{Name: v.Name})
	q.Schemas = shown.Schemas
	return q, err
}

// Weights returns weights of keys for a field, as package acts reads them, one a line, with
// escaped keys. Those beyond shownWeights are not shown and stay as they are.
func (q *queueData) Weights() string {
	var lines strings.Builder
	keys := slices.Sorted(maps.Keys(q.Queue.Weights))
	for _, key := range keys[:min(len(keys), shownWeights)] {
		fmt.Fprintf(&lines, "%s=%d\n", format.Escape(key), q.Queue.Weights[key])
	}
	return lines.String()
}

// schemaData is the data of the page of a schema.
type schemaData struct {
	api.Schema
	New bool
}

// Schema loads the page: the schema of the function in the query, or a form for a new one.
func Schema(ctx context.Context, e *Env, v *View) (any, error) {
	if !v.Query.Has("function") {
		return &schemaData{New: true}, nil
	}
	var err error
	d := &schemaData{}
	d.Schema, err = ask[api.Schema](ctx, e, v, "schema-show", &api.SchemaRequest{Queue: v.Name, Function: v.Query.Get("function")})
	return d, err
}
