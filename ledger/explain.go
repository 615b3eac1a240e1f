package ledger

import (
	"slices"
	"time"

	"github.com/tidwall/btree"

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
	Ahead        int              // waiting: number of jobs of its queue for the same executors that start before it, by priority and then by acceptance
	AheadHigher  int              // of those, jobs of a higher priority
	LowerDue     time.Time        // waiting: since when the first jobs of lower priorities for the same executors are due, the earliest; zero: there are none
	Fence        uint64           // active: fence of its dispatch
	Result       uint64           // number of its result; 0: none
	OwnAttempts  bool             // the job itself sets how often it is tried
	OwnTimeout   bool             // the job itself sets the timeout of its attempts
}

// Diagnose returns the diagnosis of a job; ok is false if the ledger has no
// such job.
func (d *dispatches) Diagnose(id job.ID) (diagnosis JobDiagnosis, ok bool) {
	stored := d.jobs.find(id)
	if stored == nil {
		return JobDiagnosis{}, false
	}
	diagnosis = JobDiagnosis{
		QueueView: stored.queue.view(), LimitReached: stored.queue.limitReached(), Due: time.Unix(0, stored.due).UTC(),
		Redelivered: stored.flags&redelivered != 0, Debounced: d.holdsDebounce(stored),
		OwnAttempts: stored.options.maxAttempts > 0, OwnTimeout: stored.options.timeout > 0,
	}
	diagnosis.View, diagnosis.Result = stored.view()
	diagnosis.PausedSince, _ = d.PausedSince(stored.queue.name)
	if at := stored.options.runAt; at != 0 {
		diagnosis.RequestedAt = time.Unix(0, at).UTC()
	}
	switch stored.state {
	case job.Delayed:
		diagnosis.Retrying = stored.run.started > 0
	case job.Waiting:
		d.diagnoseOrder(stored, &diagnosis)
	case job.Active:
		diagnosis.Recalled, diagnosis.Fence = stored.recallReason(), stored.run.fence
	}
	return diagnosis, true
}

// PausedSince returns when a queue was paused; ok is false if it is not paused.
func (qs *queues) PausedSince(queue string) (at time.Time, ok bool) {
	if q := qs.get(queue); q != nil && q.paused {
		return time.Unix(0, q.pausedAt).UTC(), true
	}
	return time.Time{}, false
}

// holdsDebounce reports whether a job has not started and holds a debounce key.
func (g *guards) holdsDebounce(stored *storedJob) bool {
	return stored.flags&guarded != 0 &&
		slices.ContainsFunc(g.heldBy(stored.id), func(held *heldKey) bool { return held.until == untilStart })
}

// diagnoseOrder sets which waiting jobs start before or may start before a waiting job:
// those in its own waitlist and, for executors that serve a whole queue, jobs with and
// without a function.
func (j *jobs) diagnoseOrder(stored *storedJob, diagnosis *JobDiagnosis) {
	q, classes := stored.queue, []string{Class(stored.function)}
	if !ofRunner(classes[0]) {
		classes = []string{ClassPlain, ClassBare}
	}
	first := orderItem{key: orderKey(stored.priority, 0)} // of its priority
	for _, wl := range q.waitlists.Scan {
		if !slices.Contains(classes, wl.class) {
			continue
		}
		diagnosis.Ahead += q.rank(wl.jobs, stored.order())
		diagnosis.AheadHigher += wl.jobs.Rank(first)
		for lower := stored.priority; lower > 0; {
			head, ok := j.FirstWaitingJob(wl.id(), lower-1)
			if !ok {
				break
			}
			if diagnosis.LowerDue.IsZero() || head.Due.Before(diagnosis.LowerDue) {
				diagnosis.LowerDue = head.Due
			}
			lower = head.Priority
		}
	}
}

// ActiveInQueue returns up to limit active jobs of a queue, in the order in
// which they were placed. Its cost grows with the number of active jobs of all
// queues.
func (j *jobs) ActiveInQueue(queue string, limit int) (dispatches []ActiveDispatch) {
	q := j.queues.get(queue)
	if q == nil {
		return nil
	}
	limit = min(limit, q.counts[job.Active])
	for item := range j.active.Scan {
		if len(dispatches) >= limit {
			break
		}
		if j.queueOf(item.number).name == queue {
			dispatches = append(dispatches, j.at(item.number).activeDispatch())
		}
	}
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
func (j *jobs) WaitlistHeads(queue string, limit int) (heads []WaitlistHead) {
	q := j.queues.get(queue)
	if q == nil {
		return nil
	}
	for _, wl := range q.waitlists.Scan {
		if len(heads) >= limit {
			break
		}
		if first, ok := wl.jobs.Min(); ok {
			heads = append(heads, WaitlistHead{j.at(first.number).waitingJob(), wl.class, wl.jobs.Len()})
		}
	}
	return heads
}

// OldestWaitingJob returns the waiting job of a queue that was accepted first;
// ok is false without one. Its cost does not grow with the number of jobs.
func (j *jobs) OldestWaitingJob(queue string) (oldest WaitingJob, ok bool) {
	if q := j.queues.get(queue); q != nil {
		for stored := range j.byAcceptance(q) {
			return stored.waitingJob(), true
		}
	}
	return WaitingJob{}, false
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

	scan := func(index *btree.BTreeG[timeItem], wall bool) (complete bool) {
		examined := 0
		for item := range index.Scan {
			shown := j.limits.shownOn(item.at, wall)
			if j.queueOf(item.number).name == queue {
				if !ok || shown.Before(at) {
					id, at, ok = item.id, shown, true
				}
				return true
			}
			if examined++; examined == maxDueScan {
				if notBefore.IsZero() || shown.Before(notBefore) {
					notBefore = shown
				}
				return false
			}
		}
		return true
	}
	byElapsed, byWall := scan(j.due.elapsed, false), scan(j.due.wall, true)
	if ok && (byElapsed && byWall || at.Before(notBefore)) {
		return id, at, time.Time{}, true
	}

	// Other queues' jobs are due before it: search the queue's own jobs if they
	// are few.
	list := q.lists[job.Delayed]
	if list.Len() > maxDueScan {
		return job.ID{}, time.Time{}, notBefore, false
	}
	for item := range list.Scan {
		m := j.at(item.number).dueMoment()
		if due := j.limits.shownOn(m.key(), m.wall); !ok || due.Before(at) {
			id, at, ok = item.id, due, true
		}
	}
	return id, at, notBefore, ok
}
