package pages

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

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

// shownTicks is the number of next ticks on the page of an entry.
const shownTicks = 20

// cronEntryData is the data of the page of a cron entry.
type cronEntryData struct {
	api.CronDetail
	Function, Params, Options string // of its job, as the form has them
	SkipOverlap, RunMissed    bool
}

// CronEntry loads the page.
func CronEntry(ctx context.Context, e *Env, v *View) (any, error) {
	detail, err := ask[api.CronDetail](ctx, e, v, "cron-show", &api.CronShowRequest{Name: v.Name, Next: shownTicks})
	d := &cronEntryData{CronDetail: detail, SkipOverlap: detail.Overlap == api.CronSkip, RunMissed: detail.Missed == api.CronOnce}
	d.Function, d.Params, d.Options = format.JobParts(detail.Job)
	return d, err
}
