package ledger

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// WaitingJob is a waiting job as the scheduler needs it: everything of an
// assignment except the body. Its attempts and timeout are those of its queue if it names none.
type WaitingJob struct {
	job.Job
	N           uint32 // number of the pending dispatch
	Attempt     uint32 // number of the attempt that it would be
	Due         time.Time
	Redelivered bool
	traits      *traits // nil: it is not in the ledger yet
}

// Before reports whether w starts before other, if both are for the same
// executors.
func (w *WaitingJob) Before(other *WaitingJob) bool {
	return cmp.Or(
		cmp.Compare(orderKey(w.Priority, w.Accepted.UnixNano()), orderKey(other.Priority, other.Accepted.UnixNano())),
		w.Accepted.Compare(other.Accepted),
		w.Position.Compare(other.Position),
	) < 0
}

// waitingJob returns the job for the scheduler. Attempt is the number of the
// attempt that its next dispatch would be.
func (r *storedJob) waitingJob() WaitingJob {
	waiting := WaitingJob{
		Job: job.Job{
			ID: r.id, Queue: r.queue.name, Function: r.function, Position: r.position(),
			Accepted: time.Unix(0, r.accepted), Priority: r.priority, LimitKey: r.key,
		},
		N: r.n, Attempt: r.attempt + 1, Due: time.Unix(0, r.due), Redelivered: r.flags&redelivered != 0,
		traits: r.traits,
	}
	o := &r.options
	waiting.MaxAttempts, waiting.Timeout, waiting.RetryInterval = r.maxAttempts(), r.timeout(), o.retryInterval
	waiting.RetryOnTimeout = o.retryOnTimeout.value()
	if r.limits != "" {
		waiting.Limits = splitUses(r.limits)
	}
	if o.runAt != 0 {
		waiting.RunAt = time.Unix(0, o.runAt)
	}
	return waiting
}

// maxAttempts returns how many attempts the job may have by its own setting, else by its
// queue; 0: as the cluster has it.
func (r *storedJob) maxAttempts() uint32 {
	if own := r.options.maxAttempts; own > 0 {
		return own
	}
	return r.queue.config.Attempts(r.function)
}

// timeout returns the timeout of the job's attempts by its own setting, else by its queue; 0:
// as the cluster has it.
func (r *storedJob) timeout() time.Duration { return cmp.Or(r.options.timeout, r.queue.config.Timeout) }

// Waitlists returns how many waitlists have jobs. It must not be called on a copy.
func (j *jobs) Waitlists() int { return j.waitlists.Len() }

// ActiveDispatch is a dispatch that is notified: it is placed with an executor.
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

// activeDispatch returns the dispatch of an active job. Attempt is the number of
// the attempt that is running.
func (r *storedJob) activeDispatch() ActiveDispatch {
	active := ActiveDispatch{
		WaitingJob: r.waitingJob(), Node: r.run.node, Incarnation: r.run.incarnation, Channel: r.run.channel,
		Fence: r.run.fence, Epoch: r.run.epoch, Started: time.Unix(0, r.run.started),
		Losses: uint32(r.losses), Recalled: r.recallReason(), Moved: r.flags&moved != 0,
	}
	active.Attempt = r.attempt
	return active
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
	j.active.Scan(func(item fenceItem) bool { return yield(j.at(item.number).activeDispatch()) })
}

// Dispatch returns an active dispatch, with its queue's decision about timeouts if the job
// has none; ok is false if it is not the current one of its job.
func (j *jobs) Dispatch(id job.ID, n uint32) (active ActiveDispatch, ok bool) {
	stored := j.find(id)
	if stored == nil || stored.n != n || stored.state != job.Active {
		return ActiveDispatch{}, false
	}
	active = stored.activeDispatch()
	if active.RetryOnTimeout == nil && stored.queue.config.RetryOnTimeout {
		active.RetryOnTimeout = new(true)
	}
	return active, true
}

// Known reports whether a job exists, or existed within the dedupe horizon.
// queue is empty if it does not exist any more.
func (j *jobs) Known(id job.ID) (queue string, known bool) {
	if stored := j.find(id); stored != nil {
		return stored.queue.name, true
	}
	return "", j.hasForgotten(&id)
}

// Removed reports whether a caller has removed a job within the dedupe horizon. It must not
// be called on a copy.
func (j *jobs) Removed(id job.ID) bool {
	place, ok := j.byID.find(j, &id)
	return ok && place&forgottenPlace != 0 && j.forgotten.wasRemoved(place)
}

// JobsFull reports whether there are [MaxJobs].
func (j *jobs) JobsFull() bool { return j.records.count >= MaxJobs }

// State returns a job's state; ok is false if the ledger has no such job.
func (j *jobs) State(id job.ID) (state job.State, ok bool) {
	if number, ok := j.number(&id); ok {
		return j.records.get(number).state, true
	}
	return job.New, false
}

// Find returns a view of a job without body and result, and the number of its
// result (0: none). ok is false if the ledger has no such job.
func (j *jobs) Find(id job.ID) (view job.View, result uint64, ok bool) {
	stored := j.find(id)
	if stored == nil {
		return job.View{}, 0, false
	}
	view, result = stored.view()
	return view, result, true
}

// view returns the job as users see it, without body and result, and the number
// of its result (0: none).
func (r *storedJob) view() (view job.View, result uint64) {
	view = job.View{
		ID: r.id, Queue: r.queue.name, State: r.state, Function: r.function,
		Created: time.Unix(0, r.accepted).UTC(), Priority: r.priority,
		Attempts: r.attempt, Dispatches: r.n, Losses: uint32(r.losses),
		Position: r.position(),
	}
	view.RunAt = view.Created
	o := &r.options
	view.MaxAttempts, view.Timeout, view.RetryInterval, view.ResultTTL = r.maxAttempts(), r.timeout(), o.retryInterval, o.resultTTL
	view.RetryOnTimeout = o.retryOnTimeout.value()
	if o.runAt != 0 {
		view.RunAt = time.Unix(0, o.runAt).UTC()
	}
	if r.state == job.Delayed {
		view.RunAt = time.Unix(0, r.due).UTC()
	}
	if r.state.Ended() {
		view.Ended = time.Unix(0, r.due).UTC()
	}
	view.Cancellation, view.Fault = r.cancellation(), r.run.failure.fault()
	view.LimitKey = r.key
	if r.limits != "" {
		view.Limits = splitUses(r.limits)
	}
	if o.expires != 0 {
		view.Expires = time.Unix(0, o.expires).UTC()
	}
	view.Node, view.Worker = r.run.node, r.run.channel
	if f := r.run.failure; f != nil {
		view.Reason = f.reason
		if r.state == job.Failed {
			view.DeadLetter = f.deadLetter
		}
	}
	if r.run.started > 0 {
		view.Started = time.Unix(0, r.run.started).UTC()
	}
	view.ResultSize = r.run.resultSize
	return view, r.run.result
}

// cancellation returns who cancelled the job, nil if it was not.
func (r *storedJob) cancellation() *job.Cancellation {
	c := r.run.cancellation
	if c == nil || r.state != job.Cancelled && r.flags&cancelling == 0 {
		return nil
	}
	return &job.Cancellation{Actor: c.by.Name, Door: string(c.by.Door), Reason: c.by.Reason, At: time.Unix(0, c.at).UTC()}
}

// fault returns the failure as a fault, nil for none.
func (f *failure) fault() *job.Fault {
	if f == nil {
		return nil
	}
	return &job.Fault{Message: f.reason, Type: f.kind, Code: f.code, Details: f.details}
}

// QueueView is a queue and the number of its jobs in each state. The number of
// new jobs is always 0.
type QueueView struct {
	job.Queue
	Counts [job.States]int // by job.State
}

// totals returns the number of the queue's jobs in each state, of which those of the completed ones includes
// the jobs that the ledger has forgotten.
func (q *queue) totals() [job.States]int {
	totals := q.counts
	totals[job.Completed] += int(q.completed)
	return totals
}

func (q *queue) view() QueueView {
	return QueueView{
		Queue:  job.Queue{ID: q.id, Name: q.name, Paused: q.paused, Config: q.config},
		Counts: q.totals(),
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

// RetryRule returns the rule by which a queue retries the jobs of a function, nil if it has none.
func (qs *queues) RetryRule(queue, function string) *job.RetryRule {
	if q := qs.get(queue); q != nil {
		return q.config.Rule(function)
	}
	return nil
}

// QueuesAfter yields the queues after a name, in the order of their names, until yield
// returns false.
func (qs *queues) QueuesAfter(name string, yield func(QueueView) bool) {
	qs.byName.Ascend(name, func(found string, q *queue) bool { return found == name || yield(q.view()) })
}

// Queues returns all queues in the order of their names, including the system
// queue.
func (qs *queues) Queues() []QueueView {
	views := make([]QueueView, 0, qs.byName.Len())
	for _, q := range qs.byName.Scan {
		views = append(views, q.view())
	}
	return views
}

// List returns jobs of a queue in a state, oldest first: at most limit jobs
// after the first skip ones.
func (j *jobs) List(queue string, state job.State, skip, limit int) []job.View {
	q := j.queues.get(queue)
	if q == nil || state == job.New || skip < 0 || limit <= 0 { // skip may have overflowed in the caller
		return nil
	}
	var inOrder iter.Seq[*storedJob]
	switch state {
	case job.Waiting:
		inOrder = j.byAcceptance(q)
	case job.Active:
		inOrder = slices.Values(j.activeInQueue(queue))
	default:
		inOrder = j.loaded(numbersFrom(itemsOf(q.lists[state]), skip))
		skip = 0
	}
	views := make([]job.View, 0, min(limit, 64))
	for stored := range inOrder {
		if skip > 0 {
			skip--
			continue
		}
		view, _ := stored.view()
		views = append(views, view)
		if len(views) == limit {
			break
		}
	}
	return views
}

// numbersFrom returns an iterator over the numbers of the jobs of list after the first skip
// ones.
func numbersFrom(list *sortedList[timeItem], skip int) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for p := list.index(skip); ; p = list.after(p) {
			if item, ok := list.at(p); !ok || !yield(item.number) {
				return
			}
		}
	}
}

// activeInQueue returns a queue's active jobs, oldest first.
func (j *jobs) activeInQueue(queue string) (active []*storedJob) {
	for item := range j.active.Scan {
		if j.queueOf(item.number).name == queue {
			active = append(active, j.at(item.number))
		}
	}
	slices.SortFunc(active, func(a, b *storedJob) int {
		return cmp.Or(cmp.Compare(a.accepted, b.accepted), bytes.Compare(a.id[:], b.id[:]))
	})
	return active
}

// byAcceptance returns an iterator over a queue's waiting jobs, oldest first. It merges the
// priorities of the queue's waitlists, each of which is in this order. Each job is valid
// until the next one.
func (j *jobs) byAcceptance(q *queue) iter.Seq[*storedJob] {
	return func(yield func(*storedJob) bool) {
		var heads []*orderIter
		for _, wl := range q.waitlists.Scan {
			for priority := range uint8(job.MaxPriority + 1) {
				if head := j.newOrderIter(wl, priority); head != nil {
					heads = append(heads, head)
				}
			}
		}
		for len(heads) > 0 {
			first := 0
			for i, head := range heads {
				if timeLess(head.job.byAcceptance(), heads[first].job.byAcceptance()) {
					first = i
				}
			}
			if !yield(heads[first].job) {
				return
			}
			if !heads[first].next() {
				heads = slices.Delete(heads, first, first+1)
			}
		}
	}
}

// orderIter iterates over the jobs of one priority in a waitlist.
type orderIter struct {
	items    *sortedList[orderItem]
	place    place
	priority uint8
	jobs     *jobs
	job      *storedJob // the present one
}

// newOrderIter returns an iterator at the first job of a priority, or nil if the
// waitlist has no such job.
func (j *jobs) newOrderIter(wl *waitlist, priority uint8) *orderIter {
	first := wl.jobs.seek(orderItem{key: orderKey(priority, 0)})
	it := &orderIter{items: wl.jobs, place: first, priority: priority, jobs: j, job: new(storedJob)}
	if !it.load() {
		return nil
	}
	return it
}

// next moves to the next job of the priority and reports whether there is one.
func (it *orderIter) next() bool {
	it.place = it.items.after(it.place)
	return it.load()
}

// load loads the present job and reports whether there is one and it has the priority.
func (it *orderIter) load() bool {
	item, ok := it.items.at(it.place)
	if !ok || item.priority() != it.priority {
		return false
	}
	*it.job = storedJob{}
	it.jobs.load(it.job, item.number)
	return true
}
