package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// checkExpiring compares the index by expiry with the jobs.
func checkExpiring(l *Ledger) error {
	indexed := 0
	for _, q := range l.queues.byName.Scan {
		for stored := range l.jobs.loaded(q.numbers(nil, job.Delayed)) {
			if !stored.mayExpire() {
				continue
			}
			indexed++
			if _, found := l.jobs.expiring.of(stored.expiry()).Get(stored.at(stored.expiry())); !found {
				return fmt.Errorf("job %s may expire, and is not in the index by expiry", stored.id)
			}
		}
	}
	if n := l.jobs.expiring.elapsed.Len() + l.jobs.expiring.wall.Len(); n != indexed {
		return fmt.Errorf("%d jobs are in the index by expiry, and %d may expire", n, indexed)
	}
	return nil
}

// TestLedger_ExpiresInSteps checks that an entry ends a bounded number of expired jobs, and that
// none of the others can start.
func TestLedger_ExpiresInSteps(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	f, p, _ := ingestBatch(0, maxPromotions+500, "")
	for i := range f.Jobs {
		f.Jobs[i].Expires = stamp.At.Add(time.Second)
	}
	l.Apply(stamp, []Command{f})
	if wait, _ := l.NextDue().Wait(SameClock(stamp.At)); wait != time.Second {
		t.Fatalf("next due in %v", wait)
	}
	stamp.Index, stamp.At = stamp.Index+1, stamp.At.Add(time.Second)
	for _, want := range []int{maxPromotions, maxPromotions + 500} {
		for _, placed := range l.Apply(stamp, []Command{p})[0].Placed {
			if placed {
				t.Fatal("an expired job has started")
			}
		}
		if q, _ := l.Queue("mail"); q.Counts[job.Expired] != want {
			t.Fatalf("%d jobs have expired, want %d", q.Counts[job.Expired], want)
		}
	}
	if due := l.NextDue(); !due.IsZero() {
		t.Errorf("next due %v", due)
	}
}
