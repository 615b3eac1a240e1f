package ledger

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"yardmaster/job"
)

// Waiting is a waiting job as the scheduler sees it: all that an assignment
// needs but the body.
type Waiting struct {
	job.Job
	N           uint32 // of the pending dispatch
	Attempt     uint32 // the number it would run as
	Due         time.Time
	Redelivered bool
}

// Before tells which of two jobs of the same hands starts first.
func (w *Waiting) Before(o *Waiting) bool {
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

func (r *record) waiting() Waiting {
	w := Waiting{
		Job: job.Job{
			ID: r.id, Queue: r.queue.name, Function: r.function,
			Position: job.Position{Lane: r.lane, Seq: r.pos},
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

// Line yields the waiting jobs of a queue and class in the order of start,
// until yield returns false.
func (l *Ledger) Line(queue, class string, yield func(Waiting) bool) {
	q := l.queues.get(queue)
	if q == nil {
		return
	}
	if ln, ok := q.lines.Get(class); ok {
		ln.jobs.Scan(func(item orderItem) bool { return yield(item.r.waiting()) })
	}
}

// Classes yields the classes that have waiting jobs, in order.
func (l *Ledger) Classes(yield func(class string) bool) {
	last, first := "", true
	l.jobs.busy.Scan(func(_ string, ln *line) bool {
		if ln.class == last && !first {
			return true
		}
		last, first = ln.class, false
		return yield(ln.class)
	})
}

// BusyLines yields the queues that have waiting jobs of a class, by name.
func (l *Ledger) BusyLines(class string, yield func(queue string) bool) {
	prefix := class + "\x00"
	l.jobs.busy.Ascend(prefix, func(key string, ln *line) bool {
		return strings.HasPrefix(key, prefix) && yield(ln.queue.name)
	})
}

// Room is how many more jobs of a queue may become active: 0 for a paused or
// full queue, math.MaxInt without a limit. A queue that does not exist yet has
// the room of a new one.
func (l *Ledger) Room(queue string) int {
	q := l.queues.get(queue)
	switch {
	case q == nil || q.config.Limit == 0 && !q.paused:
		return math.MaxInt
	case q.paused:
		return 0
	}
	return max(0, int(q.config.Limit)-q.counts[job.Active])
}

// Active is a dispatch that is notified.
type Active struct {
	Waiting
	Node        string
	Incarnation uint64
	Channel     string
	Fence       uint64
	Epoch       uint64 // of the authority that notified it
	Started     time.Time
	Losses      uint32
	Recalled    job.RecallReason // "": not
	Moved       bool             // its worker brought it to Node: it cannot be begun there
}

func (r *record) activeView() Active {
	a := Active{
		Waiting: r.waiting(), Node: r.run.node, Incarnation: r.run.incarnation, Channel: r.run.channel,
		Fence: r.run.fence, Epoch: r.run.epoch, Started: time.Unix(0, r.run.started),
		Losses: uint32(r.losses), Recalled: r.recalled(), Moved: r.flags&moved != 0,
	}
	a.Attempt = r.attempt
	return a
}

// recalled is why an active job is to stop; "" if it is not.
func (r *record) recalled() job.RecallReason {
	switch {
	case r.flags&cancelling == 0:
		return ""
	case r.flags&queueGone != 0:
		return job.RecallQueueGone
	}
	return job.RecallCancelled
}

// Active yields the notified dispatches, oldest first, until yield returns
// false.
func (l *Ledger) Active(yield func(Active) bool) {
	l.jobs.active.Scan(func(item orderItem) bool { return yield(item.r.activeView()) })
}

// Dispatch finds a notified dispatch; ok is false if it is not current.
func (l *Ledger) Dispatch(id job.ID, n uint32) (a Active, ok bool) {
	r := l.jobs.byID[id]
	if r == nil || r.n != n || r.state != job.Active {
		return Active{}, false
	}
	return r.activeView(), true
}

// Known tells a job that exists, or existed within the dedupe horizon, and the
// queue it belongs to if it exists.
func (l *Ledger) Known(id job.ID) (queue string, known bool) {
	if r := l.jobs.byID[id]; r != nil {
		return r.queue.name, true
	}
	return "", l.jobs.gone.has(id)
}

// State gives a job's state; ok is false if there is no such job.
func (l *Ledger) State(id job.ID) (state job.State, ok bool) {
	if r := l.jobs.byID[id]; r != nil {
		return r.state, true
	}
	return job.New, false
}

// Find gives what the ledger knows of a job: a view without body and result,
// and the number of its result (0: none).
func (l *Ledger) Find(id job.ID) (view job.View, result uint64, ok bool) {
	r := l.jobs.byID[id]
	if r == nil {
		return job.View{}, 0, false
	}
	view, result = r.view()
	return view, result, true
}

func (r *record) view() (view job.View, result uint64) {
	view = job.View{
		ID: r.id, Queue: r.queue.name, State: r.state, Function: r.function,
		Created: time.Unix(0, r.accepted).UTC(), Priority: r.priority,
		Attempts: r.attempt, Dispatches: r.n, Losses: uint32(r.losses),
		Position: job.Position{Lane: r.lane, Seq: r.pos},
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
		if f := run.failed; f != nil {
			view.Reason, view.Fault = f.reason, &job.Fault{Message: f.reason, Type: f.kind}
		}
		if run.started > 0 {
			view.Started = time.Unix(0, run.started).UTC()
		}
		result = run.result
	}
	return view, result
}

// QueueView is a queue and how many of its jobs are in each state. No job is
// ever New here.
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

// Queue finds a queue.
func (l *Ledger) Queue(name string) (QueueView, bool) {
	q := l.queues.get(name)
	if q == nil {
		return QueueView{}, false
	}
	return q.view(), true
}

// Queues gives all queues by name, the yard's own included.
func (l *Ledger) Queues() []QueueView {
	views := make([]QueueView, 0, l.queues.byName.Len())
	l.queues.byName.Scan(func(_ string, q *queue) bool {
		views = append(views, q.view())
		return true
	})
	return views
}

// OldestWaiting tells since when the waiting job of a queue is due that was
// accepted first. Its cost does not grow with the number of jobs.
func (l *Ledger) OldestWaiting(queue string) (due time.Time, ok bool) {
	q := l.queues.get(queue)
	if q == nil || q.counts[job.Waiting] == 0 {
		return time.Time{}, false
	}
	q.byAcceptance(func(r *record) bool {
		due, ok = time.Unix(0, r.due), true
		return false
	})
	return due, ok
}

// List gives a queue's jobs in a state, oldest first: at most most of them
// after the first skip.
func (l *Ledger) List(queue string, state job.State, skip, most int) []job.View {
	q := l.queues.get(queue)
	if q == nil || state == job.New || skip < 0 || most <= 0 { // page times size may wrap
		return nil
	}
	views := make([]job.View, 0, min(most, 64))
	take := func(r *record) bool {
		if skip > 0 {
			skip--
			return true
		}
		view, _ := r.view()
		views = append(views, view)
		return len(views) < most
	}
	switch state {
	case job.Waiting:
		q.byAcceptance(take)
		return views
	case job.Active:
		for _, r := range l.jobs.activeOf(queue) {
			if !take(r) {
				break
			}
		}
		return views
	}
	if list := q.lists[state]; list != nil {
		for i := skip; i < list.Len() && len(views) < most; i++ {
			item, _ := list.GetAt(i)
			view, _ := item.r.view()
			views = append(views, view)
		}
	}
	return views
}

// activeOf gives a queue's active jobs, oldest first.
func (j *jobs) activeOf(queue string) []*record {
	var found []*record
	j.active.Scan(func(item orderItem) bool {
		if item.r.queue.name == queue {
			found = append(found, item.r)
		}
		return true
	})
	slices.SortFunc(found, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.accepted, b.accepted), bytes.Compare(a.id[:], b.id[:]))
	})
	return found
}

// byAcceptance yields the queue's waiting jobs oldest first, merging its
// lines, each of which is ordered so within a priority.
func (q *queue) byAcceptance(yield func(*record) bool) {
	var heads []*orderIter
	q.lines.Scan(func(_ string, ln *line) bool {
		for p := range uint64(job.MaxPriority + 1) {
			if it := newOrderIter(ln, p<<56, (p+1)<<56); it != nil {
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
