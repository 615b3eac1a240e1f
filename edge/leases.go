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

// lockDispatch returns the dispatch whose token a worker's message contains, and
// makes w its worker. A dispatch of another node is moved to this one. Without an
// error lockDispatch returns with deliveries.mu held, and the caller must release
// it.
func (w *worker) lockDispatch(ctx context.Context, lease overhop.LeaseRef) (*dispatch, error) {
	id, err := w.checkToken(lease)
	if err != nil {
		return nil, err
	}
	ds := w.deliveries
	ds.mu.Lock()
	w.noteAlive()
	d := ds.dispatches[id]
	if d == nil {
		ds.mu.Unlock()
		if d, err = w.lockResumed(ctx, id); err != nil {
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
	d.attachLocked(w)
	return d, nil
}

// lockRunning is lockDispatch for messages that a worker may send only after it
// has acknowledged the job: it returns job.ErrNotActive before that. Without an
// error it, too, returns with deliveries.mu held.
func (w *worker) lockRunning(ctx context.Context, lease overhop.LeaseRef) (*dispatch, error) {
	d, err := w.lockDispatch(ctx, lease)
	if err == nil && d.state == reserved {
		w.deliveries.mu.Unlock()
		return nil, job.ErrNotActive
	}
	return d, err
}

// checkToken verifies a lease token and returns the dispatch that it belongs to.
// The error is job.ErrLeaseLost for a token that no node created for this job.
func (w *worker) checkToken(lease overhop.LeaseRef) (job.DispatchID, error) {
	queue, jobID, err := parseJID(lease.JID)
	if err != nil {
		return job.DispatchID{}, err
	}
	ds := w.deliveries
	if !ds.tokens.known() {
		return job.DispatchID{}, &job.UnavailableError{Reason: "the node does not know the yard's key yet", RetryAfter: time.Second}
	}

	// Comparing with the token of a dispatch that is here is cheaper than
	// computing the MAC.
	if len(lease.Token) == overhop.TokenLen {
		claimed := job.DispatchID{Job: jobID, N: binary.BigEndian.Uint32(lease.Token[4:])}
		ds.mu.Lock()
		d := ds.dispatches[claimed]
		ds.mu.Unlock()
		if d != nil && d.queue == string(queue) && hmac.Equal(d.token[:], lease.Token) {
			return claimed, nil
		}
	}
	id, ok := ds.tokens.verify(jobID, lease.Token)
	if !ok {
		return job.DispatchID{}, job.ErrLeaseLost
	}
	return id, nil
}

// errAckTimeout refuses a message about a job whose QUEST was acknowledged too
// late.
var errAckTimeout = &codeError{overhop.CodeAckTimeout, "the QUEST was not acknowledged in time; the job went elsewhere", nil}

// errClusterUnavailable refuses a request about another node's dispatch while
// the cluster does not answer.
var errClusterUnavailable = &job.UnavailableError{Reason: "the yard does not answer for now", RetryAfter: time.Second}

// lockResumed moves a running dispatch of another node to this one. It waits no
// longer than ctx and the request timeout allow, and gives up if the worker has
// disconnected. Without an error it returns with deliveries.mu held.
func (w *worker) lockResumed(ctx context.Context, id job.DispatchID) (*dispatch, error) {
	ds := w.deliveries
	if ctx.Err() != nil || w.conn.disconnected() {
		return nil, errClusterUnavailable
	}
	ctx, cancel := context.WithTimeout(ctx, ds.cfg.Limits.RequestTimeout)
	defer cancel()
	assignment, err := ds.cluster.Resume(ctx, id.Job, id.N, w.id)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, errClusterUnavailable
	case err != nil:
		return nil, err
	case w.conn.disconnected():
		return nil, errClusterUnavailable // the authority finds another worker for the job
	}

	now := time.Now()
	ds.mu.Lock()
	if d := ds.dispatches[id]; d != nil { // another connection was faster
		d.moved = max(d.moved, assignment.MoveIndex)
		return d, nil
	}
	if !ds.executor.Adopt(assignment) {
		ds.mu.Unlock()
		return nil, &job.UnavailableError{Reason: "the node may not run jobs at present", RetryAfter: time.Second}
	}
	d := &dispatch{
		DispatchID: id, token: ds.tokens.mint(id), lastWorkerID: w.id, state: running,
		queue: assignment.Queue, attempt: assignment.Attempt, timeout: assignment.Timeout, moved: assignment.MoveIndex,
	}
	if assignment.Timeout > 0 {
		d.deadline = now.Add(assignment.Timeout)
		if !assignment.Started.IsZero() { // by this node's clock, also if that is set meanwhile
			d.deadline = assignment.Started.Add(assignment.Timeout)
		}
	}
	ds.leaseLocked(d, now, ds.cfg.Delivery.Lease)
	ds.dispatches[id] = d
	ds.startTimer(d, d.replyBy)
	ds.log.Info("worker resumed a job on this node", "job", id.Job, "dispatch", id.N, "worker", w.id)
	return d, nil
}

// attachLocked makes w, which has sent the token of dispatch d, the worker of d,
// because the lease belongs to the token and not to a connection. It has no effect if w
// has disconnected: the message may be an old one of a worker that is already back over
// another connection. The caller holds deliveries.mu.
func (d *dispatch) attachLocked(w *worker) {
	if d.worker == w || w.closed || w.conn.disconnected() {
		return
	}
	if d.worker != nil {
		delete(d.worker.jobs, d)
	}
	w.noteResumed(d)
	d.setWorkerLocked(w)
	d.lastWorkerID = w.id
	w.jobs[d] = struct{}{}
}

// extendLocked renews a lease for the configured time, or for the requested
// time if that is positive and shorter, and returns the lease's end. A recalled
// dispatch is not extended: the end of its grace is returned. deliveries.mu is
// held.
func (ds *deliveries) extendLocked(d *dispatch, requested time.Duration) time.Time {
	now := time.Now()
	if d.state == recalling {
		return shownAt(now, d.due)
	}
	length := ds.cfg.Delivery.Lease
	if requested > 0 {
		length = min(length, requested)
	}
	until := ds.leaseLocked(d, now, length)
	if d.replyBy.Before(d.due) {
		ds.startTimer(d, d.replyBy)
	}
	return until
}

// shownAt returns the time t, which was computed from an earlier reading of this node's clock, with the
// wall clock of now: the clock may have been set since, and a worker takes times for wall clocks. The
// zero time stays.
func shownAt(now, t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return now.Add(t.Sub(now))
}

// leaseLocked grants the worker of d a lease of at most length, starting now,
// and returns its end. That is never after the deadline or the end of the lease
// that this node holds from the authority: after that the authority may run the
// job elsewhere. The server still waits for the worker for the whole length,
// because the node's lease is normally renewed meanwhile; if it is not, the agent
// recalls everything. The wall clock of the end is that of now, so that a worker can compare
// it with the deadline of a job that is sent now. deliveries.mu is held.
func (ds *deliveries) leaseLocked(d *dispatch, now time.Time, length time.Duration) time.Time {
	d.setReplyByLocked(earlier(now.Add(length), d.deadline))
	until := earlier(ds.executor.WorkerLease(now.Add(length)), d.deadline)
	until = shownAt(now, until)
	if until.After(d.leaseUntil) { // a lease that was granted is never shortened
		d.leaseUntil = until
	}
	return until
}

// handleAck makes a dispatch run, now that the worker has acknowledged it, and
// answers with its lease. The worker starts the job when it gets this answer, so
// handleAck refuses a dispatch that was recalled before.
func (w *worker) handleAck(ctx context.Context, lease overhop.LeaseRef) (overhop.Raw, error) {
	d, err := w.lockDispatch(ctx, lease) // returns with deliveries.mu held
	if err != nil {
		return nil, err
	}
	defer w.deliveries.mu.Unlock()
	switch d.state {
	case recalling:
		return nil, job.ErrNotActive
	case reserved:
		d.state = running
	}
	until := w.deliveries.extendLocked(d, 0)
	b := overhop.AppendMap(make([]byte, 0, 64), 2)
	b = overhop.AppendInt(overhop.AppendStr(b, "lease_ms"), leaseLeft(until))
	return overhop.AppendTime(overhop.AppendStr(b, "lease_until"), until), nil
}

// leaseLeft returns the length of a lease that ends at until, in milliseconds. Workers count
// it from their request, because their clocks may differ from the node's.
func leaseLeft(until time.Time) int64 { return max(time.Until(until).Milliseconds(), 0) }

// handleBeat extends the lease of one job, or of several, and answers with the
// end of each lease.
func (w *worker) handleBeat(ctx context.Context, beat overhop.Beat) (overhop.Raw, error) {
	if len(beat.Jobs) > 0 {
		return w.beatAll(ctx, beat)
	}
	until, deadline, err := w.beat(ctx, beat.LeaseRef, beat.Extend)
	if err != nil {
		return nil, err
	}
	return overhop.Fields{"deadline": orNil(deadline), "lease_ms": leaseLeft(until), "lease_until": until}.Raw(), nil
}

// beat extends the lease of one job. requested is the length that the worker
// asks for, or 0. A zero deadline means none.
func (w *worker) beat(ctx context.Context, lease overhop.LeaseRef, requested time.Duration) (until, deadline time.Time, err error) {
	d, err := w.lockRunning(ctx, lease) // returns with deliveries.mu held
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	defer w.deliveries.mu.Unlock()
	return w.deliveries.extendLocked(d, requested), shownAt(time.Now(), d.deadline), nil
}

// beatAll extends the leases of several jobs and answers for each of them.
// Dispatches of other nodes share the time of one request; after the first of
// them fails because the cluster does not answer, the rest are not attempted,
// because nothing else is read from the worker meanwhile.
func (w *worker) beatAll(ctx context.Context, beat overhop.Beat) (overhop.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, w.deliveries.cfg.Limits.RequestTimeout)
	defer cancel()
	answer := overhop.AppendStr(overhop.AppendMap(nil, 1), "jobs")
	answer = overhop.AppendArray(answer, beat.Jobs.Len())
	for item := range beat.Jobs.Items() {
		// The answer can be many times larger than the request.
		if limit := w.deliveries.cfg.Wire.MaxEnvelope; len(answer) > limit {
			return nil, tooLarge(overhop.CodeResponseTooLarge, "too many jobs for one BEAT", limit)
		}
		lease, err := overhop.ParseLeaseRef(item)
		if err != nil {
			return nil, err
		}

		result := overhop.Fields{"jid": string(lease.JID), "ok": true}
		until, _, err := w.beat(ctx, lease, beat.Extend)
		if err == nil {
			result["lease_ms"], result["lease_until"] = leaseLeft(until), until
		} else {
			code := wireError(err).code
			result["ok"], result["code"] = false, string(code)
			if code == overhop.CodeUnavailable {
				cancel()
			}
		}
		answer = overhop.AppendValue(answer, result)
	}
	return answer, nil
}

// maxProgress is the largest progress data that is accepted, in bytes.
const maxProgress = 4 << 10

// handleProgress keeps what the worker reports about a job in place of its last
// report, and extends the job's lease.
func (w *worker) handleProgress(ctx context.Context, message overhop.Progress) (overhop.Raw, error) {
	if len(message.Data)+len(message.DataJSON) > maxProgress {
		return nil, tooLarge(overhop.CodeResultTooLarge, "progress data is larger than 4096 bytes", maxProgress)
	}
	data := jobValue(message.Data, message.DataJSON)
	if !data.Msgpack {
		if err := job.CheckDepth("data", data.Data); err != nil {
			return nil, err
		}
	}
	d, err := w.lockRunning(ctx, message.LeaseRef) // returns with deliveries.mu held
	if err != nil {
		return nil, err
	}
	defer w.deliveries.mu.Unlock()
	d.progress = job.Progress{Percent: message.Percent, Data: data}
	w.deliveries.extendLocked(d, 0)
	return nil, nil
}

// maxLines is the number of log lines accepted from one dispatch. Each line is
// truncated to maxLine bytes, its level to maxLevel bytes.
const (
	maxLines = 1000
	maxLine  = 2 << 10
	maxLevel = 32
)

// handleLog passes lines of a job's log to the agent, extends the job's lease,
// and answers with the number of lines accepted.
func (w *worker) handleLog(ctx context.Context, message overhop.Log) (overhop.Raw, error) {
	d, err := w.lockRunning(ctx, message.LeaseRef) // returns with deliveries.mu held
	if err != nil {
		return nil, err
	}
	w.deliveries.extendLocked(d, 0)
	accepted := min(len(message.Lines), maxLines-d.logLines)
	d.logLines += accepted
	entry := job.LogLine{Job: d.Job, N: d.N, Attempt: d.attempt, Stream: job.LogWire, Worker: d.lastWorkerID}
	w.deliveries.mu.Unlock()

	for _, line := range message.Lines[:accepted] {
		text := truncate(line.Text, maxLine)
		w.deliveries.log.Debug("job log line", "job", entry.Job, "dispatch", entry.N,
			slog.Group("line", "at", line.At, "level", line.Level, "text", text))
		entry.At = time.Now().UTC()
		if at, err := time.Parse(time.RFC3339, line.At); err == nil {
			entry.At = at.UTC()
		}
		entry.Level = cmp.Or(strings.ToLower(truncate(line.Level, maxLevel)), "info")
		entry.Text, entry.Truncated = strings.ToValidUTF8(text, "\uFFFD"), len(line.Text) > maxLine
		w.deliveries.executor.Log(entry)
	}
	return overhop.Fields{"accepted": accepted}.Raw(), nil
}

// truncate returns the first limit bytes of a text, without a partial character
// at the end.
func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}
