package ledger

import "yardmaster/job"

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
