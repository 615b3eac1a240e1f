package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of one report, so that the authority can settle it with one entry.
const (
	maxOutcomes     = 512
	maxOutcomeBytes = 128 << 10
	outcomeOverhead = 48 // bytes of an outcome without result and fault
)

// reportTimeout bounds one report, whose outcomes the authority commits before it answers.
const reportTimeout = 5 * time.Second

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

// reporter holds what the authority must learn, and reports it until it is
// acknowledged: outcomes, free capacity, worker events.
type reporter struct {
	cfg          Config
	transport    Transport
	log          *slog.Logger
	wg           *sync.WaitGroup                                  // reports in flight
	wake         chan struct{}                                    // buffer of one: wakes run
	observeEpoch func(epoch uint64)                               // called for every authority
	settle       func(ack job.ReportAck, batch []*pendingOutcome) // called for every acknowledgement

	mu               crash.Mutex // guards the fields below; may be locked with the agent's mu held
	capacity         capacity
	workerEvents     workerEventLog
	pending          []*pendingOutcome // not in flight, by seq
	lastSeq          uint64            // last seq assigned
	inFlight         int               // reports in flight
	outcomesInFlight int               // reports in flight that contain outcomes
	retryAt          time.Time         // no report is sent before; zero: at once
	retry            backoff.Backoff
	failing          bool // the last report failed, which was logged
}

// offer sets the free capacity of one worker for one key.
func (rp *reporter) offer(o job.Offer) {
	rp.mu.Lock()
	wake := rp.capacity.set(slotKey{o.Kind, o.Key, o.Worker}, o.Free, time.Now())
	rp.mu.Unlock()
	if wake {
		signal(rp.wake)
	}
}

// update changes the capacity and wakes run.
func (rp *reporter) update(change func(*capacity)) {
	rp.mu.Lock()
	change(&rp.capacity)
	rp.mu.Unlock()
	signal(rp.wake)
}

// addEvent appends a worker event.
func (rp *reporter) addEvent(e job.WorkerEvent) {
	rp.mu.Lock()
	rp.workerEvents.add(e)
	rp.mu.Unlock()
	signal(rp.wake)
}

// enqueue appends an outcome.
func (rp *reporter) enqueue(e *pendingOutcome) {
	rp.mu.Lock()
	rp.lastSeq++
	e.seq = rp.lastSeq
	rp.pending = append(rp.pending, e)
	rp.mu.Unlock()
	signal(rp.wake)
}

// ackedRev returns the revision of the last acknowledged report with offers.
func (rp *reporter) ackedRev() uint64 {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	return rp.capacity.ackedRev
}

// authority is the current authority of run. Its context is canceled when
// another authority is known, so that reports to it fail at once.
type authority struct {
	node   string // "": none is known
	epoch  uint64
	ctx    context.Context
	cancel context.CancelFunc
}

// run sends reports until ctx ends: outcomes at once while none are in flight,
// else in batches. Outcomes that an authority has not acknowledged are sent to the
// next one.
func (rp *reporter) run(ctx context.Context) {
	changed := rp.transport.AuthorityChanged()
	current := rp.refreshAuthority(ctx, authority{cancel: func() {}})
	defer func() { current.cancel() }()
	for {
		var retry <-chan time.Time
		if current.node != "" {
			if nextAt := rp.sendReports(current); !nextAt.IsZero() {
				retry = time.After(time.Until(nextAt))
			}
		}
		select {
		case <-rp.wake:
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			return
		}
		if tryReceive(changed) {
			changed = rp.transport.AuthorityChanged()
			current = rp.refreshAuthority(ctx, current)
		}
	}
}

// refreshAuthority returns current if it still is the authority. Otherwise it cancels the
// context of current, and with it the reports to that node, and returns the new
// authority, to which reports are due at once. The new authority's node is "" if none is
// known.
func (rp *reporter) refreshAuthority(ctx context.Context, current authority) authority {
	node, epoch, known := rp.transport.Authority()
	if known && node == current.node && epoch == current.epoch {
		return current
	}
	current.cancel()
	next := authority{epoch: epoch}
	next.ctx, next.cancel = context.WithCancel(ctx)
	if known {
		next.node = node
		rp.observeEpoch(epoch)
	}
	rp.mu.Lock()
	defer rp.mu.Unlock()
	rp.retryAt = time.Time{}
	rp.retry.Reset()
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
func (rp *reporter) sendReports(auth authority) (nextAt time.Time) {
	for {
		report, batch, nextAt := rp.nextReport(auth.epoch, time.Now())
		if report == nil {
			return nextAt
		}
		rp.wg.Go(func() { rp.sendReport(auth.ctx, auth.node, report, batch) })
	}
}

// nextReport returns the next report to the authority of epoch, and the outcomes in it.
// If no report is due, the report is nil and nextAt is when one will be, or zero if none
// will be due before rp.wake is signalled.
func (rp *reporter) nextReport(epoch uint64, now time.Time) (report *job.Report, batch []*pendingOutcome, nextAt time.Time) {
	rp.mu.Lock()
	defer rp.mu.Unlock()
	if rp.inFlight >= rp.cfg.maxReports {
		return nil, nil, time.Time{}
	}
	if now.Before(rp.retryAt) {
		return nil, nil, rp.retryAt
	}
	offersDue, nextAt := rp.capacity.due(now)
	outcomesDue := len(rp.pending) > 0 && (rp.outcomesInFlight == 0 || len(rp.pending) >= rp.cfg.flushOutcomes)
	if !offersDue && !outcomesDue && !rp.workerEvents.due() {
		return nil, nil, nextAt
	}

	report = &job.Report{Node: rp.cfg.Node, Incarnation: rp.cfg.Incarnation}
	rp.workerEvents.fill(report)
	rp.inFlight++
	if offersDue { // without outcomes, whose commit would delay the acknowledgement and so the next offers
		rp.capacity.fill(report, epoch)
		return report, nil, time.Time{}
	}
	batch = rp.takeBatch()
	for _, pending := range batch {
		report.Outcomes = append(report.Outcomes, pending.outcome)
	}
	if len(batch) > 0 {
		rp.outcomesInFlight++
	}
	return report, batch, time.Time{}
}

// takeBatch removes the outcomes for one report, up to its limits.
func (rp *reporter) takeBatch() []*pendingOutcome {
	n, size := 0, 0
	for n < len(rp.pending) && n < maxOutcomes {
		size += rp.pending[n].size()
		if n > 0 && size > maxOutcomeBytes {
			break
		}
		n++
	}
	batch := rp.pending[:n:n]
	rp.pending = rp.pending[n:]
	return batch
}

// sendReport sends a report with the outcomes in batch to a node, and handles its
// acknowledgement: rp.settle gets the outcomes. After an error they are sent again
// with a later report. ctx ends when the node no longer holds the authority.
func (rp *reporter) sendReport(ctx context.Context, node string, report *job.Report, batch []*pendingOutcome) {
	call, cancel := context.WithTimeout(ctx, reportTimeout)
	ack, err := rp.transport.Report(call, node, *report)
	cancel()
	if err == nil && len(ack.Settled) != len(batch) {
		err = fmt.Errorf("authority answered %d of %d outcomes", len(ack.Settled), len(batch))
	}
	rp.mu.Lock()
	rp.inFlight--
	if len(batch) > 0 {
		rp.outcomesInFlight--
	}
	if report.Rev > 0 {
		rp.capacity.reportDone(report.Rev, err)
	}
	rp.workerEvents.reportDone(report, err)
	if err != nil {
		rp.retryLater(ctx, node, batch, err)
	} else {
		rp.retry.Reset()
		rp.failing = false
		if ack.WantFull {
			rp.capacity.resendAll()
		}
	}
	rp.mu.Unlock()
	signal(rp.wake)
	if err == nil {
		rp.settle(ack, batch)
	}
}

// retryLater enqueues the outcomes of a failed report again, in their old order, and
// delays the next report. Callers hold mu.
func (rp *reporter) retryLater(ctx context.Context, node string, batch []*pendingOutcome, err error) {
	rp.pending = slices.Concat(batch, rp.pending)
	slices.SortFunc(rp.pending, func(a, b *pendingOutcome) int { return cmp.Compare(a.seq, b.seq) })
	if ctx.Err() != nil {
		return // the authority has changed: no delay for the new one
	}
	if rp.retry.Max == 0 {
		rp.retry = backoff.Backoff{Base: 20 * time.Millisecond, Max: time.Second, Rand: rp.cfg.Rand}
	}
	rp.retryAt = time.Now().Add(rp.retry.Next())
	if !rp.failing {
		rp.failing = true
		rp.log.Warn("report not acknowledged, keeping outcomes", "authority", node, "count", len(batch), "err", err)
	}
}
