package sim

import (
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// guardBook judges what is decided of jobs with keys. It keeps less than the
// ledger does, and only claims what a producer may rely on.
type guardBook struct {
	y       *yard
	unique  map[job.GuardKey]holding
	rate    map[job.GuardKey]time.Time // until when
	asked   map[job.ID]bool            // jobs with keys
	excused map[job.ID]bool            // records that were told to make no job of their own
}

// holding is who has a unique key, and until when.
type holding struct {
	id    job.ID
	until time.Time
}

func newGuardBook(y *yard) *guardBook {
	return &guardBook{y: y, unique: map[job.GuardKey]holding{}, rate: map[job.GuardKey]time.Time{}, asked: map[job.ID]bool{}, excused: map[job.ID]bool{}}
}

// folded hears what became of a record that asked for keys.
func (b *guardBook) folded(at time.Time, j *job.Job, f ledger.Folded) {
	g := j.Guards
	if g == nil {
		return
	}
	b.asked[j.ID] = true
	switch f {
	case ledger.FoldedDuplicate:
		b.excused[j.ID] = true
		if h := b.unique[g.Unique.Key]; !g.Unique.Given() || h.id == j.ID || !h.until.After(at) {
			b.y.fail("%s is called a duplicate, and nobody holds its key", j.ID)
		}
	case ledger.FoldedLimited:
		b.excused[j.ID] = true
		if !g.Rate.Given() || !b.rate[g.Rate.Key].After(at) {
			b.y.fail("%s is held back by a rate limit that is over", j.ID)
		}
	case ledger.FoldedDebounced:
		b.excused[j.ID] = true
		if !g.Debounce.Given() {
			b.y.fail("%s takes another's place and asked for no such thing", j.ID)
		}
	case ledger.FoldedWaiting, ledger.FoldedDelayed:
		b.made(at, j)
		b.hold(at, j)
	}
}

// made judges a job that was made although it may not have been alone.
func (b *guardBook) made(at time.Time, j *job.Job) {
	g := j.Guards
	if h := b.unique[g.Unique.Key]; g.Unique.Given() && h.id != j.ID && h.until.After(at) {
		b.y.fail("%s is made while %s holds its unique key", j.ID, h.id)
	}
	if until := b.rate[g.Rate.Key]; g.Rate.Given() && until.After(at) {
		b.y.fail("%s is made %s before its rate limit is over", j.ID, until.Sub(at))
	}
}

// hold notes what a job's keys are held for. A unique key is held at least until
// its job is due, and does not go when the job ends.
func (b *guardBook) hold(at time.Time, j *job.Job) {
	if g := j.Guards.Unique; g.Given() {
		until := at.Add(g.For)
		if j.RunAt.After(until) {
			until = j.RunAt
		}
		b.unique[g.Key] = holding{j.ID, until}
	}
	if g := j.Guards.Rate; g.Given() {
		b.rate[g.Key] = at.Add(g.For)
	}
}

// removed forgets what a job held that a caller has removed.
func (b *guardBook) removed(id job.ID) {
	b.excused[id] = true
	for key, h := range b.unique {
		if h.id == id {
			delete(b.unique, key)
		}
	}
}
