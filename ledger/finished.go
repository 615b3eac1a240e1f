package ledger

import (
	"math"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// FinishedRetention is how long the ledger keeps the records of finished jobs if nothing else
// is set.
const FinishedRetention = job.FinishedAge

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
	l.finished.setLimits(l.retention.finishedLimits())
	return Result{}
}

// finishedLimits are how long records of finished jobs are kept: until they have ended
// for the age, in nanoseconds, or there are more than count.
type finishedLimits struct {
	age   int64
	count int
}

// finishedLimits returns the limits of the cluster.
func (r RetentionSettings) finishedLimits() finishedLimits {
	limits := finishedLimits{int64(FinishedRetention), job.FinishedCount}
	return limits.with(r.InForce())
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

// finished finds the finished jobs whose records are to be removed next. Each queue has a
// list of its finished jobs by the time at which they ended; finished has the queues in
// the order in which they lose a record. The queues without a setting of their own share
// the cluster's limits, and the others are counted one by one.
type finished struct {
	limits      finishedLimits
	shared, own *btree.BTreeG[removal]
	sharedCount int // records of the queues in shared
	ownCount    int // records of the queues in own
}

// removal is the place of a queue in one of the orders of finished: in shared the time at
// which its first finished job ended; in own the time from which that job's record is to
// be removed, math.MinInt64 if the queue has too many.
type removal struct {
	at    int64
	queue *queue
}

func removalLess(a, b removal) bool {
	return a.at < b.at || a.at == b.at && a.queue.name < b.queue.name
}

func newFinished() finished {
	return finished{
		limits: RetentionSettings{}.finishedLimits(),
		shared: btree.NewBTreeGOptions(removalLess, treeOptions),
		own:    btree.NewBTreeGOptions(removalLess, treeOptions),
	}
}

// hasOwnLimits reports whether the queue's finished jobs are counted by themselves.
func (q *queue) hasOwnLimits() bool {
	return q.config.Retention.Get(job.KeptFinished, job.BoundAge) != 0 || q.config.Retention.Get(job.KeptFinished, job.BoundCount) != 0
}

// order returns the order that the queue is in, and the count of its records.
func (f *finished) order(q *queue) (*btree.BTreeG[removal], *int) {
	if q.hasOwnLimits() {
		return f.own, &f.ownCount
	}
	return f.shared, &f.sharedCount
}

// add adds a finished job.
func (f *finished) add(stored *storedJob) {
	q := stored.queue
	if q.ended == nil {
		q.ended = newSortedList(timeLess)
	}
	q.ended.Set(stored.byDue())
	_, count := f.order(q)
	*count++
	f.update(q)
}

// remove removes a finished job.
func (f *finished) remove(stored *storedJob) {
	q := stored.queue
	q.ended.Delete(stored.byDue())
	_, count := f.order(q)
	*count--
	f.update(q)
}

// update moves a queue to its present place.
func (f *finished) update(q *queue) {
	order, _ := f.order(q)
	at := int64(0) // it is in no order
	if oldest, ok := q.ended.Min(); ok {
		at = oldest.at
		if order == f.own {
			switch limits := f.limits.with(q.config.Retention); {
			case q.ended.Len() > limits.count:
				at = math.MinInt64
			default:
				at += limits.age
			}
		}
	}
	if at == q.removal {
		return
	}
	if q.removal != 0 {
		order.Delete(removal{q.removal, q})
	}
	if q.removal = at; at != 0 {
		order.Set(removal{at, q})
	}
}

// configure changes the configuration of a queue.
func (f *finished) configure(q *queue, config job.QueueConfig) {
	if q.ended == nil {
		q.config = config
		return
	}
	order, count := f.order(q)
	*count -= q.ended.Len()
	if q.removal != 0 {
		order.Delete(removal{q.removal, q})
		q.removal = 0
	}
	q.config = config
	_, count = f.order(q)
	*count += q.ended.Len()
	f.update(q)
}

// setLimits sets the cluster's limits, of which queues with a setting of their own may
// use one.
func (f *finished) setLimits(limits finishedLimits) {
	f.limits = limits
	queues := make([]*queue, 0, f.own.Len())
	for item := range f.own.Scan {
		queues = append(queues, item.queue)
	}
	for _, q := range queues {
		f.update(q)
	}
}

// next returns the number of the record that is to be removed next, 0 if none is to be removed
// at the time now. Without a setting of their own, queues lose their oldest records
// together.
func (f *finished) next(now int64) (number uint32) {
	if first, ok := f.shared.Min(); ok && (f.sharedCount > f.limits.count || now-first.at >= f.limits.age) {
		return first.queue.oldestFinished()
	}
	if first, ok := f.own.Min(); ok && (f.ownCount > job.MaxFinished || first.at <= now) {
		return first.queue.oldestFinished()
	}
	return 0
}

// PruneDue reports whether the next entry will remove records of finished jobs. It must not
// be called on a copy.
func (d *dispatches) PruneDue() bool { return d.finished.next(d.now) != 0 }

// oldestFinished returns the number of the queue's first finished job; there must be one.
func (q *queue) oldestFinished() uint32 {
	oldest, _ := q.ended.Min()
	return oldest.number
}

// FinishedStats describes the records of finished jobs.
type FinishedStats struct {
	Shared    int       // records of queues without a setting of their own
	MaxShared int       // the most of them that are kept
	Own       int       // records of the other queues, at most [job.MaxFinished]
	Oldest    time.Time // when the first of Shared ended; zero: there is none
}

// Finished returns how many records of finished jobs there are. It must not be called on
// a copy.
func (j *jobs) Finished() FinishedStats {
	f := &j.finished
	stats := FinishedStats{Shared: f.sharedCount, MaxShared: f.limits.count, Own: f.ownCount}
	if first, ok := f.shared.Min(); ok {
		stats.Oldest = time.Unix(0, first.at).UTC()
	}
	return stats
}

// FinishedLimits returns how long and how many records of finished jobs of a queue are
// kept, and reports whether a setting of the queue determines it rather than the
// cluster's. The queue need not exist.
func (j *jobs) FinishedLimits(queue string) (age time.Duration, count int, ofQueue bool) {
	limits := j.finished.limits
	if q := j.queues.get(queue); q != nil && q.hasOwnLimits() {
		limits, ofQueue = limits.with(q.config.Retention), true
	}
	return time.Duration(limits.age), limits.count, ofQueue
}
