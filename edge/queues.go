package edge

import (
	"context"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// queries answers the requests of one connection that read or change the queues
// and jobs of the cluster.
type queries struct {
	cluster Session
	cfg     *Config
	ds      *deliveries // its running dispatches are shown with their jobs
}

func (q queries) handleQueue(ctx context.Context, name string) (overhop.Raw, error) {
	queue, found, err := q.cluster.Queue(ctx, name)
	if err != nil || !found {
		return nil, err
	}
	return queueFields(queue).Raw(), nil
}

func (q queries) handleLsQueue(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	if err := overhop.ParseEmpty(p); err != nil {
		return nil, err
	}
	queues, err := q.cluster.Queues(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(queues, func(a, b job.Queue) int { return strings.Compare(a.Name, b.Name) })
	list := make([]any, len(queues))
	for i, q := range queues {
		list[i] = queueFields(q)
	}
	return overhop.Fields{"queues": list}.Raw(), nil
}

func queueFields(q job.Queue) overhop.Fields {
	state := "running"
	if q.Paused {
		state = "paused"
	}
	var limit any
	if q.Config.Limit > 0 {
		limit = q.Config.Limit
	}
	return overhop.Fields{
		"id": q.ID.String(), "name": q.Name, "state": state,
		"config": overhop.Fields{"concurrency_limit": limit, "allow_job_overrides": q.Config.AllowOverrides},
	}
}

func (q queries) handleAddQueue(ctx context.Context, m overhop.AddQueue) (overhop.Raw, error) {
	if err := job.ValidQueue(m.Name); err != nil {
		return nil, &codeError{overhop.CodeInvalidQueueName, err.Error(), nil}
	}
	id, err := q.cluster.AddQueue(ctx, m.Name, job.QueueConfig{Limit: m.Limit, AllowOverrides: m.AllowOverrides})
	if err != nil {
		return nil, err
	}
	return textField("qid", id.String()), nil
}

func (q queries) checkUserQueue(ctx context.Context, name string) error {
	_, found, err := q.cluster.Queue(ctx, name)
	switch {
	case err != nil:
		return err
	case !found:
		return job.ErrQueueNotFound
	case strings.HasPrefix(name, "_"):
		return job.ErrSystemQueue
	}
	return nil
}

func (q queries) handleRmQueue(ctx context.Context, queue string) (overhop.Raw, error) {
	return nil, q.cluster.RemoveQueue(ctx, queue)
}

func (q queries) handlePause(ctx context.Context, queue string) (overhop.Raw, error) {
	return nil, q.cluster.PauseQueue(ctx, queue, true)
}

func (q queries) handleResume(ctx context.Context, queue string) (overhop.Raw, error) {
	return nil, q.cluster.PauseQueue(ctx, queue, false)
}

func (q queries) handleQStats(ctx context.Context, queue string) (overhop.Raw, error) {
	counts, err := q.cluster.Stats(ctx, queue)
	if err != nil {
		return nil, err
	}
	stats := overhop.Fields{}
	for state, n := range counts {
		stats[job.State(state).String()] = int64(n)
	}
	return overhop.Fields{"q": queue, "stats": stats}.Raw(), nil
}
