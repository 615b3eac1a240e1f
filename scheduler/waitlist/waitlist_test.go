package waitlist

import (
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// waitingJobs returns jobs given as "<queue><priority>@<second of acceptance>".
func waitingJobs(texts ...string) (jobs []ledger.WaitingJob) {
	for _, text := range texts {
		w := ledger.WaitingJob{N: 1, Attempt: 1}
		var at int
		if _, err := fmt.Sscanf(text, "%1s%1d@%d", &w.Queue, &w.Priority, &at); err != nil {
			panic(text + ": " + err.Error())
		}
		w.Accepted = time.Unix(int64(at), 0)
		w.Position.Seq = uint64(at)
		copy(w.ID[:], text)
		jobs = append(jobs, w)
	}
	return jobs
}

func jobName(w *ledger.WaitingJob) string {
	return fmt.Sprintf("%s%d@%d", w.Queue, w.Priority, w.Accepted.Unix())
}

func TestMerge(t *testing.T) {
	all := func(*ledger.WaitingJob) Step { return Next }
	tests := []struct {
		name  string
		lines [][]string
		visit func(*ledger.WaitingJob) Step
		want  string
	}{
		{"nothing", nil, all, "[]"},
		{"empty lines", [][]string{{}, {}}, all, "[]"},
		{"one line", [][]string{{"a9@5", "a5@1", "a5@2"}}, all, "[a9@5 a5@1 a5@2]"},
		{"by acceptance", [][]string{{"a5@1", "a5@4", "a5@5"}, {"b5@2", "b5@3", "b5@6"}}, all, "[a5@1 b5@2 b5@3 a5@4 a5@5 b5@6]"},
		{"by priority first", [][]string{{"a5@1", "a1@2"}, {"b9@9", "b1@1"}, {"c7@3"}}, all, "[b9@9 c7@3 a5@1 b1@1 a1@2]"},
		{"stopped", [][]string{{"a5@1", "a5@3"}, {"b5@2"}}, func(w *ledger.WaitingJob) Step {
			if w.Queue == "b" {
				return Stop
			}
			return Next
		}, "[a5@1 b5@2]"},
		{"a waitlist of a full queue", [][]string{{"a5@1", "a5@3", "a5@5"}, {"b5@2", "b5@4"}}, func(w *ledger.WaitingJob) Step {
			if w.Queue == "a" {
				return SkipList
			}
			return Next
		}, "[a5@1 b5@2 b5@4]"},
		{"the only waitlist, of a full queue", [][]string{{"a5@1", "a5@3"}}, func(*ledger.WaitingJob) Step { return SkipList }, "[a5@1]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := []string{}
			var lines []iter.Seq[ledger.WaitingJob]
			for _, texts := range test.lines {
				lines = append(lines, slices.Values(waitingJobs(texts...)))
			}
			new(Merger).Merge(lines, func(w *ledger.WaitingJob) Step { got = append(got, jobName(w)); return test.visit(w) })
			if fmt.Sprint(got) != test.want {
				t.Errorf("visited %v, want %s", got, test.want)
			}
		})
	}
}

// TestMerge_Sorts checks that waitlists of any number and length are merged in
// order.
func TestMerge_Sorts(t *testing.T) {
	var m Merger // the same one for all
	rapid.Check(t, func(t *rapid.T) {
		var all []ledger.WaitingJob
		var lines []iter.Seq[ledger.WaitingJob]
		for i := range rapid.IntRange(1, 5).Draw(t, "lines") {
			line := waitingJobs(rapid.SliceOfN(rapid.StringMatching(`[a-c][0-9]@[1-9][0-9]?`), 0, 60).Draw(t, "line")...)
			for k := range line {
				line[k].Position = job.Position{Lane: uint8(i), Seq: uint64(k)}
			}
			slices.SortFunc(line, compare)
			all = append(all, line...)
			lines = append(lines, slices.Values(line))
		}
		slices.SortFunc(all, compare)
		var got []ledger.WaitingJob
		m.Merge(lines, func(w *ledger.WaitingJob) Step { got = append(got, *w); return Next })
		if !slices.EqualFunc(got, all, func(a, b ledger.WaitingJob) bool { return a.Position == b.Position }) {
			t.Fatalf("visited %d jobs in another order, or not all of %d", len(got), len(all))
		}
	})
}

func compare(a, b ledger.WaitingJob) int {
	switch {
	case a.Before(&b):
		return -1
	case b.Before(&a):
		return 1
	}
	return 0
}
