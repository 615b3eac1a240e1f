package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestJobList checks that a list is requested page by page up to its limit, and what it
// shows of jobs whose params are not all there.
func TestJobList(t *testing.T) {
	shown := []api.Job{
		{Key: "order-7", Params: json.RawMessage(`{ "to" : "ann" }`)},
		{Key: "a\tb\nc\x1b[2J", ParamsStart: `{"text":"` + strings.Repeat("ü", 200), PayloadBytes: 70000},
		{PayloadBytes: 1 << 20},
		{PayloadGone: true},
		{PayloadUnread: "no answer within 3s"},
		{Payload: []byte{0xc0}},
	}
	for i := range shown {
		shown[i].ID, shown[i].Queue, shown[i].State = job.ID{15: byte(i)}, "mail", "waiting"
	}
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.job.list": func(body []byte) ([]byte, error) {
		var asked api.JobListRequest
		if err := json.Unmarshal(body, &asked); err != nil {
			return nil, err
		}
		next := 0
		if asked.After != "" {
			if _, err := fmt.Sscan(asked.After, &next); err != nil {
				return nil, err
			}
		}
		page := api.JobList{Totals: map[string]int{"waiting": 6, "failed": 2, "active": 0}}
		page.Jobs = shown[next:min(next+asked.Limit, next+2, len(shown))] // fewer than the limit
		if next += len(page.Jobs); next < len(shown) {
			page.Next = fmt.Sprint(next)
		}
		if asked.Function == "rare" && asked.After == "" {
			page.Lacking = "the index of jobs on node n1, which is being rebuilt"
		}
		return json.Marshal(page)
	}})

	got := f.run(t, "job", "list")
	golden(t, "job-list-params.txt", got.out)
	if want := "yardmaster: in all: 6 waiting, 2 failed\n"; got.err != want {
		t.Errorf("notes %q, want %q", got.err, want)
	}
	got = f.run(t, "job", "list", "--limit", "3")
	if want := "yardmaster: in all: 6 waiting, 2 failed\nyardmaster: there are more: --after 3 continues\n"; got.err != want || strings.Count(got.out, "\n") != 4 {
		t.Errorf("limit 3: notes %q, want %q; %s", got.err, want, got.out)
	}
	got = f.run(t, "job", "list", "--function", "rare")
	if want := "yardmaster: jobs may be missing: they may be in the index of jobs on node n1, which is being rebuilt\n"; !strings.HasSuffix(got.err, want) {
		t.Errorf("a list that lacks jobs: notes %q, want %q", got.err, want)
	}
	var list api.JobList
	got = f.run(t, "job", "list", "--after", "3", "--json")
	if err := json.Unmarshal([]byte(got.out), &list); err != nil || len(list.Jobs) != 3 || list.Next != "" || list.Totals["failed"] != 2 || got.err != "" {
		t.Errorf("--json: %v, %+v, notes %q", err, list, got.err)
	}
}

// TestOutdated checks that what a node without a majority knows is shown with its time.
func TestOutdated(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.job.find": `{"jobs": [], "index": {"rebuilt": 1}}`, "yard.api.v1.queue.list": `{"queues": []}`})
	for _, line := range [][]string{{"job", "find"}, {"queue", "list"}, {"queue", "list", "--json"}} {
		for at, want := range map[time.Time]string{
			{}: "", time.Unix(0, 0): "has started again", time.Date(2026, 3, 19, 1, 0, 0, 0, time.UTC): "as of 2026-03-19T01:00:00.000Z",
		} {
			f.asOf = at
			if got := f.run(t, line...); (want != "") != strings.Contains(got.err, "no majority of the members") || !strings.Contains(got.err, want) {
				t.Errorf("%q of %v: notes %q", line, at, got.err)
			}
		}
	}
}
