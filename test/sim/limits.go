package sim

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// The limits of a run, which some jobs name: shared bounds how many of them run, of each key and
// in all, and paced how many of them start.
const (
	sharedTotal  = 3
	sharedPerKey = 1
	pacedBurst   = 2
)

var pacedRate = job.Rate{Starts: 4, Per: time.Second}

// limitCommands returns the commands that create the limits.
func limitCommands() map[string]ledger.Command {
	return map[string]ledger.Command{
		"shared": &ledger.SetLimit{Name: "shared", Change: job.LimitChange{
			Total: new(job.Slots(sharedTotal)), PerKey: new(job.Slots(sharedPerKey)),
		}},
		"paced": &ledger.SetLimit{Name: "paced", Change: job.LimitChange{Rate: &pacedRate, Burst: new(uint32(pacedBurst))}},
	}
}

// limitChecker checks the limits of a run by the starts of jobs.
type limitChecker struct {
	sim    *simulation
	uses   map[job.ID]map[string]string // the keys under which jobs use limits, by limit
	starts []pacedStart                 // of jobs that use paced
}

// pacedStart is when a job has been placed, and by how much the elapsed time was behind then.
type pacedStart struct {
	at  time.Time
	lag time.Duration
}

// onIngested takes note of the limits that a new job names.
func (c *limitChecker) onIngested(j *job.Job) {
	uses := make(map[string]string)
	for _, use := range j.Limits {
		if uses[use.Limit] = use.Key; use.Key == "" {
			uses[use.Limit] = j.LimitKey
		}
	}
	c.uses[j.ID] = uses
}

// onPlaced is called when the ledger has placed a job. In any window of time t, at most rate·t + burst jobs
// may start. A window in which the elapsed time makes up for what hand-overs had lost is longer by as much.
func (c *limitChecker) onPlaced(id job.ID, start pacedStart) {
	if _, paced := c.uses[id]["paced"]; !paced {
		return
	}
	c.starts = append(c.starts, start)
	for i, first := range c.starts {
		window, n := start.at.Sub(first.at)+max(0, first.lag-start.lag), len(c.starts)-i
		if most := pacedBurst + int(window/pacedRate.Interval()); n > most {
			c.sim.fail("%d jobs start within %s, their limit permits %d", n, window, most)
		}
	}
}

// onStarted is called when an execution starts, with all that may run at this time.
func (c *limitChecker) onStarted(r *jobRun, running []*jobRun) {
	key, limited := c.uses[r.Job]["shared"]
	if !limited {
		return
	}
	all, ofKey := 0, 0
	for _, other := range running {
		if otherKey, shares := c.uses[other.Job]["shared"]; shares {
			if all++; otherKey == key {
				ofKey++
			}
		}
	}
	if all >= sharedTotal || ofKey >= sharedPerKey {
		c.sim.fail("%s starts %s with key %q while %d jobs of its limit run, %d of them with its key", r.process.id, r.RequestID(), key, all, ofKey)
	}
}
