package edge

import (
	"cmp"
	"context"
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// This file handles what extends the lease of a job in a worker's hands: ACK,
// BEAT, PROGRESS and LOG.

// hold finds the dispatch that h proves a lease of, and makes c its worker. A
// dispatch of another node moves here. The caller gets it with Server.mu
// locked, unless there is an error.
func (c *conn) hold(ctx context.Context, h overhop.Held) (*dispatch, error) {
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
		if d, err = c.resume(ctx, r); err != nil {
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

// errNotAsked refuses to ask the yard for a dispatch of another node.
var errNotAsked = &job.UnavailableError{Reason: "the yard does not answer for now", RetryAfter: time.Second}

// resume takes a running dispatch over from another node, within the time of ctx
// and of a request, and unless the worker has hung up. On success Server.mu is
// locked.
func (c *conn) resume(ctx context.Context, r ref) (*dispatch, error) {
	s := c.s
	if ctx.Err() != nil || hungUpSocket(c.socket()) {
		return nil, errNotAsked
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.RequestTimeout)
	defer cancel()
	a, err := s.yard.Resume(ctx, r.id, r.n, c.wid)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, errNotAsked
	case err != nil:
		return nil, err
	case c.ctx.Err() != nil || hungUpSocket(c.socket()):
		return nil, errNotAsked // it is the yard's to find it another hand
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
	d := &dispatch{ref: r, token: s.tokens.of(r), queue: a.Queue, attempt: a.Attempt, timeout: a.Timeout, wid: c.wid, state: running, place: -1}
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
	d.grantLocked(earlier(time.Now().Add(lease), d.deadline))
	if due := d.lease; due.Before(d.due) {
		d.due = due
		s.timers.set(d)
	}
	return d.lease
}

func (c *conn) handleAck(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	h, err := overhop.ParseHeld(p)
	if err != nil {
		return nil, err
	}
	d, err := c.hold(ctx, h)
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

func (c *conn) handleBeat(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	b, err := overhop.ParseBeat(p)
	if err != nil {
		return nil, err
	}
	if len(b.Jobs) > 0 {
		return c.beatAll(ctx, b)
	}
	until, deadline, err := c.beat(ctx, b.Held, b.Extend)
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

func (c *conn) beat(ctx context.Context, h overhop.Held, asked time.Duration) (until, deadline time.Time, err error) {
	d, err := c.hold(ctx, h)
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	defer c.s.mu.Unlock()
	if d.state == reserved {
		return time.Time{}, time.Time{}, job.ErrNotActive
	}
	return c.s.extend(d, asked), d.deadline, nil
}

// beatAll answers for each job apart. Those of other nodes have the time of one
// request together, and after the first that the yard does not answer it is asked
// for no more: nothing else is read from the worker meanwhile.
func (c *conn) beatAll(ctx context.Context, b overhop.Beat) (overhop.Raw, error) {
	ctx, giveUp := context.WithTimeout(ctx, c.s.cfg.Limits.RequestTimeout)
	defer giveUp()
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
		until, _, err := c.beat(ctx, h, b.Extend)
		if err != nil {
			code, _, _ := refusal(err)
			if code == overhop.CodeUnavailable {
				giveUp()
			}
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

func (c *conn) handleProgress(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
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
	d, err := c.hold(ctx, g.Held)
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
	maxLevel = 32 // bytes
)

func (c *conn) handleLog(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	l, err := overhop.ParseLog(p)
	if err != nil {
		return nil, err
	}
	d, err := c.hold(ctx, l.Held)
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
	said := job.LogLine{Job: d.id, N: d.n, Attempt: d.attempt, Stream: job.LogWire, Worker: d.wid}
	c.s.mu.Unlock()
	for _, line := range l.Lines[:accepted] {
		text := clip(line.Text, maxLine)
		c.s.log.Info("job says", "job", d.id, "dispatch", d.n,
			slog.Group("line", "at", line.At, "level", line.Level, "text", text))
		said.At, said.Level = time.Now().UTC(), cmp.Or(strings.ToLower(clip(line.Level, maxLevel)), "info")
		if at, err := time.Parse(time.RFC3339, line.At); err == nil {
			said.At = at.UTC()
		}
		said.Text, said.Cut = strings.ToValidUTF8(text, "\uFFFD"), len(line.Text) > maxLine
		c.s.hands.Log(said)
	}
	return overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(nil, 1), "accepted"), int64(accepted)), nil
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
