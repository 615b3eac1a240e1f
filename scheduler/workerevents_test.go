package scheduler

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// workerEvents returns the published events of stalled and recovered workers.
func (h *harness) workerEvents() (published []string) {
	h.raft.View(func(l *ledger.Ledger) {
		l.EventsAfter(l.PublishedEvents(), func(_ uint64, _ time.Time, e *ledger.Event) bool {
			if e.Kind == ledger.WorkerStalled || e.Kind == ledger.WorkerRecovered {
				published = append(published, e.Kind.String()+" "+e.A+" "+e.B)
			}
			return true
		})
	})
	return published
}

// TestReport_WorkerEventsArePublishedOnce checks that a node's worker events
// are committed before they are acknowledged, and published once however many
// authorities receive them.
func TestReport_WorkerEventsArePublishedOnce(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.streams.set(func() { h.streams.down = true }) // so that all events stay in the outbox
		r := job.Report{Node: "n1", Incarnation: 1, FirstWorkerEvent: 1, WorkerEvents: []job.WorkerEvent{
			{Worker: "overhop/w1", Stalled: true, Detail: job.StalledAck},
			{Worker: "overhop/w1", Detail: job.RecoveredCredit},
		}}
		want := []string{"worker.stalled overhop/w1 ack-timeout", "worker.recovered overhop/w1 credit"}
		say := func() {
			t.Helper()
			answered := make(chan []string, 1)
			if err := h.sched.Report(r, func(job.ReportAck) { answered <- h.workerEvents() }); err != nil {
				t.Fatal(err)
			}
			h.until("it is answered", func() bool { return len(answered) > 0 })
			if got := <-answered; len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
				t.Errorf("events when the report was acknowledged: %v", got)
			}
		}
		say()
		say()
		h.end()
		h.begin()
		say()
	})
}

// TestReport_RefusedWorkerEventsAreAcked checks that worker events that the
// ledger refuses are acknowledged: they would be refused again.
func TestReport_RefusedWorkerEventsAreAcked(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		answered := make(chan job.ReportAck, 1)
		err := h.sched.Report(job.Report{Node: "n1", Incarnation: 1, FirstWorkerEvent: 1, WorkerEvents: []job.WorkerEvent{
			{Worker: "overhop/w1", Stalled: true, Detail: string(make([]byte, ledger.MaxText+1))},
		}}, func(ack job.ReportAck) { answered <- ack })
		if err != nil {
			t.Fatal(err)
		}
		h.until("it is answered", func() bool { return len(answered) > 0 })
		if published := h.workerEvents(); len(published) > 0 {
			t.Errorf("published: %v", published)
		}
	})
}
