package rrq

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// Every key of the protocol is encoded, even if it is not set, and the user's
// JSON is unchanged.
func TestAppendRequest(t *testing.T) {
	full := Request{
		RequestID: "r#1", JobID: "j", Function: `say "hi"`,
		Params: json.RawMessage(` {"big":9007199254740993,"f":1.50,"u":"é"}`),
		Context: Context{
			JobID: "j", Attempt: 2, QueueName: "mail", WorkerID: "yard_a_9000", Fence: 1<<63 + 1, DispatchID: "j#3",
			EnqueueTime: time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.FixedZone("", 3600)),
			Deadline:    time.Date(2026, 1, 2, 3, 9, 5, 0, time.UTC),
			Trace:       map[string]string{"tracestate": "b", "traceparent": "a"},
		},
	}
	for _, test := range []struct {
		name string
		r    Request
		want string
	}{
		{"full", full, `{"type":"request","payload":{"protocol_version":"2","request_id":"r#1","job_id":"j","function_name":"say \"hi\"",` +
			`"params":{"big":9007199254740993,"f":1.50,"u":"é"},"context":{"job_id":"j","attempt":2,"enqueue_time":"2026-01-02T02:04:05.123456Z",` +
			`"queue_name":"mail","deadline":"2026-01-02T03:09:05Z","trace_context":{"traceparent":"a","tracestate":"b"},` +
			`"correlation_context":null,"worker_id":"yard_a_9000","fence":9223372036854775809,"dispatch_id":"j#3"}}}`},
		{"bare", Request{RequestID: "r", JobID: "j", Function: "h", Context: Context{EnqueueTime: time.Unix(0, 0)}},
			`{"type":"request","payload":{"protocol_version":"2","request_id":"r","job_id":"j","function_name":"h","params":{},` +
				`"context":{"job_id":"","attempt":0,"enqueue_time":"1970-01-01T00:00:00Z","queue_name":"","deadline":null,` +
				`"trace_context":null,"correlation_context":null,"worker_id":null,"fence":0,"dispatch_id":null}}}`},
	} {
		b, err := appendRequest(nil, &test.r)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b[frame.HeaderLen:]); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.name, got, test.want)
		}
		m, err := decode(b[frame.HeaderLen:])
		if err != nil || m.request == nil || m.version != Version {
			t.Fatalf("%s does not come back: %+v, %v", test.name, m, err)
		}
		if m.request.Function != test.r.Function || m.request.Context.Fence != test.r.Context.Fence {
			t.Errorf("%s comes back as %+v", test.name, m.request)
		}
	}
}

func TestAppendRequest_Errors(t *testing.T) {
	for _, params := range []string{`[1]`, `null`, `{"a":}`, `7`} {
		if _, err := appendRequest(nil, &Request{Params: json.RawMessage(params)}); !errors.Is(err, ErrMalformed) {
			t.Errorf("params %s give %v, want ErrMalformed", params, err)
		}
	}
	var large *TooLargeError
	_, err := appendRequest(nil, &Request{Params: json.RawMessage(`{"x":"` + strings.Repeat("x", MaxFrame) + `"}`)})
	if !errors.As(err, &large) || large.Limit != MaxFrame {
		t.Errorf("16 MiB of params give %v, want a *TooLargeError", err)
	}
	if b, err := appendRequest(nil, &Request{Params: json.RawMessage("{\"x\":\"\xff\"}")}); err != nil || !strings.Contains(string(b), "\uFFFD") {
		t.Errorf("params that are not UTF-8 give %q, %v, want U+FFFD", b, err)
	}
}

func TestDecodeOutcome_Lenient(t *testing.T) {
	half := 0.5
	for _, test := range []struct {
		wire string
		want Outcome
	}{
		{`{"job_id":"j","request_id":"r","status":"success"}`, Outcome{JobID: "j", RequestID: "r", Status: Success}},
		{`{"job_id":"j","request_id":"r","status":"success","result":null,"error":null,"retry_after_seconds":null,"more":[1]}`,
			Outcome{JobID: "j", RequestID: "r", Status: Success}},
		{`{"job_id":"j","request_id":"r","status":"success","result":12345678901234567890}`,
			Outcome{JobID: "j", RequestID: "r", Status: Success, Result: json.RawMessage(`12345678901234567890`)}},
		{`{"job_id":"j","request_id":"r","status":"retry","retry_after_seconds":0.5}`,
			Outcome{JobID: "j", RequestID: "r", Status: Retry, RetryAfter: &half}},
		{`{"job_id":"j","request_id":null,"status":"timeout","error":{"message":"late","type":null}}`,
			Outcome{JobID: "j", Status: Timeout, Fault: &Fault{Message: "late"}}},
		{`{"job_id":"j","request_id":"r","status":"error","error":{"message":"m","type":"t","code":404,"details":[1,{"a":2}]}}`,
			Outcome{JobID: "j", RequestID: "r", Status: Error, Fault: &Fault{Message: "m", Type: "t", Code: "404", Details: json.RawMessage(`[1,{"a":2}]`)}}},
	} {
		m, err := decode([]byte(`{"type":"response","payload":` + test.wire + `,"x":1}`))
		if err != nil {
			t.Errorf("%s: %v", test.wire, err)
			continue
		}
		if diff := cmp.Diff(test.want, *m.outcome); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.wire, diff)
		}
	}
}

func TestMalformedMessages(t *testing.T) {
	for _, wire := range []string{
		``, `null`, `[]`, `{`, `{"type":"response"}`, `{"type":"response","payload":null}`, `{"type":"hello","payload":{}}`,
		`{"type":"response","payload":{"job_id":"j","request_id":"r"}}`,
		`{"type":"response","payload":{"job_id":"j","request_id":"r","status":"done"}}`,
		`{"type":"response","payload":{"job_id":7,"request_id":"r","status":"success"}}`,
		`{"type":"response","payload":{"job_id":"j","request_id":"r","status":"error","error":{"type":"t"}}}`,
		`{"type":"response","payload":{"job_id":"j","request_id":"r","status":"retry","retry_after_seconds":"soon"}}`,
		`{"type":"response","payload":{"job_id":"j","request_id":"r","status":"retry","retry_after_seconds":1e999}}`,
		`{"type":"request","payload":{"request_id":"r","job_id":"j","function_name":"f","params":null,"context":{}}}`,
		`{"type":"request","payload":{"request_id":"r","job_id":"j","function_name":"f"}}`,
		`{"type":"cancel","payload":[]}`,
		"{\"type\":\"response\",\"payload\":{\"job_id\":\"\xff\",\"request_id\":\"r\",\"status\":\"success\"}}",
	} {
		if m, err := decode([]byte(wire)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s gives %+v and %v, want ErrMalformed", wire, m, err)
		}
	}
}

func TestOutcomeAndCancelRoundTrip(t *testing.T) {
	after := 1.25
	o := Outcome{JobID: "j", RequestID: "r", Status: Retry, Result: json.RawMessage(`{"a":[1]}`), RetryAfter: &after,
		Fault: &Fault{Message: "line\nbreak", Type: "t", Code: "c", Details: json.RawMessage(`{}`)}}
	b, err := appendOutcome(nil, &o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := decode(b[frame.HeaderLen:])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(o, *m.outcome); diff != "" {
		t.Error(diff)
	}
	c := Cancel{JobID: "j", HardKill: true}
	if b, err = appendCancel(nil, &c); err != nil {
		t.Fatal(err)
	}
	if m, err = decode(b[frame.HeaderLen:]); err != nil || *m.cancel != c {
		t.Errorf("cancel comes back as %+v, %v", m.cancel, err)
	}
}

// A message that decodes as an outcome survives being encoded and decoded
// again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"type":"response","payload":{"job_id":"j","request_id":"r","status":"error","error":{"message":"m","details":[1]},"retry_after_seconds":1}}`))
	f.Add([]byte(`{"type":"request","payload":{"request_id":"r","job_id":"j","function_name":"f","params":{},"context":{"attempt":1,"enqueue_time":"2026-01-01T00:00:00Z"}}}`))
	f.Add([]byte(`{"type":"cancel","payload":{"job_id":"j"}}`))
	f.Add([]byte(`{"type": "response", "payload": {"job_id":"j","status":"success","result":[1, 2]}}`))
	f.Add([]byte(`{"type":"response","payload":{"job_id":"j","status":"success"},"more":{}}`))
	f.Add([]byte(`{"type":"response","payload":{"job_id":"j","status":"success"},"type":"cancel"}`))
	f.Add([]byte(`{"type":"response","payload":null}`))
	f.Add([]byte(`{"type":"response","payload": null }`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		m, err := decode(payload)
		// With a space before it, the answer takes the general path.
		long, longErr := decode(append([]byte(" "), payload...))
		if diff := cmp.Diff(m.outcome, long.outcome); diff != "" || fmt.Sprint(err) != fmt.Sprint(longErr) {
			t.Fatalf("%s: errors %v and %v, the long way: %s", payload, err, longErr, diff)
		}
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error %v is not ErrMalformed", err)
			}
			return
		}
		var b []byte
		switch {
		case m.outcome != nil:
			b, err = appendOutcome(nil, m.outcome)
		case m.request != nil:
			if y := m.request.Context.EnqueueTime.UTC().Year(); y < 0 || y > 9999 {
				return
			}
			if y := m.request.Context.Deadline.UTC().Year(); y < 0 || y > 9999 {
				return
			}
			b, err = appendRequest(nil, m.request)
		case m.cancel != nil:
			b, err = appendCancel(nil, m.cancel)
		default:
			t.Fatal("decoded to nothing")
		}
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		again, err := decode(b[frame.HeaderLen:])
		if err != nil {
			t.Fatalf("decode %s again: %v", b[frame.HeaderLen:], err)
		}
		if again.outcome != nil {
			if diff := cmp.Diff(m.outcome, again.outcome); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}
