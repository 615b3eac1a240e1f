package ledger

import (
	"errors"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestOldestKept checks that a job counts as kept in every state, until it is
// forgotten.
func TestOldestKept(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	if got := l.Copy().OldestKept(); !got.IsZero() {
		t.Errorf("without jobs: %s", got)
	}
	f, p, s := ingestBatch(0, 3, "")
	for _, step := range [][]Command{{f}, {p}, {s}} {
		l.Apply(stamp, step)
		stamp.Index++
		if got := l.Copy().OldestKept(); !got.Equal(scriptStart) {
			t.Fatalf("after %T: %s, want %s", step[0], got, scriptStart)
		}
	}
	stamp.At = stamp.At.Add(FinishedRetention)
	l.Apply(stamp, []Command{&Observe{}})
	if got := l.Copy().OldestKept(); !got.IsZero() {
		t.Errorf("after all were forgotten: %s", got)
	}
}

// TestRemoveQueue_InSteps checks that one entry forgets a bounded number of a removed
// queue's finished jobs, and that the queue exists until all are forgotten.
func TestRemoveQueue_InSteps(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	const jobs = 2*maxRemoved + 1
	for first := 0; first < jobs; first += 1000 {
		f, p, s := ingestBatch(first, min(1000, jobs-first), "")
		for _, step := range []Command{f, p, s} {
			stamp.Index++
			l.Apply(stamp, []Command{step, &MarkPublished{Events: l.LastEvent()}})
		}
	}
	const name = "mail"
	for _, remaining := range []int{maxRemoved + 1, 1} {
		stamp.Index++
		r := l.Apply(stamp, []Command{&RemoveQueue{Name: name}})[0]
		q, exists := l.Queue(name)
		if !errors.Is(r.Err, ErrQueueRemoving) || !exists || q.Counts[job.Completed] != remaining {
			t.Fatalf("%v; %d jobs remain, want %d", r.Err, q.Counts[job.Completed], remaining)
		}
	}
	stamp.Index++
	r := l.Apply(stamp, []Command{&RemoveQueue{Name: name}})[0]
	if _, exists := l.Queue(name); r.Err != nil || exists {
		t.Errorf("%v; exists: %v", r.Err, exists)
	}
	if got := l.Copy().OldestKept(); !got.IsZero() {
		t.Errorf("a job of %s remains", got)
	}
}
