package edge

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// startNack returns a dispatch that was not acknowledged. The answer is written
// when this is committed.
func (c *conn) startNack(e overhop.Envelope) error {
	n, err := overhop.ParseNack(e.P)
	if err != nil {
		return err
	}
	d, err := c.lockDispatch(c.ctx, n.LeaseRef)
	s := c.s
	if err == nil && d.state != reserved {
		s.mu.Unlock()
		err = job.ErrNotActive
	}
	if err != nil {
		c.answerErr(e, err)
		return nil
	}
	slot := c.out.reserve()
	d.waiters = append(d.waiters, func(settled job.Settled, err error) {
		if err == nil && settled.Stale {
			err = job.ErrLeaseLost
		}
		c.cluster.ObserveIndex(settled.Index)
		c.out.fill(slot, func(b []byte) []byte {
			if err != nil {
				return appendError(b, e.RID, err)
			}
			return overhop.AppendOK(b, e.RID, overhop.EmptyMap)
		})
		s.mu.Lock() // only now, so that the job is not sent again before the answer
		c.addCreditsLocked(d.queue, n.Credits)
		s.mu.Unlock()
		s.flushOffers()
	})
	o := job.Outcome{Status: job.Declined, RetryAfter: &n.Delay}
	if n.Reason != "" {
		o.Fault = &job.Fault{Message: truncate(n.Reason, job.MaxInlineFault/2)}
	}
	rep := s.endLocked(d, o)
	s.mu.Unlock()
	s.reportOutcomes(rep)
	s.flushOffers()
	return nil
}

// addCreditsLocked adds the credits that came with the end of a dispatch to the
// connection's subscription to its queue: the QUEST's own, unless the worker
// has reconnected.
func (c *conn) addCreditsLocked(queue string, credits uint32) {
	if sub := c.byQueue[queue]; sub != nil && credits > 0 {
		c.s.addCredits(sub, credits)
	}
}

func (c *conn) startDone(e overhop.Envelope) error {
	m, err := overhop.ParseDone(e.P)
	if err != nil {
		return err
	}
	o := job.Outcome{Status: job.Success, Started: true, Result: jobValue(m.Result)}
	c.settleDispatch(e.RID, m.LeaseRef, m.Credits, func(*dispatch) job.Outcome { return o })
	return nil
}

func (c *conn) startFail(e overhop.Envelope) error {
	m, err := overhop.ParseFail(e.P)
	if err != nil {
		return err
	}
	fault := &job.Fault{Message: m.Message, Type: m.Type, Code: m.Code}
	if len(m.Details) > 0 {
		fault.Details = lossyJSON(m.Details)
	}
	c.settleDispatch(e.RID, m.LeaseRef, m.Credits, func(d *dispatch) job.Outcome {
		o := job.Outcome{Status: job.Error, Started: true, Fault: fault, Final: !m.Retry || fault.Type == job.FaultInvalid, RetryAfter: m.RetryAfter}
		if d != nil && d.state == recalling && (d.recallReason != job.RecallShutdown || m.Type == job.FaultCancelled) {
			// The worker stopped because it was asked to.
			o = recalledOutcome(d, d.recallReason)
			o.Fault = fault
		}
		return o
	})
	return nil
}

// lossyJSON returns r as JSON, with replacements for what JSON cannot
// represent.
func lossyJSON(r overhop.Raw) json.RawMessage {
	defer acquireConversion(r)()
	return overhop.AppendLossyJSON(nil, r)
}

// settleDispatch ends a dispatch and answers when the outcome is committed. A
// worker may report an end twice, or to a node that never had the dispatch: the
// authority decides which report is the first.
func (c *conn) settleDispatch(rid string, h overhop.LeaseRef, credits uint32, outcome func(*dispatch) job.Outcome) {
	s := c.s
	slot, release := c.out.reserve(), c.detachFrame()
	answer := func(settled job.Settled, err error) {
		release()
		c.cluster.ObserveIndex(settled.Index)
		c.out.fill(slot, func(b []byte) []byte { return appendSettled(b, rid, settled, err) })
	}
	r, err := c.checkToken(h)
	queue, _, _ := parseJID(h.JID)
	s.mu.Lock()
	c.addCreditsLocked(string(queue), credits)
	if err != nil {
		s.mu.Unlock()
		s.flushOffers()
		answer(job.Settled{}, err)
		return
	}
	s.noteAlive(c)
	d := s.dispatches[r]
	var reports []report
	switch {
	case d == nil:
		d = &dispatch{DispatchID: r, queue: string(queue), heapIndex: -1, waiters: []waiter{answer}}
		d.token = s.tokens.mint(r)
		s.dispatches[r] = d
		reports = append(reports, s.endLocked(d, outcome(nil)))
	case d.state == ended:
		d.waiters = append(d.waiters, answer)
		d.due = time.Now().Add(s.cfg.Delivery.settleWait())
		s.timers.set(d)
	case d.state == ackExpired:
		s.mu.Unlock()
		s.flushOffers()
		answer(job.Settled{}, &codeError{overhop.CodeAckTimeout, "the QUEST was not acknowledged in time; the job went elsewhere"})
		return
	default:
		s.attachLocked(d, c)
		d.waiters = append(d.waiters, answer)
		reports = append(reports, s.endLocked(d, outcome(d)))
	}
	s.mu.Unlock()
	s.reportOutcomes(reports...)
	s.flushOffers()
}

// appendSettled appends the answer to a DONE or a FAIL.
func appendSettled(b []byte, rid string, settled job.Settled, err error) []byte {
	if err == nil && settled.Stale {
		err = job.ErrLeaseLost
	}
	if err != nil {
		return appendError(b, rid, err)
	}
	b, mark := overhop.Begin(b)
	retried := settled.State == job.Delayed && !settled.RunAt.IsZero()
	b = overhop.AppendMap(b, 1+countIf(settled.Duplicate)+countIf(retried))
	if settled.Duplicate {
		b = overhop.AppendBool(overhop.AppendStr(b, "dup"), true)
	}
	if retried {
		b = overhop.AppendTime(overhop.AppendStr(b, "next_run_at"), settled.RunAt)
	}
	b = overhop.AppendStr(overhop.AppendStr(b, "status"), settled.State.String())
	b, _ = overhop.End(b, mark, overhop.TOK, rid)
	return b
}

func countIf(cond bool) int {
	if cond {
		return 1
	}
	return 0
}

// jobValue stores a result as JSON if JSON represents it exactly, else as
// MessagePack.
func jobValue(r overhop.Raw) job.Value {
	if r.IsNil() {
		return job.Value{}
	}
	defer acquireConversion(r)()
	text, err := overhop.AppendJSON(nil, r)
	if errors.Is(err, overhop.ErrBinary) {
		return job.Value{Msgpack: true, Data: append([]byte(nil), r...)}
	}
	return job.Value{Data: text}
}

func (c *conn) handleGoodbye(_ context.Context, g overhop.Goodbye) (overhop.Raw, error) {
	s := c.s
	s.mu.Lock()
	c.draining = true
	c.closeAfterReply = !g.Drain
	for _, sub := range c.subs {
		s.offers.markDirty(sub)
	}
	inflight := len(c.jobs)
	var reports []report
	if !g.Drain {
		for d := range c.jobs {
			if d.state != ended && d.state != ackExpired {
				reports = append(reports, s.endLocked(d, job.Outcome{
					Status: job.Interrupted, Started: d.state != reserved, Fault: &job.Fault{Message: "worker said goodbye"},
				}))
			}
		}
	}
	s.mu.Unlock()
	s.flushOffers()
	s.reportOutcomes(reports...)
	return overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(nil, 1), "inflight"), int64(inflight)), nil
}

// closeIfDrained closes the connection of a worker that is draining and has no
// jobs left.
func (s *Server) closeIfDrained(c *conn) {
	s.mu.Lock()
	done := c.draining && !c.closed && len(c.jobs) == 0
	s.mu.Unlock()
	if done {
		c.bye("GOODBYE", "no jobs left")
	}
}
