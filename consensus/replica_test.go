package consensus

import (
	"testing"
	"time"
)

// TestReplica_IndexWhileApplying checks that the applied index can be read while an entry
// is being applied, and that a waiter for the entry is woken after it.
func TestReplica_IndexWhileApplying(t *testing.T) {
	f := newFSM(1<<20, nil, nil)
	f.Apply(command(t, 1))
	f.mu.Lock() // as Apply does
	read := make(chan uint64, 1)
	go func() {
		index, _ := f.Applied()
		if err := f.WaitApplied(t.Context(), index); err == nil {
			read <- index
		}
	}()
	select {
	case index := <-read:
		if index != 1 {
			t.Errorf("index %d, want 1", index)
		}
	case <-time.After(5 * time.Second):
		t.Error("reading the index waits for the entry")
	}
	f.mu.Unlock()
	_, changed := f.Applied()
	f.Apply(command(t, 2))
	<-changed
	if err := f.WaitApplied(t.Context(), 2); err != nil {
		t.Error(err)
	}
}

// TestReplica_CopyTime checks that a snapshot notes how long the copy of the ledger took.
func TestReplica_CopyTime(t *testing.T) {
	f := newFSM(1<<20, nil, nil)
	if f.copyTime.Load() != 0 {
		t.Error("there is a time before the first copy")
	}
	if _, err := f.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if f.copyTime.Load() <= 0 {
		t.Error("the snapshot noted no time")
	}
}
