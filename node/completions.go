package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// completions waits for the ends of jobs on behalf of all callers. One goroutine checks
// the ledger after each entry: thousands of callers that each did so would slow down
// the applying of entries.
type completions struct {
	raft ledgerReader
	wake chan struct{} // receives when the first waiter is added

	mu      sync.Mutex
	waiters map[*waiter]struct{}
	closed  bool
}

// waiter is one caller waiting for a job to end, and the channel for its result.
type waiter struct {
	id     job.ID
	pos    job.Position // of its record if that may not be ingested yet, else zero
	result chan error   // buffered, receives one value
}

func newCompletions(raft ledgerReader) *completions {
	return &completions{raft: raft, wake: make(chan struct{}, 1), waiters: make(map[*waiter]struct{})}
}

// await blocks until a job has ended or ctx ends. at is the position of the job's
// record if it may not be ingested yet, or zero.
func (c *completions) await(ctx context.Context, id job.ID, at job.Position) error {
	w := &waiter{id, at, make(chan error, 1)}
	if err := c.add(w); err != nil {
		return err
	}
	defer c.remove(w)
	// Check once here: run only checks after the next entry.
	ended, err := false, error(nil)
	c.raft.View(func(l *ledger.Ledger) { ended, err = w.check(l) })
	if ended || err != nil {
		return err
	}
	select {
	case err := <-w.result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// check reports whether the job has ended. It returns [job.ErrJobNotFound] if the
// ledger has no such job and will not get it.
func (w *waiter) check(l *ledger.Ledger) (ended bool, err error) {
	state, known := l.State(w.id)
	if !known && (w.pos.Seq == 0 || l.Ingested(w.pos)) {
		err = fmt.Errorf("%s: %w", w.id, job.ErrJobNotFound)
	}
	return known && state.Ended(), err
}

func (c *completions) add(w *waiter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return context.Canceled
	}
	c.waiters[w] = struct{}{}
	if len(c.waiters) == 1 {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

func (c *completions) remove(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiters, w)
}

// run checks the waiters after each applied entry until ctx ends. Then it answers all
// waiters, and later ones at once, with [context.Canceled].
func (c *completions) run(ctx context.Context) error {
	defer c.close()
	for {
		_, changed := c.raft.Applied()
		if !c.answerReady() {
			changed = nil // without waiters there is nothing to check
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-changed:
		}
	}
}

// answerReady answers all waiters whose job has ended and reports whether there were
// any waiters. It does not hold the lock while it reads the ledger.
func (c *completions) answerReady() (waiting bool) {
	c.mu.Lock()
	waiters := make([]*waiter, 0, len(c.waiters))
	for w := range c.waiters {
		waiters = append(waiters, w)
	}
	c.mu.Unlock()
	if len(waiters) == 0 {
		return false
	}
	c.raft.View(func(l *ledger.Ledger) {
		for _, w := range waiters {
			if ended, err := w.check(l); ended || err != nil {
				w.answer(err)
			}
		}
	})
	return true
}

// answer sends the result to the caller; only the first call has an effect.
func (w *waiter) answer(err error) {
	select {
	case w.result <- err:
	default:
	}
}

func (c *completions) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for w := range c.waiters {
		w.answer(context.Canceled)
	}
}
