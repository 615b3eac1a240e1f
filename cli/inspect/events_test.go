package inspect

import (
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// Text from callers and workers is shown without line breaks and control
// characters.
func TestEventLine_Plain(t *testing.T) {
	var out strings.Builder
	e := history.Line{Event: "DispatchFailed", Request: "own\x1b[2J", Reason: "boom\nAuthorityAcquired owner=\x07me", Number: 7}
	if err := writeEvent(&out, &e); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasSuffix(got, "own [2J reason=boom AuthorityAcquired owner= me\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
}

// Fields of an event may hold what a producer or a worker wrote.
func TestEventLine_Hostile(t *testing.T) {
	e := history.Line{Event: "DispatchFailed"}
	e.Request, e.Reason, e.Function = "id#1", "\x1b[2Jgone\r\nfaked line\u2028", "f\u202e"
	var out strings.Builder
	if err := writeEvent(&out, &e); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "id#1 function=f reason=[2Jgone faked line\n"; !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("shown as %q, want one line that ends with %q", got, want)
	}
}
