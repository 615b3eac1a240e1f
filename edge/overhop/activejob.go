package overhop

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/internal/usercode"
)

// activeJob is a job that a worker has received, from its QUEST until a node
// has answered its outcome.
type activeJob struct {
	worker  *Worker
	quest   Quest
	handled Quest // the handler's copy, which it may change
	handler Handler
	ctx     jobContext // of the handler

	// Guarded by Worker.mu.
	ackConn     *workerConn // the connection over which the ACK was sent last
	started     bool        // a node has answered the ACK, and the handler runs or has run
	outcome     outcome     // not set while the handler runs
	creditedOn  *workerConn // the connection whose node has the job's credit back; nil: none
	leaseEnd    time.Time   // when the lease ends unless it is renewed, by this machine's clock
	leaseLost   bool        // the job's lease is not renewed any more
	interrupted bool        // the handler ended because the worker stops; no outcome is sent, the job is released
}

// outcome is what a worker reports of a job whose handler has returned.
type outcome struct {
	isSet   bool
	result  Raw   // sent if failure is nil
	failure *Fail // why the attempt failed; nil: it succeeded
}

// send sends the outcome of quest's job over c. The other arguments are those
// of [Client.Done].
func (o *outcome) send(c *Client, quest *Quest, credits uint32, done func(Raw, error)) {
	if o.failure == nil {
		c.Done(quest, o.result, credits, done)
		return
	}
	failure := *o.failure
	failure.Credits = credits
	c.Fail(quest, failure, done)
}

// hasOutcome reports whether the job's handler has returned, so that only the
// node's answer is missing. Worker.mu is held.
func (j *activeJob) hasOutcome() bool { return j.outcome.isSet }

// renewable reports whether the job's lease is to be renewed. Worker.mu is
// held.
func (j *activeJob) renewable() bool { return !j.hasOutcome() && !j.leaseLost }

// endsLease reports whether code means that a lease is lost for good. After any
// other code the job continues, and the next BEAT tries again.
func endsLease(code Code) bool {
	switch code {
	case CodeLeaseLost, CodeAckTimeout, CodeJobNotActive, CodeAlreadyTerminal, CodeJobNotFound, CodeInvalidJobID:
		return true
	}
	return false
}

// handleQuest acknowledges a job that the node has sent, which starts its handler.
// It declines the job if the worker is stopping or does not serve the queue.
func (wc *workerConn) handleQuest(quest Quest) {
	w := wc.worker
	w.mu.Lock()
	if known := w.running[quest.Token]; known != nil {
		w.mu.Unlock()
		wc.handleDuplicate(known)
		return
	}
	queue := w.handlerOf(quest.Queue)
	if w.stopping || queue == nil {
		w.mu.Unlock()
		declined := quest // so that quest need not be on the heap
		wc.client.Nack(&declined, Nack{Reason: "worker stops, or does not serve this queue"}, nil)
		return
	}
	if quest.Redelivered || quest.Attempt > 1 {
		w.stopPreviousLocked(quest.JID)
	}
	received := time.Now()
	job := &activeJob{worker: w, quest: quest, handled: quest, handler: queue.handler, leaseEnd: received.Add(quest.Lease)}
	job.ctx.job, job.ctx.parent = job, w.jobsCtx
	if left, ok := quest.timeLeft(); ok {
		job.ctx.deadline = received.Add(left)
	}
	w.running[quest.Token] = job
	wc.hurryBeatLocked(quest.Beat)
	w.watchLeaseLocked()
	w.mu.Unlock()

	wc.acknowledge(job)
}

// handleDuplicate handles a QUEST for a dispatch that the worker already has.
// It acknowledges the dispatch again, sends the outcome again if there is one,
// and returns the credit that the QUEST took.
func (wc *workerConn) handleDuplicate(job *activeJob) {
	wc.worker.mu.Lock()
	hasOutcome, sid := job.hasOutcome(), wc.sids[job.quest.Queue]
	wc.worker.mu.Unlock()
	wc.acknowledge(job)
	if hasOutcome {
		wc.sendOutcome(job)
	}
	if sid != "" { // else the queue is not subscribed over this connection
		wc.credit(sid, 1)
	}
}

// stopPreviousLocked stops the handlers of earlier dispatches of a job, which
// the yard has given up. Worker.mu is held.
func (w *Worker) stopPreviousLocked(jid string) {
	for _, job := range w.running {
		if job.quest.JID == jid && !job.hasOutcome() {
			job.leaseLost = true
			job.ctx.stop(&StopError{StopLeaseLost})
		}
	}
}

// renewed records that a node has renewed the job's lease until end.
func (j *activeJob) renewed(end time.Time) {
	j.worker.mu.Lock()
	defer j.worker.mu.Unlock()
	if end.After(j.leaseEnd) {
		j.leaseEnd = end
	}
}

// loseLease stops the handler of a job whose lease is lost, as a node reported
// with code. The outcome is still sent, and the node will refuse it. A job whose handler
// has not started is forgotten.
func (w *Worker) loseLease(job *activeJob, code Code) {
	w.mu.Lock()
	mustStop := job.renewable()
	job.leaseLost = true
	if !job.started {
		delete(w.running, job.quest.Token)
		w.checkIdleLocked()
	}
	w.mu.Unlock()
	if mustStop {
		w.Log.Warn("worker lost a lease", "job", job.quest.JID, "code", string(code))
		job.ctx.stop(&StopError{StopLeaseLost})
	}
}

// run calls the handler, unless the job must stop already, and sends the job's outcome, whatever
// the handler and the methods of its error do: the attempt fails if one of them panics or calls
// runtime.Goexit. If the handler ended only because the worker stops, run sends nothing and the
// worker releases the job. If the job's lease has ended, run does nothing.
func (j *activeJob) run() {
	if !j.holdsLease() {
		return
	}
	defer j.ctx.end()
	end := handlerEnd{failure: &Fail{Message: "handler ended its goroutine", Type: "panic", Retry: true}}
	defer func() { // also if runtime.Goexit is called
		if end.interrupted {
			j.worker.keepForRelease(j)
			return
		}
		j.finish(outcome{isSet: true, result: end.result, failure: end.failure})
	}()
	result, err := j.call()
	end = j.read(result, err)
}

// handlerEnd is how a handler has ended.
type handlerEnd struct {
	result      Raw
	failure     *Fail // nil: it has succeeded
	interrupted bool  // it ended only because the worker stops
}

// call calls the handler. A panic is an error.
func (j *activeJob) call() (result Raw, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			text, stack := usercode.PanicText(reason), string(debug.Stack())
			j.worker.Log.Error("handler panicked", "job", j.quest.JID, "panic", text, "stack", stack)
			err = &FailError{Message: "handler panicked: " + text, Type: "panic", Details: stackDetails(stack)}
		}
	}()
	if j.ctx.Err() != nil {
		return nil, context.Cause(&j.ctx)
	}
	if j.handled.Omitted {
		if j.handled.Payload, err = j.readPayload(&j.ctx); err != nil {
			return nil, err
		}
	}
	return j.handler(&j.ctx, &j.handled)
}

// read returns how the handler has ended, by the result and the error that it has returned.
func (j *activeJob) read(result Raw, err error) handlerEnd {
	switch {
	case err == nil:
		return handlerEnd{result: result}
	case interruptedByStop(&j.ctx, err):
		return handlerEnd{interrupted: true}
	}
	return handlerEnd{failure: newFail(withStopCause(&j.ctx, err))}
}

// maxStack is the number of bytes of a panic's stack that are reported, so that a FAIL fits into the
// smallest frame limit.
const maxStack = 28 << 10

// stackDetails returns the details of a failure with the stack of a panic. It keeps the first
// maxStack bytes, because the calls nearest to the panic, with the line that panicked, are at the start.
func stackDetails(stack string) Raw {
	return Fields{"stack": strings.ToValidUTF8(stack[:min(len(stack), maxStack)], "")}.Raw()
}

// readPayload reads the job's payload, which did not fit into its QUEST. It blocks until a
// node has sent all of it or ctx ends, with its cause.
func (j *activeJob) readPayload(ctx context.Context) (Raw, error) {
	payload, err := ReadContent(j.quest.JID, ContentPayload, func(request Raw) (Raw, error) {
		for {
			j.worker.mu.Lock()
			conn := j.worker.conn
			j.worker.mu.Unlock()
			wait := awaitRetry
			if conn != nil {
				if !conn.client.givesContent {
					return nil, ErrNoContent
				}
				answer, err := conn.client.Call(ctx, TContent, request)
				refusal, refused := errors.AsType[*RemoteError](err)
				switch {
				case refused && refusal.Code == CodeUnavailable:
					wait = refusal.RetryAfter()
				case !errors.Is(err, ErrClosed):
					return answer, err
				}
			}
			if backoff.Sleep(ctx, wait) != nil {
				return nil, context.Cause(ctx)
			}
		}
	})
	if err != nil {
		err = fmt.Errorf("read the job's payload: %w", err)
	}
	return payload, err
}

// timeLeft returns how long a job that was just received may take. It compares
// the node's times only, because the worker's clock may differ. ok is false if
// there is no deadline.
func (q *Quest) timeLeft() (left time.Duration, ok bool) {
	if q.Deadline.IsZero() {
		return 0, false
	}
	return q.Deadline.Sub(q.Sent()), true
}

// Sent returns when the job was sent, by the node's clock. It is the time of this machine
// if the node did not give the end of the lease.
func (q *Quest) Sent() time.Time {
	if q.LeaseUntil.IsZero() {
		return time.Now()
	}
	return q.LeaseUntil.Add(-q.Lease)
}

// withStopCause returns the error to report for a handler that has returned
// err. If the handler was stopped by a deadline, the failure is final, because
// the yard does not retry a job that timed out. If it was stopped for another
// reason and returned no [*FailError], the failure has the type "cancelled".
func withStopCause(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	cause, stopped := errors.AsType[*StopError](context.Cause(ctx))
	if !stopped {
		return err
	}
	if cause.Reason == StopDeadline {
		return &FailError{Message: usercode.Text(err), Type: "timeout", Final: true}
	}
	if _, detailed := usercode.As[*FailError](err); detailed || cause.Reason == StopWorker {
		return err
	}
	return &FailError{Message: usercode.Text(err), Type: "cancelled"}
}

// interruptedByStop reports whether a handler ended only because the worker
// stops: its error is that of its context.
func interruptedByStop(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() == nil {
		return false
	}
	cause, stopped := errors.AsType[*StopError](context.Cause(ctx))
	return stopped && cause.Reason == StopWorker && (usercode.Is(err, context.Canceled) || usercode.Is(err, cause))
}

// keepForRelease keeps a job whose handler was interrupted, so that its lease
// is renewed until the worker releases it.
func (w *Worker) keepForRelease(job *activeJob) {
	w.mu.Lock()
	defer w.mu.Unlock()
	job.interrupted = true
	w.checkIdleLocked()
}

// finish records a job's outcome and sends it. The outcome is sent again over later connections
// until a node answers. finish does nothing if the worker has already released its jobs.
func (j *activeJob) finish(end outcome) {
	w := j.worker
	w.mu.Lock()
	if w.released {
		w.mu.Unlock()
		return
	}
	j.outcome = end
	conn := w.conn
	w.mu.Unlock()
	if conn != nil {
		conn.sendOutcome(j)
	}
}

// newFail converts a handler's error to a FAIL.
func newFail(err error) *Fail {
	fail := Fail{Message: usercode.Text(err), Retry: true}
	if detailed, ok := usercode.As[*FailError](err); ok {
		fail.Type, fail.Code, fail.Details = usercode.Cut(detailed.Type, maxFaultName), usercode.Cut(detailed.Code, maxFaultName), detailed.Details
		fail.Retry, fail.RetryAfter, fail.Snooze = !detailed.Final || detailed.Snooze != nil, detailed.RetryAfter, detailed.Snooze
	}
	return &fail
}

// maxFaultName is the number of bytes of the type and of the code of a failure that are sent.
const maxFaultName = 200

// sendOutcome sends a job's outcome over wc, and the job's credit with it,
// unless wc's node already has that credit back. A result that does not fit
// into a frame fails the job. sendOutcome does nothing if a node has already
// answered the outcome.
func (wc *workerConn) sendOutcome(job *activeJob) {
	w := wc.worker
	w.mu.Lock()
	if w.running[job.quest.Token] != job {
		w.mu.Unlock()
		return
	}
	owesCredit := wc.owesCreditLocked(job)
	var credits uint32
	if owesCredit {
		credits = wc.returnCreditLocked(job)
	}
	outcome := job.outcome
	w.mu.Unlock()

	outcome.send(wc.client, &job.quest, credits, func(_ Raw, err error) {
		_, tooLarge := errors.AsType[*frame.TooLargeError](err)
		if !tooLarge && !errors.Is(err, ErrNotSendable) {
			wc.handleSettled(job, err)
			return
		}
		if owesCredit { // it was not sent, so it is still owed
			w.mu.Lock()
			job.creditedOn = nil
			wc.surplus[job.quest.Queue] += 1 - int(credits)
			w.mu.Unlock()
		}
		job.finish(outcome.reduced(err.Error()))
	})
}

// reduced returns the outcome to send in place of one that cannot be sent or stored for the given
// reason: the failure without its details, or a final failure in place of a result.
func (o *outcome) reduced(reason string) outcome {
	if o.failure != nil && len(o.failure.Details) > 0 {
		without := *o.failure
		without.Details = nil
		without.Message += " (its details are omitted: " + reason + ")"
		return outcome{isSet: true, failure: &without}
	}
	return outcome{isSet: true, failure: &Fail{Message: "result: " + reason, Type: "invalid_result"}}
}

// owesCreditLocked reports whether the worker must return the credit that a job
// took to wc's node. Worker.mu is held.
func (wc *workerConn) owesCreditLocked(job *activeJob) bool {
	return wc.sids[job.quest.Queue] != "" && job.creditedOn != wc
}

// returnCreditLocked records that a job's credit is returned to wc's node, and
// returns the number of credits to send for it: 0 if the node holds a surplus,
// else 1. Worker.mu is held.
func (wc *workerConn) returnCreditLocked(job *activeJob) uint32 {
	job.creditedOn = wc
	if wc.surplus[job.quest.Queue] > 0 {
		wc.surplus[job.quest.Queue]--
		return 0
	}
	return 1
}

// handleSettled handles the node's answer to a job's outcome. The worker
// forgets the job, unless the outcome must be sent again: later if the node was
// unavailable, over the next connection if this one failed before the answer.
func (wc *workerConn) handleSettled(job *activeJob, err error) {
	w := wc.worker
	refusal, refused := errors.AsType[*RemoteError](err)
	switch {
	case err != nil && !refused:
		return
	case refused && refusal.Code == CodeResultTooLarge:
		w.mu.Lock()
		sent := job.outcome
		w.mu.Unlock()
		job.finish(sent.reduced(refusal.Message))
		return
	case refused && refusal.Code == CodeUnavailable:
		w.loops.Go(func() {
			if backoff.Sleep(wc.ctx, refusal.RetryAfter()) == nil {
				wc.sendOutcome(job)
			}
		})
		return
	case refused:
		w.Log.Warn("job outcome refused", "job", job.quest.JID, "err", err)
	}

	wc.forget(job) // its queue may have been subscribed after the outcome was sent
}
