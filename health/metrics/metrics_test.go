package metrics

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// filledLedger returns a ledger with queues of each waiting jobs, or with each more than in
// the queue before if uneven.
func filledLedger(t testing.TB, queues, each int, uneven bool) *ledger.Ledger {
	t.Helper()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l, stamp := ledger.New(), ledger.Stamp{Index: 1, Term: 1, At: began}
	apply := func(c ledger.Command) {
		t.Helper()
		for _, r := range l.Apply(stamp, []ledger.Command{c}) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		stamp.Index++
	}
	apply(&ledger.Lead{Owner: "n1", Until: began.Add(time.Hour)})
	stamp.Epoch = l.Authority().Epoch
	apply(&ledger.Bootstrap{Lanes: []string{"L0"}})
	seq := uint64(0)
	for q := range queues {
		c := &ledger.Ingest{Identity: "L0", From: seq, CreateQueues: true}
		n := each
		if uneven {
			n += q
		}
		for i := range n {
			seq++
			c.Jobs = append(c.Jobs, job.Job{
				ID: job.ID(uuid.New()), Queue: fmt.Sprintf("q%05d", q), Position: job.Position{Seq: seq}, Accepted: began.Add(time.Duration(-i) * time.Second),
			})
		}
		c.To = seq
		apply(c)
		apply(&ledger.MarkPublished{Events: l.LastEvent()}) // keeps the outbox small
	}
	return l
}

// A node with an empty ledger does not report zero dead letters, which would look like a
// counter reset.
func TestCollectLedger_Totals(t *testing.T) {
	full := filledLedger(t, 1, 1, false)
	for l, want := range map[*ledger.Ledger]bool{ledger.New(): false, full: true} {
		shown := map[string]float64{}
		collectLedger(func(look func(*ledger.Ledger)) { look(l) }, func(name string, value float64, _ ...string) { shown[name] = value })
		_, dead := shown["yard_dead_letters_total"]
		events, any := shown["yard_history_events_total"]
		if dead != want || any != want || want && events != float64(full.LastEvent()) {
			t.Errorf("at index %d: %v", l.Index(), shown)
		}
	}
}

func TestContactSeconds(t *testing.T) {
	for contact, want := range map[time.Duration]float64{-1: -1, 0: 0, 1500 * time.Millisecond: 1.5} {
		if got := contactSeconds(contact); got != want {
			t.Errorf("%v: %v, want %v", contact, got, want)
		}
	}
}

// The queues with the most jobs have their own series, all others share one.
func TestCollectQueues_Others(t *testing.T) {
	const more = 30
	l := filledLedger(t, maxQueueLabels+more, 1, true)
	shown := map[string]float64{}
	collectQueues(func(look func(*ledger.Ledger)) { look(l) }, func(name string, value float64, labels ...string) {
		key := name + " " + strings.Join(labels, " ")
		if _, twice := shown[key]; twice {
			t.Errorf("%s is emitted twice", key)
		}
		shown[key] = value
	})
	for key, want := range map[string]float64{
		"yard_queues ":                     maxQueueLabels + more + 1, // the cluster has a system queue
		"yard_queue_jobs q00129 waiting":   maxQueueLabels + more,
		"yard_queue_jobs q00030 waiting":   more + 1,
		"yard_queue_jobs (others) waiting": more * (more + 1) / 2,
		"yard_queue_jobs (others) failed":  0,
		"yard_queue_paused q00129":         0,
	} {
		if got, ok := shown[key]; !ok || got != want {
			t.Errorf("%s is %v, emitted %t; want %v", key, got, ok, want)
		}
	}
	if len(shown) != 1+maxQueueLabels*(job.States+1)+job.States-1 { // by state, paused and oldest; the others only by state
		t.Errorf("%d series", len(shown))
	}
	for _, name := range []string{"q00029", "(others)"} {
		if _, ok := shown["yard_queue_paused "+name]; ok {
			t.Errorf("%s has its own pause metric", name)
		}
	}
	if age := shown["yard_queue_oldest_waiting_seconds q00129"]; age <= 0 {
		t.Errorf("its oldest job is due since %v s", age)
	}
}

// TestCollectOperations checks the sums by action, and that an operation has series of its own until it ends.
func TestCollectOperations(t *testing.T) {
	l := filledLedger(t, 1, 1, false)
	apply := func(c ledger.Command) {
		t.Helper()
		if r := l.Apply(ledger.Stamp{Index: l.Index() + 1, Term: 1, Epoch: l.Authority().Epoch, At: l.Now()}, []ledger.Command{c})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	start := func(action ledger.OperationAction) {
		t.Helper()
		apply(&ledger.StartOperation{Settings: ledger.OperationSettings{Action: action, Query: "id:*", Rate: 5, Expected: 9}})
	}
	start(ledger.OperationRetry)
	start(ledger.OperationRetry)
	start(ledger.OperationRemove)
	counts := ledger.OperationCounts{Changed: 3, Skipped: ledger.Skips{Active: 1, Changed: 1}, Failed: 1}
	apply(&ledger.StepOperation{Number: 1, To: ledger.JobPlace{Accepted: 1}, Counts: counts, Done: true})
	apply(&ledger.StepOperation{Number: 2, To: ledger.JobPlace{Accepted: 1}, Counts: counts})
	apply(&ledger.ChangeOperation{Number: 3, State: ledger.OperationPaused})
	shown := map[string]float64{}
	collectOperations(func(look func(*ledger.Ledger)) { look(l) }, func(name string, value float64, labels ...string) {
		shown[name+" "+strings.Join(labels, " ")] = value
	})
	stalled := shown["yard_operation_stalled_seconds 2"]
	delete(shown, "yard_operation_stalled_seconds 2")
	want := map[string]float64{
		"yard_operations running": 1, "yard_operations paused": 1, "yard_operations done": 1, "yard_operations cancelled": 0,
		"yard_operation_jobs retry changed": 6, "yard_operation_jobs retry skipped": 4, "yard_operation_jobs retry failed": 2,
		"yard_operation_matched_jobs 2": 6, "yard_operation_expected_jobs 2": 9, "yard_operation_rate_limit 2": 5,
		"yard_operation_matched_jobs 3": 0, "yard_operation_expected_jobs 3": 9, "yard_operation_rate_limit 3": 5, "yard_operation_stalled_seconds 3": 0,
	}
	for _, action := range []string{"cancel", "remove", "requeue"} {
		for _, result := range []string{"changed", "skipped", "failed"} {
			want["yard_operation_jobs "+action+" "+result] = 0
		}
	}
	if !maps.Equal(shown, want) || stalled <= 0 {
		t.Errorf("%v, stalled for %v s; want %v", shown, stalled, want)
	}
}

// BenchmarkCollectQueues measures a scrape with 10,000 queues and a million jobs.
func BenchmarkCollectQueues(b *testing.B) {
	l := filledLedger(b, 10_000, 100, false)
	for b.Loop() {
		collectQueues(func(look func(*ledger.Ledger)) { look(l) }, func(string, float64, ...string) {})
	}
}
