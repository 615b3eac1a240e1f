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

// cronData is the data of the page of cron entries.
type cronData struct {
	api.CronPage
	Last string // name of the last entry of the page
}

// Cron loads the page.
func Cron(ctx context.Context, e *Env, v *View) (any, error) {
	page, err := ask[api.CronPage](ctx, e, v, "cron-list", &api.CronListRequest{After: v.Query.Get("after"), Limit: 100})
	d := &cronData{CronPage: page}
	if n := len(page.Entries); n > 0 {
		d.Last = page.Entries[n-1].Name
	}
	return d, err
}
