package soak

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestJobTable_IDs checks that ids are valid UUIDs that lead back to their numbers.
func TestJobTable_IDs(t *testing.T) {
	table := newJobTable(0xfedcba9876543210)
	for _, n := range []int{0, 1, 65_536, 1 << 40} {
		id := table.id(n)
		parsed, err := job.ParseID(id.String())
		if err != nil || parsed != id {
			t.Fatalf("id of %d is %s, which is parsed as %s: %v", n, id, parsed, err)
		}
		if got, ok := table.number(id); !ok || got != n {
			t.Errorf("number of %s is %d, %t, want %d", id, got, ok, n)
		}
	}
	if _, ok := newJobTable(1).number(table.id(1)); ok {
		t.Error("an id of another table was accepted")
	}
}

// TestJobTable_Flaws checks that each contradiction between producers, handlers and
// streams is a flaw, and that the regular life of a job is none.
func TestJobTable_Flaws(t *testing.T) {
	const fails = 7 // the number of the job that is to fail
	for name, c := range map[string]struct {
		life func(t *jobTable, id job.ID)
		flaw string
	}{
		"completed": {life: func(t *jobTable, id job.ID) {
			t.begin(id, 4)
			t.done(id)
			t.dispatchEnded(id, 1, true)
			t.accept(0, id.String(), false)
		}},
		"retried": {life: func(t *jobTable, id job.ID) {
			t.accept(0, "", false)
			t.begin(id, 4)
			t.dispatchEnded(id, 1, false)
			t.begin(id, 9)
			t.done(id)
			t.dispatchEnded(id, 2, true)
		}},
		"merged":    {life: func(t *jobTable, _ job.ID) { t.accept(0, t.id(1).String(), false) }},
		"died":      {life: func(t *jobTable, _ job.ID) { t.died(t.id(fails), "by intent", isJob(fails)) }},
		"another's": {life: func(t *jobTable, _ job.ID) { t.dispatchEnded(newJobTable(2).id(0), 1, true) }},
		"merged late": {life: func(t *jobTable, id job.ID) {
			t.accept(0, t.id(1).String(), true)
			t.begin(id, 4)
			t.done(id)
			t.dispatchEnded(id, 1, true)
		}},
		"unwitnessed": {flaw: "no handler has returned success", life: func(t *jobTable, id job.ID) { t.dispatchEnded(id, 1, true) }},
		"same fence": {flaw: "ran twice", life: func(t *jobTable, id job.ID) {
			t.begin(id, 4)
			t.begin(id, 4)
		}},
		"two ends of a dispatch": {flaw: "has two ends", life: func(t *jobTable, id job.ID) {
			t.dispatchEnded(id, 1, false)
			t.dispatchEnded(id, 1, false)
		}},
		"completed twice": {flaw: "completed twice", life: func(t *jobTable, id job.ID) {
			t.done(id)
			t.dispatchEnded(id, 1, true)
			t.dispatchEnded(id, 2, true)
		}},
		"completed and died": {flaw: "has a dead letter, and is completed", life: func(t *jobTable, _ job.ID) {
			t.done(t.id(fails))
			t.dispatchEnded(t.id(fails), 1, true)
			t.died(t.id(fails), "by intent", isJob(fails))
		}},
		"died twice": {flaw: "two dead letters", life: func(t *jobTable, _ job.ID) {
			t.died(t.id(fails), "by intent", isJob(fails))
			t.died(t.id(fails), "by intent", isJob(fails))
		}},
		"not to die": {flaw: "was not to fail", life: func(t *jobTable, id job.ID) { t.died(id, "lost_too_often", isJob(fails)) }},
		"merged but ran": {flaw: "in its place", life: func(t *jobTable, id job.ID) {
			t.accept(0, t.id(1).String(), false)
			t.begin(id, 4)
		}},
		"ran before it was merged": {flaw: "and exists", life: func(t *jobTable, id job.ID) {
			t.begin(id, 4)
			t.accept(0, t.id(1).String(), false)
		}},
		"never submitted": {flaw: "never submitted", life: func(t *jobTable, _ job.ID) { t.begin(t.id(100), 1) }},
	} {
		t.Run(name, func(t *testing.T) {
			table := newJobTable(3)
			for range 10 {
				table.submit()
			}
			c.life(table, table.id(0))
			flaws := table.allFlaws()
			if c.flaw == "" && flaws.count > 0 || c.flaw != "" && (flaws.count != 1 || !strings.Contains(flaws.first[0], c.flaw)) {
				t.Errorf("flaws are %q, want one with %q", flaws.first, c.flaw)
			}
		})
	}
}

// isJob returns a function that reports whether a number is n.
func isJob(n int) func(int) bool { return func(i int) bool { return i == n } }

// TestJobTable_Open checks which jobs count as open: those that are accepted and created,
// until they end.
func TestJobTable_Open(t *testing.T) {
	table := newJobTable(3)
	for range 5 {
		table.submit()
	}
	table.accept(0, "", false)
	table.accept(1, table.id(0).String(), false)
	table.accept(2, "", false)
	table.done(table.id(2))
	table.dispatchEnded(table.id(2), 1, true)
	table.done(table.id(3))
	table.dispatchEnded(table.id(3), 1, true) // its acknowledgement was lost
	var open []int
	table.open(func(n int, _ jobState) { open = append(open, n) })
	sums := table.totals()
	want := jobSums{Submitted: 5, Accepted: 3, Merged: 1, Completed: 2, Open: 1}
	if !slices.Equal(open, []int{0}) || sums != want {
		t.Errorf("open %v, sums %+v; want %+v", open, sums, want)
	}
}

// TestMix checks that the kinds have their shares, that delays and the paused queue end
// with the load, and that all queues are used.
func TestMix(t *testing.T) {
	m := &mix{seed: 5, rate: 1000, duration: 100 * time.Second, queues: 500, keys: 50}
	const n = 100_000
	counts := make(map[kind]int)
	queues, keys := make(map[string]bool), make(map[string]bool)
	for i := range n {
		k := m.kind(i)
		counts[k]++
		queues[m.queue(i)] = true
		if start := m.due(i) + m.delay(i); start > m.duration {
			t.Fatalf("job %d starts after %s, when the load has ended", i, start)
		}
		if k == pausedJob && m.due(i) > m.duration/pausedPart {
			t.Fatalf("job %d enters the paused queue after %s", i, m.due(i))
		}
		if k == uniqueJob {
			_, rest, _ := strings.Cut(m.message(i, "id", time.Time{}).Fields, `"unique_key":"`)
			keys[rest[1:strings.IndexByte(rest, '"')]] = true // without the letter before the number
		}
	}
	for k, share := range shares {
		want := float64(share) / 1000 * n
		if kind(k) == pausedJob {
			want /= pausedPart
		}
		if got := float64(counts[kind(k)]); kind(k) != plainJob && (got < 0.7*want || got > 1.3*want) {
			t.Errorf("%d jobs are %s, want about %.0f", counts[kind(k)], kindNames[k], want)
		}
	}
	if len(queues) != m.queues+2 || len(keys) != m.keys {
		t.Errorf("%d queues and %d keys are used, want %d and %d", len(queues), len(keys), m.queues+2, m.keys)
	}
}

// TestHistogram checks that quantiles are within the width of a bucket.
func TestHistogram(t *testing.T) {
	var h histogram
	if values, count := h.take(0.5); count != 0 || values[0] == values[0] {
		t.Errorf("an empty histogram has %v of %d", values, count)
	}
	for _, scale := range []time.Duration{time.Microsecond, 37 * time.Microsecond, time.Millisecond, 100 * time.Millisecond} {
		for i := range 1000 {
			h.observe(time.Duration(i+1) * scale)
		}
		values, count := h.take(0.5, 0.99, 1)
		for i, want := range []float64{500, 990, 1000} {
			want *= scale.Seconds() * 1000
			if got := values[i]; got < want || got > want*1.04+0.002 || count != 1000 {
				t.Errorf("at %s quantile %d is %g ms of %d, want %g", scale, i, got, count, want)
			}
		}
	}
}
