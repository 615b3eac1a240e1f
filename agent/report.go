package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of one report, so that the authority can settle it with one entry.
const (
	maxOutcomes     = 512
	maxOutcomeBytes = 128 << 10
	outcomeOverhead = 48 // bytes of an outcome without result and fault
)

// Limits of storing large results.
const (
	storeTimeout    = 30 * time.Second // from Report until the result is stored
	maxStoringBytes = 256 << 20        // bytes of all results that wait to be stored
)

// pendingOutcome is an outcome that is not settled.
type pendingOutcome struct {
	outcome   job.Outcome
	callbacks []func(job.Settled) // guarded by the agent's mu
	seq       uint64              // order of enqueue
}

// size estimates the size of the outcome in a report, in bytes.
func (p *pendingOutcome) size() int {
	n := outcomeOverhead + len(p.outcome.Result.Data)
	if f := p.outcome.Fault; f != nil {
		n += len(f.Message) + len(f.Type) + len(f.Code) + len(f.Details)
	}
	return n
}

// outbox holds the outcomes that are not settled. It is guarded by the agent's
// mu.
type outbox struct {
	pending          []*pendingOutcome // not in flight, by seq
	lastSeq          uint64            // last seq assigned
	inFlight         int               // reports in flight
	outcomesInFlight int               // reports in flight that contain outcomes
	storingBytes     int               // bytes of results that are being stored before they are reported
	retryAt          time.Time         // no report is sent before; zero: at once
	retry            backoff.Backoff
	failing          bool // the last report failed, which was logged
}

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
		a.storeAsync(e)
		return
	}
	a.enqueue(e)
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

// storeAsync has a large result stored in the background. It fails the result at once
// if too many bytes wait already, so that a stream which is full cannot exhaust the
// node's memory.
func (a *Agent) storeAsync(e *pendingOutcome) {
	size := len(e.outcome.Result.Data)
	a.mu.Lock()
	full := a.outbox.storingBytes+size > maxStoringBytes
	if !full {
		a.outbox.storingBytes += size
	}
	a.mu.Unlock()
	if full {
		a.failStore(e, "too many results wait to be stored")
		return
	}
	deadline := time.Now().Add(storeTimeout)
	a.storePool.add(func(ctx context.Context) {
		a.storeResult(ctx, e, deadline)
		a.mu.Lock()
		a.outbox.storingBytes -= size
		a.mu.Unlock()
	})
}

// storeResult stores a large result as a blob and then enqueues the outcome, so that a
// success is never reported without its result. If the result cannot be stored until
// deadline, the outcome becomes an error.
func (a *Agent) storeResult(ctx context.Context, e *pendingOutcome, deadline time.Time) {
	retry := backoff.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second, Rand: a.cfg.Rand}
	name := fmt.Sprintf("%s-%d", e.outcome.Job, e.outcome.N)
	storeCtx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for try := 1; ; try++ {
		blob, err := a.transport.StoreBlob(storeCtx, name, e.outcome.Result.Data)
		if err == nil {
			e.outcome.Blob, e.outcome.Result.Data = &blob, nil
			a.enqueue(e)
			return
		}
		if try == 3 {
			a.log.Warn("storing large result failed, retrying", "job", e.outcome.Job.String(), "err", err)
		}
		if backoff.Sleep(storeCtx, retry.Next()) == nil {
			continue
		}
		if ctx.Err() == nil { // the deadline has passed, and the node is not stopping
			a.failStore(e, err.Error())
		}
		return
	}
}

// failStore turns an outcome whose result cannot be stored into a final error. The
// job is not retried, because its work was done.
func (a *Agent) failStore(e *pendingOutcome, reason string) {
	a.log.Error("large result dropped", "job", e.outcome.Job.String(), "bytes", len(e.outcome.Result.Data), "reason", reason)
	e.outcome.Status, e.outcome.Final, e.outcome.Result = job.Error, true, job.Value{}
	e.outcome.Fault = &job.Fault{Message: "The result could not be stored: " + reason, Type: job.FaultNotStored}
	truncateFault(e.outcome.Fault)
	a.enqueue(e)
}

// enqueue appends an outcome to those that wait to be reported.
func (a *Agent) enqueue(e *pendingOutcome) {
	a.mu.Lock()
	a.outbox.lastSeq++
	e.seq = a.outbox.lastSeq
	a.outbox.pending = append(a.outbox.pending, e)
	a.mu.Unlock()
	signal(a.wakeReporter)
}

// authority is the current authority of reportLoop. Its context is canceled when
// another authority is known, so that reports to it fail at once.
type authority struct {
	node   string // "": none is known
	epoch  uint64
	ctx    context.Context
	cancel context.CancelFunc
}

// reportLoop sends reports until ctx ends: outcomes at once while none are in flight,
// else in batches. Outcomes that an authority has not acknowledged are sent to the
// next one.
func (a *Agent) reportLoop(ctx context.Context) {
	changed := a.transport.AuthorityChanged()
	current := a.refreshAuthority(ctx, authority{cancel: func() {}})
	defer func() { current.cancel() }()
	for {
		var retry <-chan time.Time
		if current.node != "" {
			if nextAt := a.sendReports(current); !nextAt.IsZero() {
				retry = time.After(time.Until(nextAt))
			}
		}
		select {
		case <-a.wakeReporter:
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			return
		}
		if tryReceive(changed) {
			changed = a.transport.AuthorityChanged()
			current = a.refreshAuthority(ctx, current)
		}
	}
}

// refreshAuthority returns the current authority, which is last if it has not changed.
// Otherwise it cancels last.
func (a *Agent) refreshAuthority(ctx context.Context, last authority) authority {
	node, epoch, ok := a.transport.Authority()
	if ok && node == last.node && epoch == last.epoch {
		return last
	}
	last.cancel()
	next := authority{node: node, epoch: epoch}
	if !ok {
		next.node = ""
	}
	next.ctx, next.cancel = context.WithCancel(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if ok {
		a.observeEpoch(epoch)
	}
	a.outbox.retryAt = time.Time{}
	a.outbox.retry.Reset()
	return next
}

// tryReceive reports whether it could receive from c without blocking.
func tryReceive(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sendReports sends reports until there is nothing to send. nextAt is when there will
// be something; zero if that depends on a later signal.
func (a *Agent) sendReports(auth authority) (nextAt time.Time) {
	for {
		r, batch, nextAt := a.nextReport(auth.epoch, time.Now())
		if r == nil {
			return nextAt
		}
		a.wg.Go(func() { a.sendReport(auth.ctx, auth.node, r, batch) })
	}
}

// nextReport returns the next report and the outcomes in it. If no report is due, it
// returns nil and when one will be; a zero time means after a later signal.
func (a *Agent) nextReport(epoch uint64, now time.Time) (*job.Report, []*pendingOutcome, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	box := &a.outbox
	if box.inFlight >= a.cfg.MaxReports {
		return nil, nil, time.Time{}
	}
	if now.Before(box.retryAt) {
		return nil, nil, box.retryAt
	}
	offers, nextAt := a.capacity.due(now)
	outcomes := len(box.pending) > 0 && (box.outcomesInFlight == 0 || len(box.pending) >= a.cfg.FlushOutcomes)
	if !offers && !outcomes && !a.workerEvents.due() {
		return nil, nil, nextAt
	}
	r := &job.Report{Node: a.cfg.Node, Incarnation: a.cfg.Incarnation}
	a.workerEvents.fill(r)
	box.inFlight++
	if offers { // without outcomes, whose commit would delay the acknowledgement and so the next offers
		a.capacity.fill(r, epoch)
		return r, nil, time.Time{}
	}
	batch := box.takeBatch()
	for _, e := range batch {
		r.Outcomes = append(r.Outcomes, e.outcome)
	}
	if len(batch) > 0 {
		box.outcomesInFlight++
	}
	return r, batch, time.Time{}
}

// takeBatch removes the outcomes for one report, up to its limits.
func (b *outbox) takeBatch() []*pendingOutcome {
	n, size := 0, 0
	for n < len(b.pending) && n < maxOutcomes {
		size += b.pending[n].size()
		if n > 0 && size > maxOutcomeBytes {
			break
		}
		n++
	}
	batch := b.pending[:n:n]
	b.pending = b.pending[n:]
	return batch
}

// sendReport sends one report and handles its acknowledgement or error.
func (a *Agent) sendReport(ctx context.Context, node string, r *job.Report, batch []*pendingOutcome) {
	call, cancel := context.WithTimeout(ctx, a.cfg.ReportTimeout)
	ack, err := a.transport.Report(call, node, *r)
	cancel()
	if err == nil && len(ack.Settled) != len(batch) {
		err = fmt.Errorf("authority answered %d of %d outcomes", len(ack.Settled), len(batch))
	}
	a.mu.Lock()
	a.outbox.inFlight--
	if len(batch) > 0 {
		a.outbox.outcomesInFlight--
	}
	if r.Rev > 0 {
		a.capacity.reportDone(r.Rev, err)
	}
	a.workerEvents.reportDone(r, err)
	var calls []func()
	if err != nil {
		a.retryLater(ctx, node, batch, err)
	} else {
		calls = a.settle(ack, batch)
	}
	a.mu.Unlock()
	signal(a.wakeReporter)
	for _, call := range calls {
		call()
	}
}

// retryLater enqueues the outcomes of a failed report again, in their old order, and
// delays the next report. Callers hold mu.
func (a *Agent) retryLater(ctx context.Context, node string, batch []*pendingOutcome, err error) {
	box := &a.outbox
	box.pending = slices.Concat(batch, box.pending)
	slices.SortFunc(box.pending, func(a, b *pendingOutcome) int { return cmp.Compare(a.seq, b.seq) })
	if ctx.Err() != nil {
		return // the authority has changed: no delay for the new one
	}
	if box.retry.Max == 0 {
		box.retry = backoff.Backoff{Base: 20 * time.Millisecond, Max: time.Second, Rand: a.cfg.Rand}
	}
	box.retryAt = time.Now().Add(box.retry.Next())
	if !box.failing {
		box.failing = true
		a.log.Warn("report not acknowledged, keeping outcomes", "authority", node, "count", len(batch), "err", err)
	}
}

// settle handles a report's acknowledgement and returns the callbacks to be called
// without mu. Callers hold mu.
func (a *Agent) settle(ack job.ReportAck, batch []*pendingOutcome) (calls []func()) {
	a.outbox.retry.Reset()
	a.outbox.failing = false
	a.observeEpoch(ack.Epoch)
	if ack.WantFull {
		a.capacity.resendAll()
	}
	now := time.Now()
	for i, e := range batch {
		a.table.markSettled(e.outcome.DispatchID(), now)
		for _, callback := range e.callbacks {
			calls = append(calls, func() { callback(ack.Settled[i]) })
		}
	}
	if len(batch) > 0 {
		a.signalChanged()
	}
	return calls
}
