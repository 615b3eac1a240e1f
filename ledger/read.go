package ledger

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// WaitingJob is a waiting job as the scheduler needs it: everything of an
// assignment except the body.
type WaitingJob struct {
	job.Job
	N           uint32 // number of the pending dispatch
	Attempt     uint32 // number of the attempt that it would be
	Due         time.Time
	Redelivered bool
}

// Before reports whether w starts before o, if both are for the same executors.
func (w *WaitingJob) Before(o *WaitingJob) bool {
	a, b := orderKey(w.Priority, w.Accepted.UnixNano()), orderKey(o.Priority, o.Accepted.UnixNano())
	if a != b {
		return a < b
	}
	if !w.Accepted.Equal(o.Accepted) {
		return w.Accepted.Before(o.Accepted)
	}
	if w.Position.Lane != o.Position.Lane {
		return w.Position.Lane < o.Position.Lane
	}
	return w.Position.Seq < o.Position.Seq
}

func (r *storedJob) waitingJob() WaitingJob {
	w := WaitingJob{
		Job: job.Job{
			ID: r.id, Queue: r.queue.name, Function: r.function,
			Position: job.Position{Lane: r.lane, Seq: r.seq},
			Accepted: time.Unix(0, r.accepted), Priority: r.priority,
		},
		N: r.n, Attempt: r.attempt + 1, Due: time.Unix(0, r.due), Redelivered: r.flags&redelivered != 0,
	}
	if o := r.options; o != nil {
		w.MaxAttempts, w.Timeout, w.RetryInterval = o.maxAttempts, o.timeout, o.retryInterval
		if o.runAt != 0 {
			w.RunAt = time.Unix(0, o.runAt)
		}
	}
	return w
}

// WaitingJobs yields the waiting jobs of a queue and class in start order,
// until yield returns false.
func (qs *queues) WaitingJobs(queue, class string, yield func(WaitingJob) bool) {
	q := qs.get(queue)
	if q == nil {
		return
	}
	if wl, ok := q.waitlists.Get(class); ok {
		wl.jobs.Scan(func(item orderItem) bool { return yield(item.r.waitingJob()) })
	}
}

// Classes yields the classes that have waiting jobs, in order.
func (j *jobs) Classes(yield func(class string) bool) {
	last, first := "", true
	j.waitlists.Scan(func(_ string, wl *waitlist) bool {
		if wl.class == last && !first {
			return true
		}
		last, first = wl.class, false
		return yield(wl.class)
	})
}

// QueuesWaiting yields the queues that have waiting jobs of a class, in the
// order of their names. It must not be called on a copy.
func (j *jobs) QueuesWaiting(class string, yield func(queue string) bool) {
	prefix := class + "\x00"
	j.waitlists.Ascend(prefix, func(key string, wl *waitlist) bool {
		return strings.HasPrefix(key, prefix) && yield(wl.queue.name)
	})
}

// Headroom returns how many more jobs of a queue may become active: 0 if the
// queue is paused or its limit is reached, math.MaxInt without a limit, also
// for a queue that does not exist yet.
func (qs *queues) Headroom(queue string) int {
	q := qs.get(queue)
	switch {
	case q == nil || q.config.Limit == 0 && !q.paused:
		return math.MaxInt
	case q.paused:
		return 0
	}
	return max(0, int(q.config.Limit)-q.counts[job.Active])
}

// ActiveDispatch is a dispatch that is notified: it is placed with a worker.
type ActiveDispatch struct {
	WaitingJob
	Node        string
	Incarnation uint64
	Channel     string
	Fence       uint64
	Epoch       uint64 // epoch of the authority that placed it
	Started     time.Time
	Losses      uint32
	Recalled    job.RecallReason // why it is being recalled; "": it is not
	Moved       bool             // its worker moved it to Node while it ran, so Node cannot start it
}

func (r *storedJob) activeDispatch() ActiveDispatch {
	a := ActiveDispatch{
		WaitingJob: r.waitingJob(), Node: r.run.node, Incarnation: r.run.incarnation, Channel: r.run.channel,
		Fence: r.run.fence, Epoch: r.run.epoch, Started: time.Unix(0, r.run.started),
		Losses: uint32(r.losses), Recalled: r.recallReason(), Moved: r.flags&moved != 0,
	}
	a.Attempt = r.attempt
	return a
}

// recallReason returns why an active job is being recalled, or "" if it is not.
func (r *storedJob) recallReason() job.RecallReason {
	switch {
	case r.flags&cancelling == 0:
		return ""
	case r.flags&queueGone != 0:
		return job.RecallQueueGone
	}
	return job.RecallCancelled
}

// ActiveDispatches yields the active dispatches, oldest first, until yield
// returns false.
func (j *jobs) ActiveDispatches(yield func(ActiveDispatch) bool) {
	j.active.Scan(func(item orderItem) bool { return yield(item.r.activeDispatch()) })
}

// Dispatch returns an active dispatch; ok is false if it is not the current one
// of its job.
func (j *jobs) Dispatch(id job.ID, n uint32) (a ActiveDispatch, ok bool) {
	r := j.byID[id]
	if r == nil || r.n != n || r.state != job.Active {
		return ActiveDispatch{}, false
	}
	return r.activeDispatch(), true
}

// Known reports whether a job exists, or existed within the dedupe horizon.
// queue is empty if it does not exist any more.
func (j *jobs) Known(id job.ID) (queue string, known bool) {
	if r := j.byID[id]; r != nil {
		return r.queue.name, true
	}
	return "", j.forgotten.has(id)
}

// State returns a job's state; ok is false if the ledger has no such job.
func (j *jobs) State(id job.ID) (state job.State, ok bool) {
	if r := j.byID[id]; r != nil {
		return r.state, true
	}
	return job.New, false
}

// Find returns a view of a job without body and result, and the number of its
// result (0: none). ok is false if the ledger has no such job.
func (j *jobs) Find(id job.ID) (view job.View, result uint64, ok bool) {
	r := j.byID[id]
	if r == nil {
		return job.View{}, 0, false
	}
	view, result = r.view()
	return view, result, true
}

func (r *storedJob) view() (view job.View, result uint64) {
	view = job.View{
		ID: r.id, Queue: r.queue.name, State: r.state, Function: r.function,
		Created: time.Unix(0, r.accepted).UTC(), Priority: r.priority,
		Attempts: r.attempt, Dispatches: r.n, Losses: uint32(r.losses),
		Position: job.Position{Lane: r.lane, Seq: r.seq},
	}
	view.RunAt = view.Created
	if o := r.options; o != nil {
		view.MaxAttempts, view.Timeout, view.RetryInterval, view.ResultTTL = o.maxAttempts, o.timeout, o.retryInterval, o.resultTTL
		if o.runAt != 0 {
			view.RunAt = time.Unix(0, o.runAt).UTC()
		}
	}
	if r.state == job.Delayed {
		view.RunAt = time.Unix(0, r.due).UTC()
	}
	if r.state.Ended() {
		view.Ended = time.Unix(0, r.due).UTC()
	}
	if run := r.run; run != nil {
		view.Node, view.Worker = run.node, run.channel
		if f := run.failure; f != nil {
			view.Reason, view.Fault = f.reason, &job.Fault{Message: f.reason, Type: f.kind}
		}
		if run.started > 0 {
			view.Started = time.Unix(0, run.started).UTC()
		}
		result = run.result
	}
	return view, result
}

// QueueView is a queue and the number of its jobs in each state. The number of
// new jobs is always 0.
type QueueView struct {
	job.Queue
	Counts [6]int // by job.State
}

func (q *queue) view() QueueView {
	return QueueView{
		Queue:  job.Queue{ID: q.id, Name: q.name, Paused: q.paused, Config: q.config},
		Counts: q.counts,
	}
}

// Queue returns the queue of a name.
func (qs *queues) Queue(name string) (QueueView, bool) {
	q := qs.get(name)
	if q == nil {
		return QueueView{}, false
	}
	return q.view(), true
}

// Queues returns all queues in the order of their names, including the system
// queue.
func (qs *queues) Queues() []QueueView {
	views := make([]QueueView, 0, qs.byName.Len())
	qs.byName.Scan(func(_ string, q *queue) bool {
		views = append(views, q.view())
		return true
	})
	return views
}

// OldestWaiting returns when the job became due that was accepted first among
// the waiting jobs of a queue. Its cost does not grow with the number of jobs.
func (qs *queues) OldestWaiting(queue string) (due time.Time, ok bool) {
	q := qs.get(queue)
	if q == nil || q.counts[job.Waiting] == 0 {
		return time.Time{}, false
	}
	q.byAcceptance(func(r *storedJob) bool {
		due, ok = time.Unix(0, r.due), true
		return false
	})
	return due, ok
}

// List returns jobs of a queue in a state, oldest first: at most limit jobs
// after the first skip ones.
func (j *jobs) List(queue string, state job.State, skip, limit int) []job.View {
	q := j.queues.get(queue)
	if q == nil || state == job.New || skip < 0 || limit <= 0 { // skip may have overflowed in the caller
		return nil
	}
	views := make([]job.View, 0, min(limit, 64))
	take := func(r *storedJob) bool {
		if skip > 0 {
			skip--
			return true
		}
		view, _ := r.view()
		views = append(views, view)
		return len(views) < limit
	}
	switch state {
	case job.Waiting:
		q.byAcceptance(take)
		return views
	case job.Active:
		for _, r := range j.activeInQueue(queue) {
			if !take(r) {
				break
			}
		}
		return views
	}
	if list := q.lists[state]; list != nil {
		for i := skip; i < list.Len() && len(views) < limit; i++ {
			item, _ := list.GetAt(i)
			view, _ := item.r.view()
			views = append(views, view)
		}
	}
	return views
}

// activeInQueue returns a queue's active jobs, oldest first.
func (j *jobs) activeInQueue(queue string) []*storedJob {
	var found []*storedJob
	j.active.Scan(func(item orderItem) bool {
		if item.r.queue.name == queue {
			found = append(found, item.r)
		}
		return true
	})
	slices.SortFunc(found, func(a, b *storedJob) int {
		return cmp.Or(cmp.Compare(a.accepted, b.accepted), bytes.Compare(a.id[:], b.id[:]))
	})
	return found
}

// byAcceptance yields the queue's waiting jobs, oldest first. It merges its
// waitlists, each of which has this order within a priority.
func (q *queue) byAcceptance(yield func(*storedJob) bool) {
	var heads []*orderIter
	q.waitlists.Scan(func(_ string, wl *waitlist) bool {
		for p := range uint64(job.MaxPriority + 1) {
			if it := newOrderIter(wl, p<<56, (p+1)<<56); it != nil {
				heads = append(heads, it)
			}
		}
		return true
	})
	for len(heads) > 0 {
		first := 0
		for i, it := range heads {
			if timeLess(timeItem{it.r.accepted, it.r}, timeItem{heads[first].r.accepted, heads[first].r}) {
				first = i
			}
		}
		if !yield(heads[first].r) {
			return
		}
		if !heads[first].next() {
			heads = append(heads[:first], heads[first+1:]...)
		}
	}
}
