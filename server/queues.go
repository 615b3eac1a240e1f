package server

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// Queues answers requests about queues. All fields are required.
type Queues struct {
	Authority *authority.Client
	View      func(func(*ledger.Ledger)) // reads the local ledger
}

// Handlers returns the handlers by the name of the endpoint.
func (h *Queues) Handlers() map[string]Handler {
	return map[string]Handler{
		"queue-list": JSONReply(h.list), "queue-show": JSON(h.show), "queue-add": JSON(h.add),
		"queue-pause": JSON(h.pause), "queue-resume": JSON(h.resume), "queue-remove": JSON(h.remove),
		"queue-cancel": JSON(h.cancelJobs), "queue-clear": JSON(h.clear),
	}
}

// list returns all queues of the local ledger.
func (h *Queues) list(ctx context.Context) (*api.QueueList, error) {
	var views []ledger.QueueView
	h.View(func(l *ledger.Ledger) {
		views = l.Queues()
		SetIndex(ctx, l.Index())
	})
	list := &api.QueueList{Queues: make([]api.Queue, len(views))}
	for i := range views {
		list.Queues[i] = api.QueueOf(&views[i])
	}
	return list, nil
}

func (h *Queues) show(ctx context.Context, q *api.QueueRequest) (*api.Queue, error) {
	return findQueue(ctx, h.Authority, q.Name)
}

// findQueue returns a queue as the API shows it. The error wraps job.ErrQueueNotFound if
// there is certainly none of this name; see [authority.Client.Queue].
func findQueue(ctx context.Context, c *authority.Client, name string) (*api.Queue, error) {
	view, err := c.Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	return new(api.QueueOf(&view)), nil
}

// add adds a queue with the settings of the request, and defaults for those that are not
// given.
func (h *Queues) add(ctx context.Context, q *api.QueueRequest) (*api.Queue, error) {
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
	if err := job.ValidQueue(q.Name); err != nil {
		return nil, err
	}
	return h.change(ctx, q.Name, c)
}

func (h *Queues) pause(ctx context.Context, q *api.QueueRequest) (*api.Queue, error) {
	return h.change(ctx, q.Name, &ledger.PauseQueue{Name: q.Name, Paused: true})
}

func (h *Queues) resume(ctx context.Context, q *api.QueueRequest) (*api.Queue, error) {
	return h.change(ctx, q.Name, &ledger.PauseQueue{Name: q.Name})
}

// change commits a command and returns the queue as the command left it. The current
// state would not do: another client may have removed the queue since.
func (h *Queues) change(ctx context.Context, name string, c ledger.Command) (*api.Queue, error) {
	result, err := commit(ctx, h.Authority, c)
	if err != nil {
		return nil, err
	}
	if result.Queue == nil { // the authority runs a build that does not return it
		return findQueue(ctx, h.Authority, name)
	}
	return result.Queue, nil
}

func (h *Queues) remove(ctx context.Context, q *api.QueueRequest) (*api.Removed, error) {
	if _, err := commit(ctx, h.Authority, &ledger.RemoveQueue{Name: q.Name}); err != nil {
		return nil, err
	}
	return &api.Removed{Name: q.Name, Removed: true}, nil
}

// commit commits a command and sets the index of the reply to that of its entry.
func commit(ctx context.Context, a *authority.Client, c ledger.Command) (authority.Result, error) {
	result, err := a.Propose(ctx, c)
	if err == nil {
		SetIndex(ctx, result.Index)
	}
	return result, err
}
