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

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// lockDispatch returns the dispatch whose lease h proves, and makes c the
// connection of its worker. A dispatch of another node is moved to this one.
// Without an error lockDispatch returns with Server.mu held, and the caller
// must unlock it.
func (c *conn) lockDispatch(ctx context.Context, h overhop.LeaseRef) (*dispatch, error) {
	r, err := c.checkToken(h)
	if err != nil {
		return nil, err
	}
	s := c.s
	s.mu.Lock()
	s.noteAlive(c)
	d := s.dispatches[r]
	if d == nil {
		s.mu.Unlock()
		if d, err = c.lockResumed(ctx, r); err != nil {
			return nil, err
		}
	}
	switch d.state {
	case ackExpired:
		s.mu.Unlock()
		return nil, &codeError{overhop.CodeAckTimeout, "the QUEST was not acknowledged in time; the job went elsewhere"}
	case ended:
		s.mu.Unlock()
		return nil, job.ErrNotActive
	}
	s.attachLocked(d, c)
	return d, nil
}

// checkToken verifies h's token for h's job and returns the dispatch it belongs
// to.
func (c *conn) checkToken(h overhop.LeaseRef) (job.DispatchID, error) {
	queue, id, err := parseJID(h.JID)
	if err != nil {
		return job.DispatchID{}, err
	}
	s := c.s
	if !s.tokens.known() {
		return job.DispatchID{}, &job.UnavailableError{Reason: "the node does not know the yard's key yet", RetryAfter: time.Second}
	}
	// Comparing with a known dispatch's token is cheaper than computing the
	// MAC.
	if len(h.Token) == overhop.TokenLen {
		r := tokenKey(id, h.Token)
		s.mu.Lock()
		d := s.dispatches[r]
		s.mu.Unlock()
		if d != nil && d.queue == string(queue) && hmac.Equal(d.token[:], h.Token) {
			return r, nil
		}
	}
	r, ok := s.tokens.verify(id, h.Token)
	if !ok {
		return job.DispatchID{}, job.ErrLeaseLost
	}
	return r, nil
}

// errClusterUnavailable refuses a request about another node's dispatch while
// the yard does not answer.
var errClusterUnavailable = &job.UnavailableError{Reason: "the yard does not answer for now", RetryAfter: time.Second}

// lockResumed moves a running dispatch of another node to this one. It waits no
// longer than ctx and the request timeout allow, and gives up if the worker has
// disconnected. Without an error it returns with Server.mu held.
func (c *conn) lockResumed(ctx context.Context, r job.DispatchID) (*dispatch, error) {
	s := c.s
	if ctx.Err() != nil || peerClosed(c.socket()) {
		return nil, errClusterUnavailable
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.RequestTimeout)
	defer cancel()
	a, err := s.cluster.Resume(ctx, r.Job, r.N, c.wid)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, errClusterUnavailable
	case err != nil:
		return nil, err
	case c.ctx.Err() != nil || peerClosed(c.socket()):
		return nil, errClusterUnavailable // the authority finds it another worker
	}
	now := time.Now()
	s.mu.Lock()
	if d := s.dispatches[r]; d != nil { // another connection was faster
		d.moved = max(d.moved, a.MoveIndex)
		return d, nil
	}
	if !s.executor.Adopt(a) {
		s.mu.Unlock()
		return nil, &job.UnavailableError{Reason: "the node may not run jobs at present", RetryAfter: time.Second}
	}
	d := &dispatch{DispatchID: r, token: s.tokens.mint(r), queue: a.Queue, attempt: a.Attempt, timeout: a.Timeout, wid: c.wid, state: running, heapIndex: -1, moved: a.MoveIndex}
	if a.Timeout > 0 {
		d.deadline = now.Add(a.Timeout)
		if !a.Started.IsZero() { // by the authority's clock, which may be ahead
			d.deadline = now.Add(a.Timeout - max(now.Sub(a.Started), 0))
		}
	}
	s.leaseLocked(d, now, s.cfg.Delivery.Lease)
	d.due = d.replyBy
	s.dispatches[r] = d
	s.timers.set(d)
	s.log.Info("worker resumed a job on this node", "job", r.Job, "dispatch", r.N, "worker", c.wid)
	return d, nil
}

// extendLocked renews a lease for the configured time, or for the requested
// time if that is positive and shorter, and returns the lease's end. A recalled
// dispatch is not extended: its grace is returned. Server.mu is held.
func (s *Server) extendLocked(d *dispatch, requested time.Duration) time.Time {
	lease := s.cfg.Delivery.Lease
	if requested > 0 {
		lease = min(lease, requested)
	}
	if d.state == recalling {
		return d.due
	}
	until := s.leaseLocked(d, time.Now(), lease)
	if d.replyBy.Before(d.due) {
		d.due = d.replyBy
		s.timers.set(d)
	}
	return until
}

// leaseLocked grants the worker of d a lease of at most length, starting now,
// and returns its end, which is never after the deadline or the end of the
// node's own lease: after that the authority may run the job elsewhere. The
// server still waits for the worker for the whole length, because the node's
// lease is normally renewed meanwhile; if it is not, the agent recalls
// everything. Server.mu is held.
func (s *Server) leaseLocked(d *dispatch, now time.Time, length time.Duration) time.Time {
	d.setReplyByLocked(earlier(now.Add(length), d.deadline))
	until := earlier(s.executor.WorkerLease(now.Add(length)), d.deadline)
	if until.After(d.leaseUntil) { // a lease that was granted is never shortened
		d.leaseUntil = until
	}
	return until
}

func (c *conn) handleAck(ctx context.Context, h overhop.LeaseRef) (overhop.Raw, error) {
	d, err := c.lockDispatch(ctx, h)
	if err != nil {
		return nil, err
	}
	if d.state == reserved {
		d.state = running
	}
	until := c.s.extendLocked(d, 0)
	c.s.mu.Unlock()
	return c.timeField("lease_until", until), nil
}

func (c *conn) handleBeat(ctx context.Context, b overhop.Beat) (overhop.Raw, error) {
	if len(b.Jobs) > 0 {
		return c.beatAll(ctx, b)
	}
	until, deadline, err := c.beat(ctx, b.LeaseRef, b.Extend)
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

// tokenKey returns the dispatch that a token claims to belong to. The MAC is
// not verified.
func tokenKey(id job.ID, token []byte) job.DispatchID {
	return job.DispatchID{Job: id, N: binary.BigEndian.Uint32(token[4:])}
}

// beat extends the lease of one job. A zero deadline means none.
func (c *conn) beat(ctx context.Context, h overhop.LeaseRef, requested time.Duration) (until, deadline time.Time, err error) {
	d, err := c.lockDispatch(ctx, h)
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	defer c.s.mu.Unlock()
	if d.state == reserved {
		return time.Time{}, time.Time{}, job.ErrNotActive
	}
	return c.s.extendLocked(d, requested), d.deadline, nil
}

// beatAll extends the leases of several jobs and answers for each of them.
// Dispatches of other nodes share the time of one request; after the first of
// them fails because the yard does not answer, the rest are not attempted,
// because nothing else is read from the worker meanwhile.
func (c *conn) beatAll(ctx context.Context, b overhop.Beat) (overhop.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.Limits.RequestTimeout)
	defer cancel()
	out := overhop.AppendStr(overhop.AppendMap(nil, 1), "jobs")
	out = overhop.AppendArray(out, b.Jobs.Len())
	for item := range b.Jobs.Items() {
		if limit := c.s.cfg.Wire.MaxEnvelope; len(out) > limit { // the answer can be many times larger than the request
			return nil, &detailedError{&codeError{overhop.CodeResponseTooLarge, "too many jobs for one BEAT"}, overhop.Fields{"limit": limit}}
		}
		h, err := overhop.ParseLeaseRef(item)
		if err != nil {
			return nil, err
		}
		until, _, err := c.beat(ctx, h, b.Extend)
		if err != nil {
			code, _, _ := wireError(err)
			if code == overhop.CodeUnavailable {
				cancel()
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

// maxProgress is the largest progress data that is accepted, in bytes.
const maxProgress = 4 << 10

func (c *conn) handleProgress(ctx context.Context, g overhop.Progress) (overhop.Raw, error) {
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
	d, err := c.lockDispatch(ctx, g.LeaseRef)
	if err != nil {
		return nil, err
	}
	defer c.s.mu.Unlock()
	if d.state == reserved {
		return nil, job.ErrNotActive
	}
	d.progress = kept.Raw()
	c.s.extendLocked(d, 0)
	return nil, nil
}

// maxLines is the number of log lines accepted from one dispatch. Each line is
// truncated to maxLine bytes, its level to maxLevel bytes.
const (
	maxLines = 1000
	maxLine  = 2 << 10
	maxLevel = 32
)

func (c *conn) handleLog(ctx context.Context, l overhop.Log) (overhop.Raw, error) {
	d, err := c.lockDispatch(ctx, l.LeaseRef)
	if err != nil {
		return nil, err
	}
	if d.state == reserved {
		c.s.mu.Unlock()
		return nil, job.ErrNotActive
	}
	c.s.extendLocked(d, 0)
	accepted := min(len(l.Lines), maxLines-d.logLines)
	d.logLines += accepted
	entry := job.LogLine{Job: d.Job, N: d.N, Attempt: d.attempt, Stream: job.LogWire, Worker: d.wid}
	c.s.mu.Unlock()
	for _, line := range l.Lines[:accepted] {
		text := truncate(line.Text, maxLine)
		c.s.log.Info("job log line", "job", d.Job, "dispatch", d.N,
			slog.Group("line", "at", line.At, "level", line.Level, "text", text))
		entry.At, entry.Level = time.Now().UTC(), cmp.Or(strings.ToLower(truncate(line.Level, maxLevel)), "info")
		if at, err := time.Parse(time.RFC3339, line.At); err == nil {
			entry.At = at.UTC()
		}
		entry.Text, entry.Truncated = strings.ToValidUTF8(text, "\uFFFD"), len(line.Text) > maxLine
		c.s.executor.Log(entry)
	}
	return overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(nil, 1), "accepted"), int64(accepted)), nil
}

// timeField returns a map with one time, backed by c.scratch.
func (c *conn) timeField(key string, t time.Time) overhop.Raw {
	c.scratch = overhop.AppendTime(overhop.AppendStr(overhop.AppendMap(c.scratch[:0], 1), key), t)
	return c.scratch
}

// truncate returns the first limit bytes of a text, without a partial character
// at the end.
func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}
