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
	l.queues.byName.Scan(func(_ string, q *queue) bool {
		q.lines.Scan(func(_ string, ln *line) bool {
			ln.jobs.Scan(func(item orderItem) bool { return need(item.r.lane, item.r.pos) })
			return true
		})
		for _, s := range [...]job.State{job.Delayed, job.Failed} {
			if list := q.lists[s]; list != nil {
				list.Scan(func(item timeItem) bool { return need(item.r.lane, item.r.pos) })
			}
		}
		return true
	})
	l.jobs.active.Scan(func(item orderItem) bool { return need(item.r.lane, item.r.pos) })
	for i := range l.outbox.dead {
		need(l.outbox.dead[i].Position.Lane, l.outbox.dead[i].Position.Seq)
	}
	return needed
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
