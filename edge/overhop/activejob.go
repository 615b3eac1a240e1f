package overhop

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// activeJob is a job that a worker has received, from its QUEST until the node
// has answered its outcome.
type activeJob struct {
	w     *Worker
	quest Quest
	stop  context.CancelCauseFunc // ends the handler's context

	// Guarded by Worker.mu.
	send        func(c *Client, credits uint32, done func(Raw, error)) // sends the outcome; nil while the handler runs
	creditedOn  *workerConn                                            // the connection whose node has the job's credit back
	leaseLost   bool                                                   // its lease is not renewed any more
	interrupted bool                                                   // its handler ended because the worker stops; no outcome is sent, the job is released
}

// renewable reports whether the job's lease is to be renewed. Worker.mu is
// held.
func (j *activeJob) renewable() bool { return j.send == nil && !j.leaseLost }

// endsLease reports whether code means that a lease is lost for good. After any
// other code the job continues, and the next BEAT tries again.
func endsLease(code Code) bool {
	switch code {
	case CodeLeaseLost, CodeAckTimeout, CodeJobNotActive, CodeAlreadyTerminal, CodeJobNotFound, CodeInvalidJobID:
		return true
	}
	return false
}

// handleQuest starts a job, or declines it.
func (wc *workerConn) handleQuest(q Quest) {
	w := wc.w
	w.mu.Lock()
	if j := w.running[q.Token]; j != nil {
		ended := j.send != nil
		sid := wc.sids[q.Queue]
		w.mu.Unlock()
		wc.handleDuplicate(j, ended, sid)
		return
	}
	queue := w.handlerOf(q.Queue)
	if w.stopping || queue == nil {
		w.mu.Unlock()
		wc.client.Nack(&q, Nack{Reason: "worker stops, or does not serve this queue"}, nil)
		return
	}
	ctx, stop := context.WithCancelCause(w.jobsCtx)
	j := &activeJob{w: w, quest: q, stop: stop}
	if q.Redelivered || q.Attempt > 1 {
		w.stopPreviousLocked(q.JID)
	}
	w.running[q.Token] = j
	wc.hurryBeatLocked(q.Beat)
	w.mu.Unlock()
	wc.client.Ack(&j.quest, func(_ Raw, err error) {
		if code := ErrorCode(err); endsLease(code) {
			w.loseLease(j, code)
		}
	})
	w.handlers.Go(func() { j.run(ctx, queue.handler) })
}

// handleDuplicate handles a QUEST for a dispatch that the worker already has:
// it is acknowledged again, its outcome is sent again if it has ended, and the
// credit it took is returned.
func (wc *workerConn) handleDuplicate(j *activeJob, ended bool, sid string) {
	wc.client.Ack(&j.quest, nil)
	if ended {
		wc.sendOutcome(j)
	}
	if sid != "" {
		wc.credit(sid, 1)
	}
}

// stopPreviousLocked stops earlier dispatches of a job, which the yard has
// given up. Worker.mu is held.
func (w *Worker) stopPreviousLocked(jid string) {
	for _, j := range w.running {
		if j.quest.JID == jid && j.send == nil {
			j.leaseLost = true
			j.stop(&StopError{StopLeaseLost})
		}
	}
}

// loseLease stops a job whose lease is lost. Its outcome is still sent, and
// will be refused.
func (w *Worker) loseLease(j *activeJob, code Code) {
	w.mu.Lock()
	first := j.renewable()
	j.leaseLost = true
	w.mu.Unlock()
	if first {
		w.Log.Warn("worker lost a lease", "job", j.quest.JID, "code", string(code))
		j.stop(&StopError{StopLeaseLost})
	}
}

// run runs the handler and sends the job's outcome. A panic fails the attempt,
// as does a call of runtime.Goexit.
func (j *activeJob) run(ctx context.Context, handler Handler) {
	defer j.stop(nil)
	if left, ok := j.quest.timeLeft(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, left, &StopError{StopDeadline})
		defer cancel()
	}
	ctx = context.WithValue(ctx, activeJobKey{}, j)
	result, err := Raw(nil), error(&FailError{Message: "handler ended its goroutine", Type: "panic"})
	defer func() {
		if p := recover(); p != nil {
			j.w.Log.Error("handler panicked", "job", j.quest.JID, "panic", p, "stack", string(debug.Stack()))
			err = &FailError{Message: fmt.Sprint("handler panicked: ", p), Type: "panic"}
		}
		if interruptedByStop(ctx, err) {
			j.w.keepForRelease(j)
			return
		}
		j.finish(result, withStopCause(ctx, err))
	}()
	q := j.quest // the handler may change its own copy
	result, err = handler(ctx, &q)
}

// timeLeft returns how long a job that was just received may take. It compares
// the node's times only, because the worker's clock may differ. ok is false if
// there is no deadline.
func (q *Quest) timeLeft() (left time.Duration, ok bool) {
	if q.Deadline.IsZero() {
		return 0, false
	}
	if q.LeaseUntil.IsZero() {
		return time.Until(q.Deadline), true
	}
	return q.Deadline.Sub(q.LeaseUntil.Add(-q.Lease)), true
}

// withStopCause adds the reason of a stop to the handler's error. After a
// deadline the failure is final, because the yard does not retry a job that
// timed out.
func withStopCause(ctx context.Context, err error) error {
	stopped, ok := errors.AsType[*StopError](context.Cause(ctx))
	_, own := errors.AsType[*FailError](err)
	switch {
	case err == nil || !ok:
		return err
	case stopped.Reason == StopDeadline:
		return &FailError{Message: err.Error(), Type: "timeout", Final: true}
	case own || stopped.Reason == StopWorker:
		return err
	}
	return &FailError{Message: err.Error(), Type: "cancelled"}
}

// interruptedByStop reports whether a handler ended only because the worker
// stops: its error is that of its context.
func interruptedByStop(ctx context.Context, err error) bool {
	cause, ok := errors.AsType[*StopError](context.Cause(ctx))
	return ok && cause.Reason == StopWorker && (errors.Is(err, context.Canceled) || errors.Is(err, cause))
}

// keepForRelease keeps a job whose handler was interrupted, so that its lease
// is renewed until the worker releases it.
func (w *Worker) keepForRelease(j *activeJob) {
	w.mu.Lock()
	defer w.mu.Unlock()
	j.interrupted = true
	w.checkIdleLocked()
}

// finish records a job's outcome and sends it. It is sent again over later
// connections until a node answers.
func (j *activeJob) finish(result Raw, err error) {
	w := j.w
	w.mu.Lock()
	if w.released {
		w.mu.Unlock()
		return // the job has been released
	}
	j.send = func(c *Client, credits uint32, done func(Raw, error)) { c.Done(&j.quest, result, credits, done) }
	if err != nil {
		fail := newFail(err)
		j.send = func(c *Client, credits uint32, done func(Raw, error)) {
			fail := fail
			fail.Credits = credits
			c.Fail(&j.quest, fail, done)
		}
	}
	wc := w.conn
	w.mu.Unlock()
	if wc != nil {
		wc.sendOutcome(j)
	}
}

// newFail converts a handler's error to a FAIL.
func newFail(err error) Fail {
	fail := Fail{Message: err.Error(), Retry: true}
	if detailed, ok := errors.AsType[*FailError](err); ok {
		fail.Type, fail.Code, fail.Details = detailed.Type, detailed.Code, detailed.Details
		fail.Retry, fail.RetryAfter = !detailed.Final, detailed.RetryAfter
	}
	fail.Message = strings.ToValidUTF8(fail.Message, "\uFFFD")
	return fail
}

// sendOutcome sends a job's outcome over wc. The job's credit is returned with
// it, unless this node has it back already.
func (wc *workerConn) sendOutcome(j *activeJob) {
	wc.w.mu.Lock()
	if wc.w.running[j.quest.Token] != j {
		wc.w.mu.Unlock()
		return // answered over another connection
	}
	queue, credited, credits := j.quest.Queue, false, uint32(0)
	if wc.sids[queue] != "" && j.creditedOn != wc {
		credited, credits = true, wc.returnCreditLocked(j)
	}
	end := j.send
	wc.w.mu.Unlock()
	end(wc.client, credits, func(_ Raw, err error) {
		if _, large := errors.AsType[*frame.TooLargeError](err); large || errors.Is(err, ErrNotSendable) {
			wc.failUnsendable(j, credited, credits, err)
			return
		}
		wc.handleSettled(j, err)
	})
}

// failUnsendable fails a job whose outcome does not fit into a frame. The
// outcome was not sent, so its credit is accounted for again.
func (wc *workerConn) failUnsendable(j *activeJob, credited bool, credits uint32, err error) {
	if credited {
		wc.w.mu.Lock()
		j.creditedOn = nil
		wc.surplus[j.quest.Queue] += 1 - int(credits)
		wc.w.mu.Unlock()
	}
	j.finish(nil, &FailError{Message: "result: " + err.Error(), Type: "invalid_result", Final: true})
}

// returnCreditLocked records that a job's credit is returned to wc's node, and
// returns the number of credits to send for it, 0 or 1. Worker.mu is held.
func (wc *workerConn) returnCreditLocked(j *activeJob) uint32 {
	j.creditedOn = wc
	if wc.surplus[j.quest.Queue] > 0 {
		wc.surplus[j.quest.Queue]--
		return 0
	}
	return 1
}

// handleSettled handles the answer to an outcome. Without an answer, the job is
// kept and its outcome is sent again over the next connection.
func (wc *workerConn) handleSettled(j *activeJob, err error) {
	w := wc.w
	remote, refused := errors.AsType[*RemoteError](err)
	switch {
	case refused && remote.Code == CodeResultTooLarge:
		j.finish(nil, &FailError{Message: "result: " + remote.Message, Type: "invalid_result", Final: true})
		return
	case refused && remote.Code == CodeUnavailable:
		w.loops.Go(func() { wc.resendLater(j, remote.RetryAfter()) })
		return
	case err != nil && !refused:
		return
	}
	if refused {
		w.Log.Warn("job outcome refused", "job", j.quest.JID, "err", err)
	}
	w.mu.Lock()
	first := w.running[j.quest.Token] == j
	delete(w.running, j.quest.Token)
	sid, owed := wc.sids[j.quest.Queue], uint32(0)
	if first && sid != "" && j.creditedOn != wc && !w.stopping {
		owed = wc.returnCreditLocked(j) // the queue was subscribed after the outcome was sent
	}
	w.checkIdleLocked()
	w.mu.Unlock()
	if owed > 0 {
		wc.credit(sid, owed)
	}
}

// resendLater sends an outcome again that the node answered with UNAVAILABLE.
func (wc *workerConn) resendLater(j *activeJob, after time.Duration) {
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-timer.C:
		wc.sendOutcome(j)
	case <-wc.ctx.Done():
	}
}

// activeJobKey is the context key of a handler's *activeJob.
type activeJobKey struct{}

// Progress reports how far the job has come: percent, 0 to 100, and data, which
// must be acceptable to [Marshal] and at most 4 KiB, or nil. The yard keeps the
// last report only. ctx must be the handler's context.
//
// Progress returns an error if data cannot be sent, or a [*StopError] if the
// job's lease is lost. A report that is lost with the connection is not an
// error.
func (q *Quest) Progress(ctx context.Context, percent int, data any) error {
	value, err := Marshal(data)
	if err != nil {
		return fmt.Errorf("progress data: %w", err)
	}
	return q.send(ctx, TProgress, Fields{"percent": min(max(percent, 0), 100), "data": value})
}

// Log adds lines to the job's log. ctx must be the handler's context. Log
// returns the same errors as [Quest.Progress].
func (q *Quest) Log(ctx context.Context, lines ...string) error {
	entries := make([]any, len(lines))
	now := time.Now()
	for i, line := range lines {
		entries[i] = Fields{"at": now.UTC().Format(time.RFC3339Nano), "msg": strings.ToValidUTF8(line, "\uFFFD")}
	}
	return q.send(ctx, TLog, Fields{"lines": entries})
}

// send sends a message about a running job. It is not repeated if the
// connection is lost.
func (q *Quest) send(ctx context.Context, t int64, p Fields) error {
	j, ok := ctx.Value(activeJobKey{}).(*activeJob)
	if !ok {
		return errors.New("the context is not that of a Worker's handler")
	}
	j.w.mu.Lock()
	wc := j.w.conn
	j.w.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if wc == nil {
		return nil
	}
	p["jid"], p["tok"] = j.quest.JID, j.quest.Token[:]
	_, err := wc.client.Call(ctx, t, p.Raw())
	switch code := ErrorCode(err); {
	case endsLease(code):
		j.w.loseLease(j, code)
		return &StopError{StopLeaseLost}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrClosed) || code == CodeUnavailable:
		return nil
	}
	return err
}
