package ledger

import (
	"cmp"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Settled is what a Settlement did to its dispatch and job.
type Settled struct {
	Stale     bool // not the job's current dispatch, or a loss reported by an executor that no longer has it: ignored and counted
	Duplicate bool // the same dispatch has ended the same way before
	State     job.State
	RunAt     time.Time // when the job is due again, or was due
}

// dispatches is the state of all jobs, and the rules by which their dispatches
// are placed and settled.
type dispatches struct {
	entry
	jobs
	guards
	outbox
	stale uint64 // number of outcomes for dispatches that were not current
}

// Stale returns how many outcomes were for a dispatch that was not current.
func (d *dispatches) Stale() uint64 { return d.stale }

func (c *Place) apply(l *Ledger) Result {
	placed := make([]bool, len(c.Placements))
	for i := range c.Placements {
		placed[i] = l.place(&c.Placements[i])
	}
	return Result{Placed: placed}
}

// place makes a waiting job active at the executor that a placement names. It
// returns false and changes nothing if the job's state, its expiry, a pause or a limit no
// longer permits that.
func (d *dispatches) place(placement *Placement) bool {
	old := d.jobs.find(placement.Job)
	if old == nil || old.state != job.Waiting || old.n != placement.N || old.queue.paused || old.queue.limitReached() || old.hasExpired(&d.clocks) || !d.limitsPermit(old) {
		return false
	}
	d.startLimits(old)
	next := *old
	next.state = job.Active
	next.attempt++
	next.run = run{
		runRecord: runRecord{fence: d.fence(), epoch: d.epoch, started: d.now},
		executor:  executor{node: placement.Node, channel: placement.Channel, incarnation: placement.Incarnation},
		end:       end{failure: old.run.failure},
	}
	d.store(old, &next)
	d.releaseUntil(old, untilStart)
	d.emitNotified(old, next.run.channel)
	d.emitAssigned(&next)
	return true
}

func (c *Settle) apply(l *Ledger) Result {
	settled := make([]Settled, len(c.Settlements))
	for i := range c.Settlements {
		settled[i] = l.settle(&c.Settlements[i])
	}
	return Result{Settled: settled}
}

// settle ends the dispatch that a settlement names and applies the policy's
// verdict to its job. A settlement of a dispatch that is not the job's current
// one, or of an executor that no longer has the dispatch, changes nothing.
func (d *dispatches) settle(settlement *Settlement) Settled {
	old := d.jobs.find(settlement.Job)
	if old == nil || old.n != settlement.N || old.state != job.Active {
		return d.settleStale(old, settlement)
	}
	if settlement.Node != "" && (settlement.Node != old.run.node || settlement.Incarnation != old.run.incarnation) {
		d.stale++ // the worker has moved to another node and continues there
		return Settled{Stale: true, State: old.state, RunAt: time.Unix(0, old.due)}
	}

	if d.HasLimits() {
		d.settleCircuits(old, settlement)
	}
	next := *old
	if settlement.Next == job.NextDone {
		d.complete(old, &next, settlement)
		return Settled{State: next.state, RunAt: time.Unix(0, next.due)}
	}

	verdict, reason := settlement.Next, settlement.Reason
	next.run.failure = d.failure(reason, settlement.Fault)
	cancelled := old.flags&cancelling != 0
	if cancelled {
		reason = job.ReasonCancelled
	}
	to, due := settlement.outcome(cancelled, &d.clocks)
	d.emitFailure(old, failedDispatch{reason, next.run.failure.kind, InState(to), due.at})
	switch {
	case cancelled:
		d.end(old, &next, job.Cancelled, reason, settlement.Fault)
	case verdict == job.NextDead:
		d.fail(old, &next, reason, settlement.Fault)
	default:
		d.reschedule(old, &next, settlement, due)
	}
	return Settled{State: next.state, RunAt: time.Unix(0, next.due)}
}

// outcome returns the state to which a failed dispatch brings its job, cancelled or not, and when
// the job is due if it is waiting or delayed. The wait before a retry is a relative time.
func (s *Settlement) outcome(cancelled bool, c *clocks) (to job.State, due moment) {
	switch wait := s.At.UnixNano() - c.now; {
	case cancelled:
		return job.Cancelled, moment{}
	case s.Next == job.NextDead:
		return job.Failed, moment{}
	case !s.At.IsZero() && wait > 0:
		return job.Delayed, c.after(time.Duration(wait))
	}
	return job.Waiting, c.past(c.now)
}

// complete ends a job successfully: it replaces old by next. A result is added
// to the outbox; without a result, the job keeps its last run as it is.
func (d *dispatches) complete(old, next *storedJob, settlement *Settlement) {
	next.state, next.due, next.flags = job.Completed, d.now, old.flags&guarded
	d.releaseUntil(old, untilEnd)
	number := uint64(0)
	if size := job.ResultSize(settlement.Result.Data, settlement.Blob, settlement.Dropped); size > 0 {
		number = d.addResult(ResultItem{
			Job: old.id, N: old.n, Queue: old.queue.name, Value: settlement.Result, Blob: settlement.Blob, Dropped: settlement.Dropped,
		})
		next.run.result, next.run.resultSize = number, size
	}
	d.emitDelivered(old, number)
	d.store(old, next)
}

// settleStale answers a settlement of a dispatch that is not its job's current
// one: a repetition if the dispatch ended in the same way, else a stale
// outcome, which is counted. stored is nil for an unknown job.
func (d *dispatches) settleStale(stored *storedJob, settlement *Settlement) Settled {
	settled := Settled{Stale: true}
	if stored != nil {
		sameVerdict := (stored.state == job.Completed) == (settlement.Next == job.NextDone)
		settled.State, settled.RunAt = stored.state, time.Unix(0, stored.due)
		settled.Duplicate = stored.n == settlement.N && stored.state != job.Waiting && sameVerdict
		settled.Stale = !settled.Duplicate
	}
	if settled.Stale {
		d.stale++
	}
	return settled
}

// reschedule makes a job waiting, or delayed until it is due, for another dispatch: it replaces
// old by next. An attempt that is given back does not count.
func (d *dispatches) reschedule(old, next *storedJob, settlement *Settlement, due moment) {
	next.flags &^= redelivered | moved
	if settlement.Next == job.NextGiveBack {
		next.attempt--
		next.flags |= redelivered
		if settlement.Loss {
			next.losses++
		}
	}
	next.setDue(due)
	if !d.passed(due) {
		next.state = job.Delayed
		d.store(old, next)
		return
	}
	d.enqueue(old, next)
}

// enqueue makes a job waiting under a new dispatch number. next must not be in
// any index yet; old is its stored form, nil for a new job.
func (d *dispatches) enqueue(old, next *storedJob) {
	next.state = job.Waiting
	next.n++
	next.due = min(next.due, d.now)                        // it may have been an estimate
	next.options.dueShift, next.options.dueWall = 0, false // of use only while it is delayed
	d.store(old, next)
	from := OutNew
	switch {
	case old == nil:
	case old.state == job.Active: // its failed dispatch has made it waiting
		from = InState(job.Waiting)
	default:
		from = InState(old.state)
	}
	d.emitQueued(next, from)
}

// promote makes delayed jobs waiting that are due, at most maxPromotions at a
// time.
func (d *dispatches) promote() {
	for range maxPromotions {
		earliest, left, ok := d.jobs.due.next(&d.clocks)
		if !ok || left > 0 {
			return
		}
		old := d.jobs.at(earliest.number)
		next := *old
		d.enqueue(old, &next)
	}
}

// fail ends a job with a failure, and adds a dead letter: it replaces old by
// next.
func (d *dispatches) fail(old, next *storedJob, reason string, fault *job.Fault) {
	d.end(old, next, job.Failed, reason, fault)
	next.run.failure.deadLetter = d.addDeadLetter(next, reason, fault).Number
}

// end ends a job as failed, cancelled or expired: it replaces old by next, whose run it may change.
func (d *dispatches) end(old, next *storedJob, state job.State, reason string, fault *job.Fault) {
	next.run.failure = d.failure(reason, fault)
	next.state, next.due, next.flags = state, d.now, old.flags&guarded
	d.releaseUntil(old, untilEnd)
	d.store(old, next)
}

// apply moves an active dispatch to another executor. A repeated command
// changes nothing and succeeds; a dispatch that is not active has lost its
// lease.
func (c *MoveDispatch) apply(l *Ledger) Result {
	old := l.jobs.find(c.Job)
	if old == nil || old.n != c.N || old.state != job.Active {
		return Result{Err: job.ErrLeaseLost}
	}
	next := *old
	next.run.executor = executor{node: c.Node, channel: c.Channel, incarnation: c.Incarnation}
	if next.run.executor == old.run.executor {
		return Result{State: job.Active}
	}
	next.flags |= moved
	l.store(old, &next)
	e := Event{Kind: WorkerRecovered, A: next.run.channel, B: job.RecoveredResumed}
	if l.outbox.level > 0 {
		e.Job, e.Extra = old.id, &Extra{Run: &Run{Node: next.run.node}}
	}
	l.emit(e)
	return Result{State: job.Active}
}

// apply marks an active job, whose executor is then asked to stop, or ends any
// other unfinished job.
func (c *CancelJob) apply(l *Ledger) Result {
	old := l.jobs.find(c.Job)
	switch {
	case old == nil:
		return Result{Err: job.ErrJobNotFound}
	case old.state.Ended():
		return Result{Err: job.ErrJobEnded, State: old.state}
	case c.Type != "" && old.state == job.Active:
		return Result{Err: job.ErrNotRemovable, State: old.state}
	}

	by := c.By
	by.Reason = cmp.Or(by.Reason, c.Reason)
	l.actOnJob(by, "job.cancel", old)
	next := *old
	if c.Type != "" {
		l.emitUnstarted(old, failedDispatch{reason: c.Reason, errorType: c.Type, to: InState(job.Failed)})
		l.fail(old, &next, c.Reason, &job.Fault{Message: c.Reason, Type: c.Type})
		return Result{State: job.Failed}
	}
	if old.flags&cancelling == 0 { // else the first cancellation counts
		next.run.cancellation = l.cancellation(by)
	}
	if old.state == job.Active {
		next.flags |= cancelling
		if c.QueueGone {
			next.flags |= queueGone
		}
		l.store(old, &next)
		return Result{State: job.Active}
	}
	l.emitUnstarted(old, failedDispatch{reason: job.ReasonCancelled, errorType: job.FaultCancelled, to: InState(job.Cancelled)})
	l.end(old, &next, job.Cancelled, job.ReasonCancelled, &job.Fault{Message: by.Reason, Type: job.FaultCancelled})
	return Result{State: job.Cancelled}
}

// cancellation returns the cancellation of a job by an actor, with shared names.
func (d *dispatches) cancellation(by Actor) *cancellation {
	return &cancellation{by: Actor{
		Name: d.intern(job.CutText(by.Name, MaxText)), Door: Door(d.intern(string(by.Door))), Reason: d.intern(job.CutText(by.Reason, MaxKeptReason)),
	}, at: d.now}
}

// apply deletes the job. A waiting job's dispatch ends as failed.
func (c *RemoveJob) apply(l *Ledger) Result {
	stored := l.jobs.find(c.Job)
	switch {
	case stored == nil:
		return Result{Err: job.ErrJobNotFound}
	case stored.state == job.Active:
		return Result{Err: job.ErrNotRemovable, State: stored.state}
	}
	l.actOnJob(c.By, "job.remove", stored)
	l.emitUnstarted(stored, failedDispatch{reason: job.ReasonRemoved, to: OutGone})
	l.remove(stored)
	return Result{State: stored.state}
}

// retryPosition returns where the record of an ended job is if the job is retried: where it was
// or, if it may have been purged there, at a copy. The error is [job.ErrRecordReclaimed] if the
// record or the large body that it refers to may be gone.
func (in *ingestion) retryPosition(stored *storedJob, relocated, asOf uint64) (job.Position, error) {
	hasBlob := !stored.options.blobOwner.IsZero()
	switch {
	case hasBlob && stored.state != job.Failed, // its body may be being removed
		hasBlob && asOf < in.released:
		return job.Position{}, job.ErrRecordReclaimed
	case !in.reclaimed(stored.position()):
		return stored.position(), nil
	case relocated == 0 || relocated < in.relocatedFloor:
		return job.Position{}, job.ErrRecordReclaimed
	}
	return job.Position{Lane: job.RelocatedLane, Seq: relocated}, nil
}

// apply makes the failed, cancelled or expired job waiting, as if it had been enqueued now: how
// it ended is only in the history, and it no longer expires. It refuses a job whose record is not valid or may have been
// purged, and a dispatch number that is not the job's last one.
func (c *RetryJob) apply(l *Ledger) Result {
	old := l.jobs.find(c.Job)
	switch {
	case old == nil:
		return Result{Err: job.ErrJobNotFound}
	case old.state != job.Failed && old.state != job.Cancelled && old.state != job.Expired:
		return Result{Err: job.ErrNotFailed, State: old.state}
	case old.flags&malformed != 0:
		return Result{Err: job.ErrMalformed, State: old.state}
	case c.N != 0 && c.N != old.n:
		return Result{Err: job.ErrLeaseLost, State: old.state}
	}
	if err := l.checkRunnerLimit(old.queue, old.function); err != nil {
		return Result{Err: err, State: old.state}
	}
	position, err := l.retryPosition(old, c.Relocated, c.AsOf)
	if err != nil {
		return Result{Err: err, State: old.state}
	}
	next := *old
	next.setPosition(position)
	l.actOnJob(c.By, "job.retry", old)
	if position != old.position() {
		l.emitDetails(&next, "")
	}
	l.revived = l.index
	next.losses, next.flags, next.run = 0, old.flags&guarded, run{}
	next.runAt(l.past(l.now))
	next.options.expires, next.options.expiryShift, next.options.expiryWall = 0, 0, false
	if !c.KeepAttempts {
		next.attempt = 0
	}
	l.enqueue(old, &next)
	return Result{State: job.Waiting}
}
