package edge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// queries answers the requests of one connection that read or change the queues
// and jobs of the cluster.
type queries struct {
	cluster Session
	server  *Server
	json    bool // the client takes values of users as JSON
}

func (q queries) handleQueue(ctx context.Context, name string) (overhop.Raw, error) {
	queue, found, err := q.cluster.Queue(ctx, name)
	if err != nil || !found {
		return nil, err
	}
	return queueFields(queue).Raw(), nil
}

// listOverhead is an upper bound for the bytes of an LSQUEUE answer outside its list.
const listOverhead = 512

// handleLsQueue answers with all queues, sorted by name. The contract has no pages: if the
// list does not fit into a frame, the error names other ways to list the queues.
func (q queries) handleLsQueue(ctx context.Context, payload overhop.Raw) (overhop.Raw, error) {
	if err := overhop.ParseEmpty(payload); err != nil {
		return nil, err
	}
	queues, err := q.cluster.Queues(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(queues, func(a, b job.Queue) int { return cmp.Compare(a.Name, b.Name) })
	list := make([]any, len(queues))
	for i, queue := range queues {
		list[i] = queueFields(queue)
	}
	answer := overhop.Fields{"queues": list}.Raw()
	if limit := q.server.cfg.Wire.MaxEnvelope; len(answer) > limit-listOverhead {
		return nil, tooLarge(overhop.CodeResponseTooLarge, fmt.Sprintf("the list of %d queues does not fit into a frame: list them with "+
			"`yardmaster queue list` or GET /v1/queues, ask for one with QUEUE, or raise wire.max_envelope_size_bytes", len(list)), limit)
	}
	return answer, nil
}

// queueFields returns a queue as shown by QUEUE and LSQUEUE.
func queueFields(queue job.Queue) overhop.Fields {
	state := "running"
	if queue.Paused {
		state = "paused"
	}
	return overhop.Fields{
		"id": queue.ID.String(), "name": queue.Name, "state": state,
		"config": overhop.Fields{
			"concurrency_limit": orNil(queue.Config.Limit), "allow_job_overrides": queue.Config.AllowOverrides,
		},
	}
}

// handleAddQueue creates a queue and answers with its id.
func (q queries) handleAddQueue(ctx context.Context, queue overhop.AddQueue) (overhop.Raw, error) {
	if err := job.ValidQueue(queue.Name); err != nil {
		return nil, &codeError{overhop.CodeInvalidQueueName, err.Error(), nil}
	}
	id, err := q.cluster.AddQueue(ctx, queue.Name, job.QueueConfig{Limit: queue.Limit, AllowOverrides: queue.AllowOverrides})
	if err != nil {
		return nil, err
	}
	return textField("qid", id.String()), nil
}

// handleSetQueue changes settings of a queue.
func (q queries) handleSetQueue(ctx context.Context, s overhop.SetQueue) (overhop.Raw, error) {
	if err := q.checkUserQueue(ctx, s.Queue); err != nil {
		return nil, err
	}
	return nil, q.cluster.ChangeQueue(ctx, s.Queue, job.QueueChange{Limit: s.Limit, AllowOverrides: s.AllowOverrides, RetryOnTimeout: s.RetryOnTimeout})
}

// requireQueue returns job.ErrQueueNotFound if the queue does not exist.
func (q queries) requireQueue(ctx context.Context, name string) error {
	_, found, err := q.cluster.Queue(ctx, name)
	if err == nil && !found {
		err = job.ErrQueueNotFound
	}
	return err
}

// checkUserQueue returns an error if users may not change a queue:
// job.ErrQueueNotFound if it does not exist, then job.ErrSystemQueue.
func (q queries) checkUserQueue(ctx context.Context, name string) error {
	if err := q.requireQueue(ctx, name); err != nil {
		return err
	}
	if strings.HasPrefix(name, "_") {
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

// handleQStats answers with the number of a queue's jobs in each state.
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
