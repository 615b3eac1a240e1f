package job_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

func TestUnmarshalStrict(t *testing.T) {
	type question struct {
		job.Spec
		ID   string    `json:"id"`
		Many []string  `json:"many"`
		Flag bool      `json:"flag"`
		Job  *job.Spec `json:"job"`
	}
	for _, c := range []struct{ text, want string }{
		{` {"function": "f", "id": "a", "max_attempts": null, "params": null} `, ""},
		{`{"function":"f","run_at":"2026-11-21T09:30:00+01:00"}`, ""},

		{``, "job is not valid JSON: unexpected end of JSON input"},
		{`nope`, "job is not valid JSON: invalid character"},
		{`[]`, "job is not valid JSON: it must be an object, not array"},
		{`{} {}`, "job is not valid JSON: invalid character '{' after top-level value"},
		{`{"function":"f"} x`, "job is not valid JSON: invalid character 'x' after top-level value"},
		{"{\"function\":\"f\xff\"}", "job is not valid JSON: it holds bytes that are not UTF-8"},

		{`{"function":7}`, "job is not valid JSON: function must be a string, not number"},
		{`{"max_attempts":"3"}`, "job is not valid JSON: max_attempts must be a whole number, not string"},
		{`{"delay_ms":1.5}`, "job is not valid JSON: delay_ms must be a whole number, not number 1.5"},
		{`{"payload_msgpack":7}`, "job is not valid JSON: payload_msgpack must be a base64 string, not number"},
		{`{"many":"a"}`, "job is not valid JSON: many must be an array, not string"},
		{`{"flag":1}`, "job is not valid JSON: flag must be true or false, not number"},
		{`{"run_at":"soon"}`, `job is not valid JSON: "soon" is not a time like "2026-11-21T09:30:00Z"`},

		{`{"function":"f","max_attempt":1}`, `job has no key "max_attempt"; the nearest is max_attempts`},
		{`{"function":"f","colour":1}`, `job has no key "colour"; there are debounce_key, `},
		{`{"function":"f","max_retries":1}`, `job has no key "max_retries"; here it is max_attempts`},
		{`{"function_name":"f"}`, `job has no key "function_name"; here it is function`},
		{`{"function":"f","job_timeout_seconds":1}`, `job has no key "job_timeout_seconds"; here it is timeout_ms`},
	} {
		var q question
		err := job.UnmarshalStrict("job", []byte(c.text), &q)
		var invalid *job.InvalidError
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.text, err)
		case c.want != "" && (!errors.As(err, &invalid) || !strings.HasPrefix(invalid.Reason, c.want)):
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		case strings.Contains(c.want, "there are") && (!strings.Contains(err.Error(), ", max_attempts, ") || strings.Contains(err.Error(), "blob")):
			t.Errorf("%s: %v does not list what a job takes", c.text, err)
		}
	}
}

// TestParseSpec_IgnoresUnknownKeys checks that an accepted record with unknown keys
// is read: a newer node may have written it.
func TestParseSpec_IgnoresUnknownKeys(t *testing.T) {
	s, err := job.ParseSpec([]byte(`{"function":"f","max_attempt":1,"later":{}}`))
	if err != nil || s.Function != "f" {
		t.Errorf("record with unknown keys: %+v, %v", s, err)
	}
}
