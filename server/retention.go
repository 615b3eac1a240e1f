package server

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// Retention answers requests about retention settings. All fields are required.
type Retention struct {
	Authority *authority.Client
	View      func(func(*ledger.Ledger)) // reads the local ledger
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
		SetIndex(ctx, l.Index())
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
		SetIndex(ctx, l.Index())
	})
	return r, nil
}

// set changes the settings that the request gives.
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
	if _, err := commit(ctx, h.Authority, &ledger.SetRetention{Settings: changes}); err != nil {
		return nil, err
	}
	return h.show(ctx, &api.RetentionRequest{})
}

// queueRetention returns the valid changes of a request about a queue.
func queueRetention(q *api.QueueRetentionChange) ([]job.RetentionSetting, error) {
	changes, err := q.Settings()
	if err == nil {
		err = job.ValidateRetention(changes, true)
	}
	return changes, err
}
