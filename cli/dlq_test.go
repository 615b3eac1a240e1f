package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

const deadLetterJSON = `{"letter":17,"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10","queue":"mail","function":"send","reason":"no route",
"error":{"message":"no route\n\u001b[31mto host","type":"smtp"},"attempts":2,"accepted_at":"2026-01-02T03:04:05Z",
"failed_at":"2026-01-02T03:04:06Z","lane":1,"lane_seq":42,"state":"failed"}`

// fakeDLQ replies with 25 dead letters in pages of at most 10.
func fakeDLQ(t *testing.T) *fakeAPI {
	part := func(name string, item func(i int) string) func([]byte) ([]byte, error) {
		return func(body []byte) ([]byte, error) {
			var q struct{ From, Until, Limit int }
			if err := json.Unmarshal(body, &q); err != nil {
				return nil, err
			}
			from := max(q.From, 1)
			to := min(from+min(q.Limit, 10), 26)
			var items []string
			for i := from; i < to; i++ {
				items = append(items, item(i))
			}
			next := fmt.Sprintf(`"next":%d,`, to)
			if to == 26 {
				next = ""
			}
			return fmt.Appendf(nil, `{%q:[%s],%s"until":25}`, name, strings.Join(items, ","), next), nil
		}
	}
	change := part("items", func(i int) string {
		if i == 12 {
			return `{"letter":12,"id":"j12","result":"failed","error":"its body is gone; enqueue it again"}`
		}
		return fmt.Sprintf(`{"letter":%d,"id":"j%[1]d","result":"retried","job":"j%[1]d","queue":"mail"}`, i)
	})
	turn := 0 // under the fake's lock
	return startFakeAPI(t, cannedReplies{
		"yard.api.v1.dlq.list":    part("letters", func(i int) string { return strings.Replace(deadLetterJSON, "17", fmt.Sprint(i), 1) }),
		"yard.api.v1.dlq.show":    strings.Replace(deadLetterJSON, `"state"`, `"job":{"params":{"n":12345678901234567890}},"state"`, 1),
		"yard.api.v1.dlq.requeue": change,
		"yard.api.v1.dlq.remove":  `{"dry_run":true,"items":[],"until":25,"stopped":"yard is unavailable: no authority"}`,
		"yard.api.v1.dlq.stats": func([]byte) ([]byte, error) {
			if turn++; turn%2 == 0 {
				return []byte(`{"count":1,"oldest":"2026-01-01T00:00:00Z","newest":"2026-01-01T00:00:00Z","queues":{"post":1},"functions":{"":1},"errors":{"smtp":1},"until":9}`), nil
			}
			return []byte(`{"count":3,"oldest":"2026-01-02T00:00:00Z","newest":"2026-01-03T00:00:00Z","queues":{"mail":3},"functions":{"send":3},"errors":{"smtp":1,"timeout":2},"next":4,"until":9}`), nil
		},
	})
}

func TestDLQ_Tables(t *testing.T) {
	f := fakeDLQ(t)
	for _, tt := range []struct{ golden, line, err string }{
		{"dlq-list.txt", "dlq ls --limit 2", "yardmaster: there are more; --limit 0 lists all\n"},
		{"dlq-show.txt", "dlq show 17", ""},
		{"dlq-stats.txt", "dlq stats", ""},
		{"dlq-requeue.txt", "dlq requeue --all --limit 2", "yardmaster: 2 retried\n"},
		{"dlq-requeue-dry-run.txt", "dlq requeue --all --limit 2 --dry-run", "yardmaster: dry run, nothing was changed: 2 would be retried\n"},
	} {
		got := f.run(t, strings.Fields(tt.line)...)
		if got.code != 0 || got.err != tt.err {
			t.Errorf("%s: code %d, %q", tt.line, got.code, got.err)
		}
		golden(t, tt.golden, got.out)
	}
}

// All pages are shown as one list; the exit code is 1 if a change failed.
func TestDLQ_Pages(t *testing.T) {
	f := fakeDLQ(t)
	var list struct{ Letters []struct{ Letter int } }
	got := f.run(t, "dlq", "list", "--limit", "0", "--json")
	if err := json.Unmarshal([]byte(got.out), &list); err != nil || got.code != 0 || got.err != "" {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, l := range list.Letters {
		if l.Letter != i+1 {
			t.Fatalf("item %d is dead letter %d", i+1, l.Letter)
		}
	}
	asked := f.requests()
	if len(list.Letters) != 25 || len(asked) != 3 || asked[2] != `list {"from":21,"limit":1000,"until":25}` {
		t.Errorf("%d dead letters, requests %v", len(list.Letters), asked)
	}
	got = f.run(t, "dlq", "list", "--limit", "13")
	if asked := f.requests(); strings.Count(got.out, "\n") != 14 || len(asked) != 2 || asked[1] != `list {"from":11,"limit":3,"until":25}` {
		t.Errorf("%s, requests %v", got.out, asked)
	}
	got = f.run(t, "dlq", "requeue", "--all")
	if got.code != 1 || got.err != "yardmaster: 1 failed, 24 retried\n" || !strings.Contains(got.out, "its body is gone; enqueue it again") {
		t.Errorf("%+v", got)
	}
	got = f.run(t, "dlq", "requeue", "--all", "--json")
	if got.code != 1 || got.err != "" || strings.Count(got.out, `"retried"`) != 24 || !json.Valid([]byte(got.out)) {
		t.Errorf("%+v", got)
	}
	f.requests()
	got = f.run(t, "dlq", "rm", "--all", "--json")
	if got.code != 4 || !strings.Contains(got.err, "no authority; repeat the command for the rest") || !json.Valid([]byte(got.out)) {
		t.Errorf("%+v", got)
	}
}

// Dead letters that are named and do not exist are an error, unless --limit left some out.
func TestDLQ_Missing(t *testing.T) {
	const id, other = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10", "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a11"
	reply := `{"items":[{"letter":1,"id":"` + id + `","result":"removed"}],"until":25}`
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.dlq.remove": reply, "yard.api.v1.dlq.requeue": strings.Replace(reply, `"until"`, `"next":2,"until"`, 1),
	})
	for _, tt := range []struct {
		line string
		code int
		want string
	}{
		{"dlq rm 1", 0, ""},
		{"dlq rm 99 1 99 --dry-run", 3, "no such dead letter: 99; 'yardmaster dlq list' shows what there is\n"},
		{"dlq rm 1 98 99 --json", 3, "no such dead letter: 98, 99; "},
		{"dlq rm " + id, 0, ""},
		{"dlq rm mail:" + other, 3, "no such dead letter: of job " + other},
		{"dlq requeue 1 2 --limit 1", 0, ""},
	} {
		got := f.run(t, strings.Fields(tt.line)...)
		if got.code != tt.code || !strings.Contains(got.err, tt.want) || strings.Contains(got.err, "no such") != (tt.code == 3) {
			t.Errorf("%s: %+v", tt.line, got)
		}
	}
}

func TestDLQ_Requests(t *testing.T) {
	f := fakeDLQ(t)
	const id = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10"
	for _, tt := range []struct{ line, want string }{
		{"dlq list --queue mail --function send --error smtp --limit 5", `list {"error":"smtp","function":"send","limit":5,"queue":"mail"}`},
		{"dlq show mail:" + id, `show {"jobs":["` + id + `"]}`},
		{"dlq show 7", `show {"letters":[7]}`},
		{"dlq requeue 7 8 --to post --keep-attempts --dry-run --limit 2", `requeue {"all":false,"dry_run":true,"keep_attempts":true,"letters":[7,8],"limit":2,"to":"post"}`},
		{"dlq requeue --all --limit 2", `requeue {"all":true,"dry_run":false,"keep_attempts":false,"limit":2}`},
		{"dlq rm " + id, `remove {"all":false,"dry_run":false,"jobs":["` + id + `"],"limit":1000}`},
	} {
		f.run(t, strings.Fields(tt.line)...)
		if asked := f.requests(); len(asked) != 1 || asked[0] != tt.want {
			t.Errorf("%s: requests %v, want %s", tt.line, asked, tt.want)
		}
	}
	before := time.Now()
	f.run(t, "dlq", "list", "--older-than", "1h", "--newer-than", "48h", "--limit", "1")
	var q struct {
		Before time.Time `json:"failed_before"`
		After  time.Time `json:"failed_after"`
	}
	asked := strings.Join(f.requests(), "")
	err := json.Unmarshal([]byte(strings.TrimPrefix(asked, "list ")), &q)
	if err != nil || q.Before.Sub(q.After) != 47*time.Hour || q.Before.Sub(before.Add(-time.Hour)).Abs() > time.Minute {
		t.Errorf("request %s: %v", asked, err)
	}
}

func TestDLQ_Usage(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"dlq requeue", "no dead letters are selected: name some, or give a filter or --all"},
		{"dlq rm --limit 3", "no dead letters are selected"},
		{"dlq rm --all --queue mail", "--all excludes filters and names"},
		{"dlq rm --all 7", "--all excludes filters and names"},
		{"dlq rm --queue=", "--queue is empty"},
		{"dlq show", "letter is missing"},
		{"dlq show order-7", `"order-7" is not a dead letter: give its number or its job's id`},
		{"dlq show 0", `"0" is not a dead letter`},
		{"dlq list 7 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10", "by number or by job, not both"},
		{"dlq list --older-than -1h", "--older-than is -1h: must not be negative"},
		{"dlq list --limit -1", "--limit is -1: must be 0 or more"},
		{"dlq requeue --all --to a.b", `--to: queue name "a.b"`},
	} {
		got := runLine(t, "", strings.Fields(tt.line)...)
		if got.code != 2 || !strings.Contains(got.err, tt.want) || strings.Count(got.err, "\n") != 1 || got.out != "" {
			t.Errorf("%s: code %d, %q, %q; want %q", tt.line, got.code, got.err, got.out, tt.want)
		}
	}
}

// If the first request for a list is refused, the error is shown and nothing is written
// to standard output.
func TestList_Refused(t *testing.T) {
	refusal := error(&api.Error{Code: api.CodeUnavailable, Text: "yard is unavailable: the list cannot be read"})
	f := startFakeAPI(t, cannedReplies{
		"yard.api.v1.dlq.list": refusal, "yard.api.v1.dlq.remove": refusal, "yard.api.v1.dlq.requeue": refusal, "yard.api.v1.job.list": refusal,
	})
	for _, line := range []string{
		"dlq list", "dlq list --json", "dlq rm --all", "dlq requeue --queue mail", "job cancel --queue mail --all", "job cancel --queue mail --all --dry-run",
	} {
		got := f.run(t, strings.Fields(line)...)
		if got.code != 4 || got.out != "" || strings.Count(got.err, "cannot be read") != 1 || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%s: %+v", line, got)
		}
	}
}
