package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// workerEvents returns the events that an authority records which commits every
// report, acknowledged or not. It checks their order.
func (b *fakeTransport) workerEvents(t *testing.T) (taken []string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	last := uint64(0)
	for _, r := range b.reports {
		if len(r.WorkerEvents) > job.MaxWorkerEvents {
			t.Errorf("%d events in one report", len(r.WorkerEvents))
		}
		for i, n := range r.WorkerEvents {
			if number := r.FirstWorkerEvent + uint64(i); number > last {
				last = number
				taken = append(taken, fmt.Sprintf("%d %s %t %s", number, n.Worker, n.Stalled, n.Detail))
			}
		}
	}
	return taken
}

// TestWorkerEvents_KeptUntilAcked checks that events are sent in order, and
// again until an authority has acknowledged them.
func TestWorkerEvents_KeptUntilAcked(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.transport.set(func() { b.transport.holdReports = make(chan struct{}) }) // the authority commits and does not answer
		b.Stalled("overhop/w", job.StalledAck)
		synctest.Wait()
		b.Recovered("overhop/w", job.RecoveredCredit)
		b.Stalled("overhop/v", job.StalledLease)
		advance(100 * time.Millisecond)
		wantEqual(t, "before the first is answered", b.transport.workerEvents(t), []string{"1 overhop/w true ack-timeout"})
		b.transport.change(func() {
			b.transport.node, b.transport.epoch, b.transport.holdReports, b.transport.down = "n3", 8, nil, true
		})
		advance(3 * time.Second) // several failed reports
		b.transport.set(func() { b.transport.down = false })
		advance(2 * time.Second)
		reports := len(b.transport.reports)
		wantEqual(t, "taken", b.transport.workerEvents(t), []string{
			"1 overhop/w true ack-timeout", "2 overhop/w false credit", "3 overhop/v true lease-expired",
		})
		advance(5 * time.Second)
		wantEqual(t, "reports after the answer", len(b.transport.reports), reports)
		b.Recovered("overhop/v", job.RecoveredAlive)
		synctest.Wait()
		wantEqual(t, "the next one", b.transport.workerEvents(t)[3:], []string{"4 overhop/v false alive"})
		last := b.transport.reports[len(b.transport.reports)-1]
		wantEqual(t, "sent with it", last.WorkerEvents, []job.WorkerEvent{{Worker: "overhop/v", Detail: "alive"}})
	})
}

// TestWorkerEvents_WithOutcomes checks that outcomes do not wait for
// unacknowledged events, and the other way round.
func TestWorkerEvents_WithOutcomes(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Assign(batch(1, assignment(1)))
		hold := make(chan struct{})
		b.transport.set(func() { b.transport.holdReports = hold })
		b.finish(1)
		synctest.Wait()
		b.Stalled("overhop/w", job.StalledAck)
		synctest.Wait()
		wantEqual(t, "said beside an outcome", len(b.transport.workerEvents(t)), 1)
		close(hold)
		synctest.Wait()
		wantEqual(t, "settled", b.transport.settled, map[string]int{requestID(1): 1})
	})
}

// TestWorkerEvents_Bounded checks that the log is bounded, and that the
// numbers show how many events were dropped.
func TestWorkerEvents_Bounded(t *testing.T) {
	n := workerEventLog{first: 1}
	for i := range maxPendingEvents + 5 {
		n.add(job.WorkerEvent{Worker: fmt.Sprint(i)})
	}
	wantEqual(t, "waiting", len(n.pending), maxPendingEvents)
	var r job.Report
	n.fill(&r)
	wantEqual(t, "first number", r.FirstWorkerEvent, uint64(6))
	wantEqual(t, "first note", r.WorkerEvents[0].Worker, "5")
	n.add(job.WorkerEvent{Worker: "late"}) // drops one that is in flight
	n.fill(new(job.Report))
	n.reportDone(&r, errors.New("no answer"))
	wantEqual(t, "after no answer", len(n.pending), maxPendingEvents)
	n.fill(&r)
	wantEqual(t, "first number now", r.FirstWorkerEvent, uint64(7))
	n.add(job.WorkerEvent{Worker: "later"})
	n.reportDone(&r, nil)
	wantEqual(t, "after an answer", n.first, 7+uint64(job.MaxWorkerEvents))
	wantEqual(t, "first waiting", n.pending[0].Worker, fmt.Sprint(6+job.MaxWorkerEvents))
	if !slices.ContainsFunc(n.pending, func(n job.WorkerEvent) bool { return n.Worker == "later" }) {
		t.Error("the last event is missing")
	}
}

// TestWorkerEvents_DroppedInFlight checks that an acknowledgement of events
// some of which were dropped meanwhile removes no event that was not sent.
func TestWorkerEvents_DroppedInFlight(t *testing.T) {
	for _, late := range []int{1, job.MaxWorkerEvents - 1, job.MaxWorkerEvents, job.MaxWorkerEvents + 7} {
		n := workerEventLog{first: 1}
		for i := range maxPendingEvents {
			n.add(job.WorkerEvent{Worker: fmt.Sprint(i + 1)})
		}
		var r job.Report
		n.fill(&r)
		for i := range late {
			n.add(job.WorkerEvent{Worker: fmt.Sprint(maxPendingEvents + i + 1)})
		}
		n.reportDone(&r, nil)
		first := uint64(max(job.MaxWorkerEvents, late) + 1)
		wantEqual(t, "first number", n.first, first)
		wantEqual(t, "first note", n.pending[0].Worker, fmt.Sprint(first))
		wantEqual(t, "notes kept", len(n.pending), maxPendingEvents+late-int(first)+1)
		wantEqual(t, "may be sent", n.due(), true)
	}
}
