package node

import (
	"context"
	"fmt"
	"sync"

	"yardmaster/job"
	"yardmaster/ledger"
)

// ends hears when jobs have ended, for all who wait for that: the ledger goes on
// with every entry, nearly all of them are about other jobs, and thousands who
// looked each for themselves would hold it up.
type ends struct {
	raft applier
	wake chan struct{} // somebody waits where nobody did

	mu      sync.Mutex
	waiting map[*awaitedEnd]struct{}
	closed  bool
}

// awaitedEnd is somebody who waits for a job's end, and what is said to him.
type awaitedEnd struct {
	id   job.ID
	at   job.Position // where it lies if it need not be folded yet; zero if it is
	said chan error   // takes one
}

func newEnds(raft applier) *ends {
	return &ends{raft: raft, wake: make(chan struct{}, 1), waiting: make(map[*awaitedEnd]struct{})}
}

// await waits until a job has ended. One that was accepted a moment ago, at a
// place in a lane, need not be folded yet; the zero place is of one that is.
func (e *ends) await(ctx context.Context, id job.ID, at job.Position) error {
	a := &awaitedEnd{id, at, make(chan error, 1)}
	if err := e.enter(a); err != nil {
		return err
	}
	defer e.leave(a)
	// What happened before is for nobody else to see: run looks when something
	// happens.
	ended, err := false, error(nil)
	e.raft.View(func(l *ledger.Ledger) { ended, err = a.look(l) })
	if ended || err != nil {
		return err
	}
	select {
	case err := <-a.said:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// look tells whether the job has ended, or that there is no such job.
func (a *awaitedEnd) look(l *ledger.Ledger) (ended bool, err error) {
	state, known := l.State(a.id)
	if !known && (a.at.Seq == 0 || l.Folded(a.at)) {
		err = fmt.Errorf("%s: %w", a.id, job.ErrJobNotFound)
	}
	return known && state.Ended(), err
}

func (e *ends) enter(a *awaitedEnd) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return context.Canceled
	}
	e.waiting[a] = struct{}{}
	if len(e.waiting) == 1 {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

func (e *ends) leave(a *awaitedEnd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.waiting, a)
}

// run looks whenever the ledger has gone on, until ctx ends. Nobody waits after
// that.
func (e *ends) run(ctx context.Context) error {
	defer e.close()
	for {
		_, changed := e.raft.Applied()
		if !e.tell() {
			changed = nil // nobody waits: the ledger may go on unseen
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		case <-changed:
		}
	}
}

// tell answers all that can be answered; some tells that others still wait.
// Nobody who comes or goes meanwhile waits for the ledger.
func (e *ends) tell() (some bool) {
	e.mu.Lock()
	looking := make([]*awaitedEnd, 0, len(e.waiting))
	for a := range e.waiting {
		looking = append(looking, a)
	}
	e.mu.Unlock()
	if len(looking) == 0 {
		return false
	}
	e.raft.View(func(l *ledger.Ledger) {
		for _, a := range looking {
			if ended, err := a.look(l); ended || err != nil {
				a.say(err)
			}
		}
	})
	return true
}

// say answers, once.
func (a *awaitedEnd) say(err error) {
	select {
	case a.said <- err:
	default:
	}
}

func (e *ends) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for a := range e.waiting {
		a.say(context.Canceled)
	}
}
