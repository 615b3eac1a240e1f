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

// lockDispatch returns the dispatch whose lease h proves, and makes w its
// worker. A dispatch of another node is moved to this one.
// Without an error lockDispatch returns with deliveries.mu held, and the caller
// must unlock it.
func (w *worker) lockDispatch(ctx context.Context, h overhop.LeaseRef) (*dispatch, error) {
	r, err := w.checkToken(h)
	if err != nil {
		return nil, err
	}
	ds := w.ds
	ds.mu.Lock()
	w.noteAlive()
	d := ds.dispatches[r]
	if d == nil {
		ds.mu.Unlock()
		if d, err = w.lockResumed(ctx, r); err != nil {
			return nil, err
		}
	}
	switch d.state {
	case ackExpired:
		ds.mu.Unlock()
		return nil, errAckTimeout
	case ended:
		ds.mu.Unlock()
		return nil, job.ErrNotActive
	}
	ds.attachLocked(d, w)
	return d, nil
}

// checkToken verifies h's token for h's job and returns the dispatch it belongs
// to.
func (w *worker) checkToken(h overhop.LeaseRef) (job.DispatchID, error) {
	queue, id, err := parseJID(h.JID)
	if err != nil {
		return job.DispatchID{}, err
	}
	ds := w.ds
	if !ds.tokens.known() {
		return job.DispatchID{}, &job.UnavailableError{Reason: "the node does not know the yard's key yet", RetryAfter: time.Second}
	}
	// Comparing with a known dispatch's token is cheaper than computing the
	// MAC.
	if len(h.Token) == overhop.TokenLen {
		r := tokenKey(id, h.Token)
		ds.mu.Lock()
		d := ds.dispatches[r]
		ds.mu.Unlock()
		if d != nil && d.queue == string(queue) && hmac.Equal(d.token[:], h.Token) {
			return r, nil
		}
	}
	r, ok := ds.tokens.verify(id, h.Token)
	if !ok {
		return job.DispatchID{}, job.ErrLeaseLost
	}
	return r, nil
}

// errAckTimeout refuses a message about a job whose QUEST was acknowledged too
// late.
var errAckTimeout = &codeError{overhop.CodeAckTimeout, "the QUEST was not acknowledged in time; the job went elsewhere", nil}

// errClusterUnavailable refuses a request about another node's dispatch while
// the yard does not answer.
var errClusterUnavailable = &job.UnavailableError{Reason: "the yard does not answer for now", RetryAfter: time.Second}

// lockResumed moves a running dispatch of another node to this one. It waits no
// longer than ctx and the request timeout allow, and gives up if the worker has
// disconnected. Without an error it returns with deliveries.mu held.
func (w *worker) lockResumed(ctx context.Context, r job.DispatchID) (*dispatch, error) {
	ds := w.ds
	if ctx.Err() != nil || peerClosed(w.conn.socket()) {
		return nil, errClusterUnavailable
	}
	ctx, cancel := context.WithTimeout(ctx, ds.cfg.Limits.RequestTimeout)
	defer cancel()
	a, err := ds.cluster.Resume(ctx, r.Job, r.N, w.wid)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, errClusterUnavailable
	case err != nil:
		return nil, err
	case w.conn.ctx.Err() != nil || peerClosed(w.conn.socket()):
		return nil, errClusterUnavailable // the authority finds it another worker
	}
	now := time.Now()
	ds.mu.Lock()
	if d := ds.dispatches[r]; d != nil { // another connection was faster
		d.moved = max(d.moved, a.MoveIndex)
		return d, nil
	}
	if !ds.executor.Adopt(a) {
		ds.mu.Unlock()
		return nil, &job.UnavailableError{Reason: "the node may not run jobs at present", RetryAfter: time.Second}
	}
	d := &dispatch{DispatchID: r, token: ds.tokens.mint(r), queue: a.Queue, attempt: a.Attempt, timeout: a.Timeout, wid: w.wid, state: running, heapIndex: -1, moved: a.MoveIndex}
	if a.Timeout > 0 {
		d.deadline = now.Add(a.Timeout)
		if !a.Started.IsZero() { // by the authority's clock, which may be ahead
			d.deadline = now.Add(a.Timeout - max(now.Sub(a.Started), 0))
		}
	}
	ds.leaseLocked(d, now, ds.cfg.Delivery.Lease)
	d.due = d.replyBy
	ds.dispatches[r] = d
	ds.timers.set(d)
	ds.log.Info("worker resumed a job on this node", "job", r.Job, "dispatch", r.N, "worker", w.wid)
	return d, nil
}

// extendLocked renews a lease for the configured time, or for the requested
// time if that is positive and shorter, and returns the lease's end. A recalled
// dispatch is not extended: its grace is returned. deliveries.mu is held.
func (ds *deliveries) extendLocked(d *dispatch, requested time.Duration) time.Time {
	lease := ds.cfg.Delivery.Lease
	if requested > 0 {
		lease = min(lease, requested)
	}
	if d.state == recalling {
		return d.due
	}
	until := ds.leaseLocked(d, time.Now(), lease)
	if d.replyBy.Before(d.due) {
		d.due = d.replyBy
		ds.timers.set(d)
	}
	return until
}

// leaseLocked grants the worker of d a lease of at most length, starting now,
// and returns its end, which is never after the deadline or the end of the
// node's own lease: after that the authority may run the job elsewhere. The
// server still waits for the worker for the whole length, because the node's
// lease is normally renewed meanwhile; if it is not, the agent recalls
// everything. deliveries.mu is held.
func (ds *deliveries) leaseLocked(d *dispatch, now time.Time, length time.Duration) time.Time {
	d.setReplyByLocked(earlier(now.Add(length), d.deadline))
	until := earlier(ds.executor.WorkerLease(now.Add(length)), d.deadline)
	if until.After(d.leaseUntil) { // a lease that was granted is never shortened
		d.leaseUntil = until
	}
	return until
}

func (w *worker) handleAck(ctx context.Context, h overhop.LeaseRef) (overhop.Raw, error) {
	d, err := w.lockDispatch(ctx, h)
	if err != nil {
		return nil, err
	}
	if d.state == reserved {
		d.state = running
	}
	until := w.ds.extendLocked(d, 0)
	w.ds.mu.Unlock()
	return w.timeField("lease_until", until), nil
}

func (w *worker) handleBeat(ctx context.Context, b overhop.Beat) (overhop.Raw, error) {
	if len(b.Jobs) > 0 {
		return w.beatAll(ctx, b)
	}
	until, deadline, err := w.beat(ctx, b.LeaseRef, b.Extend)
	if err != nil {
		return nil, err
	}
	out := overhop.AppendStr(overhop.AppendMap(w.scratch[:0], 2), "deadline")
	if deadline.IsZero() {
		out = overhop.AppendNil(out)
	} else {
		out = overhop.AppendTime(out, deadline)
	}
	w.scratch = overhop.AppendTime(overhop.AppendStr(out, "lease_until"), until)
	return w.scratch, nil
}

// tokenKey returns the dispatch that a token claims to belong to. The MAC is
// not verified.
func tokenKey(id job.ID, token []byte) job.DispatchID {
	return job.DispatchID{Job: id, N: binary.BigEndian.Uint32(token[4:])}
}

// beat extends the lease of one job. A zero deadline means none.
func (w *worker) beat(ctx context.Context, h overhop.LeaseRef, requested time.Duration) (until, deadline time.Time, err error) {
	d, err := w.lockDispatch(ctx, h)
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	defer w.ds.mu.Unlock()
	if d.state == reserved {
		return time.Time{}, time.Time{}, job.ErrNotActive
	}
	return w.ds.extendLocked(d, requested), d.deadline, nil
}

// beatAll extends the leases of several jobs and answers for each of them.
// Dispatches of other nodes share the time of one request; after the first of
// them fails because the yard does not answer, the rest are not attempted,
// because nothing else is read from the worker meanwhile.
func (w *worker) beatAll(ctx context.Context, b overhop.Beat) (overhop.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, w.ds.cfg.Limits.RequestTimeout)
	defer cancel()
	out := overhop.AppendStr(overhop.AppendMap(nil, 1), "jobs")
	out = overhop.AppendArray(out, b.Jobs.Len())
	for item := range b.Jobs.Items() {
		if limit := w.ds.cfg.Wire.MaxEnvelope; len(out) > limit { // the answer can be many times larger than the request
			return nil, &codeError{overhop.CodeResponseTooLarge, "too many jobs for one BEAT", overhop.Fields{"limit": limit}}
		}
		h, err := overhop.ParseLeaseRef(item)
		if err != nil {
			return nil, err
		}
		until, _, err := w.beat(ctx, h, b.Extend)
		if err != nil {
			code := wireError(err).code
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

func (w *worker) handleProgress(ctx context.Context, g overhop.Progress) (overhop.Raw, error) {
	if len(g.Data) > maxProgress {
		return nil, &codeError{overhop.CodeResultTooLarge, "progress data is larger than 4096 bytes", overhop.Fields{"limit": maxProgress}}
	}
	kept := overhop.Fields{}
	if g.Percent != nil {
		kept["percent"] = *g.Percent
	}
	if !g.Data.IsNil() {
		kept["data"] = g.Data
	}
	d, err := w.lockDispatch(ctx, g.LeaseRef)
	if err != nil {
		return nil, err
	}
	defer w.ds.mu.Unlock()
	if d.state == reserved {
		return nil, job.ErrNotActive
	}
	d.progress = kept.Raw()
	w.ds.extendLocked(d, 0)
	return nil, nil
}

// maxLines is the number of log lines accepted from one dispatch. Each line is
// truncated to maxLine bytes, its level to maxLevel bytes.
const (
	maxLines = 1000
	maxLine  = 2 << 10
	maxLevel = 32
)

func (w *worker) handleLog(ctx context.Context, l overhop.Log) (overhop.Raw, error) {
	d, err := w.lockDispatch(ctx, l.LeaseRef)
	if err != nil {
		return nil, err
	}
	if d.state == reserved {
		w.ds.mu.Unlock()
		return nil, job.ErrNotActive
	}
	w.ds.extendLocked(d, 0)
	accepted := min(len(l.Lines), maxLines-d.logLines)
	d.logLines += accepted
	entry := job.LogLine{Job: d.Job, N: d.N, Attempt: d.attempt, Stream: job.LogWire, Worker: d.wid}
	w.ds.mu.Unlock()
	for _, line := range l.Lines[:accepted] {
		text := truncate(line.Text, maxLine)
		w.ds.log.Info("job log line", "job", d.Job, "dispatch", d.N,
			slog.Group("line", "at", line.At, "level", line.Level, "text", text))
		entry.At, entry.Level = time.Now().UTC(), cmp.Or(strings.ToLower(truncate(line.Level, maxLevel)), "info")
		if at, err := time.Parse(time.RFC3339, line.At); err == nil {
			entry.At = at.UTC()
		}
		entry.Text, entry.Truncated = strings.ToValidUTF8(text, "\uFFFD"), len(line.Text) > maxLine
		w.ds.executor.Log(entry)
	}
	return overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(nil, 1), "accepted"), int64(accepted)), nil
}

// timeField returns a map with one time, backed by w.scratch.
func (w *worker) timeField(key string, t time.Time) overhop.Raw {
	w.scratch = overhop.AppendTime(overhop.AppendStr(overhop.AppendMap(w.scratch[:0], 1), key), t)
	return w.scratch
}

// truncate returns the first limit bytes of a text, without a partial character
// at the end.
func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}
