package ledger

import (
	"testing"
)

// A job counts as kept from its acceptance until it is forgotten, whatever
// becomes of it.
func TestOldestKept(t *testing.T) {
	l, stamp := led(t)
	if got := l.Copy().OldestKept(); !got.IsZero() {
		t.Errorf("of no jobs: %s", got)
	}
	f, p, s := batch(0, 3, "")
	for _, step := range [][]Command{{f}, {p}, {s}} {
		l.Apply(stamp, step)
		stamp.Index++
		if got := l.Copy().OldestKept(); !got.Equal(scriptStart) {
			t.Fatalf("after %T: %s, want %s", step[0], got, scriptStart)
		}
	}
	stamp.At = stamp.At.Add(FinishedKeep)
	l.Apply(stamp, []Command{&Observe{}})
	if got := l.Copy().OldestKept(); !got.IsZero() {
		t.Errorf("after all were forgotten: %s", got)
	}
}
