package history

import (
	_ "embed"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const jobA = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10" // in the history

// testHistory is ten lines of a stream of events.
//
//go:embed testdata/history.jsonl
var testHistory string

// TestParseLines checks that only the line of a job takes the queue of the next line, of the same job.
func TestParseLines(t *testing.T) {
	lines, err := ParseLines([]byte(`{"event":"operator.acted","action":"node.start","target":"n1","seq":1}
{"event":"jobs.forgotten","queue":"mail","jobs":{"failed":1},"seq":2}
{"event":"DispatchNotified","request_id":"` + jobA + `#1","channel":"w","seq":3}
{"event":"job.changed","job":"` + jobA + `","queue":"mail","seq":4}`))
	if err != nil {
		t.Fatal(err)
	}
	var queues []string
	for _, l := range lines {
		queues = append(queues, l.Queue)
	}
	if diff := cmp.Diff([]string{"", "mail", "mail", "mail"}, queues); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestFilter(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    Filter
		want []uint64
	}{
		{"default", Filter{}, []uint64{1, 2, 3, 4, 5, 6, 7, 8}},
		{"all", Filter{Idle: true}, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		{"idle type", Filter{Type: "run-heartbeat"}, []uint64{10}},
		{"since", Filter{Since: time.Date(2026, 1, 2, 3, 4, 9, 0, time.UTC)}, []uint64{6, 7, 8}},
		{"type", Filter{Type: "dispatchqueued"}, []uint64{2, 3, 7}},
		{"dotted type", Filter{Type: "worker.assigned"}, []uint64{5}},
		{"job", Filter{Job: jobA}, []uint64{2, 4, 5}},
		{"queue", Filter{Queue: "mail"}, []uint64{2, 4, 5}},
		{"queue behind a runner", Filter{Queue: "slow"}, []uint64{3, 6}},
	} {
		var got []uint64
		lines, err := ParseLines([]byte(testHistory))
		if err != nil {
			t.Fatal(err)
		}
		for i := range lines {
			if tt.f.Matches(&lines[i]) {
				got = append(got, lines[i].Number)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
