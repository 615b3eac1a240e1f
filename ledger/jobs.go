package ledger

import (
	"bytes"
	"time"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// storedJob is the ledger's form of a job. It is immutable once it is in a
// tree: a change replaces it, so that copies of the ledger keep the old state.
type storedJob struct {
	id       job.ID
	queue    *queue // in a copy of the ledger only its name may be read
	function string
	accepted int64 // Unix nanoseconds
	due      int64 // waiting, delayed: when it is or was due; ended: when it ended; in Unix nanoseconds
	seq      uint64
	n        uint32 // number of the last dispatch
	attempt  uint32 // number of attempts that count
	lane     uint8
	priority uint8
	state    job.State
	losses   uint8
	flags    flags
	options  *options
	run      *run
}

// flags are properties of a stored job.
type flags uint8

const (
	redelivered flags = 1 << iota // an earlier dispatch of this attempt was given back
	cancelling                    // a caller cancelled it while it ran
	malformed                     // its record does not describe a valid job
	moved                         // its worker moved the running dispatch to its present node
	guarded                       // it may hold keys; never cleared
	queueGone                     // with cancelling: its queue is being removed
)

// options are settings that few jobs have; nil for the others.
type options struct {
	runAt         int64
	maxAttempts   uint32
	timeout       time.Duration
	retryInterval time.Duration
	resultTTL     time.Duration
}

// run is the executor that runs a job or ran it last, and how that ended.
type run struct {
	*executor
	fence, epoch uint64
	started      int64
	result       uint64   // number of its result; 0: none
	failure      *failure // of its last dispatch that failed; nil: none failed
}

// failure is the part of a fault that the ledger keeps with a job; all of it is
// in the dead letter.
type failure struct{ reason, kind string }

// failure returns the shortened form of a reason and a fault. kind is the
// fault's type.
func (j *jobs) failure(reason string, fault *job.Fault) *failure {
	f := &failure{reason: truncate(reason)}
	if fault != nil {
		f.kind = j.intern(truncate(fault.Type))
	}
	return f
}

// executor is a worker or a runner process. Its jobs share one value.
type executor struct {
	node, channel string
	incarnation   uint64
}

// noExecutor is the executor of jobs that ended before they ran.
var noExecutor = new(executor)

type orderItem struct {
	key uint64 // priority and time of acceptance, see orderKey; for active jobs the fence
	r   *storedJob
}

type timeItem struct {
	at int64 // when it is due, ended or was accepted, in Unix nanoseconds
	r  *storedJob
}

// jobs holds every job that the ledger has, with its indexes.
type jobs struct {
	queues
	byID      map[job.ID]*storedJob         // nil in a copy
	due       *btree.BTreeG[timeItem]       // delayed jobs by the time they are due
	ended     *btree.BTreeG[timeItem]       // completed and failed jobs by the time they ended
	waitlists *btree.Map[string, *waitlist] // waitlists that are not empty, by class and queue; nil in a copy
	lines     int                           // number of runner waitlists of all queues
	forgotten *idRing                       // ids of forgotten jobs, for the dedupe horizon
	active    *btree.BTreeG[orderItem]      // active jobs by fence; there are few, so no queue has an index of its own
	names     map[string]string             // shared names, see intern; nil in a copy
	executors map[executor]*executor        // shared executors; nil in a copy
}

func newJobs() jobs {
	return jobs{
		byID:      make(map[job.ID]*storedJob),
		names:     make(map[string]string),
		executors: make(map[executor]*executor),
		due:       btree.NewBTreeGOptions(timeLess, treeOptions),
		ended:     btree.NewBTreeGOptions(timeLess, treeOptions),
		waitlists: new(btree.Map[string, *waitlist]),
		forgotten: newIDRing(),
		active:    btree.NewBTreeGOptions(activeLess, treeOptions),
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
	if a.r.seq != b.r.seq {
		return a.r.seq < b.r.seq
	}
	return bytes.Compare(a.r.id[:], b.r.id[:]) < 0
}

func activeLess(a, b orderItem) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return bytes.Compare(a.r.id[:], b.r.id[:]) < 0
}

// orderKey sorts by priority, highest first, then by time of acceptance in
// microseconds.
func orderKey(priority uint8, accepted int64) uint64 {
	return uint64(job.MaxPriority-priority)<<56 | uint64(accepted/1000)&(1<<56-1)
}

func (r *storedJob) order() orderItem { return orderItem{orderKey(r.priority, r.accepted), r} }

// store puts r into every index of its state. old is the job's previous form,
// which it replaces, or nil for a new job.
func (j *jobs) store(old, r *storedJob) {
	wl := j.joinWaitlist(r) // before old leaves it
	if old != nil {
		j.unindex(old)
	}
	j.byID[r.id] = r
	r.queue.counts[r.state]++
	if r.state == job.Waiting {
		if wl.jobs.Len() == 0 {
			j.waitlists.Set(wl.key(), wl)
		}
		wl.jobs.Set(r.order())
		return
	}
	if r.state == job.Active {
		j.active.Set(orderItem{r.run.fence, r})
		return
	}
	r.queue.list(r.state).Set(timeItem{r.accepted, r})
	j.byTime(r.state).Set(timeItem{r.due, r})
}

// byTime returns the index by time for the state of a delayed or an ended job.
func (j *jobs) byTime(s job.State) *btree.BTreeG[timeItem] {
	if s == job.Delayed {
		return j.due
	}
	return j.ended
}

// unindex removes a job from every index except byID.
func (j *jobs) unindex(r *storedJob) {
	r.queue.counts[r.state]--
	wl := j.leaveWaitlist(r)
	if r.state == job.Waiting {
		wl.jobs.Delete(r.order())
		if wl.jobs.Len() == 0 {
			j.waitlists.Delete(wl.key())
		}
		return
	}
	if r.state == job.Active {
		j.active.Delete(orderItem{r.run.fence, r})
		return
	}
	r.queue.list(r.state).Delete(timeItem{r.accepted, r})
	j.byTime(r.state).Delete(timeItem{r.due, r})
}

// maxResultScan is how many finished jobs are examined to find the oldest
// result.
const maxResultScan = 4096

// oldestResult returns the number of the first result that a kept job may refer
// to, or 0 if it is not found among the oldest jobs. Jobs that ended in the
// same log entry are ordered by id, so all of that entry are examined.
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
		queues: j.queues.copy(), due: j.due.Copy(), ended: j.ended.Copy(), active: j.active.Copy(), forgotten: j.forgotten.copy(),
	}
}

// NextDue returns when the next delayed job is due; ok is false without delayed jobs.
func (j *jobs) NextDue() (at time.Time, ok bool) {
	item, ok := j.due.Min()
	return time.Unix(0, item.at), ok
}
