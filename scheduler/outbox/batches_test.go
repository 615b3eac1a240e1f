package outbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// fixedLedger gives access to a ledger that no longer changes.
type fixedLedger struct{ *ledger.Ledger }

func (l fixedLedger) View(fn func(*ledger.Ledger)) { fn(l.Ledger) }

// TestNextHistory_NotifiedEventsKeepTheirQueue checks that a notified event, which
// does not name its queue, is always in one message with the next line, which
// does.
func TestNextHistory_NotifiedEventsKeepTheirQueue(t *testing.T) {
	l, at := ledger.New(), time.Unix(1e9, 0)
	ingest := &ledger.Ingest{Identity: "lane", To: maxEvents, CreateQueues: true}
	place := &ledger.Place{}
	for seq := uint64(1); seq <= maxEvents; seq++ {
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
	for after := uint64(0); after < l.LastEvent(); after += 997 {
		batch, err := o.nextHistory(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		expanded, err := history.Expand(batch.Body)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(expanded)), "\n")
		if strings.Contains(lines[0], `"DispatchNotified"`) {
			notified++
		}
		if last := lines[len(lines)-1]; strings.Contains(last, `"DispatchNotified"`) || batch.More != (batch.First+batch.Count <= l.LastEvent()) {
			t.Fatalf("%d events after number %d, more: %v; the last line is %s", batch.Count, after, batch.More, last)
		}
		longest = max(longest, batch.Count)
	}
	if longest > maxEvents+1 || notified == 0 {
		t.Errorf("%d events in a message, %d notified", longest, notified)
	}
}

// ledgerWithJobs returns a ledger whose outbox has the events of jobs that were ingested,
// placed and completed in entries of perEntry jobs each, a millisecond apart.
func ledgerWithJobs(tb testing.TB, jobs, perEntry int) *ledger.Ledger {
	l, at, index := ledger.New(), time.Unix(1e9, 0), uint64(0)
	apply := func(commands ...ledger.Command) {
		index++
		at = at.Add(time.Millisecond)
		for _, r := range l.Apply(ledger.Stamp{Index: index, Term: 1, At: at, Epoch: min(index-1, 1)}, commands) {
			if r.Err != nil {
				tb.Fatal(r.Err)
			}
		}
	}
	apply(&ledger.Lead{Owner: "n1", Until: at.Add(time.Hour)})
	apply(&ledger.Bootstrap{Lanes: []string{"lane"}})
	for first := 0; first < jobs; first += perEntry {
		ingest := &ledger.Ingest{Identity: "lane", From: uint64(first), To: uint64(first + perEntry), CreateQueues: true}
		place, settle := &ledger.Place{}, &ledger.Settle{}
		for i := first; i < first+perEntry; i++ {
			id := job.RecordID("lane", job.Position{Seq: uint64(i)}, at)
			ingest.Jobs = append(ingest.Jobs, job.Job{
				ID: id, Queue: "thumbnails", Function: "resize", Position: job.Position{Seq: uint64(i + 1)}, Accepted: at, Priority: 5,
			})
			channel := fmt.Sprintf("overhop/0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a%02d", i%10)
			place.Placements = append(place.Placements, ledger.Placement{Job: id, N: 1, Node: "n1", Incarnation: 1, Channel: channel})
			settle.Settlements = append(settle.Settlements, ledger.Settlement{Job: id, N: 1, Next: job.NextDone})
		}
		apply(ingest, place)
		apply(settle)
	}
	return l
}

// TestNextHistory_Size checks the size of history, with the headers of its messages, if the end of
// jobs is in another message than their beginning, which takes most space.
func TestNextHistory_Size(t *testing.T) {
	const jobs = maxEvents/3 + 1 // each has three events before the first one ends
	const headers = 300
	l := ledgerWithJobs(t, jobs, jobs)
	o := New(Config{Ledger: fixedLedger{l}})
	size, messages := 0, 0
	for after := uint64(0); after < l.LastEvent(); messages++ {
		batch, err := o.nextHistory(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		after += batch.Count
		size += len(batch.Body) + headers
	}
	if perJob := size / jobs; messages != 2 || perJob > 100 {
		t.Errorf("%d messages with %d bytes per job, want at most 100", messages, perJob)
	} else {
		t.Logf("%d bytes per job", perJob)
	}
}

func BenchmarkNextHistory(b *testing.B) {
	for _, perEntry := range []int{1, 50} {
		b.Run(fmt.Sprintf("entries=%d", perEntry), func(b *testing.B) {
			const jobs = 500 // fewer events than a message may have
			o := New(Config{Ledger: fixedLedger{ledgerWithJobs(b, jobs, perEntry)}})
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				batch, err := o.nextHistory(b.Context(), 1)
				if err != nil {
					b.Fatal(err)
				}
				size = len(batch.Body)
			}
			b.ReportMetric(float64(size)/jobs, "bytes/job")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/jobs, "ns/job")
		})
	}
}
