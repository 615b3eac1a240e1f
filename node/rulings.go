package node

import (
	"context"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// rulings hears what the ledger made of jobs with guards that this node had
// acknowledged. The word is the local ledger's, so it is the same whoever held
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

// awaited is a caller whose record lies at a place.
type awaited struct {
	place job.Position
	until time.Time
	then  func(ledger.Ruling, error)
}

// maxAwaited is how many callers may wait; jobs of more are refused before
// they are published.
const maxAwaited = 16384

func newRulings(raft applier, patience time.Duration) *rulings {
	return &rulings{raft: raft, patience: patience, wake: make(chan struct{}, 1)}
}

// admit refuses a job with guards that nobody could decide about soon.
func (r *rulings) admit() error {
	r.mu.Lock()
	full := r.looking+len(r.waiting) >= maxAwaited
	r.mu.Unlock()
	if full {
		return &job.UnavailableError{Reason: "too many jobs with unique, rate limit or debounce keys wait to be decided on", RetryAfter: time.Second}
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
	r.mu.Lock()
	closed := r.closed
	if !closed {
		r.waiting = append(r.waiting, awaited{place, time.Now().Add(r.patience), then})
	}
	r.mu.Unlock()
	if closed {
		then(ledger.Ruling{}, undecided())
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
				ruling, known := l.Ruling(a.place)
				switch {
				case known:
					answers = append(answers, func() { a.then(ruling, nil) })
				case l.Folded(a.place) || !now.Before(a.until): // too long ago, or too long to wait
					answers = append(answers, func() { a.then(ledger.Ruling{}, undecided()) })
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
		a.then(ledger.Ruling{}, undecided())
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
