package ledger

import "github.com/yardmaster-dev/yardmaster/job"

// Balance compares the jobs that the ledger has accepted with those that it has.
type Balance struct {
	Accepted uint64             // jobs ever, since the yard's first authority of level 7
	Removed  uint64             // of them: by a caller, with their queue, or, unless they had completed, by retention
	States   [job.States]uint64 // the others by job.State
}

// Imbalance returns how many more jobs were accepted than the ledger has or has removed: 0,
// unless it miscounts.
func (b *Balance) Imbalance() int64 {
	imbalance := int64(b.Accepted - b.Removed)
	for _, count := range b.States {
		imbalance -= int64(count)
	}
	return imbalance
}

// Balance returns the numbers of jobs, by the counts of the queues.
func (j *jobs) Balance() Balance {
	b := Balance{Accepted: j.accepted, Removed: j.removed}
	for _, q := range j.queues.byName.Scan {
		for state, count := range q.totals() {
			b.States[state] += uint64(count)
		}
	}
	return b
}
