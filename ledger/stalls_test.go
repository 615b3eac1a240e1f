package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestStalls_Bounded checks that beyond the limit the oldest stall, and only that one,
// is forgotten.
func TestStalls_Bounded(t *testing.T) {
	l := New()
	l.Apply(stampAt(1, 0, 0), []Command{&Lead{Owner: "n1", Until: scriptStart.Add(time.Hour)}})
	epoch := l.Authority().Epoch
	worker := func(i int) string { return fmt.Sprintf("overhop/%d", i) }
	c := &RecordWorkerEvents{Node: "n1", Incarnation: 1, First: 1}
	for i := range MaxStalled + 1 {
		c.Events = append(c.Events, job.WorkerEvent{Worker: worker(i), Stalled: true, Detail: job.StalledAck})
	}
	l.Apply(stampAt(2, 0, epoch), []Command{c})
	if err := checkInvariants(l); err != nil {
		t.Fatal(err)
	}
	before := l.LastEvent()
	c = &RecordWorkerEvents{Node: "n1", Incarnation: 1, First: c.First + uint64(len(c.Events))}
	for i := range MaxStalled + 1 {
		c.Events = append(c.Events, job.WorkerEvent{Worker: worker(i), Detail: job.RecoveredCredit})
	}
	l.Apply(stampAt(3, 0, epoch), []Command{c})
	if got := l.LastEvent() - before; got != MaxStalled {
		t.Errorf("%d recoveries emitted, want %d", got, MaxStalled)
	}
	l.EventsAfter(before, func(_ uint64, _ time.Time, e *Event) bool {
		if e.A == worker(0) {
			t.Error("the oldest stall was not forgotten")
		}
		return true
	})
}
