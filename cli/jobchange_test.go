package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/google/go-cmp/cmp"
)

func fakeJobChanges(t *testing.T) *fakeAPI {
	page := func(question []byte) ([]byte, error) {
		var asked api.JobListRequest
		if err := json.Unmarshal(question, &asked); err != nil {
			return nil, err
		}
		list := api.JobList{Jobs: []api.Job{}}
		for n, one := range []api.Job{
			{State: "waiting", Function: "send"}, {State: "waiting", Function: "other"}, {State: "active", Function: "send"}, {State: "active", Function: "send"},
		} {
			one.ID, _ = job.ParseID(fmt.Sprintf("0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a2%d", n+1))
			if slices.Contains(asked.States, one.State) && (asked.Function == "" || asked.Function == one.Function) {
				list.Jobs = append(list.Jobs, one)
			}
		}
		return json.Marshal(list)
	}
	return startFakeAPI(t, cannedReplies{
		"yard.api.v1.job.list": page,
		"yard.api.v1.job.cancel": func(question []byte) ([]byte, error) {
			if strings.Contains(string(question), "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a24") {
				return nil, &api.Error{Code: api.CodeConflict, Text: "job has ended already"}
			}
			if strings.Contains(string(question), "away") {
				return nil, &api.Error{Code: api.CodeUnavailable, Text: "yard is unavailable: no authority"}
			}
			return []byte(`{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a23","state":"active"}`), nil
		},
		"yard.api.v1.job.replay": `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a25","queue":"mail","duplicate":true,"replay_of":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a29"}`,
		"yard.api.v1.job.wait":   `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a25","state":"completed"}`,
	})
}

func TestCancel(t *testing.T) {
	f := fakeJobChanges(t)
	for _, tt := range []struct {
		line string
		want cmdResult
	}{
		{"job cancel a1", cmdResult{out: "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a23  active, stopping\n"}},
		{"job cancel --queue mail --function send", cmdResult{
			out: "JOB                                   STATE   RESULT\n0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a21  active  cancelled\n" +
				"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a23  active  cancelled\n0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a24  active  ended\n",
			err: "yardmaster: 2 cancelled, 1 ended\n",
		}},
		{"job cancel --queue mail --state delayed", cmdResult{out: "no such jobs\n"}},
		{"job cancel --queue mail --state waiting --dry-run", cmdResult{
			out: "JOB                                   STATE    RESULT\n0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a21  waiting  would be cancelled\n" +
				"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a22  waiting  would be cancelled\n",
			err: "yardmaster: 2 would be cancelled\n",
		}},
	} {
		if diff := cmp.Diff(tt.want, f.run(t, strings.Fields(tt.line)...), cmp.AllowUnexported(cmdResult{})); diff != "" {
			t.Errorf("%s: %s", tt.line, diff)
		}
	}
	sameJSON(t, f.run(t, "job", "cancel", "--queue", "mail", "--function", "other", "--json").out,
		`{"jobs":[{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a22","state":"active","result":"cancelled"}]}`)
	if got := f.run(t, "job", "cancel", "away"); got.code != 4 {
		t.Errorf("%+v", got)
	}
	for _, line := range []string{
		"job cancel", "job cancel --queue mail", "job cancel --all", "job cancel --state waiting", "job cancel a1 --all", "job cancel a1 --dry-run",
		"job cancel --queue mail --state failed", "job cancel --queue mail --all --state waiting",
	} {
		if got := f.run(t, strings.Fields(line)...); got.code != 2 {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

func TestJobSet(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.job.set": func(question []byte) ([]byte, error) {
		if strings.Contains(string(question), "running") {
			return nil, &api.Error{Code: api.CodeConflict, Text: "the job is active; only a waiting or delayed job can be changed"}
		}
		return []byte(`{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a21","state":"delayed"}`), nil
	}})
	for line, asked := range map[string]string{
		"job set a1 --now":                        `set {"delay_ms":0,"id":"a1"}`,
		"job set a1 -q mail --in 1d --priority 0": `set {"delay_ms":86400000,"id":"a1","priority":0,"queue":"mail"}`,
		"job set a1 --at 2026-12-24T06:00:00Z":    `set {"id":"a1","run_at":"2026-12-24T06:00:00Z"}`,
		"job set a1 --priority 9 --reason urgent": `set {"id":"a1","priority":9}`,
	} {
		f.requests()
		got := f.run(t, strings.Fields(line)...)
		if asks := f.requests(); got.out != "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a21  delayed\n" || got.code != 0 || len(asks) != 1 || asks[0] != asked {
			t.Errorf("%s: %+v, requests %q", line, got, asks)
		}
	}
	if got := f.run(t, "job", "set", "running", "--now"); got.code != 1 || !strings.Contains(got.err, "the job is active") {
		t.Errorf("%+v", got)
	}
	for _, line := range []string{
		"job set", "job set a1", "job set a1 --now --in 1h", "job set a1 --at 2026-12-24T06:00:00Z --in 1h", "job set a1 --at tomorrow",
		"job set a1 --in -1h", "job set a1 --priority 10", "job set a1 --priority high", "job set --now",
	} {
		if got := f.run(t, strings.Fields(line)...); got.code != 2 {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

func TestReplay(t *testing.T) {
	f := fakeJobChanges(t)
	const (
		existed = "yardmaster: the job already existed\n"
		made    = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a25"
	)
	for _, tt := range []struct {
		line, asked string
		want        cmdResult
	}{
		{"job replay old -q mail --to slow --id k --params {\"a\":1}", `replay {"id":"old","new_id":"k","params":{"a":1},"queue":"mail","to":"slow"}`, cmdResult{out: made + "\n", err: existed}},
		{"job replay old --wait", `replay {"id":"old"}`, cmdResult{out: "job    " + made + "\nstate  completed\n", err: existed + "yardmaster: waiting for job " + made + "\n"}},
	} {
		f.requests()
		got := f.run(t, strings.Fields(tt.line)...)
		got.out = strings.Join(strings.SplitAfter(got.out, "\n")[:strings.Count(tt.want.out, "\n")], "")
		if asked := f.requests(); len(asked) == 0 || asked[0] != tt.asked {
			t.Errorf("%s: requests %q", tt.line, asked)
		}
		if tt.want.out == made+"\n" && got != tt.want || got.err != tt.want.err || got.code != 0 {
			t.Errorf("%s: %+v", tt.line, got)
		}
	}
	for _, line := range []string{
		"job replay", "job replay a b --id k", "job replay a b --wait", "job replay a --for 1s", "job replay a --to no.good",
		"job replay a --params 7", "job replay a --id " + strings.Repeat("k", 129),
	} {
		if got := f.run(t, strings.Fields(line)...); got.code != 2 {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

// A job that one pass misses because others leave the list is found by the next
// pass; a job that appears in two lists is cancelled once.
func TestCancel_JobsChangeState(t *testing.T) {
	var lists, cancels atomic.Int64
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.job.list": func(question []byte) ([]byte, error) {
			switch n := lists.Add(1); {
			case n == 2 && strings.Contains(string(question), `"delayed"`), n == 3 && strings.Contains(string(question), `"active"`):
				return []byte(`{"jobs":[{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a26","state":"active","function":"send"}]}`), nil
			case n == 4:
				return []byte(`{"jobs":[{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a27","state":"waiting","function":"send"}]}`), nil
			}
			return []byte(`{"jobs":[]}`), nil
		},
		"yard.api.v1.job.cancel": func([]byte) ([]byte, error) {
			cancels.Add(1)
			return []byte(`{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a28","state":"failed"}`), nil
		},
	})
	got := f.run(t, "job", "cancel", "--queue", "mail", "--all")
	if want := "yardmaster: 2 cancelled\n"; got.err != want || cancels.Load() != 2 || !strings.Contains(got.out, "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a27") {
		t.Errorf("%d cancellations, %+v", cancels.Load(), got)
	}
}
