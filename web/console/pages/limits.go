package pages

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Limits loads the page.
func Limits(ctx context.Context, e *Env, v *View) (any, error) {
	return ask[api.LimitList](ctx, e, v, "limit-list", &api.LimitListRequest{After: v.Query.Get("after")})
}

// Limit loads the page.
func Limit(ctx context.Context, e *Env, v *View) (any, error) {
	return ask[api.LimitDetail](ctx, e, v, "limit-show", &api.LimitRequest{Name: v.Name})
}
