package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/node/config"
)

// httpReply is the response to an HTTP request.
type httpReply struct {
	status int
	header http.Header
	body   []byte
}

func (r httpReply) String() string { return fmt.Sprintf("%d %s", r.status, r.body) }

// send sends an HTTP request to a node. head has lines "Name: value".
func send(t *testing.T, n *Node, method, path, body string, head ...string) httpReply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.Addresses().HTTP+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range head {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return httpReply{w.StatusCode, w.Header, text}
}

// decode checks the status of a response and decodes its body.
func (r httpReply) decode(t *testing.T, status int, v any) {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %s, want %d", r, status)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal(r.body, v); err != nil {
		t.Fatalf("%s: %v", r, err)
	}
}

// A job is enqueued, shown, waited for, cancelled and removed over HTTP.
func TestWeb_Job(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var first, again api.EnqueueReply
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"send"}`, "Idempotency-Key: order-1").decode(t, http.StatusAccepted, &first)
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"send"}`, "Idempotency-Key: order-1").decode(t, http.StatusAccepted, &again)
	if id, _ := job.KeyID("mail", "order-1"); first.ID != id || again.ID != id || first.Duplicate || !again.Duplicate {
		t.Errorf("the same key twice: %+v, then %+v", first, again)
	}
	parent := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var traced api.EnqueueReply
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"send"}`, "traceparent: "+parent, "tracestate: a=b").decode(t, http.StatusAccepted, &traced)
	var shown api.Job
	send(t, n, "GET", "/v1/jobs/"+traced.ID.String(), "").decode(t, http.StatusOK, &shown)
	if shown.Trace["traceparent"] != parent || shown.Trace["tracestate"] != "a=b" {
		t.Errorf("the trace is %v", shown.Trace)
	}
	shown = api.Job{}
	send(t, n, "GET", "/v1/jobs/mail:order-1", "").decode(t, http.StatusOK, &shown)
	if shown.ID != first.ID || shown.Function != "send" {
		t.Errorf("shown: %+v", shown)
	}
	// A wait that times out is answered with the id of the job.
	for path, body := range map[string]string{
		"/v1/jobs/" + first.ID.String() + "/wait?timeout=20ms": "",
		"/v1/queues/mail/jobs?wait=20ms":                       `{"function":"send","id":"order-1"}`,
		"/v1/queues/mail/call":                                 `{"function":"send","id":"order-1","wait_ms":20}`,
	} {
		method := "POST"
		if body == "" {
			method = "GET"
		}
		var late struct {
			Error struct{ Data struct{ ID job.ID } }
		}
		send(t, n, method, path, body).decode(t, http.StatusRequestTimeout, &late)
		if late.Error.Data.ID != first.ID {
			t.Errorf("%s %s: the error names job %s, want %s", method, path, late.Error.Data.ID, first.ID)
		}
	}
	waited := make(chan httpReply, 1)
	go func() { waited <- send(t, n, "GET", "/v1/jobs/"+first.ID.String()+"/wait?timeout=1m", "") }()
	send(t, n, "POST", "/v1/jobs/"+first.ID.String()+"/cancel", `{"reason":"cancelled"}`).decode(t, http.StatusOK, nil)
	var ended api.Job
	(<-waited).decode(t, http.StatusOK, &ended)
	if ended.State != "cancelled" || ended.Reason != "cancelled" || ended.Cancellation == nil || ended.Cancellation.Reason != "cancelled" {
		t.Errorf("after a cancel: %+v, %+v", ended, ended.Error)
	}
	send(t, n, "DELETE", "/v1/jobs/"+first.ID.String(), "").decode(t, http.StatusOK, nil)
	send(t, n, "GET", "/v1/jobs/"+first.ID.String(), "").decode(t, http.StatusNotFound, nil)
}

// A body of several megabytes is accepted, one that is too large is rejected.
func TestWeb_LargeJob(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	large := `{"function":"send","params":{"text":"` + strings.Repeat("x", 20<<20) + `"}}`
	var accepted api.EnqueueReply
	send(t, n, "POST", "/v1/queues/mail/jobs", large).decode(t, http.StatusAccepted, &accepted)
	var shown api.Job
	send(t, n, "GET", "/v1/jobs/"+accepted.ID.String(), "").decode(t, http.StatusOK, &shown)
	if shown.PayloadBytes < 20<<20 {
		t.Errorf("the job's body has %d bytes", shown.PayloadBytes)
	}
	tooLarge := strings.Repeat("x", 33<<20)
	send(t, n, "POST", "/v1/queues/mail/jobs", tooLarge).decode(t, http.StatusRequestEntityTooLarge, nil)
	send(t, n, "POST", "/v1/exec", tooLarge[:2<<20]).decode(t, http.StatusRequestEntityTooLarge, nil)
}

// A cron entry may have as large a job over HTTP as over NATS, and its job is stored as it is.
func TestWeb_LargeCron(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	job := `{"function":"f","params":{"html":"` + strings.Repeat("<", ledger.MaxCronBody-100) + `"}}`
	send(t, n, "PUT", "/v1/cron/nightly", `{"schedule":"@daily","queue":"mail","job":`+job+`}`).decode(t, http.StatusOK, nil)
	if got := send(t, n, "GET", "/v1/cron/nightly", ""); !strings.Contains(string(got.body), job) {
		t.Errorf("the entry is %s", got)
	}
}

// Errors have the same codes over HTTP as over NATS.
func TestWeb_Errors(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", `{"concurrency_limit":3}`).decode(t, http.StatusOK, nil)
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"GET", "/v1/nothing", "", 404, "/v1/openapi.json"},
		{"PATCH", "/v1/queues", "", 405, "use GET"},
		{"GET", "/v1/jobs/bulk", "", 405, "use POST"}, // not the job of this name
		{"DELETE", "/v1/jobs/find", "", 405, "use GET"},
		{"GET", "/v1/operations/preview", "", 405, "use POST"},
		{"GET", "/v1/dlq/remove", "", 405, "use POST"},
		{"POST", "/v1/queues/mail/jobs", "{", 400, "not valid JSON"},
		{"POST", "/v1/queues/mail/jobs", "{}", 400, "names nothing to do"},
		{"POST", "/v1/queues/no%20queue/jobs", `{"function":"f"}`, 400, "queue"},
		{"POST", "/v1/queues/mail/jobs?wait=soon", `{"function":"f"}`, 400, "such as 30s"},
		{"POST", "/v1/queues/mail/jobs?await=1s", `{"function":"f"}`, 400, "known are: wait"},
		{"GET", "/v1/queues/mail/jobs", "", 405, "use PATCH, POST"},
		{"GET", "/v1/jobs?states=tired", "", 400, "must be waiting"},
		{"GET", "/v1/jobs?states=new", "", 400, "must be waiting"},
		{"GET", "/v1/jobs?limit=x", "", 400, "whole number"},
		{"GET", "/v1/jobs?limit=1001", "", 400, "limit is 1001; must be 1 to 1000"},
		{"GET", "/v1/jobs?order=best", "", 400, "must be newest or oldest"},
		{"GET", "/v1/jobs?queues=", "", 400, "queues has an empty name; leave queues out"},
		{"GET", "/v1/jobs?after=bm93aGVyZQ", "", 400, "no cursor of such a list; give next of the previous page"},
		{"GET", "/v1/jobs?queues=mail&queues=none", "", 404, "queue \"none\""},
		{"GET", "/v1/queues", "{}", 400, "takes no body"},
		{"PUT", "/v1/queues/mail", "", 409, "exists"},
		{"PUT", "/v1/queues/mail", `{"name":"post"}`, 400, "in the body and"},
		{"PUT", "/v1/queues/mail", `[]`, 400, "request must be a JSON object, not array"},
		{"PATCH", "/v1/queues/mail", `{`, 400, "request is not valid JSON: unexpected end"},
		{"PUT", "/v1/queues/mail2", `{"concurrency_limit":"x"}`, 400, "concurrency_limit must be a whole number"},
		{"PUT", "/v1/queues/mail2", `{"colour":1}`, 400, `no key "colour"; there are age_ms, allow_job_overrides, concurrency_limit, fair, index, key, key_optional, limits, max_attempts, name`},
		{"GET", "/v1/queues/mail2", "", 404, "queue"},
		{"PUT", "/v1/queues/" + strings.Repeat("q", 300), "", 400, "300 bytes"},
		{"POST", "/v1/queues/" + strings.Repeat("q", 300) + "/jobs", `{"function":"f"}`, 400, "300 bytes"},
		{"POST", "/v1/queues/mail/jobs", `{"function":"f","max_retries":1}`, 400, "here it is max_attempts"},
		{"POST", "/v1/queues/mail/call", `{"function":"f","wait":1}`, 400, "wait_ms"},
		{"PUT", "/v1/cron/nightly", `{"schedule":"0 3 * * *","queue":"mail","job":{"function":"f","prio":1}}`, 400, "max_attempts, meta, params, payload_msgpack, priority"},
		{"POST", "/metrics", "", 405, "use GET"},
		{"POST", "/v1/exec", `{"command":"Dance"}`, 400, "unknown variant"},
		{"POST", "/v1/exec/Dance", `{}`, 400, `there is no command "Dance"; must be one of AcquireAuthority, RenewAuthority, `},
		{"POST", "/v1/exec/MarkDelivered", `{"request_id":"r"}`, 400, `the request is the whole command, {"command":"MarkDelivered"}`},
		{"GET", "/v1/queues?limit=1001", "", 400, "limit is 1001; must be 1 to 1000"},
		{"GET", "/v1/queues?limit=-1", "", 400, "limit is -1; must be 1 to 1000"},
		{"GET", "/v1/retention?queue=none", "", 404, `queue "none"`},
		{"PATCH", "/v1/queues/mail", `{"retention":{"events":{"age_ms":1}}}`, 400, "name, priority, retention.failed.age_ms, retention.failed.count, retention.finished.age_ms, retention.finished.count, retention.results.age_ms, retry, retry_on_timeout"},
		{"PATCH", "/v1/queues/mail", `{"retry":[{"colour":1}]}`, 400, `a retry rule has no key "colour"; there are backoff_ms, discard_on, function, jitter, max_attempts, max_backoff_ms, remove, retry_on`},
		{"PATCH", "/v1/queues/mail", `{"retry":[{"jitter":101}]}`, 400, "retry: jitter is 101; must be 0 to 100, or null to reset it"},
		{"PATCH", "/v1/queues/mail", `{"retry":[{"max_attempts":2}]}`, 400, "retry rule for all functions: it takes no max_attempts; set max_attempts of the queue"},
		{"PATCH", "/v1/queues/mail", `{"retry":[{"function":"send","backoff_ms":20,"max_backoff_ms":10}]}`, 400, "retry rule for function send: max_backoff is 10ms; must be at least backoff, which is 20ms"},
		{"PATCH", "/v1/queues/mail", `{"retention":{"results":{"age_ms":1}}}`, 400, "results.age is 1ms; must be 1m to 3650d"},
		{"GET", "/v1/dlq?failed_before=yesterday", "", 400, "is not a time like"},
		{"GET", "/v1/dlq/first", "", 400, "whole number"},
		{"POST", "/v1/dlq/remove", "", 400, "no dead letters are named"},
	} {
		got := send(t, n, c.method, c.path, c.body)
		var said struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal(got.body, &said); err != nil || got.status != c.status ||
			said.Error.Code != fmt.Sprint(c.status) || !strings.Contains(said.Error.Message, c.says) {
			t.Errorf("%s %s %s: %s, want %d and %q", c.method, c.path, c.body, got, c.status, c.says)
		}
	}
}

// A change of retention settings is answered with the reason if a stream has no space for
// them.
func TestWeb_RetentionNotApplied(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, c := range []struct{ body, want string }{
		{`{"events":{"bytes":562949953421312}}`, "YARD_EVENTS: the members have no space for "},
		{`{"events":{"bytes":null}}`, ""},
	} {
		var got api.Retention
		send(t, n, "PATCH", "/v1/retention", c.body).decode(t, http.StatusOK, &got)
		if !strings.HasPrefix(got.NotApplied, c.want) || (got.NotApplied == "") != (c.want == "") {
			t.Errorf("%s: not applied: %q, want %q", c.body, got.NotApplied, c.want)
		}
	}
}

// The OpenAPI document describes all endpoints and no others: the test calls every path and
// validates the response.
func TestWeb_Document(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", "").decode(t, 200, nil)
	send(t, n, "PUT", "/v1/cron/nightly", `{"schedule":"0 3 * * *","queue":"mail","job":{"function":"f"}}`).decode(t, 200, nil)
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"f","id":"5d1d6bd5-6a3f-4f8e-9a6f-5a4f6a0c1c11"}`).decode(t, 202, nil)
	var document struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Parameters  []struct {
				Name     string
				In       string
				Required bool
			}
			Responses map[string]struct {
				Content map[string]struct{ Schema schema }
			}
		}
		Components struct{ Schemas map[string]schema }
	}
	send(t, n, "GET", "/v1/openapi.json", "").decode(t, 200, &document)
	values := map[string]string{"id": "5d1d6bd5-6a3f-4f8e-9a6f-5a4f6a0c1c11", "queue": "mail", "name": "mail", "worker": "w", "letters": "1", "state": "waiting", "command": "CaptureSnapshot"}
	bodies := map[string]string{
		"enqueue": `{"function":"g"}`, "call": `{"function":"g","wait_ms":1}`, "job-bulk": `{"queue":"mail","jobs":[{"function":"g"},{}]}`,
		"queue-add": `{}`, "cron-add": `{"schedule":"0 3 * * *","queue":"mail","job":{"function":"f"}}`,
		"exec": `{"command":"CaptureSnapshot"}`, "exec-command": `{"command":"CaptureSnapshot"}`, "dlq-requeue": `{"letters":[1]}`, "dlq-remove": `{"letters":[1]}`,
	}
	asked := map[string]bool{}
	for path, methods := range document.Paths {
		for method, operation := range methods {
			asked[operation.OperationID] = true
			url, query := path, []string{}
			for _, p := range operation.Parameters {
				if p.In == "path" {
					value := values[p.Name]
					if strings.HasPrefix(operation.OperationID, "cron-") {
						value = "nightly"
					}
					url = strings.ReplaceAll(url, "{"+p.Name+"}", value)
				}
				if p.In == "query" && p.Name == "timeout" {
					query = append(query, "timeout=10ms")
				}
				if p.In == "query" && p.Required {
					query = append(query, p.Name+"="+values[p.Name])
				}
			}
			got := send(t, n, strings.ToUpper(method), url+"?"+strings.Join(query, "&"), bodies[operation.OperationID])
			said, ok := operation.Responses[fmt.Sprint(got.status)]
			if !ok {
				said = operation.Responses["default"]
			}
			if got.status == http.StatusMethodNotAllowed || strings.Contains(string(got.body), "there is no /") {
				t.Errorf("%s %s is not served: %s", method, path, got)
			}
			_, text := said.Content["text/plain"]         // /metrics
			_, tar := said.Content[api.BackupRoute.Media] // a backup
			if text || tar {
				continue
			}
			var value any
			if err := json.Unmarshal(got.body, &value); err != nil {
				t.Errorf("%s %s: %s: %v", method, path, got, err)
			}
			described, ok := document.Components.Schemas[strings.TrimPrefix(said.Content["application/json"].Schema.Ref, "#/components/schemas/")]
			if !ok {
				t.Errorf("%s %s: no schema of %s", method, path, got)
			}
			if err := described.validate("", value); err != nil {
				t.Errorf("%s %s: %v in %s", method, path, err, got)
			}
		}
	}
	for _, e := range api.Endpoints {
		if !asked[e.Name] {
			t.Errorf("the document does not describe %s", e.Name)
		}
	}
}

// schema is the part of JSON Schema that the document uses.
type schema struct {
	Ref        string `json:"$ref"`
	Type       any
	Properties map[string]schema
	Required   []string
	Items      *schema
}

// validate returns an error if a value does not match the schema. An undescribed key is an
// error as well.
func (s *schema) validate(at string, value any) error {
	kinds, _ := s.Type.([]any)
	if one, ok := s.Type.(string); ok {
		kinds = []any{one}
	}
	kind := map[bool]string{true: "boolean"}[value == true || value == false]
	switch v := value.(type) {
	case nil:
		kind = "null"
	case string:
		kind = "string"
	case float64:
		if kind = "number"; v == float64(int64(v)) && slices.Contains(kinds, any("integer")) {
			kind = "integer"
		}
	case []any:
		kind = "array"
		for i := range v {
			if s.Items != nil {
				if err := s.Items.validate(fmt.Sprintf("%s[%d]", at, i), v[i]); err != nil {
					return err
				}
			}
		}
	case map[string]any:
		kind = "object"
		for _, name := range s.Required {
			if _, ok := v[name]; !ok {
				return fmt.Errorf("%s.%s is missing", at, name)
			}
		}
		for name, inner := range v {
			described, ok := s.Properties[name]
			if !ok {
				if s.Properties != nil {
					return fmt.Errorf("%s.%s is not described", at, name)
				}
				continue
			}
			if err := described.validate(at+"."+name, inner); err != nil {
				return err
			}
		}
	}
	if len(kinds) > 0 && !slices.Contains(kinds, any(kind)) {
		return fmt.Errorf("%s is %s, described as %v", at, kind, kinds)
	}
	return nil
}

// The token is required for everything but the health checks.
func TestWeb_Token(t *testing.T) {
	n := startSingleNode(t, func(c *config.Config) { c.HTTP.Token = "sesame" })
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, path := range []string{"/healthz", "/readyz"} {
		got := send(t, n, "GET", path, "")
		if got.status != 200 || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %s %v", path, got, got.header)
		}
	}
	for _, path := range []string{"/v1/status", "/v1/openapi.json", "/metrics", "/v1/nothing"} {
		for _, head := range []string{"X: ", "Authorization: Bearer sesam", "Authorization: sesame", "Authorization: Bearer "} {
			if got := send(t, n, "GET", path, "", head); got.status != 401 || got.header.Get("WWW-Authenticate") == "" || !strings.Contains(string(got.body), "Bearer <token>") {
				t.Errorf("%s with %s: %s", path, head, got)
			}
		}
	}
	send(t, n, "GET", "/v1/status", "", "Authorization: Bearer sesame").decode(t, 200, nil)
	if got := send(t, n, "POST", "/v1/queues/mail/jobs", "{}", "Authorization: Bearer sesame", "Sec-Fetch-Site: cross-site"); got.status != 403 {
		t.Errorf("a request from another site: %s", got)
	}
}

// The node stops waiting for a job when its client disconnects.
func TestWeb_Abort(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var accepted api.EnqueueReply
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"f"}`).decode(t, 202, &accepted)
	for path, body := range map[string]string{"/v1/jobs/" + accepted.ID.String() + "/wait?timeout=10m": "", "/v1/queues/mail/jobs?wait=10m": `{"function":"f"}`} {
		ctx, cancel := context.WithCancel(t.Context())
		method := map[bool]string{true: "GET", false: "POST"}[body == ""]
		r, err := http.NewRequestWithContext(ctx, method, "http://"+n.Addresses().HTTP+path, bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		gone := make(chan error, 1)
		go func() {
			w, err := http.DefaultClient.Do(r)
			if err == nil {
				w.Body.Close()
			}
			gone <- err
		}()
		waitUntil(t, "one request waits", func() bool { return n.web.Waiting() == 1 })
		cancel()
		if err := <-gone; err == nil {
			t.Error("the aborted wait was answered")
		}
		waitUntil(t, "no request waits", func() bool { return n.web.Waiting() == 0 })
	}
}

// waitUntil polls until fact is true. It is for facts without a notification.
func waitUntil(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !fact(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after 30 s", what)
		}
	}
}
