package ledger

import (
	"strings"
	"time"
	"unicode/utf8"

	"yardmaster/job"
)

// Ended says what became of an outcome, and of its job.
type Ended struct {
	Stale bool // not the job's current dispatch, or lost where it is no more: ignored and counted
	Dup   bool // this very dispatch ended the same way before
	State job.State
	RunAt time.Time // when the job is due again, or was
}

// place notifies dispatches. A placement is only a proposal: what changed
// since it was made (the job's state, a pause, a limit) turns it into nothing.
func (l *Ledger) place(c *Place) Result {
	placed := make([]bool, len(c.Placements))
	for i := range c.Placements {
		placed[i] = l.placeOne(&c.Placements[i])
	}
	return Result{Placed: placed}
}

func (l *Ledger) placeOne(p *Placement) bool {
	r := l.jobs.byID[p.Job]
	if r == nil || r.state != job.Waiting || r.n != p.N || r.queue.paused || r.queue.full() {
		return false
	}
	next := *r
	next.state = job.Active
	next.attempt++
	next.run = &run{
		hand:  l.jobs.internHand(hand{node: p.Node, channel: p.Channel, incarnation: p.Incarnation}),
		fence: l.fence(), epoch: l.authority.epoch, started: l.now,
	}
	if r.run != nil {
		next.run.failed = r.run.failed
	}
	l.put(r, &next)
	l.started(r)
	l.outbox.emit(Event{Kind: DispatchNotified, Job: r.id, N: r.n, A: next.run.channel, B: r.queue.name})
	l.outbox.emit(Event{Kind: WorkerAssigned, Job: r.id, N: r.n, A: next.run.channel, B: r.queue.name})
	return true
}

// started frees what a job holds only as long as it has not been started.
func (l *Ledger) started(r *record) {
	if r.flags&guarded != 0 {
		l.guards.release(r.id, true)
	}
}

func (l *Ledger) settle(c *Settle) Result {
	ended := make([]Ended, len(c.Ends))
	for i := range c.Ends {
		ended[i] = l.end(&c.Ends[i])
	}
	return Result{Ended: ended}
}

// end closes a dispatch and carries out the verdict, both or neither.
func (l *Ledger) end(e *End) Ended {
	r := l.jobs.byID[e.Job]
	if r == nil || r.n != e.N || r.state != job.Active {
		return l.late(r, e)
	}
	if e.Node != "" && (e.Node != r.run.node || e.Incarnation != r.run.incarnation) {
		l.stale++ // its worker goes on elsewhere
		return Ended{Stale: true, State: r.state, RunAt: time.Unix(0, r.due)}
	}
	next := *r
	if e.Next == job.Done {
		l.complete(r, &next, e)
		return Ended{State: next.state, RunAt: time.Unix(0, next.due)}
	}
	last := *r.run
	next.run = &last
	last.failed = l.jobs.failure(e.Reason, e.Fault)
	if r.flags&cancelling != 0 {
		e = &End{Job: e.Job, N: e.N, Next: job.Dead, Reason: job.ReasonCancelled, Fault: e.Fault}
	}
	l.failed(r, e.Reason)
	if e.Next == job.Dead {
		l.die(r, &next, e.Reason, e.Fault)
	} else {
		l.again(r, &next, e)
	}
	return Ended{State: next.state, RunAt: time.Unix(0, next.due)}
}

// complete ends a job well. Without a result, what is known of its run stays
// as it is.
func (l *Ledger) complete(r, next *record, e *End) {
	l.outbox.emit(Event{Kind: DispatchDelivered, Job: r.id, N: r.n, B: r.queue.name})
	l.counts.Delivered++
	next.state, next.due, next.flags = job.Completed, l.now, r.flags&guarded
	if len(e.Result.Data) > 0 || e.Blob != nil {
		last := *r.run
		last.result = l.outbox.addResult(ResultItem{Job: r.id, N: r.n, Queue: r.queue.name, Value: e.Result, Blob: e.Blob})
		next.run = &last
	}
	l.put(r, next)
}

// late answers an outcome that nothing waits for: one that is told again, or
// one of a dispatch that was given up. r is nil for an unknown job.
func (l *Ledger) late(r *record, e *End) Ended {
	view := Ended{Stale: true}
	if r != nil {
		view.State, view.RunAt = r.state, time.Unix(0, r.due)
		view.Dup = r.n == e.N && r.state != job.Waiting && (r.state == job.Completed) == (e.Next == job.Done)
		view.Stale = !view.Dup
	}
	if view.Stale {
		l.stale++
	}
	return view
}

// again lines the job up for another dispatch. A given-back attempt does not
// count.
func (l *Ledger) again(r, next *record, e *End) {
	next.flags &^= redelivered | moved
	if e.Next == job.Back {
		next.attempt--
		next.flags |= redelivered
		if e.Loss {
			next.losses++
		}
	}
	next.due = l.now
	if at := e.At.UnixNano(); !e.At.IsZero() && at > l.now {
		next.due, next.state = at, job.Delayed
		l.put(r, next)
		return
	}
	l.queueUp(r, next)
}

// die ends a job badly.
func (l *Ledger) die(r, next *record, reason string, fault *job.Fault) {
	if next.run == nil {
		next.run = &run{hand: nobody}
	}
	next.run.failed = l.jobs.failure(reason, fault)
	next.state, next.due, next.flags = job.Failed, l.now, r.flags&guarded
	l.put(r, next)
	l.bury(next, reason, fault)
}

func (l *Ledger) failed(r *record, reason string) {
	l.outbox.emit(Event{Kind: DispatchFailed, Job: r.id, N: r.n, A: reason, B: r.queue.name})
	l.counts.Failed++
}

// maxReason bounds what a job's record keeps of a reason, in bytes. Event and
// dead letter carry all of it.
const maxReason = 256

// clip shortens a reason at the end of a character.
func clip(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	end := maxReason
	for end > 0 && !utf8.RuneStart(reason[end]) {
		end--
	}
	return strings.Clone(reason[:end])
}

// move gives a running dispatch to the node that its worker came back to.
func (l *Ledger) move(c *MoveDispatch) Result {
	r := l.jobs.byID[c.Job]
	if r == nil || r.n != c.N || r.state != job.Active {
		return Result{Err: job.ErrLeaseLost}
	}
	next := *r
	run := *r.run
	run.hand = l.jobs.internHand(hand{node: c.Node, channel: c.Channel, incarnation: c.Incarnation})
	if *run.hand == *r.run.hand { // the same command again
		return Result{State: job.Active}
	}
	next.run = &run
	next.flags |= moved
	l.put(r, &next)
	l.outbox.emit(Event{Kind: WorkerRecovered, A: run.channel, B: job.RecoveredResumed})
	return Result{State: job.Active}
}

// cancel ends a job that nobody runs, and marks one that somebody runs.
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
		l.put(r, &next)
		return Result{State: job.Active}
	}
	reason := job.ReasonCancelled
	fault := &job.Fault{Message: c.Reason, Type: job.FaultCancelled}
	if c.Type != "" {
		reason, fault.Type = c.Reason, c.Type
	}
	if r.state == job.Waiting {
		l.endUnstarted(r, reason)
	}
	next.run = &run{hand: nobody}
	if r.run != nil {
		*next.run = *r.run
	}
	l.started(r) // it never will be
	l.die(r, &next, reason, fault)
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
		l.endUnstarted(r, job.ReasonRemoved)
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
	next := *r
	next.losses, next.flags, next.due = 0, r.flags&guarded, l.now
	if !c.Keep {
		next.attempt = 0
	}
	l.queueUp(r, &next)
	return Result{State: job.Waiting}
}
