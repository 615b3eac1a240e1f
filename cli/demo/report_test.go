package demo

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/google/go-cmp/cmp"
)

var (
	start0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	idA    = job.ID{1}
	idB    = job.ID{2}
)

func after(ms int) time.Time { return start0.Add(time.Duration(ms) * time.Millisecond) }

// TestJudge checks that judge detects every kind of missing or contradictory
// evidence.
func TestJudge(t *testing.T) {
	good := func() (*load, evidence) {
		l := &load{ids: map[job.ID]jobKind{idA: {}, idB: {fails: true}}, began: start0, took: time.Second}
		return l, evidence{
			states:    map[job.ID]jobState{idA: {"completed", 2, 0}, idB: {"failed", 1, 1}},
			witnesses: map[job.ID][]witnessLine{idA: {{"1", "10"}, {"2", "12"}}, idB: {{"1", "11"}}},
			history:   eventLog{events: 9, delivered: map[job.ID]int{idA: 1}, ends: []time.Time{after(1), after(2000)}},
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(*load, *evidence)
		want  Report
		good  bool
	}{
		{"all well", func(*load, *evidence) {}, Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1}, true},
		{"not known", func(_ *load, s *evidence) { delete(s.states, idA) }, Report{FailedAsIntended: 1, Lost: 1, RunAgain: 1,
			Missing: []string{":01000000-0000-0000-0000-000000000000, , lost: the cluster does not have it; it ran 2 times"}}, false},
		{"no end", func(_ *load, s *evidence) { s.states[idA] = jobState{"delayed", 1, 0} }, Report{FailedAsIntended: 1, Late: 1, RunAgain: 1,
			Missing: []string{":01000000-0000-0000-0000-000000000000, , late: it is delayed; it ran 2 times"}}, false},
		{"no witness", func(_ *load, s *evidence) { delete(s.witnesses, idB) }, Report{Completed: 1, Lost: 1, Retried: 1, RunAgain: 1,
			Missing: []string{":02000000-0000-0000-0000-000000000000, , lost: it is failed without a witness; it ran 0 times"}}, false},
		{"delivered twice", func(_ *load, s *evidence) { s.history.delivered[idA] = 2 },
			Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1, Duplicates: 1}, false},
		{"a dispatch ended twice", func(_ *load, s *evidence) { s.history.duplicates = 1 },
			Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1, Duplicates: 1}, false},
		{"a dispatch run twice", func(_ *load, s *evidence) { s.witnesses[idB] = []witnessLine{{"1", "11"}, {"1", "11"}} },
			Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1, Duplicates: 1}, false},
		{"failed for no reason", func(_ *load, s *evidence) { s.states[idA] = jobState{"failed", 2, 0} },
			Report{FailedAsIntended: 1, FailedOtherwise: 1, Retried: 1, RunAgain: 1}, false},
		{"should have failed", func(_ *load, s *evidence) { s.states[idB] = jobState{"completed", 1, 1} },
			Report{Completed: 1, FailedOtherwise: 1, Retried: 1, RunAgain: 1}, false},
		{"a gap in history", func(_ *load, s *evidence) { s.history.gaps = 1 },
			Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1, EventGaps: 1}, false},
	} {
		l, s := good()
		tt.spoil(l, &s)
		c := &demoCluster{members: make([]*member, 3)}
		got := c.judge(l, s)
		tt.want.Nodes, tt.want.Accepted, tt.want.Events = 3, 2, 9
		tt.want.AcceptedPerS, tt.want.Seconds = 2, 2
		tt.want.EndedPerS = float64(tt.want.Completed+tt.want.FailedAsIntended+tt.want.FailedOtherwise) / 2
		if diff := cmp.Diff(tt.want, got); diff != "" || got.Good() != tt.good {
			t.Errorf("%s: good %t (-want +got):\n%s", tt.name, got.Good(), diff)
		}
	}
}

// TestStatesOnceEnded checks that the states of the jobs are those of the node that counts
// all ends. A node whose ledger is behind would report an ended job as unfinished.
func TestStatesOnceEnded(t *testing.T) {
	node := func(states map[job.ID]string) askFunc {
		return func(_ context.Context, subject string, _, reply any) error {
			switch list := reply.(type) {
			case *api.QueueList:
				counts := map[string]int{}
				for _, state := range states {
					counts[state]++
				}
				list.Queues = []api.Queue{{Counts: counts}}
			case *api.JobList:
				for id, state := range states {
					list.Jobs = append(list.Jobs, api.Job{ID: id, State: state})
				}
			}
			return nil
		}
	}
	behind := node(map[job.ID]string{idA: "completed", idB: "active"})
	if got, err := statesOnceEnded(t.Context(), behind, 2); err == nil {
		t.Errorf("a node that is behind: %v", got)
	}
	got, err := statesOnceEnded(t.Context(), node(map[job.ID]string{idA: "completed", idB: "failed"}), 2)
	if diff := cmp.Diff(map[job.ID]jobState{idA: {state: "completed"}, idB: {state: "failed"}}, got, cmp.AllowUnexported(jobState{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestFailover(t *testing.T) {
	h := eventLog{
		ends:     []time.Time{after(100), after(200), after(1700), after(1710), after(9000)},
		acquired: []time.Time{after(0), after(1500)},
	}
	if got := h.failoverTime(after(250)); got != 1500*time.Millisecond {
		t.Errorf("from the last end before to the first after: %s", got)
	}
	if got := h.failoverTime(time.Time{}); got != 0 {
		t.Errorf("without a kill: %s", got)
	}
	if got := h.failoverTime(after(1600)); got != 1500*time.Millisecond {
		t.Errorf("of an authority that goes on from the time of the last entry: %s", got)
	}
	h.acquired = h.acquired[:1]
	if got := h.failoverTime(after(250)); got != 0 {
		t.Errorf("without a new authority: %s", got)
	}
}

func TestReadWitnesses(t *testing.T) {
	c := &demoCluster{dir: t.TempDir()}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("worker-1.witness", "demo:"+idA.String()+" 1 10\ndemo:"+idA.String()+" 2 12\n1")
	write("runner-n1.witness", job.RequestID(idB, 1)+" "+idB.String()+" 1 11\n")
	got, err := c.readWitnesses()
	if err != nil {
		t.Fatal(err)
	}
	want := map[job.ID][]witnessLine{idA: {{"1", "10"}, {"2", "12"}}, idB: {{"1", "11"}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(witnessLine{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	write("worker-2.witness", "nonsense 1 2\n")
	if _, err := c.readWitnesses(); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("nonsense: %v", err)
	}
}

func TestReportWrite(t *testing.T) {
	r := Report{Nodes: 3, Killed: true, Accepted: 2000, Completed: 1800, FailedAsIntended: 200, Retried: 400, RunAgain: 4,
		CallsRepeated: 1, Events: 10028, FailoverMS: 1560, AcceptedPerS: 250.2, EndedPerS: 147, Seconds: 13.6, FailedOtherwise: 1,
		Kept: "there"}
	var out strings.Builder
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"accepted            2000    250 per second", "failed otherwise    1 ", "failover time       1.56 s", "lost                0 ", "data are in there"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
