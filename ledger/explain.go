package ledger

import (
	"sort"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// JobDiagnosis is what the ledger knows about why a job is in its present
// state. The cost of creating one does not grow with the backlog.
type JobDiagnosis struct {
	job.View
	QueueView    QueueView        // of the job's queue
	PausedSince  time.Time        // when the queue was paused; zero: it is not paused
	LimitReached bool             // the queue's limit permits no further active job
	RequestedAt  time.Time        // when the producer wants it to run; zero: immediately
	Due          time.Time        // delayed: when it becomes waiting; waiting: when it became due
	Retrying     bool             // delayed: after a dispatch that failed or was given back
	Debounced    bool             // a newer record with its debounce key would replace it
	Redelivered  bool             // its last dispatch was given back, so the attempt did not count
	Recalled     job.RecallReason // active: why it is being recalled; "": it is not
	Ahead        int              // waiting: number of jobs of its queue for the same executors that start before it
	Fence        uint64           // active: fence of its dispatch
	Result       uint64           // number of its result; 0: none
}

// Diagnose returns the diagnosis of a job; ok is false if the ledger has no
// such job.
func (d *dispatches) Diagnose(id job.ID) (p JobDiagnosis, ok bool) {
	r := d.jobs.byID[id]
	if r == nil {
		return JobDiagnosis{}, false
	}
	p = JobDiagnosis{
		QueueView: r.queue.view(), LimitReached: r.queue.limitReached(), Due: time.Unix(0, r.due).UTC(),
		Redelivered: r.flags&redelivered != 0, Debounced: d.holdsDebounce(r),
	}
	p.View, p.Result = r.view()
	p.PausedSince, _ = d.PausedSince(r.queue.name)
	if o := r.options; o != nil && o.runAt != 0 {
		p.RequestedAt = time.Unix(0, o.runAt).UTC()
	}
	switch r.state {
	case job.Delayed:
		p.Retrying = r.run != nil && r.run.started > 0
	case job.Waiting:
		p.Ahead = r.queue.countAhead(r)
	case job.Active:
		p.Recalled, p.Fence = r.recallReason(), r.run.fence
	}
	return p, true
}

// PausedSince returns when a queue was paused; ok is false if it is not paused.
func (qs *queues) PausedSince(queue string) (at time.Time, ok bool) {
	if q := qs.get(queue); q != nil && q.paused {
		return time.Unix(0, q.pausedAt).UTC(), true
	}
	return time.Time{}, false
}

// holdsDebounce reports whether r has not started and holds a debounce key.
func (g *guards) holdsDebounce(r *storedJob) (held bool) {
	if r.flags&guarded == 0 {
		return false
	}
	g.byJob.Ascend(&heldKey{job: r.id}, func(h *heldKey) bool {
		held = held || h.job == r.id && h.until == untilStart
		return h.job == r.id
	})
	return held
}

// countAhead returns how many waiting jobs start before r: those in its own
// waitlist and, for executors that serve a whole queue, jobs with and without a
// function.
func (q *queue) countAhead(r *storedJob) (n int) {
	classes := []string{Class(r.function)}
	if classes[0] == ClassPlain || classes[0] == ClassBare {
		classes = []string{ClassPlain, ClassBare}
	}
	for _, class := range classes {
		if wl, ok := q.waitlists.Get(class); ok {
			n += wl.rank(r.order())
		}
	}
	return n
}

// rank returns how many jobs of the waitlist start before item, by binary
// search.
func (wl *waitlist) rank(item orderItem) int {
	return sort.Search(wl.jobs.Len(), func(i int) bool {
		other, _ := wl.jobs.GetAt(i)
		return !orderLess(other, item)
	})
}

// ActiveInQueue returns up to limit active jobs of a queue, in the order in
// which they were placed. Its cost grows with the number of active jobs of all
// queues.
func (j *jobs) ActiveInQueue(queue string, limit int) (dispatches []ActiveDispatch) {
	q := j.queues.get(queue)
	if q == nil || limit <= 0 {
		return nil
	}
	limit = min(limit, q.counts[job.Active])
	if limit == 0 {
		return nil
	}
	j.active.Scan(func(item orderItem) bool {
		if item.r.queue.name == queue {
			dispatches = append(dispatches, item.r.activeDispatch())
		}
		return len(dispatches) < limit
	})
	return dispatches
}

// WaitlistHead is the first job of a waitlist, and the number of jobs in it.
type WaitlistHead struct {
	WaitingJob
	Class string
	Count int
}

// WaitlistHeads returns the heads of up to limit waitlists of a queue that are
// not empty, in the order of their classes.
func (qs *queues) WaitlistHeads(queue string, limit int) (heads []WaitlistHead) {
	q := qs.get(queue)
	if q == nil {
		return nil
	}
	q.waitlists.Scan(func(class string, wl *waitlist) bool {
		if first, ok := wl.jobs.Min(); ok && len(heads) < limit {
			heads = append(heads, WaitlistHead{first.r.waitingJob(), class, wl.jobs.Len()})
		}
		return len(heads) < limit
	})
	return heads
}

// OldestWaitingJob returns the waiting job of a queue that was accepted first.
func (qs *queues) OldestWaitingJob(queue string) (w WaitingJob, ok bool) {
	if q := qs.get(queue); q != nil {
		q.byAcceptance(func(r *storedJob) bool {
			w, ok = r.waitingJob(), true
			return false
		})
	}
	return w, ok
}

// maxDueScan is how many delayed jobs are examined to find the next one of a
// queue.
const maxDueScan = 2000

// NextDelayed returns the delayed job of a queue that is due first. If too many
// jobs of other queues are due before it, ok is false and none of the queue's
// jobs is due before notBefore. If the queue has no delayed job, ok is false
// and notBefore is zero.
func (j *jobs) NextDelayed(queue string) (id job.ID, at, notBefore time.Time, ok bool) {
	q := j.queues.get(queue)
	if q == nil || q.counts[job.Delayed] == 0 {
		return id, at, notBefore, false
	}
	looked := 0
	j.due.Scan(func(item timeItem) bool {
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
