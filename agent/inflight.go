package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"yardmaster/internal/backoff"
	"yardmaster/job"
)

// Target carries dispatches out: the edge for TCP workers, the pool for
// runner processes.
type Target interface {
	Kind() job.Kind
	// Start begins a dispatch and returns at once. false: the offer's worker
	// is gone or full, and nothing was begun.
	Start(a job.Assignment, spec job.Spec) bool
	// Stop recalls a running dispatch, whose outcome still comes; a worker's
	// that is superseded is let go without one. Dispatches the target does not
	// know are ignored.
	Stop(id job.ID, n uint32, why job.RecallReason)
}

// phase is how far a dispatch has come.
type phase uint8

const (
	loading  phase = iota // its body is on its way
	starting              // inside Target.Start
	running
	ending // its outcome is known and not yet settled
)

// key names a dispatch.
type key struct {
	id job.ID
	n  uint32
}

// dispatch is one assignment in hand.
type dispatch struct {
	key
	phase    phase
	target   Target
	recalled job.RecallReason // "": not
	order    *job.Assignment  // while loading
	end      *ended           // while ending
	moved    uint64           // index of the entry that moved it here; 0: it began here
}

// recall notes that the dispatch is to stop; true if its target has to be
// told now. The first reason stands, unless a graver one comes: the end of the
// lease leaves no time for any grace, and what has left is not stopped at all.
func (d *dispatch) recall(why job.RecallReason) bool {
	if d.phase == ending || gravity(why) <= gravity(d.recalled) {
		return false
	}
	d.recalled = why
	return d.phase == running
}

func gravity(why job.RecallReason) int {
	switch why {
	case "":
		return 0
	case job.RecallLease:
		return 2
	case job.RecallSuperseded:
		return 3
	}
	return 1
}

// What was settled or refused is remembered between one and two of these, or
// less if more than that many dispatches were.
const (
	rememberFor = 15 * time.Second
	rememberMax = 200_000
)

// table holds the dispatches in hand, and for a while those that were: an
// order may arrive twice, and late.
type table struct {
	live    map[key]*dispatch
	running int // of live, those that are not ending

	past    memory // was in hand
	refused memory // was not taken: the authority has it run elsewhere, and a late copy of its order must not begin it here
}

func newTable() table { return table{live: map[key]*dispatch{}} }

// memory knows keys for a while.
type memory struct {
	recent, older map[key]struct{}
	turned        time.Time // when recent was begun
}

func (m *memory) add(k key, now time.Time) {
	if m.recent == nil || len(m.recent) >= rememberMax || now.Sub(m.turned) >= rememberFor {
		m.older, m.recent, m.turned = m.recent, make(map[key]struct{}, len(m.recent)), now
	}
	m.recent[k] = struct{}{}
}

func (m *memory) has(k key) bool {
	_, recently := m.recent[k]
	_, before := m.older[k]
	return recently || before
}

// has tells whether an order needs nothing any more. A dispatch that is brought
// back here is in hand or it is not, whatever became of it before.
func (t *table) has(o *job.Assignment) bool {
	k := key{o.Job, o.N}
	if _, ok := t.live[k]; ok {
		return true
	}
	if !o.Started.IsZero() {
		return false
	}
	return t.past.has(k)
}

// refuse remembers an order that was answered with no; what a worker brings
// later is no such order.
func (t *table) refuse(o *job.Assignment, now time.Time) {
	if o.Started.IsZero() {
		t.refused.add(key{o.Job, o.N}, now)
	}
}

func (t *table) add(d *dispatch) {
	t.live[d.key] = d
	t.running++
}

// end marks a dispatch whose outcome is known.
func (t *table) end(d *dispatch) {
	d.phase = ending
	t.running--
}

// drop forgets a dispatch that never began here.
func (t *table) drop(d *dispatch) {
	delete(t.live, d.key)
	t.running--
}

// leave forgets a running dispatch that goes on elsewhere, but not that it was
// here.
func (t *table) leave(d *dispatch, now time.Time) {
	if t.live[d.key] == d && d.phase != ending {
		t.running--
		t.settled(d.key, now)
	}
}

// settled moves a dispatch from hand to memory.
func (t *table) settled(k key, now time.Time) {
	if _, ok := t.live[k]; !ok {
		return
	}
	delete(t.live, k)
	t.past.add(k, now)
}

// Assign takes a batch of orders and answers each. Bodies that are not at hand
// are loaded afterwards; their orders are taken.
func (a *Agent) Assign(b job.Batch) []job.Answer {
	a.assigning.Lock()
	defer a.assigning.Unlock()
	answers := make([]job.Answer, len(b.Assignments))
	if a.refuse(b, answers) {
		return answers
	}
	for i := range b.Assignments {
		answers[i] = a.take(&b.Assignments[i])
	}
	a.mu.Lock()
	a.room.saw(b, time.Now())
	a.mu.Unlock()
	notice(a.wake)
	return answers
}

// refuse answers a whole batch if it may not be taken. What is in hand already
// stays so: another answer would have it begun elsewhere.
func (a *Agent) refuse(b job.Batch, answers []job.Answer) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	var refusal job.Answer
	switch {
	case b.Incarnation != 0 && b.Incarnation != a.cfg.Incarnation, !a.sees(b.Epoch):
		refusal = job.StaleEpoch // meant for another life of this node, or given by an authority of the past
	case a.draining:
		refusal = job.Draining
	case !a.works(), a.former.meant(b):
		refusal = job.NoRoom // the authority may not count on this node, or did not when it gave them
	default:
		return false
	}
	for i := range b.Assignments {
		answers[i] = refusal
		switch o := &b.Assignments[i]; {
		case refusal == job.StaleEpoch:
		case a.table.has(o):
			answers[i] = job.Taken
		default:
			a.table.refuse(o, time.Now())
		}
	}
	return true
}

func (a *Agent) take(o *job.Assignment) job.Answer {
	target := a.targets[o.Kind]
	if target == nil {
		return job.NoRoom
	}
	d := &dispatch{key: key{o.Job, o.N}, phase: starting, target: target}
	spec, load, err := atHand(o.Body)
	a.mu.Lock()
	known := a.table.has(o)
	if known || !a.works() || a.table.refused.has(d.key) || !o.Started.IsZero() {
		if !known {
			a.table.refuse(o, time.Now())
		}
		a.mu.Unlock()
		if known {
			return job.Taken
		}
		return job.NoRoom // also for what a worker has yet to bring: see Adopt
	}
	a.table.add(d)
	if load {
		order := *o // the batch is the caller's
		d.phase, d.order = loading, &order
		a.room.reserve(seatOf(o), 1, time.Now())
	}
	a.mu.Unlock()
	if load {
		a.loads.add(func(ctx context.Context) { a.load(ctx, d) })
		return job.Taken
	}
	if err != nil {
		a.Report(d.invalid(err), nil)
		return job.Taken
	}
	if !target.Start(*o, spec) {
		a.mu.Lock()
		if d.phase != ending {
			a.table.drop(d)
			a.table.refuse(o, time.Now())
			a.left()
		}
		a.mu.Unlock()
		return job.NoRoom
	}
	a.started(d)
	return job.Taken
}

// atHand reads a body that came with its order; load tells that the whole of
// it lies elsewhere.
func atHand(body []byte) (spec job.Spec, load bool, err error) {
	if body == nil {
		return spec, true, nil
	}
	spec, err = job.ParseSpec(body)
	return spec, err == nil && spec.Blob != nil, err
}

// started follows up on a recall that came while the target was starting.
func (a *Agent) started(d *dispatch) {
	a.mu.Lock()
	why := d.recalled
	if d.phase == starting {
		d.phase = running
	} else {
		why = "" // it has ended already
	}
	a.mu.Unlock()
	if why != "" {
		a.stop(d, why)
	}
}

// load fetches a taken dispatch's body and starts it.
func (a *Agent) load(ctx context.Context, d *dispatch) {
	body, err := a.fetch(ctx, d)
	var spec job.Spec
	if err == nil {
		spec, err = job.ParseSpec(body)
	}
	a.mu.Lock()
	order := d.order
	d.order = nil
	why := d.recalled
	d.phase = starting
	works := a.works() // if that ends from here on, the dispatch is recalled
	a.mu.Unlock()

	var bad *job.InvalidError
	switch {
	case !works && why == "":
		a.Report(d.declined("the node's lease was over when the body had come"), nil)
	case why != "":
		a.Report(d.unstarted(why), nil)
	case errors.As(err, &bad), errors.Is(err, ErrBodyLost):
		a.Report(d.invalid(err), nil)
	case err != nil:
		a.Report(d.declined(err.Error()), nil)
	default:
		order.Body = body
		if d.target.Start(*order, spec) {
			a.started(d)
		} else {
			a.Report(d.declined("no room when the body had come"), nil)
		}
	}
	a.mu.Lock()
	a.room.reserve(seatOf(order), -1, time.Now())
	a.mu.Unlock()
	notice(a.wake)
}

// loadTries bounds how long a dispatch waits for its body here: another node
// may be nearer to it.
const loadTries = 4

func (a *Agent) fetch(ctx context.Context, d *dispatch) ([]byte, error) {
	wait := backoff.Backoff{Base: 50 * time.Millisecond, Max: time.Second, Dice: a.cfg.Dice}
	for try := 1; ; try++ {
		body, err := a.bus.Load(ctx, d.order.Position, d.id)
		if err == nil || errors.Is(err, ErrBodyLost) {
			return body, err
		}
		a.mu.Lock()
		recalled := d.recalled != ""
		a.mu.Unlock()
		if recalled || try == loadTries {
			return nil, fmt.Errorf("load body: %w", err)
		}
		if err := backoff.Sleep(ctx, wait.Next()); err != nil {
			return nil, err
		}
	}
}

// invalid ends a dispatch that can never run.
func (d *dispatch) invalid(err error) job.Outcome {
	return job.Outcome{Job: d.id, N: d.n, Status: job.Error, Final: true, Fault: &job.Fault{Message: err.Error(), Type: job.FaultInvalid}}
}

// declined gives back a dispatch that did not begin here.
func (d *dispatch) declined(why string) job.Outcome {
	return job.Outcome{Job: d.id, N: d.n, Status: job.Declined, Fault: &job.Fault{Message: why}}
}

// unstarted ends a dispatch that was recalled before it began.
func (d *dispatch) unstarted(why job.RecallReason) job.Outcome {
	o := d.declined("recalled before it began: " + string(why))
	if why == job.RecallCancelled || why == job.RecallQueueGone {
		o.Status, o.Fault.Type = job.Cancelled, job.FaultCancelled
	}
	return o
}
