package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/intake"
)

// Queues answers requests about queues. All fields but NewQueues are required.
type Queues struct {
	Authority *authority.Client
	View      func(func(*ledger.Ledger)) // reads the local ledger
	Schemas   *Schemas
	NewQueues *intake.NewQueues
}

// Handlers returns the handlers by the name of the endpoint.
func (h *Queues) Handlers() map[string]Handler {
	return map[string]Handler{
		"queue-list": JSON(h.list), "queue-show": JSON(h.show), "queue-add": JSON(h.add),
		"queue-set": JSON(h.set), "queue-pause": JSON(h.pause), "queue-resume": JSON(h.resume), "queue-remove": JSON(h.remove),
		"queue-cancel": JSON(h.cancelJobs), "queue-clear": JSON(h.clear), "queue-set-jobs": JSON(h.setJobs),
	}
}

// list returns a page of the queues of the local ledger.
func (h *Queues) list(ctx context.Context, q *api.QueueListRequest) (*api.QueueList, error) {
	limit, err := queuePageLimit(q.Limit)
	if err != nil {
		return nil, err
	}
	list := &api.QueueList{}
	h.View(func(l *ledger.Ledger) {
		l.QueuesAfter(q.After, func(v ledger.QueueView) bool {
			if len(list.Queues) == limit {
				list.Next = list.Queues[limit-1].Name
				return false
			}
			list.Queues = append(list.Queues, api.QueueOf(&v).Brief())
			return true
		})
		names := make([]string, len(list.Queues))
		for i := range list.Queues {
			names[i] = list.Queues[i].Name
		}
		list.KeptMS = keptMS(l, names)
		Shows(ctx, l)
	})
	return list, nil
}

// maxQueuePage is the size of the largest page of queues: with long names and settings of
// each, half of a NATS message.
const maxQueuePage = 1000

// queuePageLimit returns the limit of a request for a page of queues; limit 0 means the
// largest.
func queuePageLimit(limit int) (int, error) {
	if limit < 0 || limit > maxQueuePage {
		return 0, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", limit, maxQueuePage)}
	}
	return cmp.Or(limit, maxQueuePage), nil
}

func (h *Queues) show(ctx context.Context, q *api.QueueRequest) (*api.Queue, error) {
	shown, err := findQueue(ctx, h.Authority, q.Name)
	if err == nil {
		shown.Schemas, err = h.Schemas.ofQueue(ctx, q.Name)
	}
	return shown, err
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
	config, err := q.Config()
	if err != nil {
		return nil, err
	}
	c := &ledger.AddQueue{ID: job.ID(uuid.New()), Name: q.Name, Config: config}
	own, err := queueRetention(&q.Retention)
	if err != nil {
		return nil, err
	}
	c.Config.Retention = job.Retention(nil).With(own)
	retries, err := retryChanges(q.Retry)
	if err != nil {
		return nil, err
	}
	c.Config = c.Config.Changed(job.QueueChange{Retries: retries})
	if err := job.ValidQueue(q.Name); err != nil {
		return nil, err
	}
	if err := h.NewQueues.Check(cluster.QuotaOf(ctx), q.Name); err != nil {
		return nil, err
	}
	return h.change(ctx, q.Name, c)
}

// set changes the settings of a queue that the request gives.
func (h *Queues) set(ctx context.Context, q *api.QueueChange) (*api.Queue, error) {
	change, err := q.Change()
	if err != nil {
		return nil, err
	}
	c := &ledger.ChangeQueue{Name: q.Name, Change: change}
	own, err := queueRetention(&q.Retention)
	if err != nil {
		return nil, err
	}
	c.Change.Retention = own
	if rules, given := q.Retry.Get(); given && rules == nil {
		c.Change.DropRetries = true
	} else if given {
		if c.Change.Retries, err = retryChanges(*rules); err != nil {
			return nil, err
		}
	}
	if c.Change.IsEmpty() {
		return nil, &job.InvalidError{Reason: "the request changes nothing; give a setting of the queue, such as concurrency_limit"}
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
	if errors.Is(err, ledger.ErrLimitNotFound) { // which is no answer to whether the queue exists
		return nil, &api.Error{Code: api.CodeInvalid, Text: "limits: " + err.Error()}
	}
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
