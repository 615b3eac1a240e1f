package ledger

import (
	"errors"
	"fmt"

	"github.com/tidwall/btree"

	"yardmaster/job"
)

// queue is a named line of jobs: its configuration, how many jobs are in each
// state, and the jobs themselves in the orders they are read in.
type queue struct {
	id     job.ID
	name   string
	paused bool
	config job.QueueConfig

	pausedAt int64 // since when it is paused, in unix nanoseconds; 0: it is not

	counts [6]int                     // by state
	lines  btree.Map[string, *line]   // waiting jobs by class
	lists  [6]*btree.BTreeG[timeItem] // delayed, completed, failed jobs by acceptance
}

// errQueuesFull refuses one queue more than MaxQueues.
var errQueuesFull = fmt.Errorf("%d queues: %w", MaxQueues, job.ErrTooManyQueues)

type queues struct {
	byName btree.Map[string, *queue]
}

func newQueues() queues { return queues{} }

func (q *queues) add(name string, id job.ID, config job.QueueConfig) *queue {
	added := &queue{id: id, name: name, config: config}
	q.byName.Set(name, added)
	return added
}

func (q *queues) get(name string) *queue {
	found, _ := q.byName.Get(name)
	return found
}

// copy shares the trees; it costs time by the number of queues.
func (q *queues) copy() queues {
	c := newQueues()
	q.byName.Scan(func(name string, from *queue) bool {
		c.byName.Set(name, from.copy())
		return true
	})
	return c
}

func (q *queue) copy() *queue {
	c := *q
	c.lines = btree.Map[string, *line]{}
	q.lines.Scan(func(class string, from *line) bool {
		c.lines.Set(class, &line{queue: &c, class: class, jobs: from.jobs.Copy()})
		return true
	})
	for s, list := range q.lists {
		if list != nil {
			c.lists[s] = list.Copy()
		}
	}
	return &c
}

// line gives the queue's line of a class, and makes it.
func (q *queue) line(class string) *line {
	ln, ok := q.lines.Get(class)
	if !ok {
		ln = &line{queue: q, class: class, jobs: btree.NewBTreeGOptions(orderLess, treeOptions)}
		q.lines.Set(class, ln)
	}
	return ln
}

func (l *line) key() string { return l.class + "\x00" + l.queue.name }

// listed gives the queue's list of a state other than waiting, and makes it.
func (q *queue) listed(s job.State) *btree.BTreeG[timeItem] {
	if q.lists[s] == nil {
		q.lists[s] = btree.NewBTreeGOptions(timeLess, treeOptions)
	}
	return q.lists[s]
}

func (q *queue) unfinished() int {
	return q.counts[job.Waiting] + q.counts[job.Delayed] + q.counts[job.Active]
}

// full tells that the queue's limit leaves no room for one more active job.
func (q *queue) full() bool {
	return q.config.Limit > 0 && q.counts[job.Active] >= int(q.config.Limit)
}

func (l *Ledger) addQueue(c *AddQueue) Result {
	if err := job.ValidQueue(c.Name); err != nil {
		return Result{Err: err}
	}
	if have := l.queues.get(c.Name); have != nil {
		if have.id == c.ID { // the same command again
			return have.result()
		}
		return Result{Err: job.ErrQueueExists}
	}
	if l.queues.byName.Len() >= MaxQueues {
		return Result{Err: errQueuesFull}
	}
	l.queues.add(c.Name, c.ID, c.Config)
	return l.queues.get(c.Name).result()
}

func (l *Ledger) removeQueue(c *RemoveQueue) Result {
	q, err := l.usersQueue(c.Name)
	if err != nil {
		return Result{Err: err}
	}
	if q.unfinished() > 0 {
		return Result{Err: job.ErrQueueNotEmpty}
	}
	for _, state := range [...]job.State{job.Completed, job.Failed} {
		for {
			item, ok := q.listed(state).Min()
			if !ok {
				break
			}
			l.drop(item.r)
		}
	}
	l.queues.byName.Delete(c.Name)
	return Result{}
}

func (l *Ledger) pauseQueue(c *PauseQueue) Result {
	q, err := l.usersQueue(c.Name)
	switch {
	case err != nil:
		return Result{Err: err}
	case c.Idle && q.counts[job.Active] > 0:
		return Result{Err: fmt.Errorf("%d of its jobs are active: %w", q.counts[job.Active], job.ErrQueueNotEmpty)}
	case q.paused && c.Paused:
		return Result{Err: job.ErrQueuePaused}
	case !q.paused && !c.Paused:
		return Result{Err: job.ErrQueueRunning}
	}
	q.paused, q.pausedAt = c.Paused, 0
	if c.Paused {
		q.pausedAt = l.now
	}
	return q.result()
}

func (q *queue) result() Result {
	view := q.view()
	return Result{Queue: &view}
}

// usersQueue finds a queue that users may change.
func (l *Ledger) usersQueue(name string) (*queue, error) {
	q := l.queues.get(name)
	if q == nil {
		return nil, job.ErrQueueNotFound
	}
	if name[0] == '_' {
		return nil, job.ErrSystemQueue
	}
	return q, nil
}

// ErrQueueUnknown rejects a record of a queue that does not exist, where
// queues are not created by their first job.
var ErrQueueUnknown = errors.New("the queue does not exist; add it first")
