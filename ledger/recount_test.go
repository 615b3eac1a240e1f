package ledger

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"yardmaster/internal/recount"
)

// TestLedger_Recount: whatever happens, the events alone come to the lease and
// the backlog that the snapshot shows, after every entry, counted from the
// first event or from any snapshot; and replicas that were restored at other
// points of the log are the same to the byte.
func TestLedger_Recount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := newYard()
		replicas := []*Ledger{New(), New()}
		books := []*recount.Book{recount.New()}
		for i := range rapid.IntRange(1, 60).Draw(t, "entries") {
			cmds := y.entry(t)
			y.ledger.Apply(y.at, cmds)
			for k := range replicas {
				replicas[k].Apply(y.at, cmds)
			}
			shows := shown(t, y.ledger)
			for _, b := range books {
				tell(t, y.ledger, b)
				if err := b.Agrees(shows); err != nil {
					t.Fatalf("after entry %d: %v", y.at.Index, err)
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "count from here") == 0 {
				b, err := recount.From(shows, y.ledger.LastEvent())
				if err != nil {
					t.Fatal(err)
				}
				books = append(books, b)
			}
			if k := rapid.IntRange(0, 9).Draw(t, "restore"); k < len(replicas) || i == 0 {
				replicas[k%len(replicas)] = roundTrip(t, replicas[k%len(replicas)])
			}
		}
		want := encoded(t, y.ledger)
		for k, replica := range replicas {
			if !bytes.Equal(want, encoded(t, replica)) {
				t.Fatalf("replica %d differs", k)
			}
		}
	})
}

// shown is the snapshot as it is given to observers.
func shown(t *rapid.T, l *Ledger) []byte {
	text, err := json.Marshal(l.Snapshot(Surroundings{Now: l.Now()}))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// tell gives a count the lines of history that it has not read.
func tell(t *rapid.T, l *Ledger, b *recount.Book) {
	l.EventsAfter(b.Number(), func(number uint64, at time.Time, e *Event) bool {
		if err := b.Line(e.AppendLine(nil, number, at)); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if b.Number() != l.LastEvent() {
		t.Fatalf("%d events told, %d counted", b.Number(), l.LastEvent())
	}
}
