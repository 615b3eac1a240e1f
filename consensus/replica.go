package consensus

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Replica is this node's copy of the ledger, to be read by any goroutine.
type Replica struct {
	checks chan *ledger.Ledger // the newest copy whose hash is to be checked
	done   chan struct{}       // closed when no more entries will be applied

	mu     sync.RWMutex // held for reading by View, and while an entry is applied
	ledger *ledger.Ledger
	passed ledger.Passed // guarded by mu

	copyTime atomic.Int64 // nanoseconds that the last copy took

	schemas    atomic.Pointer[ledger.Schemas]       // those of the ledger, to be read without mu
	paramPaths atomic.Pointer[ledger.AllParamPaths] // likewise

	index  atomic.Uint64 // of the last applied entry
	nextMu crash.Mutex
	next   chan struct{} // closed when the next entry is applied; nil: not waited for; guarded by nextMu
}

func newReplica() *Replica {
	return &Replica{ledger: ledger.New(), checks: make(chan *ledger.Ledger, 1), done: make(chan struct{})}
}

// View calls fn with the ledger. Entries are not applied meanwhile, so fn must
// be short, and it must not keep references into the ledger. It must not call View: if an entry
// waits to be applied, the second call waits for it, and the entry for the first call.
func (r *Replica) View(fn func(*ledger.Ledger)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.ledger)
}

// LedgerTime returns the time of the ledger that [Replica.View] has passed to its caller, which
// goes on by this node's monotonic clock since the last entry. It must be called by
// the function that View calls.
func (r *Replica) LedgerTime(l *ledger.Ledger) time.Time {
	return l.Now().Add(r.Passed(l))
}

// Passed returns how long ago the last entry was made of the ledger that [Replica.View] has passed to
// its caller, at least. It must be called by the function that View calls.
func (r *Replica) Passed(l *ledger.Ledger) time.Duration { return r.passed.Since(l, time.Now()) }

// Schemas returns the schemas in the ledger. It does not wait for an entry that is being
// applied, but has those of every entry whose proposer knows that it is applied.
func (r *Replica) Schemas() *ledger.Schemas { return r.schemas.Load() }

// ParamPaths returns the paths of params in the ledger, as Schemas does its schemas.
func (r *Replica) ParamPaths() *ledger.AllParamPaths { return r.paramPaths.Load() }

// Copy returns a copy of the current ledger, for reads that take longer.
func (r *Replica) Copy() *ledger.Ledger {
	r.mu.Lock() // copying marks the original's trees
	defer r.mu.Unlock()
	return r.copyLedger()
}

// copyLedger copies the ledger and notes how long that took: meanwhile no entry is applied
// and nobody reads. The caller must hold mu.
func (r *Replica) copyLedger() *ledger.Ledger {
	began := time.Now()
	defer func() { r.copyTime.Store(int64(time.Since(began))) }()
	return r.ledger.Copy()
}

// ConsistencyChecks returns a channel that receives a copy of the ledger as it
// was right after each entry with a [ledger.CheckConsistency]. A copy that is
// not received is replaced by the next one.
func (r *Replica) ConsistencyChecks() <-chan *ledger.Ledger { return r.checks }

// advance publishes the schemas and paths of params, sets the last applied index and wakes the waiters. The caller must
// hold mu, so that a woken waiter sees the entry.
func (r *Replica) advance(index uint64) {
	r.passed.Applied(r.ledger, time.Now())
	if current := r.ledger.Schemas(); current != r.schemas.Load() {
		r.schemas.Store(current)
	}
	if current := r.ledger.ParamPaths(); current != r.paramPaths.Load() {
		r.paramPaths.Store(current)
	}
	r.nextMu.Lock()
	defer r.nextMu.Unlock()
	r.index.Store(index)
	if r.next != nil {
		close(r.next)
		r.next = nil
	}
}

// Applied returns the index of the last entry that this node applied, and a
// channel that closes when the next one is applied. It does not wait for an entry that
// is being applied.
func (r *Replica) Applied() (index uint64, changed <-chan struct{}) {
	r.nextMu.Lock()
	defer r.nextMu.Unlock()
	if r.next == nil {
		r.next = make(chan struct{})
	}
	return r.index.Load(), r.next
}

// WaitApplied blocks until the entry at index is applied on this node. It
// returns an error if ctx ends or the node closes first.
func (r *Replica) WaitApplied(ctx context.Context, index uint64) error {
	for r.index.Load() < index {
		now, changed := r.Applied()
		if now >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for log entry %d, at %d: %w", index, now, ctx.Err())
		case <-r.done:
			return ErrClosed
		}
	}
	return nil
}

// offerCheck sends a copy of the ledger to the consistency checker, replacing
// one that was not received yet: only the newest matters while a log is
// replayed.
func (r *Replica) offerCheck(l *ledger.Ledger) {
	select {
	case <-r.checks:
	default:
	}
	r.checks <- l // only this goroutine sends
}
