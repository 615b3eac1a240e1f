package edge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
	"sync/atomic"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// Start gives a job to the worker the assignment names and takes one of its
// credits. It is false, and nothing has happened, if the worker is gone, has
// no credit left, or has too much to read. It is true for a dispatch that is
// here already. Hands.Offer may be called before it returns.
func (s *Server) Start(a job.Assignment, spec job.Spec) bool {
	s.mu.Lock()
	c := s.workers[a.Worker]
	s.mu.Unlock()
	if c == nil || !s.tokens.known() {
		return false
	}
	var d *dispatch
	known := false
	got, err := c.out.push(questLimit, func(b []byte) ([]byte, error) {
		// Inside the outbox's lock, so that no RECALL can overtake its QUEST.
		q := overhop.Quest{}
		if d, known = s.reserve(c, a, &q); d == nil {
			return b, nil
		}
		quest(&q, &a, &spec)
		return overhop.AppendQuest(b, &q, s.cfg.Wire.MaxEnvelope)
	})
	if got == sentFull {
		s.noteStuffed(c)
	}
	if err != nil {
		s.unsendable(d, err)
	}
	s.flushOffers()
	return d != nil || known
}

// reserve takes a credit and begins a dispatch; nil means that there is no
// room, or that it is known already. It fills in what of the QUEST depends on
// the moment.
func (s *Server) reserve(c *conn, a job.Assignment, q *overhop.Quest) (d *dispatch, known bool) {
	r := ref{a.Job, a.N}
	tok := s.tokens.of(r)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dispatches[r] != nil {
		return nil, true
	}
	sub := c.byQueue[a.Key]
	if sub == nil || s.room(sub) == 0 {
		return nil, false
	}
	sub.credits--
	s.offers.mark(sub)
	d = &dispatch{ref: r, token: tok, queue: a.Queue, attempt: a.Attempt, timeout: a.Timeout, worker: c, wid: c.wid, sub: sub, state: reserved, place: -1}
	d.grantLocked(now.Add(s.cfg.Delivery.Ack))
	d.due = d.lease
	if a.Timeout > 0 {
		d.deadline = now.Add(a.Timeout)
		d.due = earlier(d.due, d.deadline)
	}
	s.dispatches[r] = d
	if c.jobs == nil {
		c.jobs = make(map[*dispatch]struct{})
	}
	c.jobs[d] = struct{}{}
	s.timers.set(d)
	*q = overhop.Quest{
		SID: sub.sid, Credits: sub.credits, Token: tok, AckBy: d.due, LeaseUntil: now.Add(s.cfg.Delivery.Lease),
		Deadline: d.deadline, Lease: s.cfg.Delivery.Lease, Beat: s.cfg.Delivery.Beat,
	}
	return d, false
}

// quest fills in what the QUEST says of the job.
func quest(q *overhop.Quest, a *job.Assignment, spec *job.Spec) {
	q.JID, q.Queue, q.Function = jid(a.Queue, a.Job), a.Queue, a.Function
	q.Fence, q.Attempt, q.MaxAttempts = int64(a.Fence), a.Attempt, a.MaxAttempts
	q.Created, q.RunAt, q.Redelivered = a.Accepted, a.RunAt, a.Redelivered
	q.Payload, q.Params, q.Trace = overhop.Raw(spec.Payload), spec.Params, spec.Trace
}

// unsendable ends a dispatch whose job no frame can carry: no other worker
// could take it either.
func (s *Server) unsendable(d *dispatch, err error) {
	s.mu.Lock()
	d.sub.credits++
	s.offers.mark(d.sub)
	told := s.endLocked(d, job.Outcome{
		Status: job.Error, Final: true,
		Fault: &job.Fault{Type: job.FaultInvalid, Message: err.Error()},
	})
	s.mu.Unlock()
	s.tell(told)
}

// Stop recalls a dispatch. What was not acknowledged ends at once; what runs
// has a grace to end by itself, unless the node's own lease is over. A
// superseded dispatch has moved to another node or another number: it is let
// go here without an outcome, because its end is not ours to tell.
func (s *Server) Stop(id job.ID, n uint32, why job.RecallReason) {
	s.mu.Lock()
	d := s.dispatches[ref{id, n}]
	if d == nil || d.state == ended || d.state == tooLate {
		s.mu.Unlock()
		return
	}
	r := s.recallLocked(d, why, time.Now())
	s.mu.Unlock()
	s.follow(r)
}

// recall is what is left to do, outside Server.mu, once a dispatch is recalled.
type recall struct {
	worker   *conn // nil: nobody to tell
	fields   overhop.Fields
	restored *subscription // its credit was given back
	credits  uint32
	told     []report
}

func (s *Server) recallLocked(d *dispatch, why job.RecallReason, now time.Time) recall {
	grace := max(s.cfg.Delivery.RecallGrace, 0)
	began := d.state != reserved
	if !began || why == job.RecallLease || why == job.RecallSuperseded {
		grace = 0
	}
	r := recall{worker: d.worker, fields: overhop.Fields{
		"jid": jid(d.queue, d.id), "tok": d.token[:], "reason": string(why), "grace_ms": grace.Milliseconds(),
	}}
	if !began && !d.sub.ended && (why == job.RecallCancelled || why == job.RecallQueueGone || why == job.RecallSuperseded) {
		d.sub.credits++
		s.offers.mark(d.sub)
		r.restored, r.credits = d.sub, d.sub.credits
	}
	switch {
	case why == job.RecallSuperseded:
		s.forgetLocked(d)
	case grace == 0:
		r.told = append(r.told, s.endLocked(d, recalled(d, why)))
	case d.state != recalling: // the first reason stays
		d.state, d.why, d.due = recalling, why, now.Add(grace)
		s.timers.set(d)
	}
	return r
}

// follow tells worker and agent of a recall.
func (s *Server) follow(r recall) {
	if r.worker != nil {
		r.worker.pushFields(overhop.TRecall, r.fields)
		if r.restored != nil {
			r.worker.pushCredits(r.restored.sid, r.credits, overhop.CreditsRestored)
		}
		s.partIfDone(r.worker)
	}
	s.tell(r.told...)
	s.flushOffers()
}

// recalled is the outcome of a dispatch that ended because of a recall.
func recalled(d *dispatch, why job.RecallReason) job.Outcome {
	o := job.Outcome{Started: d.state != reserved}
	switch why {
	case job.RecallCancelled, job.RecallQueueGone:
		o.Status, o.Fault = job.Cancelled, &job.Fault{Type: job.FaultCancelled, Message: "job was cancelled"}
	case job.RecallDeadline:
		o.Status, o.Fault = job.TimedOut, &job.Fault{Type: job.FaultTimeout, Message: timedOut(d.timeout)}
	case job.RecallShutdown:
		o.Status = job.Interrupted
	default:
		return lost(d, "lease is over")
	}
	return o
}

// lost is the outcome of a dispatch whose worker is not heard of any more.
func lost(d *dispatch, message string) job.Outcome {
	return job.Outcome{
		Status: job.Lost, Started: d.state != reserved,
		Fault: &job.Fault{Type: job.FaultLost, Message: message},
	}
}

// ref names a dispatch.
type ref struct {
	id job.ID
	n  uint32
}

type token = [overhop.TokenLen]byte

// tokens makes and checks lease tokens: the dispatch's number in eight bytes,
// then eight bytes of a MAC over job and number under the yard's secret. Any
// node can check one, nobody has to keep it, and a guess succeeds once in 2^64.
type tokens struct {
	secret func() []byte // the yard's; empty until known

	found atomic.Bool
	find  sync.Mutex
	macs  sync.Pool // of hash.Hash keyed by the secret; valid once found
}

// known tells whether tokens can be made yet.
func (t *tokens) known() bool {
	if t.found.Load() {
		return true
	}
	t.find.Lock()
	defer t.find.Unlock()
	secret := t.secret()
	if len(secret) == 0 || t.found.Load() {
		return t.found.Load()
	}
	t.macs.New = func() any { return hmac.New(sha256.New, secret) }
	t.found.Store(true)
	return true
}

// of makes a dispatch's token; tokens must be known.
func (t *tokens) of(r ref) (tok token) {
	binary.BigEndian.PutUint64(tok[:8], uint64(r.n))
	mac := t.macs.Get().(hash.Hash)
	mac.Reset()
	mac.Write(r.id[:])
	mac.Write(tok[:8])
	var sum [sha256.Size]byte
	copy(tok[8:], mac.Sum(sum[:0])[:8])
	t.macs.Put(mac)
	return tok
}

// check reads whose token b is; ok is false for a forged or foreign one.
func (t *tokens) check(id job.ID, b []byte) (r ref, ok bool) {
	if len(b) != overhop.TokenLen || !t.known() {
		return ref{}, false
	}
	n := binary.BigEndian.Uint64(b)
	if n == 0 || n > 1<<32-1 {
		return ref{}, false
	}
	r = ref{id, uint32(n)}
	want := t.of(r)
	return r, hmac.Equal(want[:], b)
}
