package scheduler

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/waitlist"
)

// Jobs of a low priority would never start while jobs of higher priorities keep every
// executor busy. One start in OverdueShare, on average, therefore goes to the job that has
// been due for longest, if that is more than OverdueAfter.
const (
	OverdueAfter = time.Minute
	OverdueShare = 16
)

// lottery draws which placements overdue jobs may precede. It is pseudo-random, not every
// n-th placement, so that no pattern in the order in which pools are served favors a pool,
// and no pool needs a counter of its own.
type lottery struct {
	seed  uint64
	draws uint64
}

// draw reports whether the next placement may be preceded by one of an overdue job.
func (y *lottery) draw() bool {
	y.draws++
	x := y.seed<<32 + y.draws // SplitMix64
	x *= 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x^x>>31)%OverdueShare == 0
}

// overdueJobs finds the overdue jobs that a pool can run. It is valid while the ledger does
// not change.
type overdueJobs struct {
	placer *placer
	ledger *ledger.Ledger
	pool   *pool
	lists  []ledger.WaitlistID

	found bool                // whether heads is set
	heads []ledger.WaitingJob // the next job of each waitlist and priority
}

// maxOverdueTries is how many overdue jobs placeBefore tries, because some of them may be
// unable to start.
const maxOverdueTries = 64

// placeBefore places the job that has been due for the longest time, if that is
// OverdueAfter and its priority is lower than that of w. It reports whether it has.
func (o *overdueJobs) placeBefore(w *ledger.WaitingJob) bool {
	if w.Priority == 0 {
		return false
	}
	if !o.found {
		o.found = true
		o.find(w.Priority - 1)
	}
	for range maxOverdueTries {
		i := o.longestDue(w.Priority)
		if i < 0 {
			return false
		}
		candidate := o.heads[i]
		o.advance(i)
		if _, ok := o.placer.check(o.ledger, &candidate); ok {
			return o.placer.reserve(o.ledger, &candidate, o.pool) != waitlist.Stop
		}
	}
	return false
}

// find sets heads for the priorities up to the given one.
func (o *overdueJobs) find(priority uint8) {
	for _, id := range o.lists {
		for at := priority; !o.ledger.Ages(id.Queue); {
			head, ok := o.ledger.FirstWaitingJob(id, at)
			if !ok {
				break
			}
			o.heads = append(o.heads, head)
			if head.Priority == 0 {
				break
			}
			at = head.Priority - 1
		}
	}
}

// longestDue returns the index in heads of the job that has been due for the longest time
// and is overdue, among those of a lower priority than the given one; -1 if there is none.
func (o *overdueJobs) longestDue(priority uint8) int {
	longest, since := -1, o.ledger.Clock().Wall.Add(-OverdueAfter)
	for i := range o.heads {
		if head := &o.heads[i]; head.Priority < priority && head.Due.Before(since) {
			longest, since = i, head.Due
		}
	}
	return longest
}

// advance replaces a head by the next job of its waitlist and priority.
func (o *overdueJobs) advance(i int) {
	next, ok := o.ledger.NextWaitingJob(&o.heads[i])
	if ok && next.Priority == o.heads[i].Priority {
		o.heads[i] = next
		return
	}
	last := len(o.heads) - 1
	o.heads[i] = o.heads[last]
	o.heads = o.heads[:last]
}
