package outbox

import (
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// fixedLedger gives access to a ledger that no longer changes.
type fixedLedger struct{ *ledger.Ledger }

func (l fixedLedger) View(fn func(*ledger.Ledger)) { fn(l.Ledger) }

// TestNextHistory_NotifiedEventsKeepTheirQueue checks that a notified event, which
// does not name its queue, is always in one message with the next line, which
// does.
func TestNextHistory_NotifiedEventsKeepTheirQueue(t *testing.T) {
	l, at := ledger.New(), time.Unix(1e9, 0)
	ingest := &ledger.Ingest{Identity: "lane", To: maxLines, CreateQueues: true}
	place := &ledger.Place{}
	for seq := uint64(1); seq <= maxLines; seq++ {
		id := job.RecordID("lane", job.Position{Seq: seq}, at)
		ingest.Jobs = append(ingest.Jobs, job.Job{ID: id, Queue: "mail", Position: job.Position{Seq: seq}, Accepted: at, Priority: 5})
		place.Placements = append(place.Placements, ledger.Placement{Job: id, N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
	}
	for i, commands := range [][]ledger.Command{
		{&ledger.Lead{Owner: "n1", Until: at.Add(time.Hour)}}, {&ledger.Bootstrap{Lanes: []string{"lane"}}}, {ingest}, {place},
	} {
		epoch := uint64(min(i, 1)) // 1, the index of the entry with Lead, from the second entry on
		for _, r := range l.Apply(ledger.Stamp{Index: uint64(i + 1), Term: 1, At: at, Epoch: epoch}, commands) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	o := New(Config{Ledger: fixedLedger{l}})
	var longest, notified uint64
	for after := uint64(0); after < l.LastEvent(); after += 41 {
		batch, err := o.nextHistory(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(batch.Body)), "\n")
		if strings.Contains(lines[0], `"DispatchNotified"`) {
			notified++
		}
		if last := lines[len(lines)-1]; strings.Contains(last, `"DispatchNotified"`) || batch.More != (batch.First+batch.Count <= l.LastEvent()) {
			t.Fatalf("%d events after number %d, more: %v; the last line is %s", batch.Count, after, batch.More, last)
		}
		longest = max(longest, batch.Count)
	}
	if longest > maxLines+1 || notified == 0 {
		t.Errorf("%d events in a message, %d notified", longest, notified)
	}
}
