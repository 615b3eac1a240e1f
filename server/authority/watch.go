package authority

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Watch follows the holder of the authority in the local ledger.
type Watch struct {
	mu     crash.Mutex
	owner  string        // "": no holder is known
	epoch  uint64        // of owner's authority
	notify chan struct{} // closed and replaced when epoch changes

	count int // changes of the epoch since the first one that this node saw
}

// NewWatch returns a watch that knows no holder yet.
func NewWatch() *Watch { return &Watch{notify: make(chan struct{})} }

// Current returns the holder of the authority and its epoch. ok is false if no holder
// is known.
func (w *Watch) Current() (owner string, epoch uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owner, w.epoch, w.owner != ""
}

// Holder returns the holder of the authority, or "" if none is known.
func (w *Watch) Holder() string {
	owner, _, _ := w.Current()
	return owner
}

// Known returns the holder of the authority, and whether one is known.
func (w *Watch) Known() (owner string, ok bool) {
	owner = w.Holder()
	return owner, owner != ""
}

// Watch returns the holder of the authority, and a channel that is closed when the
// epoch changes.
func (w *Watch) Watch() (owner string, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owner, w.notify
}

// ChangeCount returns how often the epoch has changed since the node started.
func (w *Watch) ChangeCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// Changed returns a channel that is closed when the epoch changes.
func (w *Watch) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.notify
}

// Run updates w after every applied entry until ctx ends.
func (w *Watch) Run(ctx context.Context, raft Raft) error {
	for {
		_, changed := raft.Applied()
		var a ledger.Authority
		raft.View(func(l *ledger.Ledger) { a = l.Authority() })
		w.Set(a.Owner, a.Epoch)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// Set sets the holder of the authority and its epoch. It does nothing if the epoch has
// not changed.
func (w *Watch) Set(owner string, epoch uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if epoch == w.epoch {
		return
	}
	if w.epoch != 0 {
		w.count++
	}
	w.owner, w.epoch = owner, epoch
	close(w.notify)
	w.notify = make(chan struct{})
}
