package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// Limits answers requests about named limits. All fields are required.
type Limits struct {
	Authority      *authority.Client
	View           func(func(*ledger.Ledger)) // reads the local ledger
	DefaultTimeout time.Duration              // of jobs that set none
}

// Handlers returns the handlers by the name of the endpoint.
func (h *Limits) Handlers() map[string]Handler {
	return map[string]Handler{
		"limit-list": JSON(h.list), "limit-show": JSON(h.show), "limit-set": JSON(h.set),
		"limit-remove": JSON(h.remove), "limit-pause": JSON(h.pause), "limit-resume": JSON(h.resume),
	}
}

// maxLimitPage is the size of the largest page of limits: with the longest names of errors in each,
// half of a NATS message.
const maxLimitPage = 200

// list returns a page of the limits of the local ledger.
func (h *Limits) list(ctx context.Context, q *api.LimitListRequest) (*api.LimitList, error) {
	if q.Limit < 0 || q.Limit > maxLimitPage {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", q.Limit, maxLimitPage)}
	}
	size, now := cmp.Or(q.Limit, maxLimitPage), time.Now()
	var views []ledger.LimitView
	h.View(func(l *ledger.Ledger) {
		views = l.Limits(now)
		Shows(ctx, l)
	})
	list := &api.LimitList{}
	for i := range views {
		switch {
		case views[i].Name <= q.After:
			continue
		case len(list.Limits) == size:
			list.Next = list.Limits[size-1].Name
			return list, nil
		}
		list.Limits = append(list.Limits, api.LimitOf(&views[i], now))
	}
	return list, nil
}

// show returns a limit. That it does not exist is confirmed by a read barrier.
func (h *Limits) show(ctx context.Context, q *api.LimitRequest) (*api.LimitDetail, error) {
	var usage ledger.LimitUsage
	found, now := false, time.Now()
	_, err := h.Authority.Find(ctx, func(l *ledger.Ledger) bool {
		usage, found = l.LimitUsage(q.Name, now)
		Shows(ctx, l)
		return found
	})
	if err == nil && !found {
		err = ledger.ErrLimitNotFound
	}
	if err != nil {
		return nil, limitError(q.Name, err)
	}
	return new(api.LimitDetailOf(&usage, now, h.DefaultTimeout)), nil
}

// set creates a limit, or changes the settings of it that the request gives.
func (h *Limits) set(ctx context.Context, q *api.LimitChange) (*api.LimitDetail, error) {
	change, err := q.Change()
	if err != nil {
		return nil, err
	}
	settings := job.NewLimit(q.Name)
	h.View(func(l *ledger.Ledger) {
		if existing, ok := l.Limit(q.Name); ok {
			settings = existing
		}
	})
	settings = settings.Changed(change)
	if err := settings.Validate(); err != nil { // the ledger decides, and shall refuse only what another client changes meanwhile
		return nil, err
	}
	return h.commit(ctx, q.Name, &ledger.SetLimit{Name: q.Name, Change: change})
}

func (h *Limits) pause(ctx context.Context, q *api.LimitRequest) (*api.LimitDetail, error) {
	return h.commit(ctx, q.Name, &ledger.PauseLimit{Name: q.Name, Paused: true})
}

func (h *Limits) resume(ctx context.Context, q *api.LimitRequest) (*api.LimitDetail, error) {
	return h.commit(ctx, q.Name, &ledger.PauseLimit{Name: q.Name})
}

// commit commits a command and returns the limit.
func (h *Limits) commit(ctx context.Context, name string, c ledger.Command) (*api.LimitDetail, error) {
	if _, err := commit(ctx, h.Authority, c); err != nil {
		return nil, limitError(name, err)
	}
	return h.show(ctx, &api.LimitRequest{Name: name})
}

func (h *Limits) remove(ctx context.Context, q *api.LimitRequest) (*api.Removed, error) {
	_, err := commit(ctx, h.Authority, &ledger.RemoveLimit{Name: q.Name, Force: q.Force})
	if errors.Is(err, ledger.ErrLimitInUse) {
		return nil, h.inUse(q.Name, err)
	}
	if err != nil {
		return nil, limitError(q.Name, err)
	}
	return &api.Removed{Name: q.Name, Removed: true}, nil
}

// inUse returns the error for a limit that is in use, with the names of the queues that name it.
func (h *Limits) inUse(name string, err error) error {
	details := struct {
		Reason string   `json:"reason"`
		Queues []string `json:"queues"`
	}{Reason: "limit_in_use", Queues: []string{}}
	h.View(func(l *ledger.Ledger) { details.Queues = append(details.Queues, l.QueuesWithLimit(name)...) })
	data, _ := json.Marshal(details) // cannot fail
	return &api.Error{Code: api.CodeConflict, Data: data, Text: fmt.Sprintf("limit %q: %v", name, err)}
}

// limitError adds the name of the limit, and the code, to an error of the ledger.
func limitError(name string, err error) error {
	code := api.CodeConflict
	switch {
	case errors.Is(err, ledger.ErrLimitNotFound), errors.Is(err, ledger.ErrNewLimitEmpty):
		code = api.CodeNotFound
	case errors.Is(err, ledger.ErrLimitPaused), errors.Is(err, ledger.ErrLimitNotPaused), errors.Is(err, ledger.ErrTooManyLimits):
	default:
		return err
	}
	return &api.Error{Code: code, Text: fmt.Sprintf("limit %q: %v", name, err)}
}
