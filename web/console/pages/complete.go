package pages

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
)

// completionSample is how many of the newest jobs completions of values come from.
const completionSample = 200

// Complete returns what may be written at a position of a query, in bytes. Names of labels and
// values come from the queues and from the newest jobs that have one that begins so.
func Complete(ctx context.Context, e *Env, v *View, text string, cursor int) query.Completion {
	newest := func(where string) []api.Job {
		found, err := ask[api.FoundJobs](ctx, e, v, "job-find", &api.JobFindRequest{Query: where, Limit: completionSample})
		if err != nil {
			return nil // no completion is better than an error while someone writes
		}
		return found.Jobs
	}
	labels := map[string]bool{}
	for _, j := range newest("") {
		for name := range j.Meta {
			labels[name] = true
		}
		for name := range j.Indexed {
			labels[name] = true
		}
	}
	return query.Complete(text, cursor, slices.Sorted(maps.Keys(labels)), func(field, prefix string) []string {
		if field == query.FieldQueue.String() {
			return queueNames(ctx, e, v, prefix)
		}
		values := map[string]bool{}
		where := field + ":*"
		if prefix != "" {
			where = Term(field, prefix) + "*"
		}
		for _, j := range newest(where) {
			for _, value := range valuesOf(&j, field) {
				if value != "" && strings.HasPrefix(strings.ToLower(value), strings.ToLower(prefix)) {
					values[value] = true
				}
			}
		}
		return slices.Sorted(maps.Keys(values))
	})
}

// valuesOf returns the values that a job has in a field of a query.
func valuesOf(j *api.Job, field string) []string {
	switch field {
	case query.FieldFunction.String():
		return []string{j.Function}
	case query.FieldKey.String():
		return []string{j.Key, j.LimitKey}
	case query.FieldLimitKey.String():
		return []string{j.LimitKey}
	case query.FieldNode.String():
		return []string{j.Node}
	case query.FieldWorker.String():
		return []string{j.Worker}
	case query.FieldTag.String():
		return j.Tags
	case query.FieldError.String():
		if j.Error == nil {
			return nil
		}
		return []string{j.Error.Type, j.Error.Code}
	}
	kind, name, ok := strings.Cut(field, ".")
	switch {
	case ok && kind == query.FieldMeta.String():
		return []string{j.Meta[name]}
	case ok && kind == query.FieldParams.String():
		return []string{j.Indexed[name]}
	}
	return []string{j.Meta[field], j.Indexed[field]}
}

// queueNames returns the names of queues that begin with prefix, none if they are not known.
func queueNames(ctx context.Context, e *Env, v *View, prefix string) (names []string) {
	list, err := ask[api.QueueList](ctx, e, v, "queue-list", nil)
	if err != nil {
		return nil
	}
	for i := range list.Queues {
		if name := list.Queues[i].Name; strings.HasPrefix(strings.ToLower(name), strings.ToLower(prefix)) {
			names = append(names, name)
		}
	}
	return names
}
