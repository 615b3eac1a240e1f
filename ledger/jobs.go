package ledger

import (
	"bytes"
	"strings"
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
	index    uint8 // of its record in the message, see [job.Position]
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
	runAt          int64
	maxAttempts    uint32
	timeout        time.Duration
	retryInterval  time.Duration
	retryOnTimeout *bool // see [job.Job.RetryOnTimeout]
	resultTTL      time.Duration
	blobOwner      job.ID // see [job.Job.BlobOwner]
}

// blobOwner returns the owner of the blob that the job's body is in, zero if its
// record contains the body.
func (r *storedJob) blobOwner() job.ID {
	if r.options == nil {
		return job.ID{}
	}
	return r.options.blobOwner
}

// run is the executor that runs a job or ran it last, and how that ended.
type run struct {
	*executor
	fence, epoch uint64
	started      int64
	result       uint64        // number of its result; 0: none
	resultSize   int64         // bytes
	failure      *failure      // of its last dispatch that failed; nil: none failed
	cancellation *cancellation // nil: the job is not cancelled
}

// cancellation is who cancelled a job, and when.
type cancellation struct {
	by Actor
	at int64 // Unix nanoseconds
}

// failure is the part of a fault that the ledger keeps with a job; all of it is
// in the dead letter.
type failure struct {
	reason, kind, code string // kind is the fault's type
	details            []byte // JSON; nil: none
	deadLetter         uint64 // number of the dead letter; 0: the job has not failed for good
}

// failure returns the shortened form of a reason and a fault, which may be nil.
func (j *jobs) failure(reason string, fault *job.Fault) *failure {
	f := &failure{reason: strings.Clone(job.CutText(reason, maxReason))}
	if fault != nil {
		f.kind, f.code = j.intern(job.CutText(fault.Type, job.MaxFaultNameLen)), j.intern(job.CutText(fault.Code, job.MaxFaultNameLen))
		f.details = bytes.Clone(job.CutJSON(fault.Details, maxDetails))
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

// orderItem is a job in an index by start order or by fence.
type orderItem struct {
	key uint64 // priority and time of acceptance, see orderKey; for active jobs the fence
	job *storedJob
}

// timeItem is a job in an index by time.
type timeItem struct {
	at  int64 // when it is due, ended or was accepted, in Unix nanoseconds
	job *storedJob
}

// jobs holds every job that the ledger has, with its indexes.
type jobs struct {
	queues
	byID      map[job.ID]*storedJob   // nil in a copy
	due       *btree.BTreeG[timeItem] // delayed jobs by the time they are due
	finished  finished                // ended jobs; only its counts in a copy
	retention RetentionSettings
	waitlists *btree.Map[string, *waitlist] // waitlists that are not empty, by class and queue; nil in a copy
	lines     int                           // number of runner waitlists of all queues
	forgotten *idRing                       // ids of forgotten jobs, for the dedupe horizon
	active    *btree.BTreeG[orderItem]      // active jobs by fence; there are few, so no queue has an index of its own
	names     map[string]string             // shared names, see intern; nil in a copy
	executors map[executor]*executor        // shared executors; nil in a copy
	bodies    map[job.ID]int                // how many unfinished jobs need the blobs of an owner; nil in a copy
	failed    map[job.ID]int                // how many failed jobs would need them if they were retried; nil in a copy
}

func newJobs() jobs {
	return jobs{
		byID:      make(map[job.ID]*storedJob),
		names:     make(map[string]string),
		executors: make(map[executor]*executor),
		bodies:    make(map[job.ID]int),
		failed:    make(map[job.ID]int),
		due:       btree.NewBTreeGOptions(timeLess, treeOptions),
		finished:  newFinished(),
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
	return bytes.Compare(a.job.id[:], b.job.id[:]) < 0
}

// orderLess reports whether a starts before b: by priority, then by time of
// acceptance, then by position in a lane. Relocated records are before those of
// the lanes, where they once preceded.
func orderLess(a, b orderItem) bool {
	switch {
	case a.key != b.key:
		return a.key < b.key
	case a.job.accepted != b.job.accepted:
		return a.job.accepted < b.job.accepted
	}
	if c := a.job.position().Compare(b.job.position()); c != 0 {
		return c < 0
	}
	return bytes.Compare(a.job.id[:], b.job.id[:]) < 0
}

func activeLess(a, b orderItem) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return bytes.Compare(a.job.id[:], b.job.id[:]) < 0
}

// orderTimeBits is how many bits of an order key are the time.
const orderTimeBits = 56

// orderKey returns a number that sorts by priority, highest first, then by time
// of acceptance, which is in Unix nanoseconds and kept in microseconds.
func orderKey(priority uint8, accepted int64) uint64 {
	return uint64(job.MaxPriority-priority)<<orderTimeBits | uint64(accepted/1000)&(1<<orderTimeBits-1)
}

func (r *storedJob) order() orderItem { return orderItem{orderKey(r.priority, r.accepted), r} }

// position returns the place of the job's record.
func (r *storedJob) position() job.Position {
	return job.Position{Lane: r.lane, Seq: r.seq, Index: r.index}
}

// setPosition sets the place of the job's record.
func (r *storedJob) setPosition(p job.Position) { r.lane, r.seq, r.index = p.Lane, p.Seq, p.Index }

// store puts next into every index of its state. old is the job's previous
// form, which next replaces, or nil for a new job.
func (j *jobs) store(old, next *storedJob) {
	wl := j.joinWaitlist(next) // before old leaves it
	if old != nil {
		j.unindex(old)
	}
	j.byID[next.id] = next
	j.queues.touch(next.queue)
	next.queue.counts[next.state]++
	j.countBody(next, 1)
	switch next.state {
	case job.Waiting:
		if wl.jobs.Len() == 0 {
			j.waitlists.Set(wl.key(), wl)
		}
		wl.jobs.Set(next.order())
	case job.Active:
		j.active.Set(orderItem{next.run.fence, next})
	case job.Delayed:
		next.queue.list(next.state).Set(timeItem{next.accepted, next})
		j.due.Set(timeItem{next.due, next})
	default:
		next.queue.list(next.state).Set(timeItem{next.accepted, next})
		j.finished.add(next)
	}
}

// unindex removes a job from every index except byID.
func (j *jobs) unindex(old *storedJob) {
	j.queues.touch(old.queue)
	old.queue.counts[old.state]--
	j.countBody(old, -1)
	wl := j.leaveWaitlist(old)
	switch old.state {
	case job.Waiting:
		wl.jobs.Delete(old.order())
		if wl.jobs.Len() == 0 {
			j.waitlists.Delete(wl.key())
		}
	case job.Active:
		j.active.Delete(orderItem{old.run.fence, old})
	case job.Delayed:
		old.queue.list(old.state).Delete(timeItem{old.accepted, old})
		j.due.Delete(timeItem{old.due, old})
	default:
		old.queue.list(old.state).Delete(timeItem{old.accepted, old})
		j.finished.remove(old)
	}
}

// countBody adds n to the number of jobs that need the blob with the body of stored,
// if it has one and has not completed.
func (j *jobs) countBody(stored *storedJob, n int) {
	owner := stored.blobOwner()
	if owner.IsZero() || stored.state == job.Completed || stored.state == job.Cancelled {
		return
	}
	counts := j.bodies
	if stored.state == job.Failed {
		counts = j.failed
	}
	if counts[owner] += n; counts[owner] == 0 {
		delete(counts, owner)
	}
}

// NeedsBody reports whether the body of an unfinished job is in a blob of this owner. It
// must not be called on a copy.
func (j *jobs) NeedsBody(owner job.ID) bool { return j.bodies[owner] > 0 }

// FailedNeedsBody reports whether a failed job, if it were retried, would need a blob of
// this owner. It must not be called on a copy.
func (j *jobs) FailedNeedsBody(owner job.ID) bool { return j.failed[owner] > 0 }

func (j *jobs) copy() jobs {
	return jobs{
		queues: j.queues.copy(), due: j.due.Copy(), active: j.active.Copy(), forgotten: j.forgotten.copy(),
		finished: finished{limits: j.finished.limits, sharedCount: j.finished.sharedCount, ownCount: j.finished.ownCount}, retention: j.retention,
	}
}

// NextDue returns when the next delayed job is due; the zero time without delayed jobs.
func (j *jobs) NextDue() time.Time {
	earliest, ok := j.due.Min()
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, earliest.at)
}

// maxInterned limits the tables of shared names and executors. A full table
// starts again from empty, which costs memory and nothing else.
const maxInterned = 65536

// intern returns a copy of a name that all jobs with the name share. The table
// is not part of the state: it may differ between ledgers that are equal.
func (j *jobs) intern(name string) string {
	if name == "" {
		return ""
	}
	if shared, ok := j.names[name]; ok {
		return shared
	}
	if len(j.names) >= maxInterned {
		clear(j.names)
	}
	name = strings.Clone(name)
	j.names[name] = name
	return name
}

// internExecutor returns a copy of an executor, with shared names, that all its
// jobs share.
func (j *jobs) internExecutor(e executor) *executor {
	if shared, ok := j.executors[e]; ok {
		return shared
	}
	if len(j.executors) >= maxInterned {
		clear(j.executors)
	}
	e.node, e.channel = j.intern(e.node), j.intern(e.channel)
	j.executors[e] = &e
	return &e
}

// maxReason and maxDetails are how many bytes of a reason and of a fault's details the
// ledger keeps with a job. The event has all of the reason, the dead letter of both.
const (
	maxReason  = 256
	maxDetails = 512
)
