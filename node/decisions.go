package node

import (
	"context"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// decisions waits for what the ledger decides about records that this node has had
// acknowledged, where that can be more than a new job: for jobs with guards, and for
// jobs with an ID of their own, which may belong to another queue's job. The decisions
// are read from the local ledger, so they are the same on every node and under every
// authority.
type decisions struct {
	raft    ledgerReader
	timeout time.Duration // how long a caller waits

	mu       sync.Mutex
	waiters  []decisionWaiter // by deadline
	checking int              // number of waiters that answerReady is checking
	closed   bool
	wake     chan struct{}
}

// ledgerReader is the local ledger, and a notification of its next change.
type ledgerReader interface {
	View(func(*ledger.Ledger))
	Applied() (uint64, <-chan struct{})
}

// decisionWaiter is one caller. check returns its answer once the ledger has a decision,
// else nil; onTimeout is its answer after the deadline.
type decisionWaiter struct {
	deadline  time.Time
	check     func(*ledger.Ledger) (answer func())
	onTimeout func()
}

// maxDecisionWaiters is how many callers may wait; further jobs are rejected before
// they are published.
const maxDecisionWaiters = 16384

func newDecisions(raft ledgerReader, timeout time.Duration) *decisions {
	return &decisions{raft: raft, timeout: timeout, wake: make(chan struct{}, 1)}
}

// admit returns an error if a job should not be published, because too many callers
// wait or, for a job with guards, the ledger holds too many keys.
func (d *decisions) admit(guarded bool) error {
	d.mu.Lock()
	full := d.checking+len(d.waiters) >= maxDecisionWaiters
	d.mu.Unlock()
	if full {
		return &job.UnavailableError{Reason: "too many jobs with keys are waiting for a decision", RetryAfter: time.Second}
	}
	if !guarded {
		return nil
	}
	d.raft.View(func(l *ledger.Ledger) { full = l.HeldKeys() >= ledger.MaxHeldKeys })
	if full {
		return &job.UnavailableError{Reason: ledger.ReasonKeysFull, RetryAfter: keysFullDelay}
	}
	return nil
}

// keysFullDelay is after what time a retry makes sense after [ledger.IngestedKeysFull].
const keysFullDelay = 10 * time.Second

// await calls then once, with the decision about the record at pos or with a
// [*job.UnavailableError]. then must not block.
func (d *decisions) await(pos job.Position, then func(ledger.Decision, error)) {
	onTimeout := func() { then(ledger.Decision{}, undecidedError()) }
	d.addWaiter(onTimeout, func(l *ledger.Ledger) func() {
		decision, known := l.Decision(pos)
		switch {
		case known:
			return func() { then(decision, nil) }
		case l.Ingested(pos): // so long ago that the ledger no longer has the decision
			return onTimeout
		}
		return nil
	})
}

// awaitOwner calls then once when the record at pos is ingested: with nil if its ID
// belongs to a job of queue, else with a conflict or a [*job.UnavailableError]. then
// must not block.
func (d *decisions) awaitOwner(pos job.Position, id job.ID, queue string, then func(error)) {
	d.addWaiter(func() { then(undecidedError()) }, func(l *ledger.Ledger) func() {
		if !l.Ingested(pos) {
			return nil
		}
		_, err := checkOwner(l, id, queue)
		return func() { then(err) }
	})
}

// addWaiter adds a caller. Its answers must not block.
func (d *decisions) addWaiter(onTimeout func(), check func(*ledger.Ledger) func()) {
	d.mu.Lock()
	closed := d.closed
	if !closed {
		d.waiters = append(d.waiters, decisionWaiter{time.Now().Add(d.timeout), check, onTimeout})
	}
	d.mu.Unlock()
	if closed {
		onTimeout()
		return
	}
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// undecidedError returns the answer to a caller after its deadline.
func undecidedError() error {
	return &job.UnavailableError{
		Reason: "the job is accepted, but the effect of its keys is not known yet: ask again under the same keys", RetryAfter: time.Second,
	}
}

// run answers callers after each applied entry and at their deadlines, until ctx ends.
func (d *decisions) run(ctx context.Context) error {
	defer d.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		_, changed := d.raft.Applied()
		if deadline, waiting := d.answerReady(time.Now()); waiting {
			timer.Reset(time.Until(deadline))
		} else {
			changed = nil // without waiters there is nothing to check
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		case <-changed:
		case <-timer.C:
		}
	}
}

// answerReady answers all callers that can be answered and returns the first deadline
// of the others. It does not hold the lock while it reads the ledger, which may be busy
// with an entry.
func (d *decisions) answerReady(now time.Time) (deadline time.Time, waiting bool) {
	d.mu.Lock()
	waiters := d.waiters
	d.waiters, d.checking = nil, len(waiters)
	d.mu.Unlock()
	var answers []func()
	rest := waiters[:0]
	if len(waiters) > 0 {
		d.raft.View(func(l *ledger.Ledger) {
			for _, w := range waiters {
				answer := w.check(l)
				switch {
				case answer != nil:
					answers = append(answers, answer)
				case !now.Before(w.deadline):
					answers = append(answers, w.onTimeout)
				default:
					rest = append(rest, w)
				}
			}
		})
	}
	clear(waiters[len(rest):])
	d.mu.Lock()
	d.waiters, d.checking = append(rest, d.waiters...), 0
	if len(d.waiters) > 0 {
		deadline, waiting = d.waiters[0].deadline, true
	}
	d.mu.Unlock()
	for _, answer := range answers {
		answer()
	}
	return deadline, waiting
}

// close answers all callers that still wait, and makes later ones fail at once.
func (d *decisions) close() {
	d.mu.Lock()
	waiters := d.waiters
	d.waiters, d.closed = nil, true
	d.mu.Unlock()
	for _, w := range waiters {
		w.onTimeout()
	}
}

// acceptedFrom turns a decision into the result for the caller. id is the job's ID;
// named reports whether the caller chose it.
func acceptedFrom(d ledger.Decision, id job.ID, pos job.Position, named bool) (accepted, error) {
	switch d.Ingested {
	case ledger.IngestedDuplicate:
		return accepted{}, &job.DuplicateError{Queue: d.Queue, ID: d.Job}
	case ledger.IngestedRateLimited:
		return accepted{}, &job.RateLimitedError{RetryAfter: d.RetryAfter}
	case ledger.IngestedKeysFull:
		return accepted{}, &job.UnavailableError{Reason: d.Reason, RetryAfter: keysFullDelay}
	case ledger.IngestedRejected:
		return accepted{}, &cluster.APIError{Code: "409", Text: d.Reason}
	case ledger.IngestedDebounced:
		return accepted{id: d.Job, position: pos, debounced: true}, nil
	case ledger.IngestedKnown:
		return accepted{id: id, position: pos, duplicate: named}, nil
	}
	return accepted{id: id, position: pos}, nil
}
