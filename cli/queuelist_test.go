package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
)

// pagesOf returns a function that replies with one of the pages: the first one, or the one
// after the given "after".
func pagesOf(pages map[string]string) func([]byte) ([]byte, error) {
	return func(body []byte) ([]byte, error) {
		var asked struct{ After string }
		if err := json.Unmarshal(body, &asked); err != nil {
			return nil, err
		}
		page, ok := pages[asked.After]
		if !ok {
			return nil, fmt.Errorf("no page is after %q", asked.After)
		}
		return []byte(page), nil
	}
}

// All pages of a list of queues are shown as one list.
func TestQueueList_Pages(t *testing.T) {
	second := strings.Replace(queueJSON, `"mail"`, `"post"`, 1)
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.queue.list": pagesOf(map[string]string{
		"": `{"queues":[` + queueJSON + `],"next":"mail"}`, "mail": `{"queues":[` + second + `],"next":"post"}`, "post": `{"queues":[]}`,
	})})
	got := f.run(t, "queue", "list")
	if lines := strings.Split(got.out, "\n"); got.code != 0 || len(lines) != 4 || !strings.HasPrefix(lines[1], "mail ") || !strings.HasPrefix(lines[2], "post ") {
		t.Errorf("%+v", got)
	}
	sameJSON(t, f.run(t, "queue", "list", "--json").out, `{"queues":[`+queueJSON+`,`+second+`]}`)
}

// TestRetention checks that a queue is shown with its own settings, and that the settings of
// the yard are shown with those of all queues.
func TestRetention(t *testing.T) {
	const own = `{"name":"finished.age","value":2592000000,"unit":"ms","from":"queue"}`
	queue := strings.Replace(queueJSON, `"counts"`, `"retention":[`+own+`,{"name":"failed.count","value":1000,"unit":"items","from":"queue"}],"counts"`, 1)
	const settings = `"settings":[{"name":"finished.age","value":86400000,"unit":"ms","from":"default"},{"name":"failed.age","value":129600000,"unit":"ms","from":"operator","file":5400000}]`
	all := pagesOf(map[string]string{
		"":     `{` + settings + `,"queues":[{"queue":"mail","settings":[` + own + `]}],"next":"mail"}`,
		"mail": `{` + settings + `,"queues":[{"queue":"post","settings":[` + own + `]}]}`,
	})
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.queue.show": queue, "yard.api.v1.queue.set": queue,
		"yard.api.v1.retention.set": func(body []byte) ([]byte, error) {
			if strings.Contains(string(body), "bytes") {
				return []byte(`{` + settings + `,"queues":[],"not_applied":"YARD_EVENTS: no space"}`), nil
			}
			return []byte(`{` + settings + `,"queues":[]}`), nil
		},
		"yard.api.v1.retention.show": func(body []byte) ([]byte, error) {
			var asked api.RetentionRequest
			if err := json.Unmarshal(body, &asked); err != nil || asked.Queue == "" {
				return all(body)
			}
			return []byte(`{"settings":[{"name":"finished.age","value":2592000000,"unit":"ms","from":"queue","yard":86400000},{"name":"failed.age","value":172800000,"unit":"ms","from":"queue","yard":86400000}],"queues":[]}`), nil
		},
	})
	for line, want := range map[string]string{
		"queue show mail": "\n\nIts own retention: finished.age=30d failed.count=1000\n",
		"queue set mail --retention failed.count=1000": "\n\nIts own retention: finished.age=30d failed.count=1000\n",
		"retention show":               "SETTING       VALUE  FROM\nfinished.age  1d     default\nfailed.age    1d12h  operator, in place of the file's 1h30m\nfinished.age  30d    queue mail\nfinished.age  30d    queue post\n",
		"retention set failed.age=36h": "SETTING       VALUE  FROM\nfinished.age  1d     default\nfailed.age    1d12h  operator, in place of the file's 1h30m\n",
		"retention show mail":          "SETTING       VALUE  FROM\nfinished.age  30d    queue, in place of the yard's 1d\nfailed.age    2d     queue, in place of the yard's 1d, which is less and applies, too\n",
	} {
		if got := f.run(t, strings.Fields(line)...); got.code != 0 || !strings.HasSuffix(got.out, want) {
			t.Errorf("%s: %+v, want %q", line, got, want)
		}
	}
	for _, format := range []string{"", " --json"} {
		got := f.run(t, strings.Fields("retention set events.bytes=1TiB"+format)...)
		if want := "yardmaster: the settings are stored, but not all streams have them: YARD_EVENTS: no space\n"; got.code != 1 || got.err != want || !strings.Contains(got.out, "finished.age") {
			t.Errorf("settings that are not applied%s: %+v, want %q", format, got, want)
		}
	}
}

// TestLists_Kept checks that lists of queues and of jobs say that the ledger counts failed jobs for a short
// time only, and name the command that finds the others.
func TestLists_Kept(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.queue.list": pagesOf(map[string]string{"": `{"queues":[],"next":"a","kept_ms":600000}`, "a": `{"queues":[],"next":"b"}`, "b": `{"queues":[],"kept_ms":300000}`}),
		"yard.api.v1.job.list":   pagesOf(map[string]string{"": `{"jobs":[],"totals":{},"kept_ms":300000}`}),
	})
	for _, list := range []string{"queue", "job"} {
		got := f.run(t, list, "list")
		if !strings.Contains(got.err, "counted for 5m after their end") || !strings.Contains(got.err, "'yardmaster job find state:failed'") {
			t.Errorf("%s list: notes %q", list, got.err)
		}
	}
}
