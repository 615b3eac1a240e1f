package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Report takes the outcome of a dispatch, and keeps it until the authority has
// settled it. onSettled, which may be nil and must not block, is called once from
// another goroutine when the outcome is settled or known to be stale; it is not
// called if the node stops first.
//
// Report also takes the outcome of a dispatch that was not assigned to this node,
// because its worker came from another node. Of two outcomes of one dispatch the
// first counts; the callbacks of both are called. Report owns outcome's Fault: it shortens
// a long one, and before that stores it as a [job.AttemptError].
func (a *Agent) Report(outcome job.Outcome, onSettled func(job.Settled)) {
	id := outcome.DispatchID()
	a.mu.Lock()
	d := a.table.live[id]
	if d == nil {
		d = &dispatch{DispatchID: id}
		a.table.add(d)
	}
	isFirst := d.phase != ending
	if isFirst {
		outcome.MoveIndex = d.moveIndex
		d.pending = &pendingOutcome{outcome: outcome}
		a.table.markEnding(d)
		a.signalChanged()
	}
	pending := d.pending
	if onSettled != nil {
		pending.callbacks = append(pending.callbacks, onSettled)
	}
	a.mu.Unlock()
	if !isFirst {
		return
	}

	// Without mu: only this call uses a new outcome until it is enqueued.
	dropDeep(&pending.outcome)
	if kept := a.errors.cut(&pending.outcome); kept != nil {
		a.errors.add(pending, kept)
		return
	}
	if outcome.Blob == nil && len(pending.outcome.Result.Data) > job.MaxInlineResult {
		a.results.add(pending)
		return
	}
	a.reporter.enqueue(pending)
}

// settle handles the acknowledgement of a report with the outcomes in batch: it removes
// their dispatches and then calls their callbacks, without mu.
func (a *Agent) settle(ack job.ReportAck, batch []*pendingOutcome) {
	type call struct {
		callback func(job.Settled)
		outcome  int // index of its outcome in batch
	}
	calls := make([]call, 0, len(batch))
	now := time.Now()
	a.mu.Lock()
	a.observeEpoch(ack.Epoch)
	for i, pending := range batch {
		a.table.markSettled(pending.outcome.DispatchID(), now)
		for _, callback := range pending.callbacks {
			calls = append(calls, call{callback, i})
		}
	}
	if len(batch) > 0 {
		a.signalChanged()
	}
	a.mu.Unlock()
	for _, c := range calls {
		c.callback(ack.Settled[c.outcome])
	}
}

// Limits of storing large results.
const (
	storeTimeout    = 30 * time.Second // from Report until the result is stored
	maxStoringBytes = 256 << 20        // bytes of all results that wait to be stored
)

// resultStore stores the results that are too large for a report as blobs, and
// then passes their outcomes on.
type resultStore struct {
	transport Transport
	log       *slog.Logger
	rand      func(below int64) int64
	pool      taskPool
	bytes     atomic.Int64          // of all results that wait to be stored
	stored    func(*pendingOutcome) // called for every outcome
}

// add has the large result of an outcome stored in the background. It drops the result
// at once if too many bytes wait already, so that a stream that cannot store cannot
// exhaust the node's memory.
func (s *resultStore) add(pending *pendingOutcome) {
	size := int64(len(pending.outcome.Result.Data))
	if s.bytes.Add(size) > maxStoringBytes {
		s.bytes.Add(-size)
		s.drop(pending, "too many results were waiting to be stored")
		return
	}
	deadline := time.Now().Add(storeTimeout)
	s.pool.add(func(ctx context.Context) {
		defer s.bytes.Add(-size)
		s.store(ctx, pending, deadline)
	})
}

// store stores a large result as a blob and then passes the outcome on. It tries until
// deadline and drops a result that could not be stored by then, or that is too large
// ever to be stored. If ctx ends first, because the node stops, the outcome is dropped.
func (s *resultStore) store(ctx context.Context, pending *pendingOutcome, deadline time.Time) {
	outcome := &pending.outcome
	name := fmt.Sprintf("%s.%d", outcome.Job, outcome.N)
	pause := backoff.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second, Rand: s.rand}
	storeCtx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for attempt := 1; ; attempt++ {
		blob, err := s.transport.StoreResult(storeCtx, name, outcome.Result.Data)
		if err == nil {
			outcome.Blob, outcome.Result.Data = &blob, nil
			s.stored(pending)
			return
		}
		if attempt == 3 {
			s.log.Warn("storing large result failed, retrying", "job", outcome.Job.String(), "err", err)
		}
		tooLarge := errors.Is(err, job.ErrTooLarge)
		if !tooLarge && backoff.Sleep(storeCtx, pause.Next()) == nil {
			continue
		}
		if nodeStops := ctx.Err() != nil; tooLarge || !nodeStops {
			s.drop(pending, err.Error())
		}
		return
	}
}

// drop replaces the result of an outcome, which cannot be stored, by the reason. The
// status stays what it is: the job's work was done.
func (s *resultStore) drop(pending *pendingOutcome, reason string) {
	outcome := &pending.outcome
	size := len(outcome.Result.Data)
	s.log.Error("large result dropped", "job", outcome.Job.String(), "bytes", size, "reason", reason)
	outcome.Result.Data = nil
	outcome.Dropped = &job.DroppedResult{Size: int64(size), Reason: job.CutText(reason, job.MaxDropReason)}
	s.stored(pending)
}
