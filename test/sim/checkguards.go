package sim

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// guardChecker checks decisions about jobs with guards. It keeps less state than the
// ledger, and checks only what producers may rely on.
type guardChecker struct {
	sim     *simulation
	unique  map[job.GuardKey]keyHolder
	rate    map[job.GuardKey]time.Time // until when the key is held
	hasKeys map[job.ID]bool            // jobs with guards
	noJob   map[job.ID]bool            // ids whose record was decided to make no job, or whose job was removed
}

// keyHolder is the job that holds a unique key, and until when.
type keyHolder struct {
	id    job.ID
	until time.Time
}

func newGuardChecker(sim *simulation) *guardChecker {
	return &guardChecker{sim: sim, unique: map[job.GuardKey]keyHolder{}, rate: map[job.GuardKey]time.Time{}, hasKeys: map[job.ID]bool{}, noJob: map[job.ID]bool{}}
}

// onIngested checks the result of ingesting a job with guards.
func (c *guardChecker) onIngested(at time.Time, j *job.Job, f ledger.Ingested) {
	g := j.Guards
	if g == nil {
		return
	}
	c.hasKeys[j.ID] = true
	switch f {
	case ledger.IngestedDuplicate:
		c.noJob[j.ID] = true
		if h := c.unique[g.Unique.Key]; !g.Unique.IsSet() || h.id == j.ID || !h.until.After(at) {
			c.sim.fail("%s is a duplicate, and no job holds its unique key", j.ID)
		}
	case ledger.IngestedRateLimited:
		c.noJob[j.ID] = true
		if !g.Rate.IsSet() || !c.rate[g.Rate.Key].After(at) {
			c.sim.fail("%s is rate limited, and no job holds its rate limit key", j.ID)
		}
	case ledger.IngestedDebounced:
		c.noJob[j.ID] = true
		if !g.Debounce.IsSet() {
			c.sim.fail("%s is debounced without a debounce key", j.ID)
		}
	case ledger.IngestedWaiting, ledger.IngestedDelayed:
		c.checkCreated(at, j)
		c.hold(at, j)
	}
}

// checkCreated checks that no job holds the keys of a job that was made.
func (c *guardChecker) checkCreated(at time.Time, j *job.Job) {
	g := j.Guards
	if h := c.unique[g.Unique.Key]; g.Unique.IsSet() && h.id != j.ID && h.until.After(at) {
		c.sim.fail("%s is made while %s holds its unique key", j.ID, h.id)
	}
	if until := c.rate[g.Rate.Key]; g.Rate.IsSet() && until.After(at) {
		c.sim.fail("%s is made %s before its rate limit ends", j.ID, until.Sub(at))
	}
}

// hold records how long a job's keys are held. A unique key is held at least until its
// job is due, and stays held when the job ends.
func (c *guardChecker) hold(at time.Time, j *job.Job) {
	if g := j.Guards.Unique; g.IsSet() {
		until := at.Add(g.TTL)
		if j.RunAt.After(until) {
			until = j.RunAt
		}
		c.unique[g.Key] = keyHolder{j.ID, until}
	}
	if g := j.Guards.Rate; g.IsSet() {
		c.rate[g.Key] = at.Add(g.TTL)
	}
}

// onRemoved releases the unique keys of a job that a caller has removed.
func (c *guardChecker) onRemoved(id job.ID) {
	c.noJob[id] = true
	for key, h := range c.unique {
		if h.id == id {
			delete(c.unique, key)
		}
	}
}
