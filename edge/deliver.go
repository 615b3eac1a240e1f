package edge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// start is [Server.Start].
func (ds *deliveries) start(a job.Assignment, spec job.Spec) bool {
	ds.mu.Lock()
	w := ds.workers[a.Worker]
	ds.mu.Unlock()
	if w == nil || !ds.tokens.known() {
		return false
	}
	var d *dispatch
	known := false
	result, err := w.conn.out.push(questLimit, func(b []byte) ([]byte, error) {
		// Within the outbox's lock, so that no RECALL can precede its QUEST.
		q := overhop.Quest{}
		if d, known = ds.reserve(w, a, &q); d == nil {
			return b, nil
		}
		fillQuest(&q, &a, &spec)
		return overhop.AppendQuest(b, &q, ds.cfg.Wire.MaxEnvelope)
	})
	if result == pushFull {
		w.congestionChanged()
	}
	if err != nil {
		ds.failUnsendable(d, err)
	}
	ds.flushOffers()
	return d != nil || known
}

// reserve takes a credit and creates a dispatch. d is nil if the worker has no
// capacity, or if the dispatch exists, which known reports. reserve sets the
// fields of q that depend on the time and the subscription.
func (ds *deliveries) reserve(w *worker, a job.Assignment, q *overhop.Quest) (d *dispatch, known bool) {
	r := a.DispatchID()
	tok := ds.tokens.mint(r)
	now := time.Now()
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if ds.dispatches[r] != nil {
		return nil, true
	}
	sub := w.byQueue[a.Key]
	if sub == nil || sub.available() == 0 {
		return nil, false
	}
	sub.credits--
	sub.changed()
	d = &dispatch{DispatchID: r, token: tok, queue: a.Queue, attempt: a.Attempt, timeout: a.Timeout, worker: w, wid: w.wid, sub: sub, state: reserved, heapIndex: -1}
	if a.Timeout > 0 {
		d.deadline = now.Add(a.Timeout)
	}
	until := ds.leaseLocked(d, now, ds.cfg.Delivery.Lease)
	d.setReplyByLocked(now.Add(ds.cfg.Delivery.Ack))
	d.due = earlier(d.replyBy, d.deadline)
	ds.dispatches[r] = d
	w.addJob(d)
	ds.timers.set(d)
	*q = overhop.Quest{
		SID: sub.sid, Credits: sub.credits, Token: tok, AckBy: d.due, LeaseUntil: until, Deadline: d.deadline,
		Lease: max(until.Sub(now), time.Millisecond), Beat: ds.cfg.Delivery.Beat,
	}
	return d, false
}

// fillQuest sets the fields of q that describe the job.
func fillQuest(q *overhop.Quest, a *job.Assignment, spec *job.Spec) {
	q.JID, q.Queue, q.Function = jid(a.Queue, a.Job), a.Queue, a.Function
	q.Fence, q.Attempt, q.MaxAttempts = int64(a.Fence), a.Attempt, a.MaxAttempts
	q.Created, q.RunAt, q.Redelivered = a.Accepted, a.RunAt, a.Redelivered
	q.Payload, q.Params, q.Trace = overhop.Raw(spec.Payload), spec.Params, spec.Trace
}

// failUnsendable ends a dispatch whose job does not fit into a frame. The
// outcome is final, because no other worker could receive the job either.
func (ds *deliveries) failUnsendable(d *dispatch, err error) {
	ds.mu.Lock()
	d.sub.credits++
	d.sub.changed()
	rep := ds.endLocked(d, job.Outcome{
		Status: job.Error, Final: true,
		Fault: &job.Fault{Type: job.FaultInvalid, Message: err.Error()},
	})
	ds.unlock(rep)
}

// stop is [Server.Stop].
func (ds *deliveries) stop(r job.Recall) {
	ds.mu.Lock()
	d := ds.dispatches[r.DispatchID()]
	if d == nil || d.state == ended || d.state == ackExpired || r.Outdated(d.moved) {
		ds.mu.Unlock()
		return
	}
	left := ds.recallLocked(d, r.Reason, time.Now())
	ds.mu.Unlock()
	ds.finishRecall(left)
}

// recall is what remains to be done without deliveries.mu after recallLocked.
type recall struct {
	worker      *worker // nil: it is not connected
	fields      overhop.Fields
	restoredSub *subscription // the subscription whose credit was restored
	credits     uint32
	reports     []report
}

// recallLocked recalls d and returns what the caller must pass to
// finishRecall once deliveries.mu is released.
func (ds *deliveries) recallLocked(d *dispatch, reason job.RecallReason, now time.Time) recall {
	grace := recallGrace
	started := d.state != reserved
	if !started || reason == job.RecallLease || reason == job.RecallSuperseded {
		grace = 0
	}
	r := recall{worker: d.worker, fields: overhop.Fields{
		"jid": jid(d.queue, d.Job), "tok": d.token[:], "reason": string(reason), "grace_ms": grace.Milliseconds(),
	}}
	if !started && !d.sub.closed && (reason == job.RecallCancelled || reason == job.RecallQueueGone || reason == job.RecallSuperseded) {
		d.sub.credits++
		d.sub.changed()
		r.restoredSub, r.credits = d.sub, d.sub.credits
	}
	switch {
	case reason == job.RecallSuperseded:
		ds.forgetLocked(d)
	case !started || reason == job.RecallLease:
		r.reports = append(r.reports, ds.endLocked(d, recalledOutcome(d, reason)))
	case d.state != recalling: // the first reason is kept
		d.state, d.recallReason, d.due = recalling, reason, now.Add(grace)
		ds.timers.set(d)
	}
	return r
}

// receivedRecall reports whether the worker of a recalled dispatch is connected
// and its host has acknowledged everything that was written, the recall
// included.
func (d *dispatch) receivedRecall() bool {
	w := d.worker
	return w != nil && !w.closed && w.conn.out.written() && receivedAll(w.conn.socket())
}

// finishRecall sends a recall to the worker and reports the outcomes to the
// agent. deliveries.mu must not be held.
func (ds *deliveries) finishRecall(r recall) {
	if w := r.worker; w != nil {
		w.conn.pushFields(overhop.TRecall, r.fields)
		if r.restoredSub != nil {
			w.pushCredits(r.restoredSub.sid, r.credits, overhop.CreditsRestored)
		}
		w.closeIfDrained()
	}
	ds.reportOutcomes(r.reports...)
	ds.flushOffers()
}

// recalledOutcome returns the outcome of a dispatch that ended because of a
// recall.
func recalledOutcome(d *dispatch, reason job.RecallReason) job.Outcome {
	o := job.Outcome{Started: d.state != reserved}
	switch reason {
	case job.RecallCancelled, job.RecallQueueGone:
		o.Status, o.Fault = job.Cancelled, &job.Fault{Type: job.FaultCancelled, Message: "job was cancelled"}
	case job.RecallDeadline:
		o.Status, o.Fault = job.TimedOut, &job.Fault{Type: job.FaultTimeout, Message: timeoutMessage(d.timeout)}
	case job.RecallShutdown:
		o.Status = job.Interrupted
	default:
		return lostOutcome(d, "lease is over")
	}
	return o
}

// lostOutcome returns the outcome of a dispatch whose worker does not answer
// any more.
func lostOutcome(d *dispatch, message string) job.Outcome {
	return job.Outcome{
		Status: job.Lost, Started: d.state != reserved,
		Fault: &job.Fault{Type: job.FaultLost, Message: message},
	}
}

type token = [overhop.TokenLen]byte

// tokens creates and verifies lease tokens: the dispatch's number in eight
// bytes, then eight bytes of a MAC over job and number under the yard's secret.
// Any node can verify a token without storing it, and a guess succeeds with a
// probability of 2^-64.
type tokens struct {
	secret func() []byte // the yard's; empty until known

	found atomic.Bool
	mu    sync.Mutex
	macs  sync.Pool // of hash.Hash keyed by the secret; valid once found
}

// known reports whether the secret is known, so that tokens can be created.
func (t *tokens) known() bool {
	if t.found.Load() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	secret := t.secret()
	if len(secret) == 0 || t.found.Load() {
		return t.found.Load()
	}
	t.macs.New = func() any { return hmac.New(sha256.New, secret) }
	t.found.Store(true)
	return true
}

// mint returns the token of a dispatch. The secret must be known.
func (t *tokens) mint(r job.DispatchID) (tok token) {
	binary.BigEndian.PutUint64(tok[:8], uint64(r.N))
	mac := t.macs.Get().(hash.Hash)
	mac.Reset()
	mac.Write(r.Job[:])
	mac.Write(tok[:8])
	var sum [sha256.Size]byte
	copy(tok[8:], mac.Sum(sum[:0])[:8])
	t.macs.Put(mac)
	return tok
}

// verify returns the dispatch that the token b belongs to. ok is false if the
// token was not created with the yard's secret.
func (t *tokens) verify(id job.ID, b []byte) (r job.DispatchID, ok bool) {
	if len(b) != overhop.TokenLen || !t.known() {
		return job.DispatchID{}, false
	}
	n := binary.BigEndian.Uint64(b)
	if n == 0 || n > 1<<32-1 {
		return job.DispatchID{}, false
	}
	r = job.DispatchID{Job: id, N: uint32(n)}
	want := t.mint(r)
	return r, hmac.Equal(want[:], b)
}
