package ledger

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/timeline"
)

// TestLedger_Timeline checks for random entries that events rebuild the state, after every entry,
// folded from the first one on or from a base of any entry, by a program that shares no code.
func TestLedger_Timeline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGenerator()
		var folds []*timeline.State
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			g.ledger.Apply(g.at, g.entry(t))
			for _, fold := range folds {
				foldEvents(t, g.ledger, fold)
				if differences := fold.Diff(stateOf(t, g.ledger.Base())); len(differences) > 0 {
					t.Fatalf("after entry %d: %v", g.at.Index, differences)
				}
			}
			if n := fold(t, g.ledger, len(folds)); n != nil {
				folds = append(folds, n)
			}
		}
	})
}

// fold returns a state that begins with the ledger's, sometimes, nil otherwise; always if there
// is none yet.
func fold(t *rapid.T, l *Ledger, folds int) *timeline.State {
	if l.outbox.level == 0 || folds > 0 && rapid.IntRange(0, 9).Draw(t, "fold from here") > 0 {
		return nil
	}
	return stateOf(t, l.RecountedBase())
}

// stateOf returns the state that a base has, after it was stored.
func stateOf(t failer, b *Base) *timeline.State {
	t.Helper()
	s, err := timeline.Decode(b.JSON())
	if err != nil {
		t.Fatal(err)
	}
	stored, err := s.Encode()
	if err == nil {
		s, err = timeline.Decode(stored)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// foldEvents adds the ledger's events to a state.
func foldEvents(t failer, l *Ledger, s *timeline.State) {
	t.Helper()
	l.EventsAfter(s.Event, func(number uint64, at time.Time, e *Event) bool {
		if _, err := s.Add(e.AppendLine(nil, number, at), nil); err != nil {
			t.Fatal(err)
		}
		return true
	})
}
