package memyard

import (
	"context"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// replica is a member's copy of the ledger. It outlives the member's process, like a disk.
type replica struct {
	mu      sync.RWMutex // guards the fields below
	ledger  *ledger.Ledger
	passed  ledger.Passed
	changed chan struct{} // closed when the next entry is applied; nil: nobody waits
}

// View calls fn with the ledger, which fn must not keep.
func (r *replica) View(fn func(*ledger.Ledger)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.ledger)
}

// Passed returns how long ago the last entry of the ledger that View has passed to its caller was made.
func (r *replica) Passed(l *ledger.Ledger) time.Duration { return r.passed.Since(l, time.Now()) }

// Copy returns a copy of the ledger.
func (r *replica) Copy() *ledger.Ledger {
	r.mu.Lock() // copying marks the original's trees
	defer r.mu.Unlock()
	return r.ledger.Copy()
}

// Applied returns the index of the last entry, and a channel that is closed when the next
// one is applied.
func (r *replica) Applied() (index uint64, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.ledger.Index(), r.changed
}

// WaitApplied blocks until the entry at index is applied, or ctx ends.
func (r *replica) WaitApplied(ctx context.Context, index uint64) error {
	for {
		applied, changed := r.Applied()
		if applied >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// apply applies the commands of an entry.
func (r *replica) apply(at ledger.Stamp, commands []ledger.Command) []ledger.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wakeLocked()
	results := r.ledger.Apply(at, commands)
	r.passed.Applied(r.ledger, time.Now())
	return results
}

// set replaces the ledger.
func (r *replica) set(l *ledger.Ledger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wakeLocked()
	r.ledger, r.passed = l, ledger.Passed{}
}

// wakeLocked wakes the callers that wait for the next entry. mu is held.
func (r *replica) wakeLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}
