package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseSpec(t *testing.T) {
	sha := strings.Repeat("0", 64)
	for _, c := range []struct {
		body string
		want string // part of the error; "": accepted
	}{
		{`{"function":"f"}`, ""},
		{`{"params":{}}`, ""},
		{`{"payload_msgpack":"wA=="}`, ""},
		{`{"function":"rust#f","params":{"n":9007199254740993},"priority":0,"max_attempts":1,"timeout_ms":1,"retry_interval_ms":1}`, ""},
		{`{"function":"f","priority":9,"max_attempts":4294967295,"run_at":"2026-03-19T02:00:00.5+01:00","trace_context":{"a":"b"}}`, ""},
		{`{"function":"f","unknown":[1]}`, ""},
		{`{"blob":{"name":"n","chunks":1,"size":1,"sha256":"` + sha + `"},"priority":3}`, ""},
		{``, "job is not valid JSON: unexpected end of JSON input"},
		{`[]`, "job is not valid JSON: it must be an object, not array"},
		{`{}`, "job names nothing to do: give function, params or payload_msgpack"},
		{`null`, "job names nothing to do"},
		{`{"function":7}`, "function must be a string, not number"},
		{`{"params":[1]}`, "params must be a JSON object; send any other value as payload_msgpack"},
		{`{"params":null}`, "job names nothing to do"},
		{`{"function":"f","params":null,"priority":null,"run_at":null,"blob":null}`, ""},
		{`{"payload_msgpack":7}`, "payload_msgpack must be a base64 string, not number"},
		{`{"trace_context":{"a":1},"function":"f"}`, "must be a string, not number"},
		{`{"blob":"x"}`, "blob must be an object, not string"},
		{`{"params":{},"payload_msgpack":"wA=="}`, "params and payload_msgpack exclude each other"},
		{`{"payload_msgpack":"!"}`, "illegal base64"},
		{`{"function":"` + strings.Repeat("f", MaxFunctionLen+1) + `"}`, "function has 257 bytes; at most 256"},
		{`{"function":"f","priority":10}`, "priority is 10; must be 0 to 9"},
		{`{"function":"f","priority":-1}`, "priority is -1"},
		{`{"function":"f","priority":1.5}`, "priority must be a whole number, not number 1.5"},
		{`{"function":"f","max_attempts":0}`, "max_attempts is 0; must be 1 to 4294967295"},
		{`{"function":"f","timeout_ms":0}`, "timeout_ms is 0"},
		{`{"function":"f","timeout_ms":9999999999999}`, "timeout_ms is 9999999999999"},
		{`{"function":"f","retry_interval_ms":0}`, "retry_interval_ms is 0"},
		{`{"function":"f","run_at":"1969-12-31T00:00:00Z"}`, "run_at 1969-12-31T00:00:00Z is out of range"},
		{`{"function":"f","delay_ms":0,"result_ttl_ms":0}`, ""},
		{`{"function":"f","delay_ms":315360000000,"result_ttl_ms":315360000000}`, ""},
		{`{"function":"f","delay_ms":-1}`, "delay_ms is -1; must be 0 to 315360000000"},
		{`{"function":"f","delay_ms":315360000001}`, "delay_ms is 315360000001"},
		{`{"function":"f","result_ttl_ms":-1}`, "result_ttl_ms is -1; must be 0 to 315360000000"},
		{`{"function":"f","result_ttl_ms":1.5}`, "result_ttl_ms must be a whole number, not number 1.5"},
		{`{"function":"f","delay_ms":5,"run_at":"2026-03-19T02:00:00Z"}`, "run_at and delay_ms exclude each other"},
		{`{"function":"f","delay_ms":5,"debounce_key":"k","debounce_ms":1}`, "debounce_key and delay_ms exclude each other"},
		{`{"function":"f","trace_context":{"":"a"}}`, "trace_context has a name of 0 bytes; must have 1 to 128"},
		{`{"function":"f","trace_context":{"a":"` + strings.Repeat("v", MaxTraceBytes) + `"}}`, "trace_context has 16385 bytes; at most 16384"},
		{`{"function":"f","trace_context":` + specWithTraceEntries(MaxTraceEntries) + `}`, ""},
		{`{"function":"f","trace_context":` + specWithTraceEntries(MaxTraceEntries+1) + `}`, "trace_context has 65 entries; at most 64"},
		{`{"function":"f","run_at":"tomorrow"}`, "not valid JSON"},
		{`{"blob":{"name":"","chunks":1,"size":1,"sha256":"` + sha + `"}}`, "blob reference is incomplete"},
		{`{"blob":{"name":"n","chunks":0,"size":1,"sha256":"` + sha + `"}}`, "blob reference is incomplete"},
		{`{"blob":{"name":"n","chunks":1,"size":50331649,"sha256":"` + sha + `"}}`, "blob reference is incomplete"},
		{`{"blob":{"name":"n","chunks":1,"size":1,"sha256":"00"}}`, "blob reference is incomplete"},
		{`{"blob":{"name":"n","chunks":1,"size":1,"sha256":"` + sha + `"},"priority":99}`, "priority is 99"},
	} {
		_, err := ParseSpec([]byte(c.body))
		var invalid *InvalidError
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.body, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &invalid)):
			t.Errorf("%s: error %v, want %q", c.body, err, c.want)
		}
	}
}

func specWithTraceEntries(n int) string {
	entries := make(map[string]string)
	for i := range n {
		entries[fmt.Sprint("name-", i)] = "value"
	}
	text, _ := json.Marshal(entries)
	return string(text)
}

func TestSpec_Job(t *testing.T) {
	stored := time.Date(2026, 3, 19, 2, 0, 0, 0, time.UTC)
	pos := Position{Lane: 2, Seq: 7}
	plain, err := ParseSpec([]byte(`{"params":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Job{ID: ID{1}, Queue: "mail", Position: pos, Accepted: stored, Priority: DefaultPriority, NoPriority: true}
	if diff := cmp.Diff(want, plain.Job(ID{1}, "mail", pos, stored)); diff != "" {
		t.Errorf("plain (-want +got):\n%s", diff)
	}
	full, err := ParseSpec([]byte(`{"function":"f","run_at":"2026-03-19T03:00:00Z","priority":0,"max_attempts":3,"timeout_ms":1500,"retry_interval_ms":20}`))
	if err != nil {
		t.Fatal(err)
	}
	want = Job{
		ID: ID{1}, Queue: "mail", Function: "f", Position: pos, Accepted: stored, RunAt: stored.Add(time.Hour),
		MaxAttempts: 3, Timeout: 1500 * time.Millisecond, RetryInterval: 20 * time.Millisecond,
	}
	if diff := cmp.Diff(want, full.Job(ID{1}, "mail", pos, stored)); diff != "" {
		t.Errorf("full (-want +got):\n%s", diff)
	}
	later, err := ParseSpec([]byte(`{"function":"f","delay_ms":1500,"result_ttl_ms":2500}`))
	if err != nil {
		t.Fatal(err)
	}
	want = Job{
		ID: ID{1}, Queue: "mail", Function: "f", Position: pos, Accepted: stored, Priority: DefaultPriority, NoPriority: true,
		RunAt: stored.Add(1500 * time.Millisecond), Delay: 1500 * time.Millisecond, ResultTTL: 2500 * time.Millisecond,
	}
	if diff := cmp.Diff(want, later.Job(ID{1}, "mail", pos, stored)); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
	now, err := ParseSpec([]byte(`{"function":"f","delay_ms":0,"result_ttl_ms":0}`))
	if err != nil {
		t.Fatal(err)
	}
	want.RunAt, want.Delay, want.ResultTTL = time.Time{}, 0, 0
	if diff := cmp.Diff(want, now.Job(ID{1}, "mail", pos, stored)); diff != "" {
		t.Errorf("now (-want +got):\n%s", diff)
	}
}

func TestRecord_Job(t *testing.T) {
	stored := time.Date(2026, 3, 19, 2, 0, 0, 0, time.UTC)
	keyed, _ := KeyID("mail", "k")
	pos := Position{Lane: 1, Seq: 4}
	derived := RecordID("L1", Position{Seq: 4}, stored)
	for _, c := range []struct {
		name, queue, key, body string
		id                     ID
		refused                bool
	}{
		{"key", "mail", "k", `{"function":"f"}`, keyed, false},
		{"no key", "mail", "", `{"function":"f"}`, derived, false},
		{"long key", "mail", strings.Repeat("k", 129), `{"function":"f"}`, derived, true},
		{"bad body", "mail", "k", `{`, keyed, true},
		{"bad queue", "_mail", "", `{"function":"f"}`, derived, true},
	} {
		r := Record{Position: pos, Queue: c.queue, Key: c.key, Stored: stored, Body: []byte(c.body)}
		j, err := r.Job("L1", Defaults{})
		if (err != nil) != c.refused || j.ID != c.id || j.Position != pos || !j.Accepted.Equal(stored) || j.Queue != c.queue {
			t.Errorf("%s: %+v, %v", c.name, j, err)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte(`{"function":"f","params":{"a":1},"priority":3,"run_at":"2026-03-19T02:00:00Z"}`))
	f.Add([]byte(`{"payload_msgpack":"wA==","max_attempts":1}`))
	f.Add([]byte(`{"function":"f","unique_key":"k","unique_ttl_ms":5,"rate_limit_key":"r","rate_limit_ms":1}`))
	f.Add([]byte(`{"function":"f","debounce_key":"d","debounce_ms":5}`))
	f.Add([]byte(`{"blob":{"name":"n","chunks":1,"size":1,"sha256":"00"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		spec, err := ParseSpec(body)
		var invalid *InvalidError
		if err != nil {
			if !errors.As(err, &invalid) {
				t.Errorf("error of type %T", err)
			}
			return
		}
		again, err := json.Marshal(spec)
		if err != nil {
			t.Fatalf("%s: spec cannot be marshalled: %v", body, err)
		}
		if _, err := ParseSpec(again); err != nil {
			t.Errorf("%s marshalled again as %s: %v", body, again, err)
		}
		if j := spec.Job(ID{1}, "q", Position{}, time.Unix(0, 0)); j.Priority > MaxPriority || j.Timeout < 0 || j.RetryInterval < 0 {
			t.Errorf("%s: job %+v", body, j)
		}
	})
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "mail": true, "0": true, "a-b_C9": true, strings.Repeat("q", MaxQueueLen): true,
		"": false, "_a": false, "-a": false, "a.b": false, "a b": false, "ü": false, "a*": false, "a>": false,
		strings.Repeat("q", MaxQueueLen+1): false, SystemQueue: false,
	} {
		if err := ValidQueue(name); (err == nil) != ok {
			t.Errorf("queue %q: %v", name, err)
		}
	}
	for function, want := range map[string][2]string{
		"": {"", ""}, "h": {"", "h"}, "r#h": {"r", "h"}, "#h": {"", "h"}, "r#": {"r", ""}, "r#a#b": {"r", "a#b"}, "#": {"", ""},
	} {
		if runner, handler := SplitFunction(function); [2]string{runner, handler} != want {
			t.Errorf("%q splits into %q and %q", function, runner, handler)
		}
	}
	for s := New; s <= Failed; s++ {
		if back, ok := ParseState(s.String()); !ok || back != s {
			t.Errorf("state %s parsed as %s", s, back)
		}
		if s.Ended() != (s == Completed || s == Failed) {
			t.Errorf("%s ended: %t", s, s.Ended())
		}
	}
	if _, ok := ParseState("running"); ok {
		t.Error("an unknown state is accepted")
	}
	for offer, want := range map[Offer]string{
		{Kind: Overhop, Worker: "w"}: "overhop/w", {Kind: RRQ, Worker: "pool/9000"}: "rrq/pool/9000",
	} {
		if got := offer.Channel(); got != want {
			t.Errorf("channel %q, want %q", got, want)
		}
	}
	refused := &UnavailableError{Reason: "no quorum"}
	if got := fmt.Sprint(refused); got != "yard is unavailable: no quorum" {
		t.Error(got)
	}
	refused.RetryAfter = 2 * time.Second
	if got := fmt.Sprint(refused); got != "yard is unavailable: no quorum; try again in 2s" {
		t.Error(got)
	}
}

// TestRecord_Defaults checks that defaults apply to the fields that a job does not set,
// and to no others.
func TestRecord_Defaults(t *testing.T) {
	d := Defaults{UniqueTTL: time.Minute, ResultTTL: time.Hour}
	for body, want := range map[string]Defaults{
		`{"function":"f"}`:                                         {ResultTTL: time.Hour},
		`{"function":"f","result_ttl_ms":0}`:                       {},
		`{"function":"f","result_ttl_ms":5000}`:                    {ResultTTL: 5 * time.Second},
		`{"function":"f","unique_key":"k"}`:                        {UniqueTTL: time.Minute, ResultTTL: time.Hour},
		`{"function":"f","unique_key":"k","unique_ttl_ms":5000}`:   {UniqueTTL: 5 * time.Second, ResultTTL: time.Hour},
		`{"function":"f","rate_limit_key":"k","rate_limit_ms":10}`: {ResultTTL: time.Hour},
	} {
		r := Record{Queue: "q", Key: "k", Stored: time.Unix(1, 0), Body: []byte(body)}
		j, err := r.Job("L", d)
		got := Defaults{ResultTTL: j.ResultTTL}
		if j.Guards != nil {
			got.UniqueTTL = j.Guards.Unique.TTL
		}
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", body, got, err, want)
		}
	}
	r := Record{Queue: "q", Key: "k", Body: []byte(`{"unique_key":`)}
	if _, err := r.Job("L", d); err == nil {
		t.Error("invalid JSON is accepted")
	}
}
