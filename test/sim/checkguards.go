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
	answers map[job.ID]job.ID          // the jobs that the producers of records were given, by the records' ids
	content map[job.ID]job.Position    // of jobs with guards: where the newest record is that was merged into them
}

// keyHolder is the job that holds a unique key, and until when.
type keyHolder struct {
	id    job.ID
	until time.Time
}

// onIngested checks the result of ingesting a job with guards, at a time and for a job that is due,
// both in elapsed time.
func (c *guardChecker) onIngested(proc *process, at, due time.Time, j *job.Job, f ledger.Ingested) {
	g := j.Guards
	if g == nil {
		return
	}
	c.hasKeys[j.ID] = true
	if c.checkRepeated(proc, j, f) {
		return
	}
	repeated := c.noJob[j.ID] // another copy of a refused record is refused again, also after the key has ended
	switch f {
	case ledger.IngestedDuplicate:
		c.noJob[j.ID] = true
		if h := c.unique[g.Unique.Key]; !repeated && (!g.Unique.IsSet() || g.Unique.TTL > 0 && (h.id == j.ID || !h.until.After(at))) {
			c.sim.fail("%s is a duplicate, and no job holds its unique key", j.ID)
		}
	case ledger.IngestedRateLimited:
		c.noJob[j.ID] = true
		if !repeated && (!g.Rate.IsSet() || !c.rate[g.Rate.Key].After(at)) {
			c.sim.fail("%s is rate limited, and no job holds its rate limit key", j.ID)
		}
	case ledger.IngestedDebounced:
		c.noJob[j.ID] = true
		if !g.Debounce.IsSet() {
			c.sim.fail("%s is debounced without a debounce key", j.ID)
		}
	case ledger.IngestedWaiting, ledger.IngestedDelayed:
		c.checkCreated(at, j)
		c.hold(at, due, j)
	}
}

// checkRepeated checks that a record whose producer was given a job before gets the same job and
// changes nothing. It reports whether j is such a record.
func (c *guardChecker) checkRepeated(proc *process, j *job.Job, f ledger.Ingested) (repeated bool) {
	decision, ok := proc.ledger.Decision(j.Position)
	if !ok {
		c.sim.fail("%s at %s has no decision", j.ID, j.Position)
	}
	if f == ledger.IngestedRejected || f == ledger.IngestedRateLimited || f == ledger.IngestedKeysFull {
		return false
	}
	answer, repeated := c.answers[j.ID]
	if repeated && (decision.Job != answer || f == ledger.IngestedWaiting || f == ledger.IngestedDelayed) {
		c.sim.fail("the repeated %s at %s is %d of job %s, its producer was given %s", j.ID, j.Position, f, decision.Job, answer)
	}
	if !repeated {
		c.answers[j.ID] = decision.Job
		if f != ledger.IngestedDuplicate {
			c.content[decision.Job] = j.Position
		}
	}
	return repeated
}

// checkContent checks that each job has the record that was merged into it last, or a copy of it.
func (c *guardChecker) checkContent(l *ledger.Ledger) {
	for id, at := range c.content {
		if view, _, ok := l.Find(id); ok && view.Position != at && view.Position.Lane != job.RelocatedLane {
			c.sim.fail("%s has the record at %s, the one at %s was merged into it last", id, view.Position, at)
		}
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
func (c *guardChecker) hold(at, due time.Time, j *job.Job) {
	if g := j.Guards.Unique; g.TTL > 0 { // another one is free when the job starts or ends
		until := at.Add(g.TTL)
		if due.After(until) {
			until = due
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
