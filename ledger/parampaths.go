package ledger

import (
	"maps"
	"slices"
)

// ParamPaths are the paths in the params of a queue's jobs that are read when a job is accepted, see
// [job.QueueConfig].
type ParamPaths struct {
	Key         string // of the limit key
	KeyOptional bool
	Index       []string // of the values by which the jobs are found
}

// AllParamPaths are the paths of all queues. It is immutable. A nil AllParamPaths is empty.
type AllParamPaths struct {
	byQueue map[string]ParamPaths
	indexed []string
}

// Of returns the paths of a queue, zero if it has none.
func (p *AllParamPaths) Of(queue string) ParamPaths {
	if p == nil {
		return ParamPaths{}
	}
	return p.byQueue[queue]
}

// Indexed returns the paths by whose values the jobs of any queue are found, in order. It is not nil.
func (p *AllParamPaths) Indexed() []string {
	if p == nil {
		return []string{}
	}
	return p.indexed
}

// ParamPaths returns the paths of queues. The result remains valid when the ledger changes.
func (q *queues) ParamPaths() *AllParamPaths { return q.paramPaths }

// setParamPaths sets the paths of a queue, or removes them if there are none.
func (q *queues) setParamPaths(queue string, paths ParamPaths) {
	if old := q.paramPaths.Of(queue); old.Key == paths.Key && old.KeyOptional == paths.KeyOptional && slices.Equal(old.Index, paths.Index) {
		return
	}
	byQueue := make(map[string]ParamPaths)
	if q.paramPaths != nil {
		maps.Copy(byQueue, q.paramPaths.byQueue)
	}
	if byQueue[queue] = paths; paths.Key == "" && len(paths.Index) == 0 {
		delete(byQueue, queue)
	}
	if q.paramPaths = nil; len(byQueue) == 0 {
		return
	}
	q.paramPaths = &AllParamPaths{byQueue: byQueue, indexed: []string{}}
	for _, other := range byQueue {
		q.paramPaths.indexed = append(q.paramPaths.indexed, other.Index...)
	}
	slices.Sort(q.paramPaths.indexed)
	q.paramPaths.indexed = slices.Compact(q.paramPaths.indexed)
}

// params returns the queue's paths.
func (q *queue) params() ParamPaths {
	return ParamPaths{q.config.KeyPath, q.config.KeyPath != "" && q.config.KeyOptional, q.config.Index}
}
