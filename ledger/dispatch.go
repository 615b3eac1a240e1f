package ledger

import (
	"strings"
	"time"
	"unicode/utf8"

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

// place applies a placement, unless the job's state, a pause or a limit no
// longer permits it.
func (d *dispatches) place(p *Placement) bool {
	r := d.jobs.byID[p.Job]
	if r == nil || r.state != job.Waiting || r.n != p.N || r.queue.paused || r.queue.limitReached() {
		return false
	}
	next := *r
	next.state = job.Active
	next.attempt++
	next.run = &run{
		executor: d.internExecutor(executor{node: p.Node, channel: p.Channel, incarnation: p.Incarnation}),
		fence:    d.fence(), epoch: d.epoch, started: d.now,
	}
	if r.run != nil {
		next.run.failure = r.run.failure
	}
	d.store(r, &next)
	d.releaseDebounce(r)
	d.emitDispatch(r, DispatchNotified, next.run.channel)
	d.emitDispatch(r, WorkerAssigned, next.run.channel)
	return true
}

func (c *Settle) apply(l *Ledger) Result {
	settled := make([]Settled, len(c.Settlements))
	for i := range c.Settlements {
		settled[i] = l.settle(&c.Settlements[i])
	}
	return Result{Settled: settled}
}

// settle ends a dispatch and applies the verdict to its job.
func (d *dispatches) settle(e *Settlement) Settled {
	r := d.jobs.byID[e.Job]
	if r == nil || r.n != e.N || r.state != job.Active {
		return d.settleStale(r, e)
	}
	if e.Node != "" && (e.Node != r.run.node || e.Incarnation != r.run.incarnation) {
		d.stale++ // the worker has moved to another node and continues there
		return Settled{Stale: true, State: r.state, RunAt: time.Unix(0, r.due)}
	}
	next := *r
	if e.Next == job.NextDone {
		d.complete(r, &next, e)
		return Settled{State: next.state, RunAt: time.Unix(0, next.due)}
	}
	last := *r.run
	next.run = &last
	last.failure = d.failure(e.Reason, e.Fault)
	if r.flags&cancelling != 0 {
		e = &Settlement{Job: e.Job, N: e.N, Next: job.NextDead, Reason: job.ReasonCancelled, Fault: e.Fault}
	}
	d.emitDispatch(r, DispatchFailed, e.Reason)
	if e.Next == job.NextDead {
		d.fail(r, &next, e.Reason, e.Fault)
	} else {
		d.reschedule(r, &next, e)
	}
	return Settled{State: next.state, RunAt: time.Unix(0, next.due)}
}

// complete ends a job successfully. Without a result the job keeps its last run
// as it is.
func (d *dispatches) complete(r, next *storedJob, e *Settlement) {
	d.emitDispatch(r, DispatchDelivered, "")
	next.state, next.due, next.flags = job.Completed, d.now, r.flags&guarded
	if len(e.Result.Data) > 0 || e.Blob != nil {
		last := *r.run
		last.result = d.addResult(ResultItem{Job: r.id, N: r.n, Queue: r.queue.name, Value: e.Result, Blob: e.Blob})
		next.run = &last
	}
	d.store(r, next)
}

// settleStale answers an outcome that is not of a current dispatch: a repeated
// one, or one of a dispatch that was given up. r is nil for an unknown job.
func (d *dispatches) settleStale(r *storedJob, e *Settlement) Settled {
	view := Settled{Stale: true}
	if r != nil {
		view.State, view.RunAt = r.state, time.Unix(0, r.due)
		view.Duplicate = r.n == e.N && r.state != job.Waiting && (r.state == job.Completed) == (e.Next == job.NextDone)
		view.Stale = !view.Duplicate
	}
	if view.Stale {
		d.stale++
	}
	return view
}

// reschedule makes the job waiting or delayed for another dispatch. An attempt
// that is given back does not count.
func (d *dispatches) reschedule(r, next *storedJob, e *Settlement) {
	next.flags &^= redelivered | moved
	if e.Next == job.NextGiveBack {
		next.attempt--
		next.flags |= redelivered
		if e.Loss {
			next.losses++
		}
	}
	next.due = d.now
	if at := e.At.UnixNano(); !e.At.IsZero() && at > d.now {
		next.due, next.state = at, job.Delayed
		d.store(r, next)
		return
	}
	d.enqueue(r, next)
}

// enqueue makes a job waiting under a new dispatch number. next must not be in
// any index yet; old is its stored form, nil for a new job.
func (d *dispatches) enqueue(old, next *storedJob) {
	next.state = job.Waiting
	next.n++
	d.store(old, next)
	d.emitDispatch(next, DispatchQueued, target(next))
}

// promote makes delayed jobs waiting that are due, at most maxPromotions at a
// time.
func (d *dispatches) promote() {
	for range maxPromotions {
		item, ok := d.jobs.due.Min()
		if !ok || item.at > d.now {
			return
		}
		next := *item.r
		d.enqueue(item.r, &next)
	}
}

// fail ends a job with a failure, and adds a dead letter.
func (d *dispatches) fail(r, next *storedJob, reason string, fault *job.Fault) {
	if next.run == nil {
		next.run = &run{executor: noExecutor}
	}
	next.run.failure = d.failure(reason, fault)
	next.state, next.due, next.flags = job.Failed, d.now, r.flags&guarded
	d.store(r, next)
	d.addDeadLetter(next, reason, fault)
}

// drop removes a job and remembers its id as forgotten.
func (d *dispatches) drop(r *storedJob) {
	d.unindex(r)
	if r.flags&guarded != 0 {
		d.release(r.id, false)
	}
	delete(d.jobs.byID, r.id)
	d.jobs.forgotten.add(r.id, d.now)
}

// prune removes old finished jobs and ids, a bounded number of each.
func (d *dispatches) prune() {
	for range maxPruned {
		oldest, ok := d.jobs.ended.Min()
		if !ok || d.jobs.ended.Len() <= MaxFinished && d.now-oldest.at < int64(FinishedRetention) {
			break
		}
		d.drop(oldest.r)
	}
	d.jobs.forgotten.trim(d.now-int64(DedupeHorizon), MaxDedupeIDs)
}

// maxReason is how many bytes of a reason the ledger keeps with a job. The
// event and the dead letter have all of it.
const maxReason = 256

// truncate shortens reason to maxReason bytes without splitting a character.
func truncate(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	end := maxReason
	for end > 0 && !utf8.RuneStart(reason[end]) {
		end--
	}
	return strings.Clone(reason[:end])
}

func (c *MoveDispatch) apply(l *Ledger) Result {
	r := l.jobs.byID[c.Job]
	if r == nil || r.n != c.N || r.state != job.Active {
		return Result{Err: job.ErrLeaseLost}
	}
	next := *r
	run := *r.run
	run.executor = l.internExecutor(executor{node: c.Node, channel: c.Channel, incarnation: c.Incarnation})
	if *run.executor == *r.run.executor { // the command is repeated
		return Result{State: job.Active}
	}
	next.run = &run
	next.flags |= moved
	l.store(r, &next)
	l.emit(Event{Kind: WorkerRecovered, A: run.channel, B: job.RecoveredResumed})
	return Result{State: job.Active}
}

func (c *CancelJob) apply(l *Ledger) Result {
	r := l.jobs.byID[c.Job]
	switch {
	case r == nil:
		return Result{Err: job.ErrJobNotFound}
	case r.state.Ended():
		return Result{Err: job.ErrJobEnded, State: r.state}
	}
	next := *r
	if r.state == job.Active {
		next.flags |= cancelling
		if c.QueueGone {
			next.flags |= queueGone
		}
		l.store(r, &next)
		return Result{State: job.Active}
	}
	reason := job.ReasonCancelled
	fault := &job.Fault{Message: c.Reason, Type: job.FaultCancelled}
	if c.Type != "" {
		reason, fault.Type = c.Reason, c.Type
	}
	if r.state == job.Waiting {
		l.emitUnstartedFailure(r, reason)
	}
	next.run = &run{executor: noExecutor}
	if r.run != nil {
		*next.run = *r.run
	}
	l.releaseDebounce(r) // the job will never start
	l.fail(r, &next, reason, fault)
	return Result{State: job.Failed}
}

func (c *RemoveJob) apply(l *Ledger) Result {
	r := l.jobs.byID[c.Job]
	switch {
	case r == nil:
		return Result{Err: job.ErrJobNotFound}
	case r.state == job.Active:
		return Result{Err: job.ErrNotRemovable, State: r.state}
	case r.state == job.Waiting:
		l.emitUnstartedFailure(r, job.ReasonRemoved)
	}
	l.drop(r)
	return Result{State: r.state}
}

func (c *RetryJob) apply(l *Ledger) Result {
	r := l.jobs.byID[c.Job]
	switch {
	case r == nil:
		return Result{Err: job.ErrJobNotFound}
	case r.state != job.Failed:
		return Result{Err: job.ErrNotFailed, State: r.state}
	case r.flags&malformed != 0:
		return Result{Err: job.ErrMalformed, State: r.state}
	case c.N != 0 && c.N != r.n:
		return Result{Err: job.ErrLeaseLost, State: r.state}
	}
	if err := l.checkRunnerLimit(r.queue, r.function); err != nil {
		return Result{Err: err, State: r.state}
	}
	next := *r
	next.losses, next.flags, next.due = 0, r.flags&guarded, l.now
	if !c.KeepAttempts {
		next.attempt = 0
	}
	l.enqueue(r, &next)
	return Result{State: job.Waiting}
}
