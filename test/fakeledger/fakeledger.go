// Package fakeledger provides a ledger of one lane to which tests apply commands one at
// a time, without a Raft group.
package fakeledger

import (
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Ledger is led by "n1" and has one lane, "L0". Its methods may be called concurrently.
type Ledger struct {
	mu      sync.Mutex
	ledger  *ledger.Ledger
	changed chan struct{} // closed by the next Apply
	stamp   ledger.Stamp  // of the last entry
}

// New returns a ledger without jobs.
func New() *Ledger {
	f := &Ledger{ledger: ledger.New(), changed: make(chan struct{}), stamp: ledger.Stamp{Index: 1, Term: 1, At: time.Now()}}
	f.ledger.Apply(f.stamp, []ledger.Command{&ledger.Lead{Owner: "n1", Until: time.Now().Add(time.Hour)}})
	f.stamp.Epoch = f.ledger.Authority().Epoch
	f.Apply(&ledger.Bootstrap{Lanes: []string{"L0"}})
	return f
}

// Apply applies c as the next entry.
func (f *Ledger) Apply(c ledger.Command) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stamp.Index++
	f.ledger.Apply(f.stamp, []ledger.Command{c})
	close(f.changed)
	f.changed = make(chan struct{})
}

// View calls fn with the ledger, which fn must not keep.
func (f *Ledger) View(fn func(*ledger.Ledger)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f.ledger)
}

// Applied returns the index of the last entry, and a channel that is closed when the
// next one is applied.
func (f *Ledger) Applied() (uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stamp.Index, f.changed
}
