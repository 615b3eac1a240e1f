package node

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// queueRequest names a queue, or describes a new one.
type queueRequest struct {
	Name           string `json:"name"`
	Limit          *int64 `json:"concurrency_limit"`
	AllowOverrides *bool  `json:"allow_job_overrides"`
}

// queueJSON is a queue in the API.
type queueJSON struct {
	ID             job.ID         `json:"id"`
	Name           string         `json:"name"`
	State          string         `json:"state"` // running or paused
	Limit          *uint32        `json:"concurrency_limit"`
	AllowOverrides bool           `json:"allow_job_overrides"`
	Counts         map[string]int `json:"counts"`
}

func queueToJSON(v *ledger.QueueView) queueJSON {
	q := queueJSON{ID: v.ID, Name: v.Name, State: "running", AllowOverrides: v.Config.AllowOverrides, Counts: map[string]int{}}
	if v.Paused {
		q.State = "paused"
	}
	if v.Config.Limit > 0 {
		q.Limit = &v.Config.Limit
	}
	for s := job.Waiting; s <= job.Failed; s++ {
		q.Counts[s.String()] = v.Counts[s]
	}
	return q
}

func (n *Node) handleQueueList(_ context.Context, r *cluster.Request) (any, error) {
	var views []ledger.QueueView
	n.raft.View(func(l *ledger.Ledger) {
		views = l.Queues()
		r.SetIndex(l.Index())
	})
	queues := make([]queueJSON, len(views))
	for i := range views {
		queues[i] = queueToJSON(&views[i])
	}
	return queueList{queues}, nil
}

// queueList is the list of all queues.
type queueList struct {
	Queues []queueJSON `json:"queues"`
}

// removedReply reports that a queue or a cron entry was removed.
type removedReply struct {
	Name    string `json:"name"`
	Removed bool   `json:"removed"`
}

func (n *Node) handleQueueShow(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[queueRequest](r)
	if err != nil {
		return nil, err
	}
	return n.findQueue(ctx, q.Name)
}

// findQueue returns a queue. It returns ErrQueueNotFound only after a read barrier.
func (n *Node) findQueue(ctx context.Context, name string) (any, error) {
	view, ok, err := n.proposer.queue(ctx, name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("queue %q: %w", name, job.ErrQueueNotFound)
	}
	return queueToJSON(&view), nil
}

func (n *Node) handleQueueAdd(ctx context.Context, r *cluster.Request) (any, error) {
	return n.changeQueue(ctx, r, func(q *queueRequest) (ledger.Command, error) {
		c := &ledger.AddQueue{ID: job.ID(uuid.New()), Name: q.Name, Config: job.DefaultQueueConfig}
		if q.Limit != nil {
			if *q.Limit < 1 || *q.Limit > job.MaxLimit {
				return nil, &job.InvalidError{Reason: fmt.Sprintf("concurrency_limit is %d; must be 1 to %d, or not given", *q.Limit, int64(job.MaxLimit))}
			}
			c.Config.Limit = uint32(*q.Limit)
		}
		if q.AllowOverrides != nil {
			c.Config.AllowOverrides = *q.AllowOverrides
		}
		return c, job.ValidQueue(q.Name)
	})
}

func (n *Node) handleQueuePause(ctx context.Context, r *cluster.Request) (any, error) {
	return n.changeQueue(ctx, r, func(q *queueRequest) (ledger.Command, error) {
		return &ledger.PauseQueue{Name: q.Name, Paused: true}, nil
	})
}

func (n *Node) handleQueueResume(ctx context.Context, r *cluster.Request) (any, error) {
	return n.changeQueue(ctx, r, func(q *queueRequest) (ledger.Command, error) {
		return &ledger.PauseQueue{Name: q.Name}, nil
	})
}

// changeQueue commits a command and returns the queue as the command left it. The current
// state would not do: another client may have removed the queue since.
func (n *Node) changeQueue(ctx context.Context, r *cluster.Request, command func(*queueRequest) (ledger.Command, error)) (any, error) {
	q, err := decodeRequest[queueRequest](r)
	if err != nil {
		return nil, err
	}
	c, err := command(&q)
	if err != nil {
		return nil, err
	}
	d, err := n.propose(ctx, r, c)
	if err != nil {
		return nil, err
	}
	if d.Queue == nil { // the authority runs a build that does not return it
		return n.findQueue(ctx, q.Name)
	}
	return *d.Queue, nil
}

func (n *Node) handleQueueRemove(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[queueRequest](r)
	if err != nil {
		return nil, err
	}
	if _, err := n.propose(ctx, r, &ledger.RemoveQueue{Name: q.Name}); err != nil {
		return nil, err
	}
	return removedReply{q.Name, true}, nil
}
