package overhop

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"yardmaster/internal/frame"
)

// held is a job in hand, from its QUEST until the yard has answered its end.
type held struct {
	w     *Worker
	quest Quest
	stop  context.CancelCauseFunc // ends the handler's context

	// Guarded by Worker.mu.
	end  func(c *Client, credits uint32, then func(Raw, error)) // tells the end; nil while the handler runs
	paid *line                                                  // which node has its credit back
	void bool                                                   // the lease is lost: no more BEATs
	cut  bool                                                   // stopped with the worker: nothing to tell, it is given back
}

// alive tells a job whose lease is to be renewed; Worker.mu is held.
func (h *held) alive() bool { return h.end == nil && !h.void }

// voids tells a code that ends a lease for good. Any other may pass: the job
// goes on, and the next BEAT asks again.
func voids(code Code) bool {
	switch code {
	case CodeLeaseLost, CodeAckTimeout, CodeJobNotActive, CodeAlreadyTerminal, CodeJobNotFound, CodeInvalidJobID:
		return true
	}
	return false
}

// take begins a job, or declines it.
func (l *line) take(q Quest) {
	w := l.w
	w.mu.Lock()
	if h := w.running[q.Token]; h != nil {
		ended := h.end != nil
		sid := l.sids[q.Queue]
		w.mu.Unlock()
		l.again(h, ended, sid)
		return
	}
	from := w.queue(q.Queue)
	if w.leaving || from == nil {
		w.mu.Unlock()
		l.c.Nack(&q, Nack{Reason: "worker stops, or does not serve this queue"}, nil)
		return
	}
	ctx, stop := context.WithCancelCause(w.jobs)
	h := &held{w: w, quest: q, stop: stop}
	if q.Redelivered || q.Attempt > 1 {
		w.dropFormerLocked(q.JID)
	}
	w.running[q.Token] = h
	l.hastenLocked(q.Beat)
	w.mu.Unlock()
	l.c.Ack(&h.quest, func(_ Raw, err error) {
		if code := ErrorCode(err); voids(code) {
			w.lose(h, code)
		}
	})
	w.hands.Go(func() { h.work(ctx, from.handler) })
}

// again hears a QUEST for what is in hand already: it was placed with us a
// second time, and is still one job. The credit it took goes back.
func (l *line) again(h *held, ended bool, sid string) {
	l.c.Ack(&h.quest, nil)
	if ended {
		l.tell(h)
	}
	if sid != "" {
		l.credit(sid, 1)
	}
}

// dropFormerLocked stops earlier dispatches of a job: the yard has given up on
// them.
func (w *Worker) dropFormerLocked(jid string) {
	for _, h := range w.running {
		if h.quest.JID == jid && h.end == nil {
			h.void = true
			h.stop(&Stopped{StoppedLeaseLost})
		}
	}
}

// lose stops a job whose lease is lost. Its handler returns and its end is
// told all the same, if only to hear that it came too late.
func (w *Worker) lose(h *held, code Code) {
	w.mu.Lock()
	first := h.alive()
	h.void = true
	w.mu.Unlock()
	if first {
		w.Log.Warn("worker lost a lease", "job", h.quest.JID, "code", string(code))
		h.stop(&Stopped{StoppedLeaseLost})
	}
}

// work runs the handler and tells the job's end. A panic, and a handler that
// ends its goroutine, are failures like others.
func (h *held) work(ctx context.Context, handler Handler) {
	defer h.stop(nil)
	if left, ok := h.quest.timeLeft(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, left, &Stopped{StoppedDeadline})
		defer cancel()
	}
	ctx = context.WithValue(ctx, inHand{}, h)
	result, err := Raw(nil), error(&FailError{Message: "handler ended its goroutine", Type: "panic"})
	defer func() {
		if p := recover(); p != nil {
			h.w.Log.Error("handler panicked", "job", h.quest.JID, "panic", p, "stack", string(debug.Stack()))
			err = &FailError{Message: fmt.Sprint("handler panicked: ", p), Type: "panic"}
		}
		if cutShort(ctx, err) {
			h.w.keepToGiveBack(h)
			return
		}
		h.finish(result, because(ctx, err))
	}()
	q := h.quest // the handler's own
	result, err = handler(ctx, &q)
}

// timeLeft is how long a job just received may take, by the node's clock alone:
// the worker's may be wrong.
func (q *Quest) timeLeft() (left time.Duration, ok bool) {
	if q.Deadline.IsZero() {
		return 0, false
	}
	if q.LeaseUntil.IsZero() {
		return time.Until(q.Deadline), true
	}
	return q.Deadline.Sub(q.LeaseUntil.Add(-q.Lease)), true
}

// because adds to a handler's error that it was stopped. The yard lets no
// attempt follow a timeout, so neither does the worker, whoever is first.
func because(ctx context.Context, err error) error {
	var stopped *Stopped
	var own *FailError
	switch {
	case err == nil || !errors.As(context.Cause(ctx), &stopped):
		return err
	case stopped.Reason == StoppedDeadline:
		return &FailError{Message: err.Error(), Type: "timeout", Final: true}
	case errors.As(err, &own) || stopped.Reason == StoppedWorker:
		return err
	}
	return &FailError{Message: err.Error(), Type: "cancelled"}
}

// cutShort tells that a handler ended for no other reason than that the worker
// stops: it has heeded its context and says so.
func cutShort(ctx context.Context, err error) bool {
	var why, own *Stopped
	if !errors.As(context.Cause(ctx), &why) || why.Reason != StoppedWorker {
		return false
	}
	return errors.Is(err, context.Canceled) || errors.As(err, &own) && own == why
}

// keepToGiveBack leaves a job in hand whose handler has returned, so that its
// lease lives until the worker gives it back.
func (w *Worker) keepToGiveBack(h *held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.cut = true
	w.closeIdleLocked()
}

// finish tells a job's end until the yard has answered, over as many
// connections as that takes.
func (h *held) finish(result Raw, err error) {
	w := h.w
	w.mu.Lock()
	if w.parted {
		w.mu.Unlock()
		return // the job has been given back
	}
	h.end = func(c *Client, credits uint32, then func(Raw, error)) { c.Done(&h.quest, result, credits, then) }
	if err != nil {
		fail := failure(err)
		h.end = func(c *Client, credits uint32, then func(Raw, error)) {
			fail := fail
			fail.Credits = credits
			c.Fail(&h.quest, fail, then)
		}
	}
	l := w.line
	w.mu.Unlock()
	if l != nil {
		l.tell(h)
	}
}

// failure is an error in the wire's words.
func failure(err error) Fail {
	fail := Fail{Message: err.Error(), Retry: true}
	var detailed *FailError
	if errors.As(err, &detailed) {
		fail.Type, fail.Code, fail.Details = detailed.Type, detailed.Code, detailed.Details
		fail.Retry, fail.RetryAfter = !detailed.Final, detailed.RetryAfter
	}
	fail.Message = strings.ToValidUTF8(fail.Message, "\uFFFD")
	return fail
}

// tell tells a job's end over l, and gives its credit with it: once to each
// node, and not if the node has it back already.
func (l *line) tell(h *held) {
	l.w.mu.Lock()
	if l.w.running[h.quest.Token] != h {
		l.w.mu.Unlock()
		return // answered over another line
	}
	queue, paid, credits := h.quest.Queue, false, uint32(0)
	if l.sids[queue] != "" && h.paid != l {
		paid, credits = true, l.payLocked(h)
	}
	end := h.end
	l.w.mu.Unlock()
	end(l.c, credits, func(_ Raw, err error) {
		var large *frame.TooLargeError
		if errors.As(err, &large) || errors.Is(err, ErrNotSendable) {
			l.unsendable(h, paid, credits, err)
			return
		}
		l.told(h, err)
	})
}

// unsendable fails a job whose end no frame can carry, and takes back what was
// noted of its credit: nothing was sent.
func (l *line) unsendable(h *held, paid bool, credits uint32, err error) {
	if paid {
		l.w.mu.Lock()
		h.paid = nil
		l.surplus[h.quest.Queue] += 1 - int(credits)
		l.w.mu.Unlock()
	}
	h.finish(nil, &FailError{Message: "result: " + err.Error(), Type: "invalid_result", Final: true})
}

// payLocked notes that a job's credit goes back to its node, and gives how
// many are to be sent for that.
func (l *line) payLocked(h *held) uint32 {
	h.paid = l
	if l.surplus[h.quest.Queue] > 0 {
		l.surplus[h.quest.Queue]--
		return 0
	}
	return 1
}

// told hears what became of an end. Without an answer it stays in hand, to be
// told over the next line.
func (l *line) told(h *held, err error) {
	w := l.w
	var remote *RemoteError
	switch {
	case errors.As(err, &remote) && remote.Code == CodeResultTooLarge:
		h.finish(nil, &FailError{Message: "result: " + remote.Message, Type: "invalid_result", Final: true})
		return
	case remote != nil && remote.Code == CodeUnavailable:
		w.loops.Go(func() { l.tellLater(h, remote.RetryAfter()) })
		return
	case err != nil && remote == nil:
		return
	}
	if remote != nil {
		w.Log.Warn("worker's outcome was refused", "job", h.quest.JID, "error", err)
	}
	w.mu.Lock()
	first := w.running[h.quest.Token] == h
	delete(w.running, h.quest.Token)
	sid, owed := l.sids[h.quest.Queue], uint32(0)
	if first && sid != "" && h.paid != l && !w.leaving {
		owed = l.payLocked(h) // the subscription came after the end was told
	}
	w.closeIdleLocked()
	w.mu.Unlock()
	if owed > 0 {
		l.credit(sid, owed)
	}
}

// tellLater tells an end again that the yard could not take.
func (l *line) tellLater(h *held, after time.Duration) {
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-timer.C:
		l.tell(h)
	case <-l.ctx.Done():
	}
}

// inHand is the key of a handler's job in its context.
type inHand struct{}

// errNotHandler refuses a context that is none of a handler's.
var errNotHandler = errors.New("context is not that of a handler of a Worker")

// Progress tells how far the job is, 0 to 100 percent, and data of at most
// 4 KiB, nil for none, which [Marshal] must take. The yard keeps the last one
// only. ctx is the handler's. What a lost connection swallows is no error; an
// error says that the data cannot be sent, or that the job is no longer ours.
func (q *Quest) Progress(ctx context.Context, percent int, data any) error {
	value, err := Marshal(data)
	if err != nil {
		return fmt.Errorf("progress data: %w", err)
	}
	return q.say(ctx, TProgress, Fields{"percent": min(max(percent, 0), 100), "data": value})
}

// Log adds lines to the job's log. ctx is the handler's; errors are those of
// [Quest.Progress].
func (q *Quest) Log(ctx context.Context, lines ...string) error {
	said := make([]any, len(lines))
	now := time.Now()
	for i, line := range lines {
		said[i] = Fields{"at": now.UTC().Format(time.RFC3339Nano), "msg": strings.ToValidUTF8(line, "\uFFFD")}
	}
	return q.say(ctx, TLog, Fields{"lines": said})
}

// say tells something about a running job that the next beat need not repeat.
func (q *Quest) say(ctx context.Context, t int64, p Fields) error {
	h, ok := ctx.Value(inHand{}).(*held)
	if !ok {
		return errNotHandler
	}
	h.w.mu.Lock()
	l := h.w.line
	h.w.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if l == nil {
		return nil
	}
	p["jid"], p["tok"] = h.quest.JID, h.quest.Token[:]
	_, err := l.c.Call(ctx, t, AppendValue(nil, p))
	switch code := ErrorCode(err); {
	case voids(code):
		h.w.lose(h, code)
		return &Stopped{StoppedLeaseLost}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrClosed) || code == CodeUnavailable:
		return nil
	}
	return err
}
