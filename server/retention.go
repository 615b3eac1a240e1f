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
	return map[string]Handler{"retention-show": JSONReply(h.show), "retention-set": JSON(h.set)}
}

// show returns the settings of the local ledger.
func (h *Retention) show(ctx context.Context) (*api.Retention, error) {
	var settings ledger.RetentionSettings
	var queues []ledger.QueueView
	h.View(func(l *ledger.Ledger) {
		settings, queues = l.Retention(), l.Queues()
		SetIndex(ctx, l.Index())
	})
	return api.RetentionOf(settings, queues), nil
}

// set changes the settings that the request gives.
func (h *Retention) set(ctx context.Context, q *api.RetentionChange) (*api.Retention, error) {
	changes, err := retentionChanges(q, false)
	if err != nil {
		return nil, err
	}
	if len(changes) == 0 {
		return nil, &job.InvalidError{Reason: `the request changes nothing; give a setting, such as {"finished": {"age_ms": 86400000}}`}
	}
	if _, err := commit(ctx, h.Authority, &ledger.SetRetention{Settings: changes}); err != nil {
		return nil, err
	}
	return h.show(ctx)
}

// retentionChanges returns the valid changes of a request about the yard or a queue.
func retentionChanges(q *api.RetentionChange, ofQueue bool) ([]job.RetentionSetting, error) {
	changes, err := q.Settings()
	if err == nil {
		err = job.ValidateRetention(changes, ofQueue)
	}
	return changes, err
}
