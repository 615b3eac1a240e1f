package runnerpool

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

func TestCorrelate(t *testing.T) {
	const params = `{
		"tenant": {"id": 12345678901234567890, "name": "Ü\n", "list": [1], "open": true, "deep": {"er": 1.50}},
		"user": "u", "none": null, "empty": "", "params": {"x": "inner"}
	}`
	for _, test := range []struct {
		path, want string
	}{
		{"tenant.id", "12345678901234567890"},
		{"params.tenant.id", "12345678901234567890"},
		{" params.tenant.deep.er ", "1.50"},
		{"tenant.name", "Ü\n"},
		{"tenant.open", "true"},
		{"user", "u"},
		{"params.params.x", "inner"},
		{"tenant", ""}, {"tenant.list", ""}, {"tenant.list.0", ""}, {"none", ""}, {"none.x", ""}, {"empty", ""},
		{"user.x", ""}, {"nobody", ""}, {"nobody.x", ""},
	} {
		c := Config{Correlation: map[string]string{"key": test.path}}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		got := correlate(c.correlations(), json.RawMessage(params), nil)
		if got["key"] != test.want || (test.want == "") != (got == nil) {
			t.Errorf("%s: %q, want %q", test.path, got, test.want)
		}
	}
}

func TestCorrelate_Bounds(t *testing.T) {
	c := Config{Correlation: map[string]string{"traced": "a", "cut": "long", "absent": "no"}}
	for n := range 20 {
		c.Correlation[fmt.Sprintf("z%02d", n)] = "a"
	}
	params := json.RawMessage(`{"a":1,"long":"` + strings.Repeat("ä€", 100) + `"}`)
	got := correlate(c.correlations(), params, map[string]string{"traced": "by the producer", "z00": "", "other": "x"})
	if got["traced"] != "by the producer" || got["z00"] != "1" || len(got) != 16 || got["z13"] == "" || got["z14"] != "" {
		t.Errorf("found %q", got)
	}
	if v := got["cut"]; len(v) != 255 || !utf8.ValidString(v) { // 51 times 5 bytes
		t.Errorf("cut to %d bytes: %q", len(v), v)
	}
	for _, params := range []string{"", "null", "[1]", "{", `{"a":`} {
		if got := correlate(c.correlations(), json.RawMessage(params), nil); got != nil {
			t.Errorf("%s: %q", params, got)
		}
	}
}

// The correlation context is sent to the runner; without mappings it is null.
func TestCorrelationOfRequest(t *testing.T) {
	for _, mappings := range []map[string]string{nil, {"n": "n", "traceparent": "nobody"}} {
		cfg := testConfig("", nil)
		cfg.Correlation = mappings
		y := startHarness(t, cfg)
		y.n++
		spec := job.Spec{Params: json.RawMessage(`{"n":9007199254740993}`), Trace: map[string]string{"traceparent": "t"}}
		if !y.Start(assignment(y.n, "context", y.awaitOffer(1)), spec) {
			t.Fatal("not started")
		}
		var c rrq.Context
		if err := json.Unmarshal(y.awaitOutcome().Result.Data, &c); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"n": "9007199254740993", "traceparent": "t"}
		if mappings == nil {
			want = nil
		}
		if !maps.Equal(c.Correlation, want) || (c.Correlation == nil) != (want == nil) {
			t.Errorf("context has %v, want %v", c.Correlation, want)
		}
	}
}
