package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestOperations checks what verbs with --query ask for, and what is shown of previews and
// operations.
func TestOperations(t *testing.T) {
	at := time.Date(2026, 11, 27, 1, 2, 3, 0, time.UTC)
	op := api.Operation{
		ID: 7, Action: "requeue", Query: "error:timeout created:>=2026-11-27T00:00:00Z", State: "running", Until: at, Rate: 100, Params: json.RawMessage(`{"timeout":30}`), Expected: 12,
		Matched: 4, Changed: 1, Skipped: 2, SkippedBy: map[string]uint64{"it was removed": 1, "its dead letter is gone": 1}, Failed: 1, WaitingFor: "the index of jobs", Actor: "ann", Door: "cli", Reason: "a\x1b[2Jb", Started: at,
		Failures: []api.OperationFailure{{Job: job.ID{15: 1}, Error: "params/n: must be at most 7"}},
	}
	preview := api.OperationPreview{
		Action: "requeue", Query: op.Query, Matched: 3, AtLeast: true, Applicable: 2, States: map[string]int{"failed": 2, "active": 1}, Skipped: map[string]int{"it has not failed": 1},
		Sample: []api.OperationSample{
			{ID: job.ID{15: 1}, Queue: "mail", State: "failed", Created: at, Params: json.RawMessage(`{"timeout":30}`)},
			{ID: job.ID{15: 2}, Queue: "mail", State: "failed", Created: at, Refused: "it is too large"},
			{ID: job.ID{15: 3}, Queue: "mail", State: "active", Created: at, Skipped: "it has not failed"},
		},
	}
	asked := map[string]api.OperationStart{}
	shown := 0
	reply := func(verb string, value func() any) func([]byte) ([]byte, error) {
		return func(body []byte) ([]byte, error) {
			var request api.OperationStart
			if err := json.Unmarshal(body, &request); err != nil {
				return nil, err
			}
			asked[verb] = request
			return json.Marshal(value())
		}
	}
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.operation.preview": reply("preview", func() any { return preview }),
		"yard.api.v1.operation.start":   reply("start", func() any { return op }),
		"yard.api.v1.operation.list":    func([]byte) ([]byte, error) { return json.Marshal(api.OperationList{Operations: []api.Operation{op}}) },
		"yard.api.v1.operation.show": func([]byte) ([]byte, error) {
			if shown++; shown > 1 {
				op.State, op.Ended = "done", &at
			}
			return json.Marshal(op)
		},
	})
	got := f.run(t, "dlq", "requeue", "--query", "error:timeout", "--params", `{"timeout":30}`, "--to", "slow", "--dry-run")
	golden(t, "operation-preview.txt", got.out)
	if q := asked["preview"]; q.Action != "requeue" || q.Query != "error:timeout" || string(q.Params) != `{"timeout":30}` || q.To != "slow" {
		t.Errorf("asked for %+v", q)
	}
	golden(t, "operation-list.txt", f.run(t, "operation", "list").out)
	got = f.run(t, "job", "retry", "--query", "state:failed", "--rate", "5", "--yes", "--wait")
	golden(t, "operation-show.txt", got.out)
	if want := "yardmaster: operation 7 running: 1 changed, 2 skipped, 1 failed of 12; about 0s left; waiting for the index of jobs\n"; got.err != want || got.code != 1 {
		t.Errorf("exit code %d, notes %q, want %q", got.code, got.err, want)
	}
	if q := asked["start"]; q.Action != "retry" || q.Rate != 5 || q.Key == "" || q.Params != nil {
		t.Errorf("asked for %+v", q)
	}
	for line, want := range map[string]string{
		"job retry":                          "no jobs are named",
		"job rm --rate 5 a":                  "--rate is for --query",
		"job rm --dry-run a":                 "--dry-run is for --query",
		"job cancel --query queue:a b":       "--query excludes names",
		"job cancel --query queue:a --all":   "--query excludes --all",
		"dlq requeue --query a --queue mail": "--query excludes --queue",
		"dlq requeue --all --params {}":      "--params is for --query",
		"job retry --query a":                "there is no terminal on which to ask",
		"operation show x":                   "is not the number of an operation",
		"operation set 7":                    "--rate is missing",
	} {
		if got := f.run(t, strings.Fields(line)...); got.code != usererror.CodeUsage || !strings.Contains(got.err, want) {
			t.Errorf("%s: exit code %d, %q, want %q", line, got.code, got.err, want)
		}
	}
}
