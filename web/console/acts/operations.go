package acts

import (
	"context"
	"fmt"
	"strconv"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web"
)

// rate returns the number of jobs a second in the form, 0 if it has none.
func (a *Act) rate() (uint32, error) {
	text := a.value("rate")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		return 0, invalid("rate is %q; must be a number of jobs a second, or empty", text)
	}
	return uint32(n), nil
}

// startOperation starts an action on all jobs that match a query, and leads to its page.
func startOperation(ctx context.Context, a *Act) (string, error) {
	rate, err := a.rate()
	if err != nil {
		return "", err
	}
	start := &api.OperationStart{
		Action: a.value("action"), Query: a.value("query"), Rate: rate, To: a.value("to"), KeepAttempts: a.value("keep_attempts") != "", Key: a.value("key"),
	}
	if params := a.value("params"); params != "" {
		if start.Params, err = object(params); err != nil {
			return "", err
		}
	}
	op, err := do[api.Operation](ctx, a, "operation-start", "", start)
	if err == nil {
		a.Form.Set("then", fmt.Sprintf("%soperations/%d", web.ConsolePath, op.ID))
	}
	return fmt.Sprintf("Operation %d started.", op.ID), err
}

// changeOperation returns an act on the operation that the form names.
func changeOperation(endpoint, done string) func(context.Context, *Act) (string, error) {
	return func(ctx context.Context, a *Act) (string, error) {
		id, err := strconv.ParseUint(a.value("id"), 10, 64)
		if err != nil {
			return "", invalid("operations have numbers")
		}
		var request any = &api.OperationRequest{ID: id}
		if endpoint == "operation-set" {
			rate, err := a.rate()
			if err != nil {
				return "", err
			}
			request = &api.OperationChange{ID: id, Rate: rate}
		}
		_, err = do[api.Operation](ctx, a, endpoint, "", request)
		return fmt.Sprintf("Operation %d %s.", id, done), err
	}
}
