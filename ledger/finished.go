package ledger

import (
	"math"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// FinishedRetention is how long the ledger keeps the records of jobs that can be retried, and external
// dispatches, after their end if nothing else is set. Completed jobs are kept for [job.FinishedAge].
const FinishedRetention = job.RetryableAge

// RetentionSettings are the cluster's retention settings. Those that are neither set nor
// declared have their defaults.
type RetentionSettings struct {
	Declared job.Retention // in the configuration file
	Set      job.Retention // by an operator; they have precedence
}

// InForce returns the settings that are set, or else declared.
func (r RetentionSettings) InForce() job.Retention { return r.Declared.With(r.Set) }

// Retention returns the cluster's retention settings.
func (j *jobs) Retention() RetentionSettings { return j.retention }

// SetRetention changes retention settings of the cluster: the value 0 resets one. With
// Declared, the settings replace those of the configuration file.
type SetRetention struct {
	Declared bool
	Settings []job.RetentionSetting
	Asked
}

func (*SetRetention) Kind() Kind { return KindSetRetention }

func (c *SetRetention) apply(l *Ledger) Result {
	if err := job.ValidateRetention(c.Settings, false); err != nil {
		return Result{Err: err}
	}
	if c.Declared {
		l.retention.Declared = job.Retention(nil).With(c.Settings)
	} else {
		l.retention.Set = l.retention.Set.With(c.Settings)
	}
	if !c.Declared || l.outbox.level > 0 {
		l.act(c.By, "retention.set", Event{}, strings.Join(retentionTexts(c.Settings), " "), retentionTexts(l.retention.InForce()))
	}
	l.finished.setLimits(l.retention)
	return Result{}
}

// finishedLimits are how long records of finished jobs are kept: until they have ended
// for the age, in nanoseconds, or there are more than count.
type finishedLimits struct {
	age   int64
	count int
}

// with returns the limits, replaced by those of r that are set.
func (f finishedLimits) with(r job.Retention) finishedLimits {
	if age := r.Get(job.KeptFinished, job.BoundAge); age != 0 {
		f.age = age
	}
	if count := r.Get(job.KeptFinished, job.BoundCount); count != 0 {
		f.count = int(count)
	}
	return f
}

// Classes of finished jobs. Before level 7 there is one, which has all of them.
const (
	completedClass = iota
	retryableClass // failed, cancelled and expired jobs, which can be retried from their records
	classes
)

// finished finds the finished jobs whose records are to be removed next, by class.
type finished struct {
	split   bool // there are two classes
	classes [classes]finishedClass
}

// finishedClass finds the records of a class that are to be removed next. Each queue has a
// list of its finished jobs by the time at which they ended; finishedClass has the queues in
// the order in which they lose a record. The queues without a setting of their own share
// the cluster's limits, and the others are counted one by one.
type finishedClass struct {
	class       int
	limits      finishedLimits
	shared, own *btree.BTreeG[removal]
	sharedCount int // records of the queues in shared
	ownCount    int // records of the queues in own
}

// endedJobs are a queue's finished jobs of a class.
type endedJobs struct {
	jobs    *sortedList[timeItem] // by the time they ended; nil in a copy, and before the first one
	removal int64                 // of the queue's place in the order of its [finishedClass]; 0: it is in none
}

// removal is the place of a queue in one of the orders of a class: in shared the time at
// which its first finished job ended; in own the time from which that job's record is to
// be removed, math.MinInt64 if the queue has too many.
type removal struct {
	at    int64
	queue *queue
}

func removalLess(a, b removal) bool {
	return a.at < b.at || a.at == b.at && a.queue.name < b.queue.name
}

func newFinished() (f finished) {
	for class := range f.classes {
		f.classes[class] = finishedClass{
			class:  class,
			shared: btree.NewBTreeGOptions(removalLess, treeOptions),
			own:    btree.NewBTreeGOptions(removalLess, treeOptions),
		}
	}
	f.setLimits(RetentionSettings{})
	return f
}

// copy returns a copy that has only counts and limits.
func (f *finished) copy() (c finished) {
	c.split = f.split
	for class := range f.classes {
		of := &f.classes[class]
		c.classes[class] = finishedClass{limits: of.limits, sharedCount: of.sharedCount, ownCount: of.ownCount}
	}
	return c
}

// of returns the class of a finished job.
func (f *finished) of(state job.State) *finishedClass {
	if f.split && state != job.Completed {
		return &f.classes[retryableClass]
	}
	return &f.classes[completedClass]
}

// splitClasses sets jobs that can be retried apart from completed ones.
func (l *Ledger) splitClasses() {
	f := &l.finished
	for _, q := range l.queues.byName.Scan {
		var retryable []uint32
		if all := q.ended[completedClass].jobs; all != nil {
			for item := range all.Scan {
				if stored := l.jobs.at(item.number); stored.state != job.Completed {
					retryable = append(retryable, item.number)
				}
			}
		}
		for _, number := range retryable {
			stored := l.jobs.at(number)
			f.classes[completedClass].remove(stored)
			f.classes[retryableClass].add(stored)
		}
	}
	f.split = true
	f.setLimits(l.retention)
}

// setLimits sets the cluster's limits, of which queues with a setting of their own may
// use one.
func (f *finished) setLimits(r RetentionSettings) {
	limits := finishedLimits{int64(FinishedRetention), job.FinishedCount}
	f.classes[retryableClass].setLimits(limits.with(r.InForce()))
	if f.split {
		limits.age = int64(job.FinishedAge)
	}
	f.classes[completedClass].setLimits(limits.with(r.InForce()))
}

// configure changes the configuration of a queue.
func (f *finished) configure(q *queue, config job.QueueConfig) {
	for class := range f.classes {
		f.classes[class].leave(q)
	}
	q.config = config
	for class := range f.classes {
		f.classes[class].enter(q)
	}
}

// next returns the number of the record that is to be removed next, 0 if none is to be removed
// at the time now.
func (f *finished) next(now int64) (number uint32) {
	for class := range f.classes {
		if number = f.classes[class].next(now); number != 0 {
			break
		}
	}
	return number
}

// hasOwnLimits reports whether the queue's finished jobs are counted by themselves.
func (q *queue) hasOwnLimits() bool {
	return q.config.Retention.Get(job.KeptFinished, job.BoundAge) != 0 || q.config.Retention.Get(job.KeptFinished, job.BoundCount) != 0
}

// order returns the order that the queue is in, and the count of its records.
func (f *finishedClass) order(q *queue) (*btree.BTreeG[removal], *int) {
	if q.hasOwnLimits() {
		return f.own, &f.ownCount
	}
	return f.shared, &f.sharedCount
}

// add adds a finished job.
func (f *finishedClass) add(stored *storedJob) {
	q := stored.queue
	ended := &q.ended[f.class]
	if ended.jobs == nil {
		ended.jobs = newSortedList(timeLess)
	}
	ended.jobs.Set(stored.byEnd())
	_, count := f.order(q)
	*count++
	f.update(q)
}

// remove removes a finished job.
func (f *finishedClass) remove(stored *storedJob) {
	q := stored.queue
	q.ended[f.class].jobs.Delete(stored.byEnd())
	_, count := f.order(q)
	*count--
	f.update(q)
}

// update moves a queue to its present place.
func (f *finishedClass) update(q *queue) {
	order, _ := f.order(q)
	ended := &q.ended[f.class]
	at := int64(0) // it is in no order
	if oldest, ok := ended.jobs.Min(); ok {
		at = oldest.at
		if order == f.own {
			switch limits := f.limits.with(q.config.Retention); {
			case ended.jobs.Len() > limits.count:
				at = math.MinInt64
			default:
				at += limits.age
			}
		}
	}
	if at == ended.removal {
		return
	}
	if ended.removal != 0 {
		order.Delete(removal{ended.removal, q})
	}
	if ended.removal = at; at != 0 {
		order.Set(removal{at, q})
	}
}

// leave takes a queue, whose configuration is about to change, out of its order.
func (f *finishedClass) leave(q *queue) {
	ended := &q.ended[f.class]
	if ended.jobs == nil {
		return
	}
	order, count := f.order(q)
	*count -= ended.jobs.Len()
	if ended.removal != 0 {
		order.Delete(removal{ended.removal, q})
		ended.removal = 0
	}
}

// enter undoes leave under the present configuration.
func (f *finishedClass) enter(q *queue) {
	if q.ended[f.class].jobs == nil {
		return
	}
	_, count := f.order(q)
	*count += q.ended[f.class].jobs.Len()
	f.update(q)
}

// setLimits sets the cluster's limits.
func (f *finishedClass) setLimits(limits finishedLimits) {
	f.limits = limits
	queues := make([]*queue, 0, f.own.Len())
	for item := range f.own.Scan {
		queues = append(queues, item.queue)
	}
	for _, q := range queues {
		f.update(q)
	}
}

// next is [finished.next] for a class. Without a setting of their own, queues lose their oldest
// records together.
func (f *finishedClass) next(now int64) (number uint32) {
	if first, ok := f.shared.Min(); ok && (f.sharedCount > f.limits.count || now-first.at >= f.limits.age) {
		return first.queue.oldestFinished(f.class)
	}
	if first, ok := f.own.Min(); ok && (f.ownCount > job.MaxFinished || first.at <= now) {
		return first.queue.oldestFinished(f.class)
	}
	return 0
}

// PruneDue reports whether the next entry will remove records of finished jobs. It must not
// be called on a copy.
func (d *dispatches) PruneDue() bool { return d.finished.next(d.now) != 0 }

// oldestFinished returns the number of the queue's first finished job of a class; there must be one.
func (q *queue) oldestFinished(class int) uint32 {
	oldest, _ := q.ended[class].jobs.Min()
	return oldest.number
}

// FinishedStats describes the records of finished jobs.
type FinishedStats struct {
	Shared    int       // records of queues without a setting of their own
	MaxShared int       // the most of them that are kept
	Own       int       // records of the other queues, at most [job.MaxFinished] of each class
	Oldest    time.Time // when the first of Shared ended; zero: there is none
}

// Finished returns how many records of finished jobs there are. It must not be called on
// a copy.
func (j *jobs) Finished() (stats FinishedStats) {
	for class := range j.finished.classes {
		f := &j.finished.classes[class]
		if class == completedClass || j.finished.split {
			stats.MaxShared += f.limits.count
		}
		stats.Shared += f.sharedCount
		stats.Own += f.ownCount
		if first, ok := f.shared.Min(); ok {
			if at := time.Unix(0, first.at).UTC(); stats.Oldest.IsZero() || at.Before(stats.Oldest) {
				stats.Oldest = at
			}
		}
	}
	return stats
}
