package pages

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// shownOfQueues is how many queues a page of the list has.
const shownOfQueues = 100

// queuesData is the data of the list of queues.
type queuesData struct {
	Queues []listedQueue
	Total  int // queues of the yard
	Found  int // queues that match what the user looks for
	Page   int // number of the page, from 1 on
	Pages  int
}

// listedQueue is a queue with the jobs that ended in each minute of the last hour; none if it is one
// in which little happens.
type listedQueue struct {
	api.Queue
	Ended []float64
}

// Sorts are the orders of the list of queues: by name, and by the number of jobs in a state, the
// largest first.
var Sorts = []string{"name", "waiting", "delayed", "active", "failed", "completed"}

// Queues loads the page: the queues whose name contains find, with jobs=1 only those with jobs that have not
// ended or have failed, in the order of sort. Names that begin with "_" are the yard's own and come last.
func Queues(ctx context.Context, e *Env, v *View) (any, error) {
	all, err := allQueues(ctx, e, v)
	if err != nil {
		return nil, err
	}
	sort, find := cmp.Or(v.Query.Get("sort"), Sorts[0]), strings.ToLower(v.Query.Get("find"))
	if !slices.Contains(Sorts, sort) {
		return nil, &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf("sort is %q in the address; it must be one of %s", job.CutText(sort, 64), strings.Join(Sorts, ", "))}
	}
	d := &queuesData{Total: len(all), Page: 1}
	found := slices.DeleteFunc(all, func(q api.Queue) bool {
		c := q.Counts
		return !strings.Contains(strings.ToLower(q.Name), find) || v.Query.Get("jobs") != "" && c["waiting"]+c["delayed"]+c["active"]+c["failed"] == 0
	})
	own := func(q *api.Queue) int { return len(q.Name) - len(strings.TrimPrefix(q.Name, "_")) }
	slices.SortStableFunc(found, func(a, b api.Queue) int {
		return cmp.Or(b.Counts[sort]-a.Counts[sort], own(&a)-own(&b), strings.Compare(a.Name, b.Name))
	})
	d.Found, d.Pages = len(found), max(1, (len(found)+shownOfQueues-1)/shownOfQueues)
	if text := v.Query.Get("page"); text != "" {
		if d.Page, err = strconv.Atoi(text); err != nil || d.Page < 1 {
			return nil, &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf("page is %q in the address; it must be a number from 1 on", job.CutText(text, 64))}
		}
		d.Page = min(d.Page, d.Pages)
	}
	overview, _ := ask[api.Overview](ctx, e, v, "overview", &api.OverviewRequest{}) // without it there are no charts
	ended := make(map[string][]float64)
	for i := range overview.Queues {
		for _, n := range overview.Queues[i].Ended {
			ended[overview.Queues[i].Name] = append(ended[overview.Queues[i].Name], float64(n))
		}
	}
	for _, q := range found[(d.Page-1)*shownOfQueues : min(d.Page*shownOfQueues, len(found))] {
		d.Queues = append(d.Queues, listedQueue{q, ended[q.Name]})
	}
	return d, nil
}

// maxQueuePages bounds the pages of 1,000 queues that are read. A yard has at most 10,000 queues.
const maxQueuePages = 11

// allQueues returns all queues of the yard, by name.
func allQueues(ctx context.Context, e *Env, v *View) (all []api.Queue, err error) {
	after := ""
	for range maxQueuePages {
		page, err := ask[api.QueueList](ctx, e, v, "queue-list", &api.QueueListRequest{After: after})
		if err != nil {
			return nil, err
		}
		all = append(all, page.Queues...)
		if after = page.Next; after == "" {
			break
		}
	}
	return all, nil
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

// HasRunner reports whether a runner runs jobs of the queue: all of them, or, if a member has it, those whose
// functions name no runner.
func (q *queueData) HasRunner() bool {
	return q.Runner != "" && (q.Workers == "" || slices.ContainsFunc(q.Nodes, func(n api.NodeExecutors) bool { return n.Pool != nil }))
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
