package ledger

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// queue is a queue: its configuration, the number of its jobs in each state,
// and indexes of those jobs.
type queue struct {
	id     job.ID
	name   string
	paused bool
	config job.QueueConfig

	pausedAt int64 // when it was paused, in Unix nanoseconds; 0: it is not
	changed  bool  // it is in queues.changed

	counts    [job.States]int                   // by job.State
	waitlists btree.Map[string, *waitlist]      // one per class that has unfinished jobs
	runners   int                               // number of waitlists of runners
	lists     [job.States]*sortedList[timeItem] // delayed and ended jobs by time of acceptance
	ended     [classes]endedJobs
	completed uint64 // number of completed jobs that the ledger has forgotten
}

// errTooManyQueues is returned for a queue beyond MaxQueues.
var errTooManyQueues = fmt.Errorf("%w, %d; remove one that is not used any more, or use one queue with several functions", job.ErrTooManyQueues, MaxQueues)

// QueuesFull reports whether there are MaxQueues queues.
func (l *Ledger) QueuesFull() bool { return l.queues.byName.Len() >= MaxQueues }

// QueuesWarning returns a warning if nine tenths of MaxQueues or more are used, otherwise "".
func (l *Ledger) QueuesWarning() string {
	n := l.queues.byName.Len()
	if n < MaxQueues/10*9 {
		return ""
	}
	return fmt.Sprintf("there are %d of at most %d queues, and jobs for a queue too many are refused: remove those that are not used any more with 'yardmaster queue rm', or use one queue with several functions", n, MaxQueues)
}

// CheckQueue returns an error if queue name does not exist and cannot be created because
// there are too many.
func (l *Ledger) CheckQueue(name string) error {
	if l.QueuesFull() && l.queues.get(name) == nil {
		return errTooManyQueues
	}
	return nil
}

// queues are all queues. In a copy, only byName is set.
type queues struct {
	byName  btree.Map[string, *queue]
	copies  btree.Map[string, *queue] // each as it was at the last copy, for the next one; never changed
	changed []*queue                  // those that were added or changed since then

	paramPaths *AllParamPaths
}

func (q *queues) add(name string, id job.ID, config job.QueueConfig) *queue {
	added := &queue{id: id, name: name, config: config}
	q.set(added)
	return added
}

func (q *queues) set(added *queue) {
	q.byName.Set(added.name, added)
	q.setParamPaths(added.name, added.params())
	q.touch(added)
}

// touch must be called when a queue is changed, or a job of the queue.
func (q *queues) touch(changed *queue) {
	if !changed.changed {
		changed.changed = true
		q.changed = append(q.changed, changed)
	}
}

func (q *queues) remove(name string) {
	q.byName.Delete(name)
	q.setParamPaths(name, ParamPaths{})
	q.copies.Delete(name)
}

func (q *queues) get(name string) *queue {
	found, _ := q.byName.Get(name)
	return found
}

// copy returns a copy that shares the chunks of lists. Its cost grows with the number of
// queues that were changed since the last copy, and of their waitlists.
func (q *queues) copy() queues {
	copies := make([]queue, len(q.changed)) // one allocation, because there may be many queues
	for i, original := range q.changed {
		original.changed = false
		if q.get(original.name) == original { // it was not removed
			original.copyTo(&copies[i])
			q.copies.Set(original.name, &copies[i])
		}
	}
	q.changed = nil
	return queues{byName: *q.copies.Copy()}
}

// copyTo sets c to a copy of the queue that shares the chunks of lists and leaves out empty
// waitlists and lists.
func (q *queue) copyTo(c *queue) {
	*c = *q
	c.ended = [classes]endedJobs{}
	c.waitlists = btree.Map[string, *waitlist]{}
	for name, original := range q.waitlists.Scan {
		if original.jobs.Len() > 0 {
			c.waitlists.Set(name, &waitlist{queue: c, waitlistNames: original.waitlistNames, jobs: original.jobs.Copy()})
		}
	}
	for state, list := range q.lists {
		c.lists[state] = nil
		if list != nil && list.Len() > 0 {
			c.lists[state] = list.Copy()
		}
	}
}

// list returns the queue's list for a state other than waiting and active, and
// creates it if needed.
func (q *queue) list(s job.State) *sortedList[timeItem] {
	if q.lists[s] == nil {
		q.lists[s] = newSortedList(timeLess)
	}
	return q.lists[s]
}

// isSystem reports whether only the system itself may use the queue.
func (q *queue) isSystem() bool { return q.name[0] == '_' }

// limitReached reports whether the queue's limit permits no further active job.
func (q *queue) limitReached() bool {
	return q.config.Limit > 0 && q.counts[job.Active] >= int(q.config.Limit)
}

// apply adds the queue. A repeated command, with the same id, succeeds without a
// change.
func (c *AddQueue) apply(l *Ledger) Result {
	if err := job.ValidQueue(c.Name); err != nil {
		return Result{Err: err}
	}
	if existing := l.queues.get(c.Name); existing != nil {
		if existing.id == c.ID {
			return existing.result()
		}
		return Result{Err: job.ErrQueueExists}
	}
	if err := job.ValidateRetention(c.Config.Retention, true); err != nil {
		return Result{Err: err}
	}
	if err := l.checkConfig(&c.Config); err != nil {
		return Result{Err: err}
	}
	if l.queues.byName.Len() >= MaxQueues {
		return Result{Err: errTooManyQueues}
	}
	l.act(c.By, "queue.add", Event{B: c.Name}, "", settingsOfQueue(&c.Config))
	return l.queues.add(c.Name, c.ID, c.Config).result()
}

// apply changes the queue's settings.
func (c *ChangeQueue) apply(l *Ledger) Result {
	q, err := l.userQueue(c.Name)
	if err != nil {
		return Result{Err: err}
	}
	if err := job.ValidateRetention(c.Change.Retention, true); err != nil {
		return Result{Err: err}
	}
	config := q.config.Changed(c.Change)
	if err := l.checkConfig(&config); err != nil {
		return Result{Err: err}
	}
	isQueue := func(other *queue) bool { return other == q }
	if q.config.Fair != config.Fair || q.config.Age != config.Age || !slices.Equal(q.config.Limits, config.Limits) {
		reorders := q.config.Fair != config.Fair || q.config.Age != config.Age
		l.rebind(isQueue, func() {
			l.finished.configure(q, config)
			for _, wl := range q.waitlists.Scan {
				if reorders {
					wl.reorder()
				}
			}
		})
	} else {
		l.finished.configure(q, config)
	}
	l.queues.setParamPaths(c.Name, q.params())
	l.act(c.By, "queue.set", Event{B: c.Name}, c.Change.Text(l.longDurations()), settingsOfQueue(&q.config))
	return q.result()
}

// checkConfig returns an error if settings of a queue are out of range, or name a limit that does
// not exist.
func (l *Ledger) checkConfig(config *job.QueueConfig) error {
	if err := config.Validate(); err != nil {
		return err
	}
	for _, name := range config.Limits {
		if l.jobs.limits.get(name) == nil {
			return fmt.Errorf("%w: %s; create it first with 'yardmaster limit set'", ErrLimitNotFound, name)
		}
	}
	return nil
}

// ErrQueueRemoving is returned for a queue with more finished jobs than one entry
// forgets: the command has forgotten maxRemoved of them, and must be repeated.
var ErrQueueRemoving = errors.New("the queue's finished jobs are being forgotten; repeat the command to remove the queue")

// maxRemoved is how many finished jobs of a queue that is being removed are forgotten per
// entry, about four milliseconds' worth: while an entry is applied, nothing is read.
const maxRemoved = 5000

// apply removes the queue and forgets its finished jobs, if they are not more than
// maxRemoved: else it forgets so many and returns ErrQueueRemoving. It refuses a queue
// with unfinished jobs.
func (c *RemoveQueue) apply(l *Ledger) Result {
	q, err := l.userQueue(c.Name)
	if err != nil {
		return Result{Err: err}
	}
	if q.counts[job.Waiting]+q.counts[job.Delayed]+q.counts[job.Active] > 0 {
		return Result{Err: job.ErrQueueNotEmpty}
	}
	removed := 0
	for _, state := range [...]job.State{job.Completed, job.Failed, job.Cancelled, job.Expired} {
		finished := q.list(state)
		for oldest, ok := finished.Min(); ok; oldest, ok = finished.Min() {
			if removed == maxRemoved {
				return Result{Err: ErrQueueRemoving}
			}
			stored := l.jobs.at(oldest.number)
			l.releaseUntil(stored, 0)
			l.forgetEnded(stored, true)
			removed++
		}
	}
	l.queues.remove(c.Name)
	l.jobs.removed += q.completed
	l.emitForgotten()
	l.act(c.By, "queue.remove", Event{B: c.Name}, "", nil)
	return Result{}
}

// apply pauses or resumes the queue. It refuses a queue that is already as
// requested.
func (c *PauseQueue) apply(l *Ledger) Result {
	q, err := l.userQueue(c.Name)
	switch {
	case err != nil:
		return Result{Err: err}
	case c.OnlyIfIdle && q.counts[job.Active] > 0:
		return Result{Err: fmt.Errorf("%d of its jobs are active: %w", q.counts[job.Active], job.ErrQueueNotEmpty)}
	case c.Paused && q.paused:
		return Result{Err: job.ErrQueuePaused}
	case !c.Paused && !q.paused:
		return Result{Err: job.ErrQueueNotPaused}
	}
	action := "queue.resume"
	q.paused, q.pausedAt = c.Paused, 0
	if c.Paused {
		q.pausedAt, action = l.now, "queue.pause"
	}
	l.act(c.By, action, Event{B: c.Name}, "", nil)
	return q.result()
}

func (q *queue) result() Result { return Result{Queue: new(q.view())} }

// userQueue returns a queue that users may change, to be changed.
func (q *queues) userQueue(name string) (*queue, error) {
	found := q.get(name)
	if found == nil {
		return nil, job.ErrQueueNotFound
	}
	if found.isSystem() {
		return nil, job.ErrSystemQueue
	}
	q.touch(found)
	return found, nil
}

// ErrQueueUnknown rejects a record of a queue that does not exist, in a cluster
// where the first job does not create its queue.
var ErrQueueUnknown = errors.New("the queue does not exist; add it first")
