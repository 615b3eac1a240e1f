package inspect

import (
	_ "embed"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const jobA = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10" // in the history

// history is ten lines of a stream of events.
//
//go:embed testdata/history.jsonl
var history string

func TestEventFilter(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    eventFilter
		want []uint64
	}{
		{"default", eventFilter{}, []uint64{1, 2, 3, 4, 5, 6, 7, 8}},
		{"all", eventFilter{idle: true}, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		{"idle type", eventFilter{event: plainName("run-heartbeat")}, []uint64{10}},
		{"since", eventFilter{since: time.Date(2026, 1, 2, 3, 4, 9, 0, time.UTC)}, []uint64{6, 7, 8}},
		{"type", eventFilter{event: "dispatchqueued"}, []uint64{2, 3, 7}},
		{"dotted type", eventFilter{event: plainName("worker.assigned")}, []uint64{5}},
		{"job", eventFilter{job: jobA}, []uint64{2, 4, 5}},
		{"queue", eventFilter{queue: "mail"}, []uint64{2, 4, 5}},
		{"queue behind a runner", eventFilter{queue: "slow"}, []uint64{3, 6}},
	} {
		var got []uint64
		err := tt.f.eachEvent([]byte(history), func(_ []byte, e *eventLine) error {
			got = append(got, e.Number)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Text from callers and workers is shown without line breaks and control
// characters.
func TestEventLine_Plain(t *testing.T) {
	var out strings.Builder
	e := eventLine{Event: "DispatchFailed", Request: "own\x1b[2J", Reason: "boom\nAuthorityAcquired owner=\x07me", Number: 7}
	if err := e.write(&out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasSuffix(got, "own [2J reason=boom AuthorityAcquired owner= me\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
}

// Fields of an event may hold what a producer or a worker wrote.
func TestEventLine_Hostile(t *testing.T) {
	e := eventLine{Event: "DispatchFailed"}
	e.Request, e.Reason, e.Function = "id#1", "\x1b[2Jgone\r\nfaked line\u2028", "f\u202e"
	var out strings.Builder
	if err := e.write(&out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "id#1 function=f reason=[2Jgone faked line\n"; !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("shown as %q, want one line that ends with %q", got, want)
	}
}
