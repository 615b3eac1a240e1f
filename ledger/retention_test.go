package ledger

import (
	"errors"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

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
		q, _ := l.Queue(name)
		if kept := l.jobs.records.count; !errors.Is(r.Err, ErrQueueRemoving) || q.Counts[job.Completed] != jobs || kept != remaining {
			t.Fatalf("%v; %d jobs have completed, want %d, and %d are kept, want %d", r.Err, q.Counts[job.Completed], jobs, kept, remaining)
		}
	}
	stamp.Index++
	r := l.Apply(stamp, []Command{&RemoveQueue{Name: name}})[0]
	if _, exists := l.Queue(name); r.Err != nil || exists {
		t.Errorf("%v; exists: %v", r.Err, exists)
	}
	if b := l.Balance(); l.jobs.records.count != 0 || b.Removed != jobs || b.Imbalance() != 0 {
		t.Errorf("%d jobs remain, balance %+v", l.jobs.records.count, b)
	}
}
