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

// place applies placements. A placement is skipped if the job's state, a pause
// or a limit no longer permits it.
func (l *Ledger) place(c *Place) Result {
	placed := make([]bool, len(c.Placements))
	for i := range c.Placements {
		placed[i] = l.placeOne(&c.Placements[i])
	}
	return Result{Placed: placed}
}

func (l *Ledger) placeOne(p *Placement) bool {
	r := l.jobs.byID[p.Job]
	if r == nil || r.state != job.Waiting || r.n != p.N || r.queue.paused || r.queue.limitReached() {
		return false
	}
	next := *r
	next.state = job.Active
	next.attempt++
	next.run = &run{
		executor: l.jobs.internExecutor(executor{node: p.Node, channel: p.Channel, incarnation: p.Incarnation}),
		fence:    l.fence(), epoch: l.authority.epoch, started: l.now,
	}
	if r.run != nil {
		next.run.failure = r.run.failure
	}
	l.store(r, &next)
	l.releaseDebounce(r)
	l.outbox.emit(Event{Kind: DispatchNotified, Job: r.id, N: r.n, A: next.run.channel, B: r.queue.name})
	l.outbox.emit(Event{Kind: WorkerAssigned, Job: r.id, N: r.n, A: next.run.channel, B: r.queue.name})
	return true
}

// releaseDebounce releases the debounce key of a job that starts or will never
// start.
func (l *Ledger) releaseDebounce(r *storedJob) {
	if r.flags&guarded != 0 {
		l.guards.release(r.id, true)
	}
}

func (l *Ledger) settle(c *Settle) Result {
	settled := make([]Settled, len(c.Settlements))
	for i := range c.Settlements {
		settled[i] = l.settleDispatch(&c.Settlements[i])
	}
	return Result{Settled: settled}
}

// settleDispatch ends a dispatch and applies the verdict to its job.
func (l *Ledger) settleDispatch(e *Settlement) Settled {
	r := l.jobs.byID[e.Job]
	if r == nil || r.n != e.N || r.state != job.Active {
		return l.settleStale(r, e)
	}
	if e.Node != "" && (e.Node != r.run.node || e.Incarnation != r.run.incarnation) {
		l.stale++ // the worker has moved to another node and continues there
		return Settled{Stale: true, State: r.state, RunAt: time.Unix(0, r.due)}
	}
	next := *r
	if e.Next == job.NextDone {
		l.complete(r, &next, e)
		return Settled{State: next.state, RunAt: time.Unix(0, next.due)}
	}
	last := *r.run
	next.run = &last
	last.failure = l.jobs.failure(e.Reason, e.Fault)
	if r.flags&cancelling != 0 {
		e = &Settlement{Job: e.Job, N: e.N, Next: job.NextDead, Reason: job.ReasonCancelled, Fault: e.Fault}
	}
	l.emitFailed(r, e.Reason)
	if e.Next == job.NextDead {
		l.fail(r, &next, e.Reason, e.Fault)
	} else {
		l.reschedule(r, &next, e)
	}
	return Settled{State: next.state, RunAt: time.Unix(0, next.due)}
}

// complete ends a job successfully. Without a result the job keeps its last run
// as it is.
func (l *Ledger) complete(r, next *storedJob, e *Settlement) {
	l.outbox.emit(Event{Kind: DispatchDelivered, Job: r.id, N: r.n, B: r.queue.name})
	l.counts.Delivered++
	next.state, next.due, next.flags = job.Completed, l.now, r.flags&guarded
	if len(e.Result.Data) > 0 || e.Blob != nil {
		last := *r.run
		last.result = l.outbox.addResult(ResultItem{Job: r.id, N: r.n, Queue: r.queue.name, Value: e.Result, Blob: e.Blob})
		next.run = &last
	}
	l.store(r, next)
}

// settleStale answers an outcome that is not of a current dispatch: a repeated
// one, or one of a dispatch that was given up. r is nil for an unknown job.
func (l *Ledger) settleStale(r *storedJob, e *Settlement) Settled {
	view := Settled{Stale: true}
	if r != nil {
		view.State, view.RunAt = r.state, time.Unix(0, r.due)
		view.Duplicate = r.n == e.N && r.state != job.Waiting && (r.state == job.Completed) == (e.Next == job.NextDone)
		view.Stale = !view.Duplicate
	}
	if view.Stale {
		l.stale++
	}
	return view
}

// reschedule makes the job waiting or delayed for another dispatch. An attempt
// that is given back does not count.
func (l *Ledger) reschedule(r, next *storedJob, e *Settlement) {
	next.flags &^= redelivered | moved
	if e.Next == job.NextGiveBack {
		next.attempt--
		next.flags |= redelivered
		if e.Loss {
			next.losses++
		}
	}
	next.due = l.now
	if at := e.At.UnixNano(); !e.At.IsZero() && at > l.now {
		next.due, next.state = at, job.Delayed
		l.store(r, next)
		return
	}
	l.enqueue(r, next)
}

// fail ends a job with a failure, and adds a dead letter.
func (l *Ledger) fail(r, next *storedJob, reason string, fault *job.Fault) {
	if next.run == nil {
		next.run = &run{executor: noExecutor}
	}
	next.run.failure = l.jobs.failure(reason, fault)
	next.state, next.due, next.flags = job.Failed, l.now, r.flags&guarded
	l.store(r, next)
	l.emitDeadLetter(next, reason, fault)
}

func (l *Ledger) emitFailed(r *storedJob, reason string) {
	l.outbox.emit(Event{Kind: DispatchFailed, Job: r.id, N: r.n, A: reason, B: r.queue.name})
	l.counts.Failed++
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

// move moves a running dispatch to the node to which its worker has
// reconnected.
func (l *Ledger) move(c *MoveDispatch) Result {
	r := l.jobs.byID[c.Job]
	if r == nil || r.n != c.N || r.state != job.Active {
		return Result{Err: job.ErrLeaseLost}
	}
	next := *r
	run := *r.run
	run.executor = l.jobs.internExecutor(executor{node: c.Node, channel: c.Channel, incarnation: c.Incarnation})
	if *run.executor == *r.run.executor { // the command is repeated
		return Result{State: job.Active}
	}
	next.run = &run
	next.flags |= moved
	l.store(r, &next)
	l.outbox.emit(Event{Kind: WorkerRecovered, A: run.channel, B: job.RecoveredResumed})
	return Result{State: job.Active}
}

// cancel ends a job that is not active, and marks an active one to be recalled.
func (l *Ledger) cancel(c *CancelJob) Result {
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

func (l *Ledger) remove(c *RemoveJob) Result {
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

func (l *Ledger) retry(c *RetryJob) Result {
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
