package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// fakeBulk stores the jobs of bulk requests. It refuses every second request as a
// whole, and in the others stores the last job but reports an error for it.
type fakeBulk struct {
	mu       sync.Mutex // protects the fields below
	requests int
	chunks   []int // number of jobs in each request
	stored   map[string]json.RawMessage
}

func (y *fakeBulk) answer(body []byte) ([]byte, error) {
	var asked struct {
		Queue string
		Jobs  []json.RawMessage
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, err
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.requests++
	y.chunks = append(y.chunks, len(asked.Jobs))
	if y.requests%2 == 1 {
		return nil, &api.Error{Code: api.CodeUnavailable, Text: "yard is unavailable: no authority", RetryAfter: time.Millisecond}
	}
	items := make([]api.BulkResult, len(asked.Jobs))
	for i, text := range asked.Jobs {
		var one struct{ ID, Queue string }
		if err := json.Unmarshal(text, &one); err != nil {
			items[i] = api.BulkResult{Error: &api.BulkError{Code: api.CodeInvalid, Message: "refused by the node"}}
			continue
		}
		if one.Queue == "" {
			one.Queue = asked.Queue
		}
		id, err := job.KeyID(one.Queue, one.ID)
		if err != nil {
			return nil, err
		}
		_, known := y.stored[one.ID]
		y.stored[one.ID] = text
		items[i] = api.BulkResult{ID: &id, Queue: one.Queue, Duplicate: known}
		if i == len(asked.Jobs)-1 && i > 0 { // stored, but the reply is lost
			items[i] = api.BulkResult{Error: &api.BulkError{Code: api.CodeUnknown, Message: "unknown", RetryAfterMS: 1}}
		}
		if one.ID == "dear" {
			items[i] = api.BulkResult{Error: &api.BulkError{Code: api.CodeLimited, Message: "rate limit key is held", RetryAfterMS: 60000}}
		}
	}
	return json.Marshal(api.BulkReply{Jobs: items})
}

// Every line gets its result, in order, although requests are repeated, and no
// job is stored twice.
func TestBulk(t *testing.T) {
	const lines = 2600
	var in strings.Builder
	for line := 1; line <= lines; line++ {
		switch line {
		case 7:
			in.WriteString("{\"function\":\n")
		case 8:
			in.WriteString("[1]\n")
		case 9:
			in.WriteString("\n")
		case 10:
			fmt.Fprintf(&in, `{"params":{"text":"%s"}}`+"\n", strings.Repeat("x", 1<<20))
		case 11:
			in.WriteString(`{"function":"f","id":"dear"}` + "\r\n")
		case 12:
			in.WriteString(` {"function":"f","id":"mine","queue":"other","params":{"n":12345678901234567890}} ` + "\n")
		case 13:
			in.WriteString(`{"function":"f","id":null,"queue":null }` + "\n")
		case 14:
			in.WriteString(`{"function":"f","id":5}` + "\n")
		case 15:
			in.WriteString("{\"function\":\"caf\xe9\"}\n")
		default:
			fmt.Fprintf(&in, `{"function":"f","params":{"line":%d}}`+"\n", line)
		}
	}
	file := filepath.Join(t.TempDir(), "jobs")
	if err := os.WriteFile(file, []byte(strings.TrimSuffix(in.String(), "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	y := &fakeBulk{stored: map[string]json.RawMessage{}}
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.job.bulk": y.answer})
	got := f.run(t, "enqueue", "mail", "--bulk", file, "--json")
	y.mu.Lock()
	defer y.mu.Unlock()
	const accepted = lines - 7
	summary := fmt.Sprintf("yardmaster: %d accepted, 0 already known, 6 refused\nyardmaster: line 7: the line is not a job", accepted)
	if got.code != 1 || !strings.HasPrefix(got.err, summary) {
		t.Errorf("code %d, %s", got.code, got.err)
	}
	if len(y.stored) != accepted+1 { // and the one refused by a rate limit
		t.Errorf("%d jobs are stored, want %d", len(y.stored), accepted+1)
	}
	if text := string(y.stored["mine"]); !strings.Contains(text, `"n":12345678901234567890`) {
		t.Errorf("stored %s", text)
	}
	for _, n := range y.chunks {
		if n > 1000 {
			t.Errorf("%d jobs in a request", n)
		}
	}
	want := 1
	for text := range strings.Lines(got.out) {
		var item struct {
			Line int
			api.BulkResult
		}
		if err := json.Unmarshal([]byte(text), &item); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if want == 9 {
			want++ // an empty line is no job
		}
		code := map[int]string{7: "400", 8: "400", 10: "413", 11: "429", 14: "400", 15: "400"}[item.Line]
		switch {
		case item.Line != want:
			t.Fatalf("got the result of line %d, want that of line %d", item.Line, want)
		case code != "" && (item.Error == nil || item.Error.Code != code):
			t.Errorf("%s, want %s", text, code)
		case code == "" && (item.Error != nil || item.ID == nil || item.Duplicate):
			t.Errorf("%s", text)
		case item.Line == 12 && item.Queue != "other":
			t.Errorf("%s", text)
		}
		want++
	}
	if want != lines+1 {
		t.Errorf("results up to line %d", want-1)
	}
}

// Without --json the results are a table, and the summary goes to standard error.
func TestBulk_Table(t *testing.T) {
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.job.bulk": `{"jobs":[
		{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a31","queue":"mail"},{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a32","queue":"mail","duplicate":true},
		{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a33","queue":"mail","debounced":true},
		{"error":{"code":"400","message":"priority is 99"}}]}`})
	const in = "{\"id\":\"a\",\"params\":{}}\n{\"id\":\"b\"}\n\n{\"id\":\"c\"}\n{\"id\":\"d\",\"priority\":99}\n"
	got := f.runIn(t, in, "enqueue", "mail", "--bulk", "-")
	want := cmdResult{1, "1\t0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a31\taccepted\n2\t0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a32\tduplicate\n" +
		"4\t0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a33\tdebounced\n5\t-\trefused: priority is 99\n",
		"yardmaster: 1 accepted, 2 already known, 1 refused\nyardmaster: line 5: priority is 99; correct it and try again\n"}
	if got != want {
		t.Errorf("%+v", got)
	}
	const sent = ` {"queue":"mail","jobs":[{"id":"a","params":{}},{"id":"b"},{"id":"c"},{"id":"d","priority":99}]}`
	if asked := f.requests(); len(asked) != 1 || asked[0] != "bulk"+sent {
		t.Errorf("%q", asked)
	}
	if got := f.runIn(t, "", "enqueue", "mail", "--bulk", "-"); got != (cmdResult{err: "yardmaster: 0 accepted, 0 already known, 0 refused\n"}) {
		t.Errorf("%+v", got)
	}
	for _, line := range []string{"enqueue mail send --bulk -", "enqueue mail --bulk - --priority 3", "enqueue mail --bulk - --wait"} {
		if got := f.run(t, strings.Fields(line)...); got.code != 2 || !strings.Contains(got.err, "each line describes its job completely") {
			t.Errorf("%s: %+v", line, got)
		}
	}
	if got := f.run(t, "enqueue", "mail", "--bulk", "/no/such"); got.code != 1 || !strings.Contains(got.err, "name a file that can be read") {
		t.Errorf("%+v", got)
	}
}

// Retries end after the timeout, and the error names the first line not sent.
func TestBulk_Timeout(t *testing.T) {
	t.Setenv("NATS_TIMEOUT", "50ms")
	f := startFakeAPI(t, cannedReplies{})
	in := strings.Repeat("{\"function\":\"f\"}\n", (4+3)*1000)
	got := f.runIn(t, in, "enqueue", "mail", "--bulk", "-")
	if got.code != 4 || !strings.Contains(got.err, "0 accepted, 0 already known") || !strings.Contains(got.err, "was sent; send the rest once the yard replies") {
		t.Errorf("code %d, %s", got.code, got.err)
	}
	if !strings.HasPrefix(got.out, "1\t-\trefused: no node replied, so the job may or may not exist") {
		t.Errorf("%.200s", got.out)
	}
}
