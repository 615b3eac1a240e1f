package ledger

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/timeline"
)

// TestLedger_Timeline checks for random entries that events rebuild the state, after every entry,
// folded from the first one on or from a base of any entry, by a program that shares no code. Its
// numbers of jobs are those that users see of the queues.
func TestLedger_Timeline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGenerator()
		var folds []*timeline.State
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			g.ledger.Apply(g.at, g.entry(t))
			for _, fold := range folds {
				checkFold(t, g.ledger, fold)
			}
			if n := fold(t, g.ledger, len(folds)); n != nil {
				folds = append(folds, n)
			}
		}
	})
}

// checkFold adds the ledger's new events to a state, and compares it with the ledger, and its numbers
// of jobs with those that a list of queues shows.
func checkFold(t failer, l *Ledger, s *timeline.State) {
	t.Helper()
	l.EventsAfter(s.Event, func(number uint64, at time.Time, e *Event) bool {
		if _, err := s.Add(e.AppendLine(nil, number, at), nil); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if differences := s.Diff(stateOf(t, l.Base())); len(differences) > 0 {
		t.Fatalf("after entry %d: %v", l.Index(), differences)
	}
	for _, q := range l.Queues() {
		counts := s.Queues[q.Name].Counts
		for i, state := range [...]job.State{job.Waiting, job.Delayed, job.Active, job.Completed, job.Failed, job.Cancelled, job.Expired} {
			if shown := int64(q.Counts[state]); shown != counts[i] {
				t.Fatalf("history has %d %s jobs in queue %s, a list of queues shows %d", counts[i], state, q.Name, shown)
			}
		}
	}
	if n := s.Imbalance(); n != 0 {
		t.Fatalf("history has an imbalance of %d", n)
	}
}

// fold returns a state that begins with the ledger's: always if there are no folds yet, otherwise one
// time in ten. It returns nil the other times.
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
