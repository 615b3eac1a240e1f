package edge

import (
	"context"
	"crypto/hmac"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// This file handles what workers say about the jobs in their hands: ACK, NACK,
// BEAT, PROGRESS, LOG, DONE, FAIL and GOODBYE.

// hold finds the dispatch that h proves a lease of, and makes c its worker. A
// dispatch of another node moves here. The caller gets it with Server.mu
// locked, unless there is an error.
func (c *conn) hold(h overhop.Held) (*dispatch, error) {
	r, err := c.claim(h)
	if err != nil {
		return nil, err
	}
	s := c.s
	s.mu.Lock()
	s.alive(c)
	d := s.dispatches[r]
	if d == nil {
		s.mu.Unlock()
		if d, err = c.resume(r); err != nil {
			return nil, err
		}
	}
	switch d.state {
	case tooLate:
		s.mu.Unlock()
		return nil, &codeError{overhop.CodeAckTimeout, "the QUEST was not acknowledged in time; the job went elsewhere"}
	case ended:
		s.mu.Unlock()
		return nil, job.ErrNotActive
	}
	s.attachLocked(d, c)
	return d, nil
}

// claim checks a token against the job it is said to belong to.
func (c *conn) claim(h overhop.Held) (ref, error) {
	queue, id, err := parseJID(h.JID)
	if err != nil {
		return ref{}, err
	}
	s := c.s
	if !s.tokens.known() {
		return ref{}, &job.UnavailableError{Reason: "the node does not know the yard's key yet", RetryAfter: time.Second}
	}
	// The token of a dispatch at hand is compared, not computed.
	if len(h.Token) == overhop.TokenLen {
		r := tokenRef(id, h.Token)
		s.mu.Lock()
		d := s.dispatches[r]
		s.mu.Unlock()
		if d != nil && d.queue == string(queue) && hmac.Equal(d.token[:], h.Token) {
			return r, nil
		}
	}
	r, ok := s.tokens.check(id, h.Token)
	if !ok {
		return ref{}, job.ErrLeaseLost
	}
	return r, nil
}

// resume takes a running dispatch over from another node. On success
// Server.mu is locked.
func (c *conn) resume(r ref) (*dispatch, error) {
	s := c.s
	ctx, cancel := context.WithTimeout(c.ctx, s.cfg.Limits.RequestTimeout)
	defer cancel()
	a, err := s.yard.Resume(ctx, r.id, r.n, c.wid)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	s.mu.Lock()
	if d := s.dispatches[r]; d != nil {
		return d, nil // another connection was faster
	}
	if !s.hands.Adopt(a) {
		s.mu.Unlock()
		return nil, &job.UnavailableError{Reason: "the node may not run jobs at present", RetryAfter: time.Second}
	}
	d := &dispatch{ref: r, token: s.tokens.of(r), queue: a.Queue, timeout: a.Timeout, wid: c.wid, state: running, place: -1}
	d.lease = now.Add(s.cfg.Delivery.Lease)
	if a.Timeout > 0 {
		d.deadline = now.Add(a.Timeout)
		if !a.Started.IsZero() { // by the authority's clock, which may be ahead
			d.deadline = now.Add(a.Timeout - max(now.Sub(a.Started), 0))
		}
	}
	d.due = earlier(d.lease, d.deadline)
	s.dispatches[r] = d
	s.timers.set(d)
	s.log.Info("worker resumed a job here", "job", r.id, "dispatch", r.n, "worker", c.wid)
	return d, nil
}

// extend renews a lease by the server's measure, or less if the worker asks
// for less; Server.mu is held. A recalled dispatch keeps its grace.
func (s *Server) extend(d *dispatch, asked time.Duration) time.Time {
	lease := s.cfg.Delivery.Lease
	if asked > 0 {
		lease = min(lease, asked)
	}
	if d.state == recalling {
		return d.due
	}
	d.lease = earlier(time.Now().Add(lease), d.deadline)
	if due := earlier(d.lease, d.deadline); due.Before(d.due) {
		d.due = due
		s.timers.set(d)
	}
	return d.lease
}

func (c *conn) handleAck(_ context.Context, p overhop.Raw) (overhop.Raw, error) {
	h, err := overhop.ParseHeld(p)
	if err != nil {
		return nil, err
	}
	d, err := c.hold(h)
	if err != nil {
		return nil, err
	}
	if d.state == reserved {
		d.state = running
	}
	until := c.s.extend(d, 0)
	c.s.mu.Unlock()
	return c.timeField("lease_until", until), nil
}

func (c *conn) handleNack(_ context.Context, p overhop.Raw) (overhop.Raw, error) {
	n, err := overhop.ParseNack(p)
	if err != nil {
		return nil, err
	}
	d, err := c.hold(n.Held)
	if err != nil {
		return nil, err
	}
	s := c.s
	if d.state != reserved {
		s.mu.Unlock()
		return nil, job.ErrNotActive
	}
	c.creditQueueLocked(d.queue, n.Credits)
	o := job.Outcome{Status: job.Declined, RetryAfter: &n.Delay}
	if n.Reason != "" {
		o.Fault = &job.Fault{Message: clip(n.Reason, job.MaxInlineFault/2)}
	}
	told := s.endLocked(d, o)
	s.mu.Unlock()
	s.tell(told)
	s.flushOffers()
	return nil, nil
}

// creditQueueLocked grants the credits that came with the end of a dispatch to
// the connection's subscription for its queue: the QUEST's own, unless the
// worker came back over another connection.
func (c *conn) creditQueueLocked(queue string, credits uint32) {
	if sub := c.byQueue[queue]; sub != nil && credits > 0 {
		c.s.give(sub, credits)
	}
}

func (c *conn) handleBeat(_ context.Context, p overhop.Raw) (overhop.Raw, error) {
	b, err := overhop.ParseBeat(p)
	if err != nil {
		return nil, err
	}
	if len(b.Jobs) > 0 {
		return c.beatAll(b)
	}
	until, deadline, err := c.beat(b.Held, b.Extend)
	if err != nil {
		return nil, err
	}
	out := overhop.AppendStr(overhop.AppendMap(c.scratch[:0], 2), "deadline")
	if deadline.IsZero() {
		out = overhop.AppendNil(out)
	} else {
		out = overhop.AppendTime(out, deadline)
	}
	c.scratch = overhop.AppendTime(overhop.AppendStr(out, "lease_until"), until)
	return c.scratch, nil
}

// tokenRef is the dispatch that a token says it is of.
func tokenRef(id job.ID, token []byte) ref { return ref{id, binary.BigEndian.Uint32(token[4:])} }

func (c *conn) beat(h overhop.Held, asked time.Duration) (until, deadline time.Time, err error) {
	d, err := c.hold(h)
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	defer c.s.mu.Unlock()
	if d.state == reserved {
		return time.Time{}, time.Time{}, job.ErrNotActive
	}
	return c.s.extend(d, asked), d.deadline, nil
}

// beatAll answers for each job apart.
func (c *conn) beatAll(b overhop.Beat) (overhop.Raw, error) {
	out := overhop.AppendStr(overhop.AppendMap(nil, 1), "jobs")
	out = overhop.AppendArray(out, b.Jobs.Len())
	for item := range b.Jobs.Items() {
		if limit := c.s.cfg.Wire.MaxEnvelope; len(out) > limit { // the answer can be many times the question
			return nil, &detailedError{&codeError{overhop.CodeResponseTooLarge, "too many jobs for one BEAT"}, overhop.Fields{"limit": limit}}
		}
		h, err := overhop.ParseHeld(item)
		if err != nil {
			return nil, err
		}
		until, _, err := c.beat(h, b.Extend)
		if err != nil {
			code, _, _ := refusal(err)
			out = overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(out, 3), "code"), code)
			out = overhop.AppendStr(overhop.AppendStr(out, "jid"), h.JID)
			out = overhop.AppendBool(overhop.AppendStr(out, "ok"), false)
			continue
		}
		out = overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(out, 3), "jid"), h.JID)
		out = overhop.AppendTime(overhop.AppendStr(out, "lease_until"), until)
		out = overhop.AppendBool(overhop.AppendStr(out, "ok"), true)
	}
	return out, nil
}

// maxProgress is the most data of a PROGRESS that is kept, in bytes.
const maxProgress = 4 << 10

func (c *conn) handleProgress(_ context.Context, p overhop.Raw) (overhop.Raw, error) {
	g, err := overhop.ParseProgress(p)
	if err != nil {
		return nil, err
	}
	if len(g.Data) > maxProgress {
		return nil, &detailedError{&codeError{overhop.CodeResultTooLarge, "progress data is larger than 4096 bytes"}, overhop.Fields{"limit": maxProgress}}
	}
	kept := overhop.Fields{}
	if g.Percent != nil {
		kept["percent"] = *g.Percent
	}
	if !g.Data.IsNil() {
		kept["data"] = g.Data
	}
	d, err := c.hold(g.Held)
	if err != nil {
		return nil, err
	}
	defer c.s.mu.Unlock()
	if d.state == reserved {
		return nil, job.ErrNotActive
	}
	d.progress = overhop.AppendValue(nil, kept)
	c.s.extend(d, 0)
	return nil, nil
}

// maxLines is the most lines of one dispatch's log that are taken, each of at
// most maxLine bytes.
const (
	maxLines = 1000
	maxLine  = 2 << 10
)

func (c *conn) handleLog(_ context.Context, p overhop.Raw) (overhop.Raw, error) {
	l, err := overhop.ParseLog(p)
	if err != nil {
		return nil, err
	}
	d, err := c.hold(l.Held)
	if err != nil {
		return nil, err
	}
	if d.state == reserved {
		c.s.mu.Unlock()
		return nil, job.ErrNotActive
	}
	c.s.extend(d, 0)
	accepted := min(len(l.Lines), maxLines-d.lines)
	d.lines += accepted
	c.s.mu.Unlock()
	for _, line := range l.Lines[:accepted] {
		c.s.log.Info("job says", "job", d.id, "dispatch", d.n,
			slog.Group("line", "at", line.At, "level", line.Level, "text", clip(line.Text, maxLine)))
	}
	return overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(nil, 1), "accepted"), int64(accepted)), nil
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
		o := job.Outcome{Status: job.Error, Started: true, Fault: fault, Final: !m.Retry, RetryAfter: m.RetryAfter}
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
				told = append(told, s.endLocked(d, lost(d, "worker said goodbye")))
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

func (c *conn) timeField(key string, t time.Time) overhop.Raw {
	c.scratch = overhop.AppendTime(overhop.AppendStr(overhop.AppendMap(c.scratch[:0], 1), key), t)
	return c.scratch
}

// clip keeps the first bytes of a text, whole characters only.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}
