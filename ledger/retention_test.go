package ledger

import (
	"testing"
)

// TestOldestKept checks that a job counts as kept in every state, until it is
// forgotten.
func TestOldestKept(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	if got := l.Copy().OldestKept(); !got.IsZero() {
		t.Errorf("without jobs: %s", got)
	}
	f, p, s := ingestBatch(0, 3, "")
	for _, step := range [][]Command{{f}, {p}, {s}} {
		l.Apply(stamp, step)
		stamp.Index++
		if got := l.Copy().OldestKept(); !got.Equal(scriptStart) {
			t.Fatalf("after %T: %s, want %s", step[0], got, scriptStart)
		}
	}
	stamp.At = stamp.At.Add(FinishedRetention)
	l.Apply(stamp, []Command{&Observe{}})
	if got := l.Copy().OldestKept(); !got.IsZero() {
		t.Errorf("after all were forgotten: %s", got)
	}
}
