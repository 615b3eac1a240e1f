package edge

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// This file handles what ends a dispatch: NACK, DONE, FAIL and GOODBYE.

func (c *conn) startNack(e overhop.Envelope) error {
	n, err := overhop.ParseNack(e.P)
	if err != nil {
		return err
	}
	d, err := c.hold(c.ctx, n.Held)
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
		c.yard.Saw(settled.Index)
		c.out.fill(slot, func(b []byte) []byte {
			if err != nil {
				code, message, details := refusal(err)
				return overhop.AppendErr(b, e.RID, code, message, details)
			}
			return overhop.AppendOK(b, e.RID, overhop.EmptyMap)
		})
		s.mu.Lock() // only now, so that the job does not come again before the answer
		c.creditQueueLocked(d.queue, n.Credits)
		s.mu.Unlock()
		s.flushOffers()
	})
	o := job.Outcome{Status: job.Declined, RetryAfter: &n.Delay}
	if n.Reason != "" {
		o.Fault = &job.Fault{Message: clip(n.Reason, job.MaxInlineFault/2)}
	}
	told := s.endLocked(d, o)
	s.mu.Unlock()
	s.tell(told)
	s.flushOffers()
	return nil
}

// creditQueueLocked grants the credits that came with the end of a dispatch to
// the connection's subscription for its queue: the QUEST's own, unless the
// worker came back over another connection.
func (c *conn) creditQueueLocked(queue string, credits uint32) {
	if sub := c.byQueue[queue]; sub != nil && credits > 0 {
		c.s.give(sub, credits)
	}
}

func (c *conn) startDone(e overhop.Envelope) error {
	m, err := overhop.ParseDone(e.P)
	if err != nil {
		return err
	}
	o := job.Outcome{Status: job.Success, Started: true, Result: value(m.Result)}
	c.end(e.RID, m.Held, m.Credits, func(*dispatch) job.Outcome { return o })
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
	c.end(e.RID, m.Held, m.Credits, func(d *dispatch) job.Outcome {
		o := job.Outcome{Status: job.Error, Started: true, Fault: fault, Final: !m.Retry || fault.Type == job.FaultInvalid, RetryAfter: m.RetryAfter}
		if d != nil && d.state == recalling && (d.why != job.RecallShutdown || m.Type == job.FaultCancelled) {
			// The worker stopped because we asked it to.
			o = recalled(d, d.why)
			o.Fault = fault
		}
		return o
	})
	return nil
}

func lossyJSON(r overhop.Raw) json.RawMessage {
	defer takeTurn(r)()
	return overhop.AppendLossyJSON(nil, r)
}

// end takes the end of a dispatch and answers when it is committed. A worker
// may tell an end twice, or to a node that never had the dispatch: the yard
// knows whether it is the first.
func (c *conn) end(rid string, h overhop.Held, credits uint32, outcome func(*dispatch) job.Outcome) {
	s := c.s
	slot, drop := c.out.reserve(), c.carry()
	answer := func(settled job.Settled, err error) {
		drop()
		c.yard.Saw(settled.Index)
		c.out.fill(slot, func(b []byte) []byte { return appendSettled(b, rid, settled, err) })
	}
	r, err := c.claim(h)
	queue, _, _ := parseJID(h.JID)
	s.mu.Lock()
	c.creditQueueLocked(string(queue), credits)
	if err != nil {
		s.mu.Unlock()
		s.flushOffers()
		answer(job.Settled{}, err)
		return
	}
	s.alive(c)
	d := s.dispatches[r]
	var told []report
	switch {
	case d == nil:
		d = &dispatch{ref: r, queue: string(queue), place: -1, waiters: []waiter{answer}}
		d.token = s.tokens.of(r)
		s.dispatches[r] = d
		told = append(told, s.endLocked(d, outcome(nil)))
	case d.state == ended:
		d.waiters = append(d.waiters, answer)
		d.due = time.Now().Add(s.cfg.Delivery.SettleWait)
		s.timers.set(d)
	case d.state == tooLate:
		s.mu.Unlock()
		s.flushOffers()
		answer(job.Settled{}, &codeError{overhop.CodeAckTimeout, "the QUEST was not acknowledged in time; the job went elsewhere"})
		return
	default:
		s.attachLocked(d, c)
		d.waiters = append(d.waiters, answer)
		told = append(told, s.endLocked(d, outcome(d)))
	}
	s.mu.Unlock()
	s.tell(told...)
	s.flushOffers()
}

// appendSettled answers a DONE or a FAIL.
func appendSettled(b []byte, rid string, settled job.Settled, err error) []byte {
	if err == nil && settled.Stale {
		err = job.ErrLeaseLost
	}
	if err != nil {
		code, message, details := refusal(err)
		return overhop.AppendErr(b, rid, code, message, details)
	}
	b, mark := overhop.Begin(b)
	again := settled.State == job.Delayed && !settled.RunAt.IsZero()
	b = overhop.AppendMap(b, 1+count(settled.Dup)+count(again))
	if settled.Dup {
		b = overhop.AppendBool(overhop.AppendStr(b, "dup"), true)
	}
	if again {
		b = overhop.AppendTime(overhop.AppendStr(b, "next_run_at"), settled.RunAt)
	}
	b = overhop.AppendStr(overhop.AppendStr(b, "status"), settled.State.String())
	b, _ = overhop.End(b, mark, overhop.TOK, rid)
	return b
}

func count(fact bool) int {
	if fact {
		return 1
	}
	return 0
}

// value keeps a result as JSON if JSON carries it exactly.
func value(r overhop.Raw) job.Value {
	if r.IsNil() {
		return job.Value{}
	}
	defer takeTurn(r)()
	text, err := overhop.AppendJSON(nil, r)
	if errors.Is(err, overhop.ErrBinary) {
		return job.Value{Msgpack: true, Data: append([]byte(nil), r...)}
	}
	return job.Value{Data: text}
}

func (c *conn) handleGoodbye(_ context.Context, p overhop.Raw) (overhop.Raw, error) {
	g, err := overhop.ParseGoodbye(p)
	if err != nil {
		return nil, err
	}
	s := c.s
	s.mu.Lock()
	c.leaving = true
	c.parting = !g.Drain
	for _, sub := range c.subs {
		s.offers.mark(sub)
	}
	inflight := len(c.jobs)
	var told []report
	if !g.Drain {
		for d := range c.jobs {
			if d.state != ended && d.state != tooLate {
				told = append(told, s.endLocked(d, job.Outcome{
					Status: job.Interrupted, Started: d.state != reserved, Fault: &job.Fault{Message: "worker said goodbye"},
				}))
			}
		}
	}
	s.mu.Unlock()
	s.flushOffers()
	s.tell(told...)
	return overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(nil, 1), "inflight"), int64(inflight)), nil
}

// partIfDone closes the connection of a worker that is leaving and has nothing
// in hand any more.
func (s *Server) partIfDone(c *conn) {
	s.mu.Lock()
	part := c.leaving && !c.gone && len(c.jobs) == 0
	s.mu.Unlock()
	if part {
		c.bye("GOODBYE", "nothing left in hand")
	}
}
