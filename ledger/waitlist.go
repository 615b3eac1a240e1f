package ledger

import (
	"errors"
	"fmt"
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
)

// waitlist holds waiting jobs of one queue and class, which the same executors may run, in
// start order. The jobs that name limits themselves, or have a key for limits, have waitlists of
// their own, so that what blocks all jobs of a waitlist is found without looking at them. A
// waitlist exists as long as the queue has such an unfinished job, so that names chosen by
// producers leave nothing behind.
type waitlist struct {
	queue *queue
	waitlistNames
	jobs   *sortedList[orderItem]
	traits int // number of those that unfinished jobs have; 0 in a copy

	// All of these are of waiting and active jobs, and zero in a copy.
	bounds  []*limit                // that its jobs use, of the queue and by name
	groups  []*group                // one if it is not keyed; in no order
	waiting int                     // number of groups with waiting jobs, if it is keyed
	ready   *sortedList[readyGroup] // those that no key blocks, see [queue.newReady]; nil if it is not keyed
}

// waitlistNames are the names of a waitlist, and what they consist of.
type waitlistNames struct {
	class  string
	limits string // names of the limits that its jobs name themselves, sorted and joined by ","
	keyed  bool   // its jobs have keys, and are in groups
	name   string // in its queue
	key    string // in jobs.waitlists: its class, queue and name
}

// waitlistName returns the name of a job's waitlist in its queue: its class and, if it has
// limits or keys of its own, which they are.
func (t *traitsID) waitlistName() string {
	if t.key == "" && t.limits == "" {
		return t.class
	}
	names, keyed := t.ownLimits()
	return waitlistName(t.class, names, keyed)
}

func waitlistName(class, limits string, keyed bool) string {
	switch {
	case keyed:
		return class + "\x00" + limits + "\x00k"
	case limits != "":
		return class + "\x00" + limits
	}
	return class
}

// ownLimits returns the names of the limits that a job names itself, joined by ",", and whether
// the job has a key.
func (t *groupKey) ownLimits() (names string, keyed bool) {
	keyed = t.key != ""
	uses := splitUses(t.limits)
	all := make([]string, len(uses))
	for i, use := range uses {
		all[i] = use.Limit
		keyed = keyed || use.Key != ""
	}
	return strings.Join(all, ","), keyed
}

// The classes of jobs. A function with a runner's prefix has the class
// "<runner>#".
const (
	ClassPlain = ""  // no function: Overhop workers of the queue
	ClassBare  = "#" // a function without a runner
)

// Class returns the class of a function, which determines the executors that
// may run it.
func Class(function string) string {
	if function == "" {
		return ClassPlain
	}
	if i := strings.IndexByte(function, '#'); i >= 0 {
		return function[:i+1]
	}
	return ClassBare
}

// ofRunner reports whether only one runner may run the jobs of a class.
func ofRunner(class string) bool { return class != ClassPlain && class != ClassBare }

// ErrRunnersFull is wrapped by the errors that refuse a job because it names
// one runner more than unfinished jobs may.
var ErrRunnersFull = errors.New("runners_full")

var (
	errQueueRunners = fmt.Errorf("%w: the unfinished jobs of the queue already name %d different runners, the maximum; try again when all jobs for one of them have ended", ErrRunnersFull, MaxQueueRunners)
	errRunnerLines  = fmt.Errorf("%w: the unfinished jobs of all queues already name %d runners, added up over the queues, the maximum; try again when all jobs of one queue for one of them have ended", ErrRunnersFull, MaxRunnerLines)
)

// checkRunnerLimit returns an error if the queue cannot take another unfinished
// job with the given function. It is called only for jobs that are not
// unfinished yet: an accepted job keeps its waitlist until it ends.
//
// The result depends only on the jobs in the ledger, so a ledger restored from
// a snapshot gives the same result.
func (j *jobs) checkRunnerLimit(q *queue, function string) error {
	class := Class(function)
	if !ofRunner(class) {
		return nil
	}
	if q.hasClass(class) {
		return nil
	}
	switch {
	case q.runners >= MaxQueueRunners:
		return errQueueRunners
	case j.lines >= MaxRunnerLines:
		return errRunnerLines
	}
	return nil
}

// join counts an unfinished job in its waitlist and, unless it is delayed, in its group.
func (j *jobs) join(stored *storedJob) {
	if stored.state.Ended() {
		return
	}
	t := stored.traits
	if t.unfinished++; t.unfinished == 1 {
		t.waitlist = j.waitlistFor(&t.traitsID)
		t.waitlist.traits++
	}
	if stored.state != job.Delayed {
		if t.grouped++; t.grouped == 1 {
			j.limits.newGroup(t)
		}
	}
}

// waitlistFor returns the waitlist of jobs, which it creates if needed.
func (j *jobs) waitlistFor(id *traitsID) *waitlist {
	q, name := id.queue, id.waitlistName()
	wl, ok := q.waitlists.Get(name)
	if !ok {
		wl = &waitlist{queue: q, jobs: newSortedList(orderLess)}
		wl.class, wl.name = id.class, name
		wl.limits, wl.keyed = id.ownLimits()
		wl.key = wl.class + "\x00" + q.name + name[len(wl.class):]
		wl.reorder()
		j.countRunner(wl, 1)
		q.waitlists.Set(name, wl)
		j.limits.link(wl)
	}
	return wl
}

// hasClass reports whether the queue has waitlists of a class.
func (q *queue) hasClass(class string) (has bool) {
	q.waitlists.Ascend(class, func(_ string, wl *waitlist) bool {
		has = wl.class == class
		return false
	})
	return has
}

// leave undoes join. It removes a waitlist without unfinished jobs.
func (j *jobs) leave(stored *storedJob) {
	if stored.state.Ended() {
		return
	}
	t := stored.traits
	if stored.state != job.Delayed {
		if t.grouped--; t.grouped == 0 {
			j.limits.removeGroup(t)
		}
	}
	if t.unfinished--; t.unfinished > 0 {
		return
	}
	wl := t.waitlist
	t.waitlist = nil
	if wl.traits--; wl.traits == 0 {
		wl.queue.waitlists.Delete(wl.name)
		j.countRunner(wl, -1)
	}
}

// countRunner adds n to the number of runners that jobs of the waitlist's queue name, if the
// waitlist is a runner's, and the only one: it is called while the waitlist is not in its queue.
func (j *jobs) countRunner(wl *waitlist, n int) {
	if ofRunner(wl.class) && !wl.queue.hasClass(wl.class) {
		wl.queue.runners += n
		j.lines += n
	}
}
