package scheduler

import (
	"sync/atomic"

	"yardmaster/job"
	"yardmaster/ledger"
)

// Counts is what this node has decided as the authority, since it started: all
// nodes' together are the yard's.
type Counts struct {
	// How dispatches were settled. Stale ones were no longer current.
	Done, Again, Back, Dead, Stale uint64
	// What became of records. Limited and duplicate ones made no job.
	Jobs, Known, Duplicate, Limited, Debounced, Rejected uint64
}

// tallies are those counts while they grow.
type tallies struct {
	done, again, back, dead, stale                       atomic.Uint64
	jobs, known, duplicate, limited, debounced, rejected atomic.Uint64
}

// Counts reads them.
func (s *Scheduler) Counts() Counts {
	t := &s.tallies
	return Counts{
		Done: t.done.Load(), Again: t.again.Load(), Back: t.back.Load(), Dead: t.dead.Load(), Stale: t.stale.Load(),
		Jobs: t.jobs.Load(), Known: t.known.Load(), Duplicate: t.duplicate.Load(),
		Limited: t.limited.Load(), Debounced: t.debounced.Load(), Rejected: t.rejected.Load(),
	}
}

// settled counts an end that is committed. One that was reported again counts
// once.
func (t *tallies) settled(next job.Next, v ledger.Ended) {
	switch {
	case v.Dup:
	case v.Stale:
		t.stale.Add(1)
	case next == job.Done:
		t.done.Add(1)
	case v.State == job.Failed: // also if the policy had it go on, but somebody cancelled it
		t.dead.Add(1)
	case next == job.Again:
		t.again.Add(1)
	default:
		t.back.Add(1)
	}
}

// folded counts what became of a lane's records.
func (t *tallies) folded(became []ledger.Folded, rejected int) {
	t.rejected.Add(uint64(rejected))
	for _, f := range became {
		switch f {
		case ledger.FoldedWaiting, ledger.FoldedDelayed:
			t.jobs.Add(1)
		case ledger.FoldedKnown:
			t.known.Add(1)
		case ledger.FoldedDuplicate:
			t.duplicate.Add(1)
		case ledger.FoldedLimited:
			t.limited.Add(1)
		case ledger.FoldedDebounced:
			t.debounced.Add(1)
		case ledger.FoldedRejected, ledger.FoldedLater:
			t.rejected.Add(1)
		}
	}
}
