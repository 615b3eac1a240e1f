package ledger

import (
	"errors"
	"fmt"
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
)

// waitlist holds the waiting jobs of one queue and class, which the same
// executors may run, in start order. It exists as long as the queue has an
// unfinished job of the class, so that function names chosen by producers leave
// nothing behind.
type waitlist struct {
	queue      *queue
	class      string
	jobs       *sortedList[orderItem]
	unfinished int // number of waiting, delayed and active jobs of the class; 0 in a copy
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
	if _, ok := q.waitlists.Get(class); ok {
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

// joinWaitlist counts an unfinished job in its waitlist, which it creates if
// needed, and returns the waitlist, or nil for a job that has ended.
func (j *jobs) joinWaitlist(stored *storedJob) *waitlist {
	if stored.state.Ended() {
		return nil
	}
	q, class := stored.queue, Class(stored.function)
	wl, ok := q.waitlists.Get(class)
	if !ok {
		wl = &waitlist{queue: q, class: class, jobs: newSortedList(orderLess)}
		q.waitlists.Set(class, wl)
		j.countRunner(wl, 1)
	}
	wl.unfinished++
	return wl
}

// leaveWaitlist undoes joinWaitlist: it counts the job in its waitlist no more,
// and removes a waitlist without unfinished jobs.
func (j *jobs) leaveWaitlist(stored *storedJob) *waitlist {
	if stored.state.Ended() {
		return nil
	}
	wl, _ := stored.queue.waitlists.Get(Class(stored.function))
	wl.unfinished--
	if wl.unfinished == 0 {
		stored.queue.waitlists.Delete(wl.class)
		j.countRunner(wl, -1)
	}
	return wl
}

// countRunner adds n to the number of waitlists of runners, unless the waitlist
// is not a runner's.
func (j *jobs) countRunner(wl *waitlist, n int) {
	if ofRunner(wl.class) {
		wl.queue.runners += n
		j.lines += n
	}
}

// FirstWaitingJob returns the waiting job of a queue and class that starts first among
// those of at most the given priority; ok is false if there is none. Its cost does not
// grow with the number of jobs.
func (j *jobs) FirstWaitingJob(queue, class string, priority uint8) (first WaitingJob, ok bool) {
	q := j.queues.get(queue)
	if q == nil {
		return WaitingJob{}, false
	}
	if wl, found := q.waitlists.Get(class); found {
		wl.jobs.Ascend(orderItem{key: orderKey(priority, 0)}, func(item orderItem) bool {
			first, ok = j.at(item.number).waitingJob(), true
			return false
		})
	}
	return first, ok
}

// NextWaitingJob returns the waiting job that starts next after another one of its queue
// and class; ok is false if that one waits no longer, or is the last.
func (j *jobs) NextWaitingJob(w *WaitingJob) (next WaitingJob, ok bool) {
	stored := j.find(w.ID)
	if stored == nil || stored.state != job.Waiting {
		return WaitingJob{}, false
	}
	wl, _ := stored.queue.waitlists.Get(Class(stored.function))
	wl.jobs.Ascend(stored.order(), func(item orderItem) bool {
		if item.number == stored.number {
			return true
		}
		next, ok = j.at(item.number).waitingJob(), true
		return false
	})
	return next, ok
}
