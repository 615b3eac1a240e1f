package ledger

import (
	"bytes"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// storedJob is a job while it is read or changed. The ledger keeps its parts in tables, see
// [jobs.load] and [jobs.save].
type storedJob struct {
	record
	number   uint32 // of its record; 0: it is not stored yet
	function string
	*traits
	options options
	run     run
}

// record is what the ledger keeps of every job. It has no pointers, only numbers: 0 stands for
// what a job does not have.
type record struct {
	id             job.ID
	accepted       int64 // Unix nanoseconds
	due            int64 // waiting, delayed: when it is or was due; ended: when it ended; in Unix nanoseconds
	seq            uint64
	functionNumber uint32
	traitsNumber   uint32
	optionsNumber  uint32
	runNumber      uint32
	n              uint32 // number of the last dispatch
	attempt        uint32 // number of attempts that count
	lane           uint8
	priority       uint8
	state          job.State
	losses         uint8
	flags          flags
	index          uint8 // of its record in the message, see [job.Position]
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

// options are settings that few jobs have; all zero for the others.
type options struct {
	runAt          int64
	timeout        time.Duration
	retryInterval  time.Duration
	resultTTL      time.Duration
	blobOwner      job.ID // of the blob with the job's body, see [job.Job.BlobOwner]; zero: the body is in the record
	expires        int64  // see [job.Job.Expires], in Unix nanoseconds; 0: it does not expire
	expiryShift    int64  // of the moment at which it expires, see [moment]
	dueShift       int64  // of the moment at which it is due, while it is delayed
	expiryWall     bool
	dueWall        bool
	maxAttempts    uint32
	retryOnTimeout choice // see [job.Job.RetryOnTimeout]
}

// choice is an optional bool, without a pointer.
type choice uint8

const (
	notChosen choice = iota
	chosenFalse
	chosenTrue
)

func choiceOf(b *bool) choice {
	switch {
	case b == nil:
		return notChosen
	case *b:
		return chosenTrue
	}
	return chosenFalse
}

// value returns the choice as a new bool, nil if there is none.
func (c choice) value() *bool {
	if c == notChosen {
		return nil
	}
	return new(c == chosenTrue)
}

// run is the executor that runs a job or ran it last, and how that ended; all zero for a job
// that has not run.
type run struct {
	runRecord
	executor
	end
}

// runRecord is the part of a run that the ledger keeps without pointers.
type runRecord struct {
	fence, epoch   uint64
	started        int64
	result         uint64 // number of its result; 0: none
	resultSize     int64  // bytes
	executorNumber uint32
	endNumber      uint32
}

// end is how runs of a job ended.
type end struct {
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
func (d *dispatches) failure(reason string, fault *job.Fault) *failure {
	f := &failure{reason: strings.Clone(job.CutText(reason, MaxKeptReason))}
	cut := job.CutDetails
	if d.outbox.level < level8 {
		cut = job.CutJSON
	}
	if fault != nil {
		f.kind, f.code = d.intern(job.CutText(fault.Type, job.MaxFaultNameLen)), d.intern(job.CutText(fault.Code, job.MaxFaultNameLen))
		f.details = bytes.Clone(cut(fault.Details, MaxKeptDetails))
	}
	return f
}

// executor is a worker or a runner process; zero for jobs that ended before they ran.
type executor struct {
	node, channel string
	incarnation   uint64
}

func (e executor) clone() executor {
	return executor{strings.Clone(e.node), strings.Clone(e.channel), e.incarnation}
}

// orderItem is a waiting job in the index by start order.
type orderItem struct {
	key    uint64 // priority and time of acceptance, see orderKey
	seq    uint64
	number uint32
	nanos  uint16 // nanoseconds of the time of acceptance that are not in the key
	lane   uint8
	index  uint8
}

// fenceItem is an active job in the index by fence.
type fenceItem struct {
	fence  uint64
	id     job.ID
	number uint32
}

// timeItem is a job in an index by time.
type timeItem struct {
	at     int64 // when it is due, ended or was accepted, in Unix nanoseconds
	id     job.ID
	number uint32
}

// jobs holds every job that the ledger has, with its indexes.
type jobs struct {
	queues
	records   table[record]
	options   table[options]
	runs      table[runRecord]
	ends      table[end]
	functions sharedValues[string]
	traits    traitsTable
	executors sharedValues[executor]
	byID      *idIndex // of records and forgotten; nil in a copy
	due       timers   // delayed jobs by when they are due
	expiring  timers   // jobs that may expire, by when they do; empty in a copy
	finished  finished // ended jobs; only its counts in a copy
	retention RetentionSettings
	waitlists *btree.Map[string, *waitlist] // waitlists that are not empty, by class and queue; nil in a copy
	lines     int                           // number of pairs of a queue and a runner that have waitlists
	limits    limits
	forgotten *idRing                // ids of forgotten jobs, for the dedupe horizon
	active    *sortedList[fenceItem] // active jobs by fence; there are few, so no queue has an index of its own
	names     map[string]string      // shared names, see intern; nil in a copy
	bodies    map[job.ID]int         // how many unfinished jobs need the blobs of an owner; nil in a copy
	failed    map[job.ID]int         // how many failed jobs would need them if they were retried; nil in a copy
	changes   *ChangeList            // nil: they are not recorded, as in a copy

	accepted, removed uint64 // see [Balance]

	transitions *[]Transition // of the entry that is being applied; nil: not kept, as in a copy
}

func newJobs() jobs {
	return jobs{
		functions: newSharedValues(strings.Clone),
		traits:    newTraitsTable(),
		limits:    newLimits(),
		executors: newSharedValues(executor.clone),
		byID:      newIDIndex(),
		names:     make(map[string]string),
		bodies:    make(map[job.ID]int),
		failed:    make(map[job.ID]int),
		due:       newTimers(),
		expiring:  newTimers(),
		finished:  newFinished(),
		waitlists: new(btree.Map[string, *waitlist]),
		forgotten: new(idRing),
		active:    newSortedList(fenceLess),
	}
}

var treeOptions = btree.Options{NoLocks: true}

func timeLess(a, b timeItem) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	return bytes.Compare(a.id[:], b.id[:]) < 0
}

// orderLess reports whether a starts before b: by priority, then by time of acceptance, then
// by position in a lane. Relocated records are before those of the lanes, where they once
// preceded. No two jobs have the same position; the numbers only keep both if they had.
func orderLess(a, b orderItem) bool {
	switch {
	case a.key != b.key:
		return a.key < b.key
	case a.nanos != b.nanos:
		return a.nanos < b.nanos
	}
	if c := a.position().Compare(b.position()); c != 0 {
		return c < 0
	}
	return a.number < b.number
}

func (o *orderItem) position() job.Position {
	return job.Position{Lane: o.lane, Seq: o.seq, Index: o.index}
}

// priority returns the priority of the job.
func (o *orderItem) priority() uint8 { return job.MaxPriority - uint8(o.key>>orderTimeBits) }

func fenceLess(a, b fenceItem) bool {
	if a.fence != b.fence {
		return a.fence < b.fence
	}
	return bytes.Compare(a.id[:], b.id[:]) < 0
}

// orderTimeBits is how many bits of an order key are the time.
const orderTimeBits = 56

// orderKey returns a number that sorts by priority, highest first, then by time
// of acceptance, which is in Unix nanoseconds and kept in microseconds.
func orderKey(priority uint8, accepted int64) uint64 {
	return uint64(job.MaxPriority-priority)<<orderTimeBits | uint64(accepted/1000)&(1<<orderTimeBits-1)
}

// order returns the job's item in the index by start order.
func (r *storedJob) order() orderItem {
	return orderItem{
		key: orderKey(r.priority, r.accepted), nanos: uint16(r.accepted % 1000),
		lane: r.lane, seq: r.seq, index: r.index, number: r.number,
	}
}

// byFence, byAcceptance and byEnd return the job's items in the indexes by fence, by time of
// acceptance, and by the time at which it ended.
func (r *storedJob) byFence() fenceItem     { return fenceItem{r.run.fence, r.id, r.number} }
func (r *storedJob) byAcceptance() timeItem { return timeItem{r.accepted, r.id, r.number} }
func (r *storedJob) byEnd() timeItem        { return timeItem{r.due, r.id, r.number} }

// dueMoment returns when a delayed job is due, expiry when a job that may expire does.
func (r *storedJob) dueMoment() moment { return moment{r.due, r.options.dueShift, r.options.dueWall} }
func (r *storedJob) expiry() moment {
	return moment{r.options.expires, r.options.expiryShift, r.options.expiryWall}
}

// at returns the job's item in an index of timers.
func (r *storedJob) at(m moment) timeItem { return timeItem{m.key(), r.id, r.number} }

// setDue sets when the job is due.
func (r *storedJob) setDue(m moment) {
	r.due, r.options.dueShift, r.options.dueWall = m.at, m.shift, m.wall
}

// position returns the place of the job's record.
func (r *record) position() job.Position {
	return job.Position{Lane: r.lane, Seq: r.seq, Index: r.index}
}

// setPosition sets the place of the job's record.
func (r *record) setPosition(p job.Position) { r.lane, r.seq, r.index = p.Lane, p.Seq, p.Index }

// store puts next into every index of its state. old is the job's previous
// form, which next replaces, or nil for a new job.
func (j *jobs) store(old, next *storedJob) {
	j.join(next) // before old leaves
	staysActive := old != nil && old.state == job.Active && next.state == job.Active
	if old != nil {
		j.unindex(old, staysActive)
		j.save(old, next)
	} else {
		j.accepted++
		j.save(new(storedJob), next)
	}
	if j.changes != nil {
		j.changes.changed(old, next)
	}
	if j.transitions != nil {
		j.record(old, next)
	}
	j.queues.touch(next.queue)
	next.queue.counts[next.state]++
	j.countBody(next, 1)
	if next.mayExpire() {
		m := next.expiry()
		j.expiring.of(m).Set(next.at(m))
	}
	switch wl := next.waitlist; next.state {
	case job.Waiting:
		if wl.jobs.Len() == 0 {
			j.waitlists.Set(wl.key, wl)
		}
		wl.jobs.Set(next.order())
		if wl.keyed {
			j.limits.addToGroup(next)
		}
	case job.Active:
		j.active.Set(next.byFence())
		if !staysActive {
			j.limits.take(next)
		}
	case job.Delayed:
		next.queue.list(next.state).Set(next.byAcceptance())
		m := next.dueMoment()
		j.due.of(m).Set(next.at(m))
	default:
		next.queue.list(next.state).Set(next.byAcceptance())
		j.finished.of(next.state).add(next)
	}
}

// unindex removes a job from every index except byID. staysActive is whether it is stored again
// as active, and so keeps its slots of limits.
func (j *jobs) unindex(old *storedJob, staysActive bool) {
	j.queues.touch(old.queue)
	old.queue.counts[old.state]--
	j.countBody(old, -1)
	if old.mayExpire() {
		m := old.expiry()
		j.expiring.of(m).Delete(old.at(m))
	}
	switch wl := old.waitlist; old.state {
	case job.Waiting:
		wl.jobs.Delete(old.order())
		if wl.keyed {
			j.limits.removeFromGroup(old)
		}
		if wl.jobs.Len() == 0 {
			j.waitlists.Delete(wl.key)
		}
	case job.Active:
		j.active.Delete(old.byFence())
		if !staysActive {
			j.limits.release(old)
		}
	case job.Delayed:
		old.queue.list(old.state).Delete(old.byAcceptance())
		m := old.dueMoment()
		j.due.of(m).Delete(old.at(m))
	default:
		old.queue.list(old.state).Delete(old.byAcceptance())
		j.finished.of(old.state).remove(old)
	}
	j.leave(old)
}

// countBody adds n to the number of jobs that need the blob with the body of stored,
// if it has one and may still run.
func (j *jobs) countBody(stored *storedJob, n int) {
	owner := stored.options.blobOwner
	if owner.IsZero() || stored.state.Ended() && stored.state != job.Failed {
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
		queues: j.queues.copy(), due: j.due.copy(), active: j.active.Copy(), forgotten: j.forgotten.copy(),
		records: j.records.copy(), options: j.options.copy(), runs: j.runs.copy(), ends: j.ends.copy(),
		functions: j.functions.copy(), traits: j.traits.copy(), executors: j.executors.copy(), limits: j.limits.copy(),
		finished: j.finished.copy(), retention: j.retention,
		accepted: j.accepted, removed: j.removed,
	}
}

// maxInterned limits the table of shared names. A full table starts again from empty, which
// costs memory and nothing else.
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

// MaxKeptReason and MaxKeptDetails are how many bytes of a reason and of a fault's details the
// ledger keeps with a job. The event has all of the reason, the dead letter of both.
const (
	MaxKeptReason  = 256
	MaxKeptDetails = 512
)
