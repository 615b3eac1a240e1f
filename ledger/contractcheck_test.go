package ledger

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/test/contractcheck"
)

// TestLedger_ContractCheck checks for random entries that the events alone add up to
// the lease and the backlog in the snapshot, after every entry, counted from the
// first event or from any snapshot, and that replicas restored at different points
// of the log are equal to the byte.
func TestLedger_ContractCheck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGenerator()
		replicas := []*Ledger{New(), New()}
		checkers := []*contractcheck.Checker{contractcheck.New()}
		for i := range rapid.IntRange(1, 60).Draw(t, "entries") {
			cmds := g.entry(t)
			g.ledger.Apply(g.at, cmds)
			for k := range replicas {
				replicas[k].Apply(g.at, cmds)
			}
			shown := snapshotJSON(t, g.ledger)
			for _, b := range checkers {
				feed(t, g.ledger, b)
				if err := b.CheckSnapshot(shown); err != nil {
					t.Fatalf("after entry %d: %v", g.at.Index, err)
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "count from here") == 0 {
				b, err := contractcheck.FromSnapshot(shown, g.ledger.LastEvent())
				if err != nil {
					t.Fatal(err)
				}
				checkers = append(checkers, b)
			}
			if k := rapid.IntRange(0, 9).Draw(t, "restore"); k < len(replicas) || i == 0 {
				replicas[k%len(replicas)] = roundTrip(t, replicas[k%len(replicas)])
			}
		}
		want := encoded(t, g.ledger)
		for k, replica := range replicas {
			if !bytes.Equal(want, encoded(t, replica)) {
				t.Fatalf("replica %d differs", k)
			}
		}
	})
}

// snapshotJSON returns the snapshot as clients receive it.
func snapshotJSON(t *rapid.T, l *Ledger) []byte {
	text, err := json.Marshal(l.Snapshot(SnapshotContext{Now: l.Now()}))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// feed passes to b the lines of history that it has not read.
func feed(t *rapid.T, l *Ledger, b *contractcheck.Checker) {
	l.EventsAfter(b.Number(), func(number uint64, at time.Time, e *Event) bool {
		if err := b.Apply(e.AppendLine(nil, number, at)); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if b.Number() != l.LastEvent() {
		t.Fatalf("checker read %d events of %d", b.Number(), l.LastEvent())
	}
}
