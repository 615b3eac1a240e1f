package acts

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// changeJobs returns an act on each job of the form, at most maxSelected.
func changeJobs(endpoint, done string) func(context.Context, *Act) (string, error) {
	const maxSelected = 500
	return func(ctx context.Context, a *Act) (string, error) {
		ids := a.Form["id"]
		if len(ids) == 0 {
			return "", invalid("no job is selected")
		}
		if len(ids) > maxSelected {
			return "", invalid("%d jobs are selected; select at most %d", len(ids), maxSelected)
		}
		changed, failed := 0, 0
		var first error
		for _, id := range ids {
			request := map[string]any{"id": id}
			if endpoint == "job-cancel" && a.value("reason") != "" {
				request["reason"] = a.value("reason")
			}
			_, err := do[json.RawMessage](ctx, a, endpoint, "", request)
			if err == nil {
				changed++
				continue
			}
			failed++
			first = cmp.Or(first, err)
		}
		switch {
		case failed == 0 && changed == 1:
			return "The job was " + done + ".", nil
		case failed == 0:
			return fmt.Sprintf("%d jobs %s.", changed, done), nil
		case changed == 0 && failed == 1:
			return "", first
		}
		return "", &api.Error{Code: calls.Problem(first).Code, Text: fmt.Sprintf("%d %s %s, %d not; the first of those: %s", changed, format.Plural(changed, "job", "jobs"), done, failed, calls.Problem(first).Text)}
	}
}

// replayJob enqueues a copy of a job, with other params if the form has some.
func replayJob(ctx context.Context, a *Act) (string, error) {
	request := map[string]any{"id": a.Form.Get("id")}
	if to := a.value("to"); to != "" {
		request["to"] = to
	}
	if a.edited("params") {
		params, err := object(a.value("params"))
		if err != nil {
			return "", &FieldError{"params", err}
		}
		request["params"] = params
	}
	r, err := do[api.ReplayReply](ctx, a, "job-replay", "", request)
	if err == nil {
		a.Form.Set("then", web.ConsolePath+"jobs/"+r.ID.String())
	}
	return "A copy of the job was enqueued: this is it.", err
}

// startJob makes a job start now that waits for its time.
func startJob(ctx context.Context, a *Act) (string, error) {
	_, err := do[json.RawMessage](ctx, a, "job-set", "", map[string]any{"id": a.Form.Get("id"), "delay_ms": 0})
	return "The job starts as soon as it can.", err
}
