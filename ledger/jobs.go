package ledger

import (
	"bytes"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"yardmaster/job"
)

// record is a job. It is immutable once it stands in a tree: a change replaces
// it, so that copies of the ledger keep what they saw.
type record struct {
	id       job.ID
	queue    *queue // only its name is read through a copy
	function string
	accepted int64 // unix nanoseconds
	due      int64 // waiting, delayed: when it is or was due; ended: when it ended
	pos      uint64
	n        uint32 // number of the last dispatch
	attempt  uint32 // attempts that count
	lane     uint8
	priority uint8
	state    job.State
	losses   uint8
	flags    flags
	options  *options
	run      *run
}

type flags uint8

const (
	redelivered flags = 1 << iota // an earlier dispatch of this attempt was given back
	cancelling                    // a caller cancelled it while it ran
	malformed                     // its record cannot be a job
	moved                         // its dispatch's worker brought it to the node where it is
	guarded                       // it may hold keys: set for good
	queueGone                     // with cancelling: its queue is being removed
)

// options is what few jobs ask for; nil for the others.
type options struct {
	runAt         int64
	maxAttempts   uint32
	timeout       time.Duration
	retryInterval time.Duration
	resultTTL     time.Duration
}

// run is who runs a job or ran it last, and how that ended.
type run struct {
	*hand
	fence, epoch uint64
	started      int64
	result       uint64   // number of its result; 0: none
	failed       *failure // how its last dispatch that failed did; nil: none has
}

// failure is what a job's record keeps of a fault; the rest is in the dead
// letter.
type failure struct{ reason, kind string }

// failure shortens a fault for the record. kind is a fault's type.
func (j *jobs) failure(reason string, fault *job.Fault) *failure {
	f := &failure{reason: clip(reason)}
	if fault != nil {
		f.kind = j.intern(clip(fault.Type))
	}
	return f
}

// hand is a worker or a runner's process; all that it runs share it.
type hand struct {
	node, channel string
	incarnation   uint64
}

// nobody has run what was ended before it ran.
var nobody = new(hand)

// line is the jobs of one queue that the same hands may run, in the order of
// start.
type line struct {
	queue *queue
	class string
	jobs  *btree.BTreeG[orderItem]
}

// The classes of work. A function with a runner's prefix has the class
// "<runner>#".
const (
	ClassPlain = ""  // no function: Overhop workers of the queue
	ClassBare  = "#" // a function without a runner
)

// Class tells which hands may run a function.
func Class(function string) string {
	if function == "" {
		return ClassPlain
	}
	if i := strings.IndexByte(function, '#'); i >= 0 {
		return function[:i+1]
	}
	return ClassBare
}

type orderItem struct {
	key uint64 // priority, then microseconds of acceptance
	r   *record
}

type timeItem struct {
	at int64
	r  *record
}

// jobs holds every job the ledger knows, by each thing it is looked up by.
type jobs struct {
	byID   map[job.ID]*record        // nil in a copy
	due    *btree.BTreeG[timeItem]   // delayed jobs by the time they are due
	ended  *btree.BTreeG[timeItem]   // completed and failed jobs by the time they ended
	busy   *btree.Map[string, *line] // lines that are not empty, by class and queue; nil in a copy
	gone   *idRing                   // ids of forgotten jobs, for the dedupe horizon
	active *btree.BTreeG[orderItem]  // active jobs by fence: few, so no queue lists its own
	names  map[string]string         // see intern; nil in a copy
	hands  map[hand]*hand            // likewise
}

func newJobs() jobs {
	return jobs{
		byID:   make(map[job.ID]*record),
		names:  make(map[string]string),
		hands:  make(map[hand]*hand),
		due:    btree.NewBTreeGOptions(timeLess, treeOptions),
		ended:  btree.NewBTreeGOptions(timeLess, treeOptions),
		busy:   new(btree.Map[string, *line]),
		gone:   newIDRing(),
		active: btree.NewBTreeGOptions(activeLess, treeOptions),
	}
}

var treeOptions = btree.Options{NoLocks: true}

func timeLess(a, b timeItem) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	return bytes.Compare(a.r.id[:], b.r.id[:]) < 0
}

func orderLess(a, b orderItem) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	if a.r.accepted != b.r.accepted {
		return a.r.accepted < b.r.accepted
	}
	if a.r.lane != b.r.lane {
		return a.r.lane < b.r.lane
	}
	if a.r.pos != b.r.pos {
		return a.r.pos < b.r.pos
	}
	return bytes.Compare(a.r.id[:], b.r.id[:]) < 0
}

func activeLess(a, b orderItem) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return bytes.Compare(a.r.id[:], b.r.id[:]) < 0
}

// orderKey sorts by priority, 9 first, then by acceptance.
func orderKey(priority uint8, accepted int64) uint64 {
	return uint64(job.MaxPriority-priority)<<56 | uint64(accepted/1000)&(1<<56-1)
}

func (r *record) order() orderItem { return orderItem{orderKey(r.priority, r.accepted), r} }

// put stands a record in every index of its state. old is what stood there for
// the same job, nil for a new one.
func (l *Ledger) put(old, r *record) {
	if old != nil {
		l.lift(old)
	}
	l.jobs.byID[r.id] = r
	r.queue.counts[r.state]++
	if r.state == job.Waiting {
		l.counts.Pending++
		ln := r.queue.line(Class(r.function))
		if ln.jobs.Len() == 0 {
			l.jobs.busy.Set(ln.key(), ln)
		}
		ln.jobs.Set(r.order())
		return
	}
	if r.state == job.Active {
		l.counts.Notified++
		l.jobs.active.Set(orderItem{r.run.fence, r})
		return
	}
	r.queue.listed(r.state).Set(timeItem{r.accepted, r})
	l.jobs.timed(r.state).Set(timeItem{r.due, r})
}

// timed is the index by time of a delayed or an ended job's state.
func (j *jobs) timed(s job.State) *btree.BTreeG[timeItem] {
	if s == job.Delayed {
		return j.due
	}
	return j.ended
}

// lift takes a record out of every index but the one by id.
func (l *Ledger) lift(r *record) {
	r.queue.counts[r.state]--
	if r.state == job.Waiting {
		l.counts.Pending--
		ln := r.queue.line(Class(r.function))
		ln.jobs.Delete(r.order())
		if ln.jobs.Len() == 0 {
			l.jobs.busy.Delete(ln.key())
		}
		return
	}
	if r.state == job.Active {
		l.counts.Notified--
		l.jobs.active.Delete(orderItem{r.run.fence, r})
		return
	}
	r.queue.listed(r.state).Delete(timeItem{r.accepted, r})
	l.jobs.timed(r.state).Delete(timeItem{r.due, r})
}

// drop forgets a job but for its id.
func (l *Ledger) drop(r *record) {
	l.lift(r)
	if r.flags&guarded != 0 {
		l.guards.release(r.id, false)
	}
	delete(l.jobs.byID, r.id)
	l.jobs.gone.add(r.id, l.now)
}

// forget lets finished jobs, old ids and rulings go, a bounded number at a time.
func (l *Ledger) forget() {
	for range maxForgotten {
		oldest, ok := l.jobs.ended.Min()
		if !ok || l.jobs.ended.Len() <= FinishedKeepMax && l.now-oldest.at < int64(FinishedKeep) {
			break
		}
		l.drop(oldest.r)
	}
	l.jobs.gone.trim(l.now-int64(DedupeHorizon), DedupeMax)
	l.own.forget(l.now - int64(FinishedKeep))
	l.rulings.trim(l.now - int64(DedupeHorizon))
}

// maxResultScan is how many finished jobs are looked at for the oldest result.
const maxResultScan = 4096

// oldestResult is the number of the first result that a kept job may point to;
// 0 if it is not among the oldest jobs. Jobs that ended in one entry stand in
// the order of their ids, so all of that entry are looked at.
func (j *jobs) oldestResult() uint64 {
	oldest, at, looked := uint64(0), int64(0), 0
	j.ended.Scan(func(item timeItem) bool {
		if looked++; looked > maxResultScan {
			oldest = 0
			return false
		}
		if oldest > 0 && item.at > at {
			return false
		}
		if run := item.r.run; run != nil && run.result > 0 && (oldest == 0 || run.result < oldest) {
			oldest, at = run.result, item.at
		}
		return true
	})
	return oldest
}

func (j *jobs) copy() jobs {
	return jobs{
		due: j.due.Copy(), ended: j.ended.Copy(), active: j.active.Copy(), gone: j.gone.copy(),
	}
}
