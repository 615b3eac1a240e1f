package job

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestReadDirect_Headers checks what headers add to a job.
func TestReadDirect_Headers(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	long := strings.Repeat("x", 513)
	for _, c := range []struct {
		name, body string
		h          Headers
		want, bad  string // merged body; part of the error about the headers, "": none
	}{
		{"none", `{ "function" : "f" }`, Headers{}, `{ "function" : "f" }`, ""},
		{"delay", `{"function":"f"}`, Headers{Delay: "1.5s"}, `{"function":"f","delay_ms":1500}`, ""},
		{"delay in days", `{"function":"f"}`, Headers{Delay: "1d12h"}, `{"function":"f","delay_ms":129600000}`, ""},
		{"delay of the body", `{"function":"f","delay_ms":7}`, Headers{Delay: "30s"}, `{"function":"f","delay_ms":7}`, ""},
		{"run_at of the body", `{"function":"f","run_at":"2026-03-19T02:00:00Z"}`, Headers{Delay: "30s"}, `{"function":"f","run_at":"2026-03-19T02:00:00Z"}`, ""},
		{"delay without a unit", `{"function":"f"}`, Headers{Delay: "30"}, `{"function":"f"}`, `header Yard-Delay is "30": must be`},
		{"negative delay", `{"function":"f"}`, Headers{Delay: "-1s"}, `{"function":"f"}`, "header Yard-Delay"},
		{"delay too long", `{"function":"f"}`, Headers{Delay: "100000h"}, `{"function":"f"}`, "delay_ms is 360000000000"},
		{"delay and debounce", `{"function":"f","debounce_key":"k","debounce_ms":5}`, Headers{Delay: "1s"}, `{"function":"f","debounce_key":"k","debounce_ms":5}`, "exclude each other"},
		{"invalid body", `{"function":7}`, Headers{Delay: "30s"}, `{"function":7}`, "function must be a string"},
		{"invalid JSON", `{`, Headers{Delay: "30s"}, `{`, "unexpected end"},
		{"trace", `{"function":"f"}`, Headers{Traceparent: parent, Tracestate: "a=1,b=2"}, `{"function":"f","trace_context":{"traceparent":"` + parent + `","tracestate":"a=1,b=2"}}`, ""},
		{"long state", `{"function":"f"}`, Headers{Traceparent: parent, Tracestate: long}, `{"function":"f","trace_context":{"traceparent":"` + parent + `"}}`, ""},
		{"state alone", `{"function":"f"}`, Headers{Tracestate: "a=1"}, `{"function":"f"}`, ""},
		{"trace of the body", `{"function":"f","trace_context":{"a":"b"}}`, Headers{Traceparent: parent}, `{"function":"f","trace_context":{"a":"b"}}`, ""},
		{"malformed trace", `{"function":"f"}`, Headers{Traceparent: strings.ToUpper(parent)}, `{"function":"f"}`, ""},
		{"zero trace", `{"function":"f"}`, Headers{Traceparent: "00-00000000000000000000000000000000-b7ad6b7169203331-01"}, `{"function":"f"}`, ""},
		{"zero span", `{"function":"f"}`, Headers{Traceparent: "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"}, `{"function":"f"}`, ""},
		{"longer than its version", `{"function":"f"}`, Headers{Traceparent: parent + "-x"}, `{"function":"f"}`, ""},
		{"later version", `{"function":"f"}`, Headers{Traceparent: "01" + parent[2:] + "-x"}, `{"function":"f","trace_context":{"traceparent":"01` + parent[2:] + `-x"}}`, ""},
		{"no version", `{"function":"f"}`, Headers{Traceparent: "ff" + parent[2:]}, `{"function":"f"}`, ""},
		{"short", `{"function":"f"}`, Headers{Traceparent: parent[:54]}, `{"function":"f"}`, ""},
	} {
		got, _, err := ReadDirect("mail", "", []byte(c.body), c.h)
		var invalid *InvalidError
		switch {
		case c.bad == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.bad != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.bad)):
			t.Errorf("%s: error %v, want %q", c.name, err, c.bad)
		}
		if string(got) != c.want && !equalJSON(t, got, c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func equalJSON(t *testing.T, got []byte, want string) bool {
	t.Helper()
	var g, w any
	return json.Unmarshal(got, &g) == nil && json.Unmarshal([]byte(want), &w) == nil && cmp.Equal(g, w)
}

// TestRecord_BadHeaders checks that a record with invalid headers is rejected under
// the id that its job would have had.
func TestRecord_BadHeaders(t *testing.T) {
	id, err := KeyID("mail", "k")
	if err != nil {
		t.Fatal(err)
	}
	r := Record{Queue: "mail", Key: "k", Stored: time.Unix(1, 0), Body: []byte(`{"function":"f"}`), Invalid: &InvalidError{Reason: "no"}}
	j, err := r.Job("L", Defaults{})
	if j.ID != id || err == nil || err.Error() != "no" {
		t.Errorf("%+v, %v", j, err)
	}
}
