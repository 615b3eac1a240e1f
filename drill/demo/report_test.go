package demo

import (
	"os"
	"strings"
	"testing"
	"time"

	"yardmaster/job"

	"github.com/google/go-cmp/cmp"
)

var (
	start0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	idA    = job.ID{1}
	idB    = job.ID{2}
)

func after(ms int) time.Time { return start0.Add(time.Duration(ms) * time.Millisecond) }

// A verdict that could not be bad would be worth nothing.
func TestJudge(t *testing.T) {
	good := func() (*load, stock) {
		l := &load{ids: map[job.ID]errand{idA: {}, idB: {fails: true}}, began: start0, took: time.Second}
		return l, stock{
			ends:      map[job.ID]end{idA: {"completed", 2, 0}, idB: {"failed", 1, 1}},
			witnesses: map[job.ID][]sighting{idA: {{"1", "10"}, {"2", "12"}}, idB: {{"1", "11"}}},
			history:   told{events: 9, delivered: map[job.ID]int{idA: 1}, ends: []time.Time{after(1), after(2000)}},
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(*load, *stock)
		want  Report
		good  bool
	}{
		{"all well", func(*load, *stock) {}, Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1}, true},
		{"no end", func(_ *load, s *stock) { delete(s.ends, idA) }, Report{FailedAsIntended: 1, Lost: 1, RunAgain: 1}, false},
		{"no witness", func(_ *load, s *stock) { delete(s.witnesses, idB) }, Report{Completed: 1, Lost: 1, Retried: 1, RunAgain: 1}, false},
		{"delivered twice", func(_ *load, s *stock) { s.history.delivered[idA] = 2 },
			Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1, Duplicates: 1}, false},
		{"a dispatch ended twice", func(_ *load, s *stock) { s.history.twice = 1 },
			Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1, Duplicates: 1}, false},
		{"a dispatch run twice", func(_ *load, s *stock) { s.witnesses[idB] = []sighting{{"1", "11"}, {"1", "11"}} },
			Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1, Duplicates: 1}, false},
		{"failed for no reason", func(_ *load, s *stock) { s.ends[idA] = end{"failed", 2, 0} },
			Report{FailedAsIntended: 1, FailedOtherwise: 1, Retried: 1, RunAgain: 1}, false},
		{"should have failed", func(_ *load, s *stock) { s.ends[idB] = end{"completed", 1, 1} },
			Report{Completed: 1, FailedOtherwise: 1, Retried: 1, RunAgain: 1}, false},
		{"a hole in history", func(_ *load, s *stock) { s.history.gaps = 1 },
			Report{Completed: 1, FailedAsIntended: 1, Retried: 1, RunAgain: 1, EventGaps: 1}, false},
	} {
		l, s := good()
		tt.spoil(l, &s)
		y := &yard{members: make([]*member, 3)}
		got := y.judge(l, s)
		tt.want.Nodes, tt.want.Accepted, tt.want.Events = 3, 2, 9
		tt.want.AcceptedPerS, tt.want.Seconds = 2, 2
		tt.want.EndedPerS = float64(tt.want.Completed+tt.want.FailedAsIntended+tt.want.FailedOtherwise) / 2
		if diff := cmp.Diff(tt.want, got); diff != "" || got.Good() != tt.good {
			t.Errorf("%s: good %t (-want +got):\n%s", tt.name, got.Good(), diff)
		}
	}
}

func TestFailover(t *testing.T) {
	h := told{
		ends:     []time.Time{after(100), after(200), after(1700), after(1710), after(9000)},
		acquired: []time.Time{after(0), after(1500)},
	}
	if got := h.failover(after(250)); got != 1500*time.Millisecond {
		t.Errorf("from the last end before to the first after: %s", got)
	}
	if got := h.failover(time.Time{}); got != 0 {
		t.Errorf("nobody was killed: %s", got)
	}
	if got := h.failover(after(2000)); got != 0 {
		t.Errorf("nobody took over: %s", got)
	}
}

func TestReadWitnesses(t *testing.T) {
	y := &yard{dir: t.TempDir()}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(y.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("worker-1.witness", "demo:"+idA.String()+" 1 10\ndemo:"+idA.String()+" 2 12\n1")
	write("runner-n1.witness", job.RequestID(idB, 1)+" "+idB.String()+" 1 11\n")
	got, err := y.readWitnesses()
	if err != nil {
		t.Fatal(err)
	}
	want := map[job.ID][]sighting{idA: {{"1", "10"}, {"2", "12"}}, idB: {{"1", "11"}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(sighting{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	write("worker-2.witness", "nonsense 1 2\n")
	if _, err := y.readWitnesses(); err == nil || !strings.Contains(err.Error(), "nonsense") {
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
	for _, want := range []string{"accepted            2000    250 per second", "failed otherwise    1 ", "failover time       1.56 s", "lost                0 ", "look at in there"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
