package pages

import (
	"context"
	"slices"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
)

// eventsData is the data of the page of events.
type eventsData struct {
	Lines   []history.Line // newest first
	Types   []string
	Skipped bool
	Problem error
}

// Events loads the page.
func Events(ctx context.Context, e *Env, v *View) (any, error) {
	if !v.User.MayUse("job-explain", "") { // shows the same events
		return nil, calls.Forbidden(v.User, "job-explain")
	}
	f := &history.Filter{Type: v.Query.Get("type"), Queue: v.Query.Get("queue"), Job: v.Query.Get("job"), Idle: v.Query.Get("idle") != ""}
	if f.Type != "" && !slices.Contains(history.TypeNames, history.TypeName(f.Type)) {
		return nil, &api.Error{Code: api.CodeInvalid, Text: "there is no event of the type " + f.Type}
	}
	d := &eventsData{Types: history.TypeNames}
	d.Lines, d.Skipped, d.Problem = e.Tail.Recent(ctx, f, 200)
	return d, nil
}

// settingsData is the data of the page of settings.
type settingsData struct {
	Node      []Setting
	Retention api.Retention
	Schemas   api.SchemaList
	Streams   []api.StreamStatus
	Lanes     []api.LaneStatus
}

// Settings loads the page.
func Settings(ctx context.Context, e *Env, v *View) (any, error) {
	d := &settingsData{Node: e.Settings}
	var err error
	if d.Retention, err = ask[api.Retention](ctx, e, v, "retention-show", nil); err != nil {
		return nil, err
	}
	if d.Schemas, err = ask[api.SchemaList](ctx, e, v, "schema-list", nil); err != nil {
		return nil, err
	}
	status, err := e.Status(ctx)
	d.Streams, d.Lanes = status.Streams, status.Lanes
	return d, err
}
