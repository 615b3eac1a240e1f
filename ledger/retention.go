package ledger

import (
	"math"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// LowestNeeded returns, for each lane, the lowest sequence that may still be
// read: records of jobs that have not completed, and of dead letters that are
// not published yet. Records below it may be reclaimed. It scans all such jobs,
// so call it on a [Ledger.Copy].
func (in *ingestion) LowestNeeded() []uint64 {
	needed := make([]uint64, len(in.lanes))
	for i, ln := range in.lanes {
		needed[i] = ln.Cursor // the record at the cursor identifies the lane
	}
	need := func(lane uint8, seq uint64) bool {
		if int(lane) < len(needed) {
			needed[lane] = min(needed[lane], seq)
		}
		return true
	}
	in.scanUncompleted(func(r *storedJob) bool { return need(r.lane, r.seq) })
	for i := range in.outbox.deadLetters {
		need(in.outbox.deadLetters[i].Position.Lane, in.outbox.deadLetters[i].Position.Seq)
	}
	return needed
}

// UncompletedJobs yields the jobs that have not completed, with the positions
// of their records, until yield returns false. It leaves out jobs with a unique
// or debounce key, whose record may have another job's id. Call it on a
// [Ledger.Copy].
func (j *jobs) UncompletedJobs(yield func(at job.Position, id job.ID) bool) {
	j.scanUncompleted(func(r *storedJob) bool {
		return r.flags&guarded != 0 || yield(job.Position{Lane: r.lane, Seq: r.seq}, r.id)
	})
}

// UnendedJobs yields the jobs that are waiting, delayed or active, with the
// positions of their bodies, until yield returns false. It includes jobs with a
// unique or debounce key. Call it on a [Ledger.Copy].
func (j *jobs) UnendedJobs(yield func(at job.Position, id job.ID) bool) {
	j.scanUncompleted(func(r *storedJob) bool {
		return r.state == job.Failed || yield(job.Position{Lane: r.lane, Seq: r.seq}, r.id)
	})
}

// scanUncompleted yields all jobs that have not completed, until yield returns
// false.
func (j *jobs) scanUncompleted(yield func(*storedJob) bool) {
	more := true
	ordered := func(item orderItem) bool { more = yield(item.r); return more }
	timed := func(item timeItem) bool { more = yield(item.r); return more }
	j.queues.byName.Scan(func(_ string, q *queue) bool {
		q.waitlists.Scan(func(_ string, wl *waitlist) bool {
			wl.jobs.Scan(ordered)
			return more
		})
		for _, s := range [...]job.State{job.Delayed, job.Failed} {
			if list := q.lists[s]; list != nil && more {
				list.Scan(timed)
			}
		}
		return more
	})
	if more {
		j.active.Scan(ordered)
	}
}

// OldestKept returns when the oldest job was accepted that the ledger keeps in
// any state, or that is an unpublished dead letter; the zero time without any.
// Call it on a [Ledger.Copy].
func (d *dispatches) OldestKept() time.Time {
	oldest := int64(math.MaxInt64)
	keep := func(r *storedJob) bool {
		oldest = min(oldest, r.accepted)
		return false
	}
	d.queues.byName.Scan(func(_ string, q *queue) bool {
		q.byAcceptance(keep)
		for _, list := range q.lists {
			if list != nil {
				if item, ok := list.Min(); ok {
					keep(item.r)
				}
			}
		}
		return true
	})
	d.jobs.active.Scan(func(item orderItem) bool {
		keep(item.r)
		return true
	})
	for i := range d.outbox.deadLetters {
		oldest = min(oldest, d.outbox.deadLetters[i].Accepted.UnixNano())
	}
	if oldest == math.MaxInt64 {
		return time.Time{}
	}
	return time.Unix(0, oldest)
}
