package faults

import (
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// An error is written in lines, with their indentation, and nothing of it reaches the terminal as a
// control sequence or changes the direction of text.
func TestWrite(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault job.Fault
		want  string
	}{
		{"traceback", job.Fault{Message: "no", Type: "ValueError", Code: "E1", Details: []byte(`{"traceback":"Traceback:\n  File \"a.py\", line 1\n\tcall()\nValueError: no\n","n":3,"s":"x"}`)},
			"  ValueError [E1]: no\n  traceback:\n    Traceback:\n      File \"a.py\", line 1\n        call()\n    ValueError: no\n  n: 3\n  s: x\n"},
		{"text", job.Fault{Message: "no", Details: []byte(`"a\nb"`)}, "  no\n  a\n  b\n"},
		{"list", job.Fault{Message: "no", Details: []byte(`[1,{"a":2}]`)}, "  no\n  [\n    1,\n    {\n      \"a\": 2\n    }\n  ]\n"},
		{"hostile", job.Fault{Message: "\x1b[31mred\x07\u202e\r\nmore", Type: "\u009b1m", Details: []byte(`{"\u001b]0;x":"a\u001b[2J\nb","c":"\u2028"}`)},
			"  \\u009b1m: \\x1b[31mred\\x07\\u202e\n  more\n  \\x1b]0;x:\n    a\\x1b[2J\n    b\n  c: \\u2028\n"},
		{"right to left", job.Fault{Message: "שלום עולם"}, "  שלום עולם\n"},
	} {
		var b strings.Builder
		Write(&b, "  ", &c.fault)
		if b.String() != c.want {
			t.Errorf("%s:\n%q, want\n%q", c.name, b.String(), c.want)
		}
	}
}
