package ledger

import (
	"math"
	"time"

	"yardmaster/job"
)

// Needed gives, for each lane, the lowest sequence from which on records may
// still be read: those of jobs that have not completed, and of dead letters
// that are not told yet. What lies below may be reclaimed. It looks at every
// such job, so it is for a [Ledger.Copy].
func (l *Ledger) Needed() []uint64 {
	needed := make([]uint64, len(l.lanes))
	for i, ln := range l.lanes {
		needed[i] = ln.cursor // the lane is known again by the record at its cursor
	}
	need := func(lane uint8, seq uint64) bool {
		if int(lane) < len(needed) {
			needed[lane] = min(needed[lane], seq)
		}
		return true
	}
	l.notCompleted(func(r *record) bool { return need(r.lane, r.pos) })
	for i := range l.outbox.dead {
		need(l.outbox.dead[i].Position.Lane, l.outbox.dead[i].Position.Seq)
	}
	return needed
}

// Bodies gives the jobs that have not completed by where their records lie,
// until yield returns false; not those with a unique or debounce key, whose
// record may be another job's. It is for a [Ledger.Copy].
func (l *Ledger) Bodies(yield func(at job.Position, id job.ID) bool) {
	l.notCompleted(func(r *record) bool {
		return r.flags&guarded != 0 || yield(job.Position{Lane: r.lane, Seq: r.pos}, r.id)
	})
}

// Unended gives the jobs that wait, are delayed or run by where their bodies
// lie, until yield returns false; also those with a unique or debounce key. It
// is for a [Ledger.Copy].
func (l *Ledger) Unended(yield func(at job.Position, id job.ID) bool) {
	l.notCompleted(func(r *record) bool {
		return r.state == job.Failed || yield(job.Position{Lane: r.lane, Seq: r.pos}, r.id)
	})
}

// notCompleted gives all jobs that have not completed, until yield returns
// false.
func (l *Ledger) notCompleted(yield func(*record) bool) {
	more := true
	ordered := func(item orderItem) bool { more = yield(item.r); return more }
	timed := func(item timeItem) bool { more = yield(item.r); return more }
	l.queues.byName.Scan(func(_ string, q *queue) bool {
		q.lines.Scan(func(_ string, ln *line) bool {
			ln.jobs.Scan(ordered)
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
		l.jobs.active.Scan(ordered)
	}
}

// OldestKept gives when the oldest job was accepted that the ledger keeps, in
// whatever state, or that is a dead letter not told yet; the zero time if
// there is none. It is for a [Ledger.Copy].
func (l *Ledger) OldestKept() time.Time {
	oldest := int64(math.MaxInt64)
	keep := func(r *record) bool {
		oldest = min(oldest, r.accepted)
		return false
	}
	l.queues.byName.Scan(func(_ string, q *queue) bool {
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
	l.jobs.active.Scan(func(item orderItem) bool {
		keep(item.r)
		return true
	})
	for i := range l.outbox.dead {
		oldest = min(oldest, l.outbox.dead[i].Accepted.UnixNano())
	}
	if oldest == math.MaxInt64 {
		return time.Time{}
	}
	return time.Unix(0, oldest)
}
