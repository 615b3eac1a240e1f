package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
	"unicode/utf8"

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
// first counts; the callbacks of both are called.
func (a *Agent) Report(outcome job.Outcome, onSettled func(job.Settled)) {
	k := outcome.DispatchID()
	a.mu.Lock()
	d := a.table.live[k]
	if d == nil {
		d = &dispatch{DispatchID: k}
		a.table.add(d)
	}
	first := d.phase != ending
	if first {
		d.pending = &pendingOutcome{outcome: outcome}
		a.table.markEnding(d)
		a.signalChanged()
	}
	e := d.pending
	if onSettled != nil {
		e.callbacks = append(e.callbacks, onSettled)
	}
	a.mu.Unlock()
	if !first {
		return
	}
	truncateFault(e.outcome.Fault)
	if outcome.Blob == nil && len(outcome.Result.Data) > job.MaxInlineResult {
		a.results.add(e)
		return
	}
	a.reporter.enqueue(e)
}

// truncateFault shortens a fault to [job.MaxInlineFault] bytes. Details are kept whole
// or dropped, because they are JSON.
func truncateFault(f *job.Fault) {
	if f == nil {
		return
	}
	f.Type, f.Code = truncate(f.Type, job.MaxFaultNameLen), truncate(f.Code, job.MaxFaultNameLen)
	budget := job.MaxInlineFault - len(f.Type) - len(f.Code)
	if len(f.Details) > budget/2 {
		f.Details = nil
	}
	f.Message = truncate(f.Message, budget-len(f.Details))
}

// truncate shortens a text to at most n bytes, between two characters, and marks it.
func truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	const suffix = " (cut)"
	n -= len(suffix)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + suffix
}

// settle handles a report's acknowledgement.
func (a *Agent) settle(ack job.ReportAck, batch []*pendingOutcome) {
	var calls []func()
	now := time.Now()
	a.mu.Lock()
	a.observeEpoch(ack.Epoch)
	for i, e := range batch {
		a.table.markSettled(e.outcome.DispatchID(), now)
		for _, callback := range e.callbacks {
			calls = append(calls, func() { callback(ack.Settled[i]) })
		}
	}
	if len(batch) > 0 {
		a.signalChanged()
	}
	a.mu.Unlock()
	for _, call := range calls {
		call()
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

// add has a large result stored in the background. It fails the result at once
// if too many bytes wait already, so that a stream which is full cannot exhaust the
// node's memory.
func (s *resultStore) add(e *pendingOutcome) {
	size := int64(len(e.outcome.Result.Data))
	if s.bytes.Add(size) > maxStoringBytes {
		s.bytes.Add(-size)
		s.fail(e, "too many results wait to be stored")
		return
	}
	deadline := time.Now().Add(storeTimeout)
	s.pool.add(func(ctx context.Context) {
		defer s.bytes.Add(-size)
		s.store(ctx, e, deadline)
	})
}

// store stores a large result as a blob and then passes the outcome on, so that a
// success is never reported without its result. If the result cannot be stored until
// deadline, the outcome becomes an error.
func (s *resultStore) store(ctx context.Context, e *pendingOutcome, deadline time.Time) {
	retry := backoff.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second, Rand: s.rand}
	name := fmt.Sprintf("%s-%d", e.outcome.Job, e.outcome.N)
	storeCtx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for try := 1; ; try++ {
		blob, err := s.transport.StoreBlob(storeCtx, name, e.outcome.Result.Data)
		if err == nil {
			e.outcome.Blob, e.outcome.Result.Data = &blob, nil
			s.stored(e)
			return
		}
		if try == 3 {
			s.log.Warn("storing large result failed, retrying", "job", e.outcome.Job.String(), "err", err)
		}
		if backoff.Sleep(storeCtx, retry.Next()) == nil {
			continue
		}
		if ctx.Err() == nil { // the deadline has passed, and the node is not stopping
			s.fail(e, err.Error())
		}
		return
	}
}

// fail turns an outcome whose result cannot be stored into a final error. The
// job is not retried, because its work was done.
func (s *resultStore) fail(e *pendingOutcome, reason string) {
	s.log.Error("large result dropped", "job", e.outcome.Job.String(), "bytes", len(e.outcome.Result.Data), "reason", reason)
	e.outcome.Status, e.outcome.Final, e.outcome.Result = job.Error, true, job.Value{}
	e.outcome.Fault = &job.Fault{Message: "The result could not be stored: " + reason, Type: job.FaultNotStored}
	truncateFault(e.outcome.Fault)
	s.stored(e)
}
