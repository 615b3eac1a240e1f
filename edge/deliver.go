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

// Start sends a job to the worker that the assignment names and takes one of
// its credits. It returns false, without effect, if the worker is not
// connected, has no credit left, or has too much unread output. It returns true
// for a dispatch that is already here. Executor.Offer may be called before it
// returns.
func (s *Server) Start(a job.Assignment, spec job.Spec) bool {
	s.mu.Lock()
	c := s.workers[a.Worker]
	s.mu.Unlock()
	if c == nil || !s.tokens.known() {
		return false
	}
	var d *dispatch
	known := false
	result, err := c.out.push(questLimit, func(b []byte) ([]byte, error) {
		// Within the outbox's lock, so that no RECALL can precede its QUEST.
		q := overhop.Quest{}
		if d, known = s.reserve(c, a, &q); d == nil {
			return b, nil
		}
		fillQuest(&q, &a, &spec)
		return overhop.AppendQuest(b, &q, s.cfg.Wire.MaxEnvelope)
	})
	if result == pushFull {
		s.congestionChanged(c)
	}
	if err != nil {
		s.failUnsendable(d, err)
	}
	s.flushOffers()
	return d != nil || known
}

// reserve takes a credit and creates a dispatch. d is nil if the worker has no
// capacity, or if the dispatch exists, which known reports. reserve sets the
// fields of q that depend on the time and the subscription.
func (s *Server) reserve(c *conn, a job.Assignment, q *overhop.Quest) (d *dispatch, known bool) {
	r := a.DispatchID()
	tok := s.tokens.mint(r)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dispatches[r] != nil {
		return nil, true
	}
	sub := c.byQueue[a.Key]
	if sub == nil || s.available(sub) == 0 {
		return nil, false
	}
	sub.credits--
	s.offers.markDirty(sub)
	d = &dispatch{DispatchID: r, token: tok, queue: a.Queue, attempt: a.Attempt, timeout: a.Timeout, conn: c, wid: c.wid, sub: sub, state: reserved, heapIndex: -1}
	if a.Timeout > 0 {
		d.deadline = now.Add(a.Timeout)
	}
	until := s.leaseLocked(d, now, s.cfg.Delivery.Lease)
	d.setReplyByLocked(now.Add(s.cfg.Delivery.Ack))
	d.due = earlier(d.replyBy, d.deadline)
	s.dispatches[r] = d
	if c.jobs == nil {
		c.jobs = make(map[*dispatch]struct{})
	}
	c.jobs[d] = struct{}{}
	s.timers.set(d)
	*q = overhop.Quest{
		SID: sub.sid, Credits: sub.credits, Token: tok, AckBy: d.due, LeaseUntil: until, Deadline: d.deadline,
		Lease: max(until.Sub(now), time.Millisecond), Beat: s.cfg.Delivery.Beat,
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
func (s *Server) failUnsendable(d *dispatch, err error) {
	s.mu.Lock()
	d.sub.credits++
	s.offers.markDirty(d.sub)
	rep := s.endLocked(d, job.Outcome{
		Status: job.Error, Final: true,
		Fault: &job.Fault{Type: job.FaultInvalid, Message: err.Error()},
	})
	s.mu.Unlock()
	s.reportOutcomes(rep)
}

// Stop recalls a dispatch. One that was not acknowledged ends at once. A
// running one ends when its worker reports the end or the grace is over, which
// revokes the lease; if the worker has not received the recall, the dispatch
// ends only with its lease, because the job may still be running. A superseded
// dispatch has moved to another node, which reports its outcome: it is removed
// here without one, unless a later move has brought it back.
func (s *Server) Stop(r job.Recall) {
	s.mu.Lock()
	d := s.dispatches[r.DispatchID()]
	if d == nil || d.state == ended || d.state == ackExpired || r.Outdated(d.moved) {
		s.mu.Unlock()
		return
	}
	left := s.recallLocked(d, r.Reason, time.Now())
	s.mu.Unlock()
	s.finishRecall(left)
}

// recall is what remains to be done without Server.mu after recallLocked.
type recall struct {
	conn        *conn // nil: the worker is not connected
	fields      overhop.Fields
	restoredSub *subscription // the subscription whose credit was restored
	credits     uint32
	reports     []report
}

// recallLocked recalls d and returns what the caller must pass to
// finishRecall once Server.mu is released.
func (s *Server) recallLocked(d *dispatch, reason job.RecallReason, now time.Time) recall {
	grace := recallGrace
	started := d.state != reserved
	if !started || reason == job.RecallLease || reason == job.RecallSuperseded {
		grace = 0
	}
	r := recall{conn: d.conn, fields: overhop.Fields{
		"jid": jid(d.queue, d.Job), "tok": d.token[:], "reason": string(reason), "grace_ms": grace.Milliseconds(),
	}}
	if !started && !d.sub.closed && (reason == job.RecallCancelled || reason == job.RecallQueueGone || reason == job.RecallSuperseded) {
		d.sub.credits++
		s.offers.markDirty(d.sub)
		r.restoredSub, r.credits = d.sub, d.sub.credits
	}
	switch {
	case reason == job.RecallSuperseded:
		s.forgetLocked(d)
	case !started || reason == job.RecallLease:
		r.reports = append(r.reports, s.endLocked(d, recalledOutcome(d, reason)))
	case d.state != recalling: // the first reason is kept
		d.state, d.recallReason, d.due = recalling, reason, now.Add(grace)
		s.timers.set(d)
	}
	return r
}

// receivedRecall reports whether the worker of a recalled dispatch is connected
// and its host has acknowledged everything that was written, the recall
// included.
func (d *dispatch) receivedRecall() bool {
	c := d.conn
	return c != nil && !c.closed && c.out.written() && receivedAll(c.socket())
}

// finishRecall sends a recall to the worker and reports the outcomes to the
// agent. Server.mu must not be held.
func (s *Server) finishRecall(r recall) {
	if r.conn != nil {
		r.conn.pushFields(overhop.TRecall, r.fields)
		if r.restoredSub != nil {
			r.conn.pushCredits(r.restoredSub.sid, r.credits, overhop.CreditsRestored)
		}
		s.closeIfDrained(r.conn)
	}
	s.reportOutcomes(r.reports...)
	s.flushOffers()
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
