package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"yardmaster/internal/backoff"
	"yardmaster/job"
)

// Bounds of one report: what settles within one entry of the log.
const (
	maxOutcomes     = 512
	maxOutcomeBytes = 128 << 10
	outcomeBytes    = 48 // an outcome without result and fault
)

// Bounds of storing large results.
const (
	storePatience = 30 * time.Second // from the report on
	maxStoring    = 256 << 20        // bytes that wait to be stored
)

// ended is an outcome on its way.
type ended struct {
	outcome job.Outcome
	then    []func(job.Settled) // guarded by the agent's mu
	place   uint64              // in the line of those that wait
}

func (e *ended) size() int {
	n := outcomeBytes + len(e.outcome.Result.Data)
	if f := e.outcome.Fault; f != nil {
		n += len(f.Message) + len(f.Type) + len(f.Code) + len(f.Details)
	}
	return n
}

// outbox holds the outcomes that are not settled. It is guarded by the agent's
// mu.
type outbox struct {
	waiting  []*ended // by their places
	places   uint64   // given so far
	flying   int      // reports on their way
	carrying int      // of them, those with outcomes
	storing  int      // bytes of results that are being stored before they are reported
	retryAt  time.Time
	retry    backoff.Backoff
	failing  bool
}

// Report takes over the outcome of a dispatch, and keeps it until the
// authority has settled it. then, if given, is called once from another
// goroutine when it is settled or known to be stale, and must not block; it
// is not called if the node stops first.
//
// An outcome of a dispatch that was not assigned here (its worker came over
// from another node) is taken as well. Of two outcomes of one dispatch the
// first counts; both callers hear what became of it.
func (a *Agent) Report(o job.Outcome, then func(job.Settled)) {
	k := key{o.Job, o.N}
	a.mu.Lock()
	d := a.table.live[k]
	if d == nil {
		d = &dispatch{key: k}
		a.table.add(d)
	}
	first := d.phase != ending
	if first {
		d.end = &ended{outcome: o}
		a.table.end(d)
		a.left()
	}
	e := d.end
	if then != nil {
		e.then = append(e.then, then)
	}
	a.mu.Unlock()
	if !first {
		return
	}
	cut(e.outcome.Fault)
	if o.Blob == nil && len(o.Result.Data) > job.MaxInlineResult {
		a.storeSoon(e)
		return
	}
	a.post(e)
}

// cut shortens a fault to what travels inline. Details are kept whole or not
// at all: half of a JSON is none.
func cut(f *job.Fault) {
	if f == nil {
		return
	}
	f.Type, f.Code = shorten(f.Type, job.MaxFaultName), shorten(f.Code, job.MaxFaultName)
	room := job.MaxInlineFault - len(f.Type) - len(f.Code)
	if len(f.Details) > room/2 {
		f.Details = nil
	}
	f.Message = shorten(f.Message, room-len(f.Details))
}

// shorten cuts a text to n bytes, between two characters, and marks it.
func shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	const mark = " (cut)"
	n -= len(mark)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + mark
}

// storeSoon has a large result stored, unless too much waits for that already:
// what a full stream holds back must not fill this node's memory.
func (a *Agent) storeSoon(e *ended) {
	size := len(e.outcome.Result.Data)
	a.mu.Lock()
	full := a.outbox.storing+size > maxStoring
	if !full {
		a.outbox.storing += size
	}
	a.mu.Unlock()
	if full {
		a.unstored(e, "too many results wait to be stored")
		return
	}
	until := time.Now().Add(storePatience)
	a.stores.add(func(ctx context.Context) {
		a.store(ctx, e, until)
		a.mu.Lock()
		a.outbox.storing -= size
		a.mu.Unlock()
	})
}

// store puts a large result where results may be large. Until it is there the
// dispatch counts as running, so that nobody hears of a success without its
// result; one that cannot be stored in time ends as an error instead.
func (a *Agent) store(ctx context.Context, e *ended, until time.Time) {
	wait := backoff.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second, Dice: a.cfg.Dice}
	name := fmt.Sprintf("%s-%d", e.outcome.Job, e.outcome.N)
	limited, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for try := 1; ; try++ {
		blob, err := a.bus.StoreBlob(limited, name, e.outcome.Result.Data)
		if err == nil {
			e.outcome.Blob, e.outcome.Result.Data = &blob, nil
			a.post(e)
			return
		}
		if try == 3 {
			a.log.Warn("large result cannot be stored, trying on", "job", e.outcome.Job.String(), "error", err)
		}
		if backoff.Sleep(limited, wait.Next()) == nil {
			continue
		}
		if ctx.Err() == nil { // the time is up, and the node goes on
			a.unstored(e, err.Error())
		}
		return
	}
}

// unstored ends a dispatch whose result cannot be kept. It is not tried again:
// the work itself was done.
func (a *Agent) unstored(e *ended, why string) {
	a.log.Error("large result is given up", "job", e.outcome.Job.String(), "bytes", len(e.outcome.Result.Data), "reason", why)
	e.outcome.Status, e.outcome.Final, e.outcome.Result = job.Error, true, job.Value{}
	e.outcome.Fault = &job.Fault{Message: "The result could not be stored: " + why, Type: job.FaultNotStored}
	cut(e.outcome.Fault)
	a.post(e)
}

func (a *Agent) post(e *ended) {
	a.mu.Lock()
	a.outbox.places++
	e.place = a.outbox.places
	a.outbox.waiting = append(a.outbox.waiting, e)
	a.mu.Unlock()
	notice(a.wake)
}

// era is one authority's time, as the reporter sees it. What is on its way to
// an authority ends with its era: nobody would answer it.
type era struct {
	node  string // "": nobody is known
	epoch uint64
	ctx   context.Context
	end   context.CancelFunc
}

// report sends what there is to tell: at once while nothing is on its way,
// else by the batch. A new authority hears everything that the old one has not
// answered.
func (a *Agent) report(ctx context.Context) {
	changed := a.bus.AuthorityChanged()
	now := a.turn(ctx, era{end: func() {}})
	defer func() { now.end() }()
	for {
		var again <-chan time.Time
		if now.node != "" {
			if at := a.sendAll(now); !at.IsZero() {
				again = time.After(time.Until(at))
			}
		}
		select {
		case <-a.wake:
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return
		}
		if closed(changed) {
			changed = a.bus.AuthorityChanged()
			now = a.turn(ctx, now)
		}
	}
}

// turn gives the present era, which is the last one if the authority has not
// changed.
func (a *Agent) turn(ctx context.Context, last era) era {
	node, epoch, ok := a.bus.Authority()
	if ok && node == last.node && epoch == last.epoch {
		return last
	}
	last.end()
	next := era{node: node, epoch: epoch}
	if !ok {
		next.node = ""
	}
	next.ctx, next.end = context.WithCancel(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if ok {
		a.sees(epoch)
	}
	a.outbox.retryAt = time.Time{}
	a.outbox.retry.Reset()
	return next
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sendAll sends reports until there is nothing to send now; at is when there
// will be, zero if only a notice can tell.
func (a *Agent) sendAll(now era) (at time.Time) {
	for {
		r, batch, at := a.next(now.epoch, time.Now())
		if r == nil {
			return at
		}
		a.work.Go(func() { a.send(now.ctx, now.node, r, batch) })
	}
}

// next builds the next report if it is time for one.
func (a *Agent) next(epoch uint64, now time.Time) (*job.Report, []*ended, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	box := &a.outbox
	if box.flying >= a.cfg.Reports {
		return nil, nil, time.Time{}
	}
	if now.Before(box.retryAt) {
		return nil, nil, box.retryAt
	}
	offers, at := a.room.due(now)
	outcomes := len(box.waiting) > 0 && (box.carrying == 0 || len(box.waiting) >= a.cfg.Gather)
	if !offers && !outcomes && !a.notes.due() {
		return nil, nil, at
	}
	r := &job.Report{Node: a.cfg.Node, Incarnation: a.cfg.Incarnation}
	a.notes.fill(r)
	box.flying++
	if offers { // alone: an outcome's commit would hold back the answer, and with it what comes free next
		a.room.fill(r, epoch)
		return r, nil, time.Time{}
	}
	batch := box.take()
	for _, e := range batch {
		r.Outcomes = append(r.Outcomes, e.outcome)
	}
	if len(batch) > 0 {
		box.carrying++
	}
	return r, batch, time.Time{}
}

// take removes what fits one report.
func (b *outbox) take() []*ended {
	n, size := 0, 0
	for n < len(b.waiting) && n < maxOutcomes {
		size += b.waiting[n].size()
		if n > 0 && size > maxOutcomeBytes {
			break
		}
		n++
	}
	batch := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	return batch
}

// send sends one report and sees to what its answer says.
func (a *Agent) send(ctx context.Context, node string, r *job.Report, batch []*ended) {
	call, cancel := context.WithTimeout(ctx, a.cfg.ReportTimeout)
	ack, err := a.bus.Report(call, node, *r)
	cancel()
	if err == nil && len(ack.Settled) != len(batch) {
		err = fmt.Errorf("authority answered %d of %d outcomes", len(ack.Settled), len(batch))
	}
	a.mu.Lock()
	a.outbox.flying--
	if len(batch) > 0 {
		a.outbox.carrying--
	}
	if r.Rev > 0 {
		a.room.landed(r.Rev, err)
	}
	a.notes.landed(r, err)
	var calls []func()
	if err != nil {
		a.postpone(ctx, node, batch, err)
	} else {
		calls = a.settle(ack, batch)
	}
	a.mu.Unlock()
	notice(a.wake)
	for _, call := range calls {
		call()
	}
}

// postpone lines up again what was not answered, ahead of what came later.
// Callers hold mu.
func (a *Agent) postpone(ctx context.Context, node string, batch []*ended, err error) {
	box := &a.outbox
	box.waiting = slices.Concat(batch, box.waiting)
	slices.SortFunc(box.waiting, func(a, b *ended) int { return cmp.Compare(a.place, b.place) })
	if ctx.Err() != nil {
		return // the authority changed: the new one hears it at once
	}
	if box.retry.Max == 0 {
		box.retry = backoff.Backoff{Base: 20 * time.Millisecond, Max: time.Second, Dice: a.cfg.Dice}
	}
	box.retryAt = time.Now().Add(box.retry.Next())
	if !box.failing {
		box.failing = true
		a.log.Warn("report not answered, outcomes are kept", "authority", node, "outcomes", len(batch), "error", err)
	}
}

// settle notes a report's answer and gives what is to be called for it.
// Callers hold mu.
func (a *Agent) settle(ack job.ReportAck, batch []*ended) (calls []func()) {
	a.outbox.retry.Reset()
	a.outbox.failing = false
	a.sees(ack.Epoch)
	if ack.WantFull {
		a.room.forgotten()
	}
	now := time.Now()
	for i, e := range batch {
		a.table.settled(key{e.outcome.Job, e.outcome.N}, now)
		for _, then := range e.then {
			calls = append(calls, func() { then(ack.Settled[i]) })
		}
	}
	if len(batch) > 0 {
		a.left()
	}
	return calls
}
