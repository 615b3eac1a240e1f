// Package ledgerwait waits, on behalf of all callers, until the local ledger shows what
// each of them waits for: a record ingested, a decision made, a job ended. One goroutine
// checks the ledger after each entry: thousands of callers that each did so would slow
// down the applying of entries.
package ledgerwait

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Ledger is the local ledger, and a notification of its next change.
type Ledger interface {
	View(func(*ledger.Ledger))
	Applied() (index uint64, changed <-chan struct{})
}

// Waiters are the callers that wait.
type Waiters struct {
	ledger  Ledger
	timeout time.Duration // of callers of Async

	mu     crash.Mutex
	added  []*waiter // not checked yet
	closed bool
	async  atomic.Int64  // number of callers of Async that wait
	wake   chan struct{} // receives when a waiter is added or abandoned

	waiting   []*waiter // the others; used by Run only
	checkedAt uint64    // index of the ledger at which waiting was checked
}

// waiter is one caller. check returns its answer once the ledger shows what it waits
// for, else nil; expire is its answer after the deadline and when the node stops.
type waiter struct {
	deadline  time.Time // zero means none
	check     func(*ledger.Ledger) (answer func())
	expire    func()
	abandoned atomic.Bool // the caller no longer waits
}

// maxAsync is how many callers of Async may wait.
const maxAsync = 16384

// ReadTimeout is how long a read waits for the ledger to contain what it must show.
const ReadTimeout = 2 * time.Second

// New returns waiters on l. Callers of [Waiters.Async] wait for at most timeout.
func New(l Ledger, timeout time.Duration) *Waiters {
	return &Waiters{ledger: l, timeout: timeout, wake: make(chan struct{}, 1)}
}

// View calls fn with the local ledger.
func (w *Waiters) View(fn func(*ledger.Ledger)) { w.ledger.View(fn) }

// Full reports whether too many callers of [Waiters.Async] wait to add another.
func (w *Waiters) Full() bool { return w.async.Load() >= maxAsync }

// Async calls the answer that check returns as soon as check returns one, or expire
// after the timeout or when the node stops. It returns at once. Neither check nor the
// answers may block.
func (w *Waiters) Async(check func(*ledger.Ledger) (answer func()), expire func()) {
	w.async.Add(1)
	w.add(&waiter{
		deadline: time.Now().Add(w.timeout),
		check: func(l *ledger.Ledger) func() {
			answer := check(l)
			if answer != nil {
				w.async.Add(-1)
			}
			return answer
		},
		expire: func() { w.async.Add(-1); expire() },
	})
}

// Wait blocks until done reports true for the local ledger or ctx ends. It returns
// [context.Canceled] if the node stops. What done writes may be read after Wait has
// returned nil only.
func (w *Waiters) Wait(ctx context.Context, done func(*ledger.Ledger) bool) error {
	ok := false
	w.ledger.View(func(l *ledger.Ledger) { ok = done(l) })
	if ok {
		return nil
	}
	result := make(chan error, 1)
	caller := &waiter{
		check: func(l *ledger.Ledger) func() {
			if !done(l) {
				return nil
			}
			return func() { result <- nil }
		},
		expire: func() { result <- context.Canceled },
	}
	w.add(caller)
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		caller.abandoned.Store(true)
		wakeup.Send(w.wake)
		return ctx.Err()
	}
}

// WaitRead is [Waiters.Wait] for a read that must show an earlier write. After
// [ReadTimeout] it returns a [*job.UnavailableError].
func (w *Waiters) WaitRead(ctx context.Context, done func(*ledger.Ledger) bool) error {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	if w.Wait(ctx, done) != nil {
		return &job.UnavailableError{Reason: "this node's ledger does not contain your last write yet", RetryAfter: time.Second}
	}
	return nil
}

// WaitIndex is [Waiters.WaitRead] for the entry at index.
func (w *Waiters) WaitIndex(ctx context.Context, index uint64) error {
	if applied, _ := w.ledger.Applied(); applied >= index {
		return nil
	}
	return w.WaitRead(ctx, func(l *ledger.Ledger) bool { return l.Index() >= index })
}

// add adds a caller. When the node has stopped it is answered at once.
func (w *Waiters) add(caller *waiter) {
	w.mu.Lock()
	closed := w.closed
	if !closed {
		w.added = append(w.added, caller)
	}
	w.mu.Unlock()
	if closed {
		caller.expire()
		return
	}
	wakeup.Send(w.wake)
}

// Run answers callers after each applied entry and at their deadlines, until ctx ends.
func (w *Waiters) Run(ctx context.Context) error {
	defer w.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		index, changed := w.ledger.Applied()
		deadline, waiting := w.answerReady(index, time.Now())
		if !waiting {
			changed = nil // without waiters there is nothing to check
		}
		timer.Stop()
		if !deadline.IsZero() {
			timer.Reset(time.Until(deadline))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-changed:
		case <-timer.C:
		}
	}
}

// answerReady answers all callers that can be answered at the time now, or whose deadline
// has passed. It returns whether others are still waiting, and their earliest deadline,
// zero for none. index is that of the ledger: callers that were checked at it are not
// checked again. It does not hold the lock while it reads the ledger, which may be busy
// with an entry.
func (w *Waiters) answerReady(index uint64, now time.Time) (deadline time.Time, waiting bool) {
	unchecked := 0 // index of the first caller that was not checked at this index
	if index == w.checkedAt {
		unchecked = len(w.waiting)
	}
	w.mu.Lock()
	w.waiting = append(w.waiting, w.added...)
	w.added = nil
	w.mu.Unlock()
	w.checkedAt = index
	var answers []func()
	if callers := w.waiting[unchecked:]; len(callers) > 0 {
		w.ledger.View(func(l *ledger.Ledger) {
			for i, caller := range callers {
				if caller.abandoned.Load() {
					continue
				}
				if answer := caller.check(l); answer != nil {
					answers = append(answers, answer)
					callers[i] = nil
				}
			}
		})
	}
	rest := w.waiting[:0]
	for _, caller := range w.waiting {
		switch {
		case caller == nil || caller.abandoned.Load():
			continue // answered above, or no longer waiting
		case !caller.deadline.IsZero() && !now.Before(caller.deadline):
			answers = append(answers, caller.expire)
		default:
			rest = append(rest, caller)
			if d := caller.deadline; !d.IsZero() && (deadline.IsZero() || d.Before(deadline)) {
				deadline = d
			}
		}
	}
	clear(w.waiting[len(rest):])
	w.waiting = rest
	for _, answer := range answers {
		answer()
	}
	return deadline, len(rest) > 0
}

// close answers all callers that still wait, and makes later ones fail at once.
func (w *Waiters) close() {
	w.mu.Lock()
	callers := append(w.waiting, w.added...)
	w.waiting, w.added, w.closed = nil, nil, true
	w.mu.Unlock()
	for _, caller := range callers {
		if !caller.abandoned.Load() {
			caller.expire()
		}
	}
}

// JobEnd blocks until a job has ended or ctx ends. at is the position of the job's
// record if it may not be ingested yet, or zero. It returns [job.ErrJobNotFound] if the
// ledger has no such job and will not get it.
func (w *Waiters) JobEnd(ctx context.Context, id job.ID, at job.Position) error {
	missing := false
	err := w.Wait(ctx, func(l *ledger.Ledger) bool {
		state, known := l.State(id)
		missing = !known && (at.Seq == 0 || l.Ingested(at))
		return missing || known && state.Ended()
	})
	if err == nil && missing {
		err = fmt.Errorf("%s: %w", id, job.ErrJobNotFound)
	}
	return err
}
