package ledger

import (
	"iter"

	"github.com/yardmaster-dev/yardmaster/job"
)

// prune removes old finished jobs, a bounded number of them.
func (d *dispatches) prune() {
	for range maxPruned {
		number := d.finished.next(d.now)
		if number == 0 {
			break
		}
		stored := d.jobs.at(number)
		if result := stored.run.result; result > 0 && !stored.queue.hasOwnLimits() {
			d.outbox.forgetPlaces(result) // no record of these queues has an earlier result
		}
		d.forgetEnded(stored, false)
	}
}

// forgetEnded drops a job that has ended, not because a caller named it. A completed job stays
// counted as completed.
func (d *dispatches) forgetEnded(stored *storedJob, asked bool) {
	d.countForgotten(stored.queue.name, stored.state)
	if stored.state == job.Completed && d.outbox.level > 0 {
		stored.queue.completed++
	} else {
		d.jobs.removed++
	}
	d.drop(stored, asked)
}

// remove drops a job at a caller's request, and releases its keys.
func (d *dispatches) remove(stored *storedJob) {
	d.releaseUntil(stored, 0)
	d.jobs.removed++
	d.drop(stored, true)
}

// drop removes a job and remembers its id as forgotten, and whether a caller asked for
// that. Keys that the job holds for a time stay held.
func (d *dispatches) drop(stored *storedJob, asked bool) {
	d.unindex(stored, false)
	d.jobs.forget(stored, d.elapsed, asked)
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

// unended returns an iterator over the records of the jobs of all queues that are waiting,
// delayed or active.
func (j *jobs) unended() iter.Seq[*record] {
	return func(yield func(*record) bool) {
		for _, q := range j.queues.byName.Scan {
			for number := range q.numbers(nil, job.Delayed) {
				if !yield(j.records.get(number)) {
					return
				}
			}
		}
		for item := range j.active.Scan {
			if !yield(j.records.get(item.number)) {
				return
			}
		}
	}
}
