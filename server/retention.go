package server

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// Retention answers requests about retention settings. All fields are required.
type Retention struct {
	Authority *authority.Client
	View      func(func(*ledger.Ledger))                      // reads the local ledger
	Status    func(context.Context) scheduler.AuthorityStatus // asks the authority
}

// Handlers returns the handlers by the name of the endpoint.
func (h *Retention) Handlers() map[string]Handler {
	return map[string]Handler{"retention-show": JSON(h.show), "retention-set": JSON(h.set)}
}

// show returns the settings of the local ledger: those of the queue that the request names,
// or of the yard with a page of the queues that have settings of their own.
func (h *Retention) show(ctx context.Context, q *api.RetentionRequest) (*api.Retention, error) {
	if q.Queue != "" {
		return h.showQueue(ctx, q.Queue)
	}
	limit, err := queuePageLimit(q.Limit)
	if err != nil {
		return nil, err
	}
	r := &api.Retention{}
	h.View(func(l *ledger.Ledger) {
		r.Settings = api.RetentionOf(l.Retention())
		l.QueuesAfter(q.After, func(v ledger.QueueView) bool {
			own := api.OwnRetention(v.Config.Retention)
			if len(own) == 0 {
				return true
			}
			if len(r.Queues) == limit {
				r.Next = r.Queues[limit-1].Queue
				return false
			}
			r.Queues = append(r.Queues, api.QueueRetention{Queue: v.Name, Settings: own})
			return true
		})
		Shows(ctx, l)
	})
	return r, nil
}

// showQueue returns the settings that are in force for a queue.
func (h *Retention) showQueue(ctx context.Context, name string) (*api.Retention, error) {
	view, err := h.Authority.Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	r := &api.Retention{}
	h.View(func(l *ledger.Ledger) {
		r.Settings = api.QueueRetentionOf(l.Retention(), view.Config.Retention)
		Shows(ctx, l)
	})
	return r, nil
}

// appliedTimeout bounds how long a change of settings waits for the streams. Clients wait
// 5 s for a reply by default, and the commit may take [authority.CommandTimeout] of it.
const appliedTimeout = 2 * time.Second

// set changes the settings that the request gives, and waits until the authority has applied
// them to the streams.
func (h *Retention) set(ctx context.Context, q *api.RetentionChange) (*api.Retention, error) {
	changes, err := q.Settings()
	if err == nil {
		err = job.ValidateRetention(changes, false)
	}
	if err != nil {
		return nil, err
	}
	if len(changes) == 0 {
		return nil, &job.InvalidError{Reason: `the request changes nothing; give a setting, such as {"finished": {"age_ms": 86400000}}`}
	}
	result, err := commit(ctx, h.Authority, &ledger.SetRetention{Settings: changes})
	if err != nil {
		return nil, err
	}
	notApplied := h.notApplied(ctx, result.Index)
	r, err := h.show(ctx, &api.RetentionRequest{})
	if err != nil {
		return nil, err
	}
	r.NotApplied = notApplied
	return r, nil
}

// notApplied waits until the authority has applied the settings of the ledger entry index,
// or has failed to, and returns why not all streams have them; "": they have.
func (h *Retention) notApplied(ctx context.Context, index uint64) string {
	ctx, cancel := context.WithTimeout(ctx, appliedTimeout)
	defer cancel()
	for {
		status := h.Status(ctx)
		if status.Error == "" && status.RetentionIndex >= index {
			return status.RetentionProblem
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Sprintf("the streams have not confirmed them within %s; 'yardmaster status' warns if that remains so", duration.Format(appliedTimeout))
		}
	}
}

// queueRetention returns the valid changes of a request about a queue.
func queueRetention(q *api.QueueRetentionChange) ([]job.RetentionSetting, error) {
	changes, err := q.Settings()
	if err == nil {
		err = job.ValidateRetention(changes, true)
	}
	return changes, err
}
