package ledger

import (
	"iter"
	"slices"

	"github.com/yardmaster-dev/yardmaster/job"
)

// prune removes old finished jobs and forgotten ids, a bounded number of each.
func (d *dispatches) prune() {
	for range maxPruned {
		oldest, ok := d.jobs.ended.Min()
		if !ok || d.jobs.ended.Len() <= MaxFinished && d.now-oldest.at < int64(FinishedRetention) {
			break
		}
		d.drop(oldest.job)
	}
	d.jobs.forgotten.trim(d.now-int64(DedupeHorizon), MaxDedupeIDs)
}

// remove drops a job at a caller's request, and releases its keys.
func (d *dispatches) remove(stored *storedJob) {
	d.releaseUntil(stored, 0)
	d.drop(stored)
}

// drop removes a job and remembers its id as forgotten. Keys that the job holds for a
// time stay held.
func (d *dispatches) drop(stored *storedJob) {
	d.unindex(stored)
	delete(d.jobs.byID, stored.id)
	d.jobs.forgotten.add(stored.id, d.now)
}

// idRing remembers the ids of forgotten jobs in the order in which they were
// removed, so that a late copy of a record does not create a second job.
type idRing struct {
	known map[job.ID]struct{} // nil in a copy
	slabs []idSlab
	size  int
}

// idSlab is a run of ids that were added at about the same time. Slabs only
// grow at the end, so copies share them.
type idSlab struct {
	at  int64 // when its last id was added, in Unix nanoseconds
	ids []job.ID
}

const slabSize = 1024 // ids

func newIDRing() *idRing { return &idRing{known: make(map[job.ID]struct{})} }

func (g *idRing) copy() *idRing { return &idRing{slabs: slices.Clone(g.slabs), size: g.size} }

func (g *idRing) has(id job.ID) bool {
	_, ok := g.known[id]
	return ok
}

// add adds an id at the time now, in Unix nanoseconds.
func (g *idRing) add(id job.ID, now int64) {
	g.known[id] = struct{}{}
	g.size++
	if n := len(g.slabs); n == 0 || len(g.slabs[n-1].ids) == slabSize {
		g.slabs = append(g.slabs, idSlab{ids: make([]job.ID, 0, slabSize)})
	}
	last := &g.slabs[len(g.slabs)-1]
	last.ids = append(last.ids, id)
	last.at = now
}

// trim removes whole slabs that are older than before, or while there are more
// than limit ids.
func (g *idRing) trim(before int64, limit int) {
	for len(g.slabs) > 1 && (g.slabs[0].at < before || g.size > limit) {
		for _, id := range g.slabs[0].ids {
			delete(g.known, id)
		}
		g.size -= len(g.slabs[0].ids)
		g.slabs = g.slabs[1:]
	}
}

// shortfall reports whether the ring, because of its limit, covers less than
// the time least. age is then the age of its oldest id. Times are in
// nanoseconds.
func (g *idRing) shortfall(now, least int64, limit int) (age int64, short bool) {
	if g.size <= limit-slabSize {
		return 0, false
	}
	age = now - g.slabs[0].at
	return age, age < least
}

// UnendedJobs yields the jobs that are waiting, delayed or active, with the
// positions of their records, until yield returns false. The record of a job
// with a unique or debounce key may have another job's id. Call it on a
// [Ledger.Copy].
func (j *jobs) UnendedJobs(yield func(at job.Position, id job.ID) bool) {
	for stored := range j.unended() {
		if !yield(stored.position(), stored.id) {
			return
		}
	}
}

// UnguardedJobs is like UnendedJobs, without jobs that have a unique or
// debounce key.
func (j *jobs) UnguardedJobs(yield func(at job.Position, id job.ID) bool) {
	for stored := range j.unended() {
		if stored.flags&guarded == 0 && !yield(stored.position(), stored.id) {
			return
		}
	}
}

// unended returns an iterator over the jobs of all queues that are waiting,
// delayed or active.
func (j *jobs) unended() iter.Seq[*storedJob] {
	return func(yield func(*storedJob) bool) {
		for _, q := range j.queues.byName.Scan {
			for stored := range q.stored(nil, job.Delayed) {
				if !yield(stored) {
					return
				}
			}
		}
		for item := range j.active.Scan {
			if !yield(item.job) {
				return
			}
		}
	}
}
