package node

import (
	"context"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// rulings hears what the ledger made of jobs that this node had acknowledged,
// where that is not certain: of jobs with guards, and of jobs that bring their
// id along, which may be another queue's. The word is the local ledger's, so it is the same whoever held
// the authority when it fell, and on whatever node it is asked for.
type rulings struct {
	raft     applier
	patience time.Duration // how long a caller waits

	mu      sync.Mutex
	waiting []awaited // by until
	looking int       // how many settle has taken out to look at
	closed  bool
	wake    chan struct{}
}

// applier is the local ledger and how it goes on.
type applier interface {
	View(func(*ledger.Ledger))
	Applied() (uint64, <-chan struct{})
}

// awaited is a caller. look gives its answer once the ledger has one; late is
// the answer when that takes too long.
type awaited struct {
	until time.Time
	look  func(*ledger.Ledger) (answer func())
	late  func()
}

// maxAwaited is how many callers may wait; jobs of more are refused before
// they are published.
const maxAwaited = 16384

func newRulings(raft applier, patience time.Duration) *rulings {
	return &rulings{raft: raft, patience: patience, wake: make(chan struct{}, 1)}
}

// admit refuses a job that nobody could decide about soon.
func (r *rulings) admit(guarded bool) error {
	r.mu.Lock()
	full := r.looking+len(r.waiting) >= maxAwaited
	r.mu.Unlock()
	if full {
		return &job.UnavailableError{Reason: "too many jobs with keys wait to be decided on", RetryAfter: time.Second}
	}
	if !guarded {
		return nil
	}
	r.raft.View(func(l *ledger.Ledger) { full = l.HeldKeys() >= ledger.MaxHeldKeys })
	if full {
		return &job.UnavailableError{Reason: ledger.ReasonKeysFull, RetryAfter: keysFullDelay}
	}
	return nil
}

// keysFullDelay is when another try makes sense after [ledger.FoldedLater].
const keysFullDelay = 10 * time.Second

// await calls then once with the ruling about the record at a place, or with a
// [*job.UnavailableError]. then must not block.
func (r *rulings) await(place job.Position, then func(ledger.Ruling, error)) {
	late := func() { then(ledger.Ruling{}, undecided()) }
	r.enter(late, func(l *ledger.Ledger) func() {
		ruling, known := l.Ruling(place)
		switch {
		case known:
			return func() { then(ruling, nil) }
		case l.Folded(place): // too long ago
			return late
		}
		return nil
	})
}

// awaitOwner calls then once with whether the job at a place became a job of
// queue; the error is a conflict, or a [*job.UnavailableError]. then must not
// block.
func (r *rulings) awaitOwner(place job.Position, id job.ID, queue string, then func(error)) {
	r.enter(func() { then(undecided()) }, func(l *ledger.Ledger) func() {
		if !l.Folded(place) {
			return nil
		}
		_, err := ownedBy(l, id, queue)
		return func() { then(err) }
	})
}

// enter adds a caller, whose answers must not block.
func (r *rulings) enter(late func(), look func(*ledger.Ledger) func()) {
	r.mu.Lock()
	closed := r.closed
	if !closed {
		r.waiting = append(r.waiting, awaited{time.Now().Add(r.patience), look, late})
	}
	r.mu.Unlock()
	if closed {
		late()
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// undecided is the answer to who has waited long enough.
func undecided() error {
	return &job.UnavailableError{
		Reason: "the job is accepted, but it is not known yet what its keys make of it: ask again under the same keys", RetryAfter: time.Second,
	}
}

// run answers callers as the ledger goes on, until ctx ends.
func (r *rulings) run(ctx context.Context) error {
	defer r.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		_, changed := r.raft.Applied()
		if first, some := r.settle(time.Now()); some {
			timer.Reset(time.Until(first))
		} else {
			changed = nil // nobody waits: the ledger may go on unseen
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-changed:
		case <-timer.C:
		}
	}
}

// settle answers all that can be answered, and gives the time when the first
// of the others has waited long enough. Nobody who comes meanwhile waits for the
// ledger, which may be busy with an entry.
func (r *rulings) settle(now time.Time) (first time.Time, some bool) {
	r.mu.Lock()
	waiting := r.waiting
	r.waiting, r.looking = nil, len(waiting)
	r.mu.Unlock()
	var answers []func()
	rest := waiting[:0]
	if len(waiting) > 0 {
		r.raft.View(func(l *ledger.Ledger) {
			for _, a := range waiting {
				answer := a.look(l)
				switch {
				case answer != nil:
					answers = append(answers, answer)
				case !now.Before(a.until):
					answers = append(answers, a.late)
				default:
					rest = append(rest, a)
				}
			}
		})
	}
	clear(waiting[len(rest):])
	r.mu.Lock()
	r.waiting, r.looking = append(rest, r.waiting...), 0
	if len(r.waiting) > 0 {
		first, some = r.waiting[0].until, true
	}
	r.mu.Unlock()
	for _, answer := range answers {
		answer()
	}
	return first, some
}

// close answers who still waits; nobody who comes later does.
func (r *rulings) close() {
	r.mu.Lock()
	left := r.waiting
	r.waiting, r.closed = nil, true
	r.mu.Unlock()
	for _, a := range left {
		a.late()
	}
}

// answerOf turns a ruling into what the caller of its job is told. id is the
// job's own; again says that the caller named it.
func answerOf(r ledger.Ruling, id job.ID, place job.Position, again bool) (accepted, error) {
	switch r.Folded {
	case ledger.FoldedDuplicate:
		return accepted{}, &job.DuplicateError{Queue: r.Queue, ID: r.Job}
	case ledger.FoldedLimited:
		return accepted{}, &job.LimitedError{RetryAfter: r.RetryAfter}
	case ledger.FoldedLater:
		return accepted{}, &job.UnavailableError{Reason: r.Reason, RetryAfter: keysFullDelay}
	case ledger.FoldedRejected:
		return accepted{}, &cluster.APIError{Code: "409", Text: r.Reason}
	case ledger.FoldedDebounced:
		return accepted{id: r.Job, position: place, debounced: true}, nil
	case ledger.FoldedKnown:
		return accepted{id: id, position: place, duplicate: again}, nil
	}
	return accepted{id: id, position: place}, nil
}
