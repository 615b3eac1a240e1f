package scheduler

import (
	"sync/atomic"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Counts counts what this node has decided as the authority since it started. The
// cluster's totals are the sums over all nodes.
type Counts struct {
	// Settled dispatches, by verdict. Stale counts outcomes of dispatches that
	// were no longer current.
	Done, Retried, GivenBack, Dead, Stale uint64
	// Ingested records, by result. Only those counted by Jobs have made a job.
	Jobs, Known, Duplicate, RateLimited, Debounced, Rejected uint64
}

// counters holds the growing values of [Counts].
type counters struct {
	done, retried, givenBack, dead, stale                    atomic.Uint64
	jobs, known, duplicate, rateLimited, debounced, rejected atomic.Uint64
}

// Counts returns the current counts.
func (s *Scheduler) Counts() Counts {
	c := &s.counters
	return Counts{
		Done: c.done.Load(), Retried: c.retried.Load(), GivenBack: c.givenBack.Load(), Dead: c.dead.Load(), Stale: c.stale.Load(),
		Jobs: c.jobs.Load(), Known: c.known.Load(), Duplicate: c.duplicate.Load(),
		RateLimited: c.rateLimited.Load(), Debounced: c.debounced.Load(), Rejected: c.rejected.Load(),
	}
}

// settled counts a committed settlement. An outcome that was reported twice counts
// once.
func (c *counters) settled(next job.Next, v ledger.Settled) {
	switch {
	case v.Duplicate:
	case v.Stale:
		c.stale.Add(1)
	case next == job.NextDone:
		c.done.Add(1)
	case v.State == job.Failed: // also if the policy said retry and the job was cancelled meanwhile
		c.dead.Add(1)
	case next == job.NextRetry:
		c.retried.Add(1)
	default:
		c.givenBack.Add(1)
	}
}

// ingested counts the results of an ingest and the records rejected before it.
func (c *counters) ingested(results []ledger.Ingested, rejected int) {
	c.rejected.Add(uint64(rejected))
	for _, f := range results {
		switch f {
		case ledger.IngestedWaiting, ledger.IngestedDelayed:
			c.jobs.Add(1)
		case ledger.IngestedKnown:
			c.known.Add(1)
		case ledger.IngestedDuplicate:
			c.duplicate.Add(1)
		case ledger.IngestedRateLimited:
			c.rateLimited.Add(1)
		case ledger.IngestedDebounced:
			c.debounced.Add(1)
		case ledger.IngestedRejected, ledger.IngestedKeysFull:
			c.rejected.Add(1)
		}
	}
}
