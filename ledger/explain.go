package ledger

import (
	"sort"
	"time"

	"yardmaster/job"
)

// Plight is what the ledger knows of why a job is where it is. Its cost does
// not grow with the backlog.
type Plight struct {
	job.View
	Line        QueueView        // the job's queue
	Paused      time.Time        // since when the queue is paused; zero: it is not
	Full        bool             // the queue's limit leaves no room for one more
	Asked       time.Time        // when its producer wants it run; zero: at once
	Due         time.Time        // delayed: when it becomes waiting; waiting: since when it is due
	Again       bool             // delayed: after a dispatch that failed or was given back
	Debounced   bool             // a newer job with its debounce key would take its place
	Redelivered bool             // its last dispatch was given back: the attempt did not count
	Recalled    job.RecallReason // active: why it is to stop; "": it is not
	Ahead       int              // waiting: jobs of its queue for the same hands that start before it
	Fence       uint64           // active: of its dispatch
	Result      uint64           // number of its result; 0: none
}

// Plight tells how a job stands; ok is false if there is no such job.
func (l *Ledger) Plight(id job.ID) (p Plight, ok bool) {
	r := l.jobs.byID[id]
	if r == nil {
		return Plight{}, false
	}
	p = Plight{
		Line: r.queue.view(), Full: r.queue.full(), Due: time.Unix(0, r.due).UTC(),
		Redelivered: r.flags&redelivered != 0, Debounced: l.guards.tillStart(r),
	}
	p.View, p.Result = r.view()
	p.Paused, _ = l.PausedSince(r.queue.name)
	if o := r.options; o != nil && o.runAt != 0 {
		p.Asked = time.Unix(0, o.runAt).UTC()
	}
	switch r.state {
	case job.Delayed:
		p.Again = r.run != nil && r.run.started > 0
	case job.Waiting:
		p.Ahead = r.queue.ahead(r)
	case job.Active:
		p.Recalled, p.Fence = r.recalled(), r.run.fence
	}
	return p, true
}

// PausedSince tells since when a queue is paused; ok is false if it is not.
func (l *Ledger) PausedSince(queue string) (at time.Time, ok bool) {
	if q := l.queues.get(queue); q != nil && q.paused {
		return time.Unix(0, q.pausedAt).UTC(), true
	}
	return time.Time{}, false
}

// tillStart tells that a job that has not started holds a debounce key.
func (g *guards) tillStart(r *record) (holds bool) {
	if r.flags&guarded == 0 {
		return false
	}
	g.byJob.Ascend(&heldKey{job: r.id}, func(h *heldKey) bool {
		holds = holds || h.job == r.id && h.until == untilStart
		return h.job == r.id
	})
	return holds
}

// ahead counts the waiting jobs that start before r: those of its own line,
// and where the hands are a queue's, jobs with and without a function.
func (q *queue) ahead(r *record) (n int) {
	classes := []string{Class(r.function)}
	if classes[0] == ClassPlain || classes[0] == ClassBare {
		classes = []string{ClassPlain, ClassBare}
	}
	for _, class := range classes {
		if ln, ok := q.lines.Get(class); ok {
			n += ln.rank(r.order())
		}
	}
	return n
}

// rank is how many jobs of the line start before an item, by halving.
func (ln *line) rank(item orderItem) int {
	return sort.Search(ln.jobs.Len(), func(i int) bool {
		at, _ := ln.jobs.GetAt(i)
		return !orderLess(at, item)
	})
}

// Holders gives a queue's active jobs, those that were placed first before the
// others, at most most of them. Its cost goes by the active jobs of the yard.
func (l *Ledger) Holders(queue string, most int) (holders []Active) {
	q := l.queues.get(queue)
	if q == nil || most <= 0 {
		return nil
	}
	most = min(most, q.counts[job.Active])
	if most == 0 {
		return nil
	}
	l.jobs.active.Scan(func(item orderItem) bool {
		if item.r.queue.name == queue {
			holders = append(holders, item.r.activeView())
		}
		return len(holders) < most
	})
	return holders
}

// Head is the first job of a line, and how many stand in it.
type Head struct {
	Waiting
	Class string
	Count int
}

// Heads gives the first jobs of a queue's lines that are not empty, by class,
// at most most of them.
func (l *Ledger) Heads(queue string, most int) (heads []Head) {
	q := l.queues.get(queue)
	if q == nil {
		return nil
	}
	q.lines.Scan(func(class string, ln *line) bool {
		if first, ok := ln.jobs.Min(); ok && len(heads) < most {
			heads = append(heads, Head{first.r.waiting(), class, ln.jobs.Len()})
		}
		return len(heads) < most
	})
	return heads
}

// Oldest is the waiting job of a queue that was accepted first.
func (l *Ledger) Oldest(queue string) (w Waiting, ok bool) {
	if q := l.queues.get(queue); q != nil {
		q.byAcceptance(func(r *record) bool {
			w, ok = r.waiting(), true
			return false
		})
	}
	return w, ok
}

// maxDueScan is how many delayed jobs are looked at for the next of a queue.
const maxDueScan = 2000

// NextOf is the delayed job of a queue that is due first. Where too many
// others are due before it, ok is false and notBefore is a time before which
// none of the queue's is due; it is zero if the queue has none.
func (l *Ledger) NextOf(queue string) (id job.ID, at, notBefore time.Time, ok bool) {
	q := l.queues.get(queue)
	if q == nil || q.counts[job.Delayed] == 0 {
		return id, at, notBefore, false
	}
	looked := 0
	l.jobs.due.Scan(func(item timeItem) bool {
		if ok = item.r.queue.name == queue; ok {
			id, at = item.r.id, time.Unix(0, item.at).UTC()
			return false
		}
		looked++
		notBefore = time.Unix(0, item.at).UTC()
		return looked < maxDueScan
	})
	if list := q.lists[job.Delayed]; !ok && list.Len() <= maxDueScan {
		list.Scan(func(item timeItem) bool {
			if due := time.Unix(0, item.r.due).UTC(); !ok || due.Before(at) {
				id, at, ok = item.r.id, due, true
			}
			return true
		})
	}
	return id, at, notBefore, ok
}

// RulingOf is the last ruling about records of an id, and when it was made; ok
// is false if there was none, or if it was too long ago.
func (l *Ledger) RulingOf(id job.ID) (r Ruling, at time.Time, ok bool) {
	n, ok := l.rulings.byID[id]
	if !ok {
		return Ruling{}, time.Time{}, false
	}
	found := &l.rulings.list[n-l.rulings.first]
	return found.Ruling, time.Unix(0, found.at).UTC(), true
}

// UntoldOf gives the events of a job that are not yet known to be published,
// as lines of history; complete is false if not all of the outbox was looked
// at.
func (l *Ledger) UntoldOf(id job.ID, most int) (lines [][]byte, complete bool) {
	complete = true
	l.EventsAfter(l.outbox.told, func(number uint64, at time.Time, e *Event) bool {
		if most--; most < 0 {
			complete = false
			return false
		}
		if e.N > 0 && e.Job == id {
			lines = append(lines, e.AppendLine(nil, number, at))
		}
		return true
	})
	return lines, complete
}
