package ledger

import (
	"fmt"
	"testing"
	"time"

	"yardmaster/job"
)

// TestStalls_AreBounded: beyond the bound the oldest stall is forgotten, and
// only that one.
func TestStalls_AreBounded(t *testing.T) {
	l := New()
	l.Apply(at(1, 0, 0), []Command{&Lead{Owner: "n1", Until: scriptStart.Add(time.Hour)}})
	epoch := l.Authority().Epoch
	worker := func(i int) string { return fmt.Sprintf("overhop/%d", i) }
	c := &NoteWorkers{Node: "n1", Incarnation: 1, First: 1}
	for i := range MaxStalled + 1 {
		c.Notes = append(c.Notes, job.Note{Worker: worker(i), Stalled: true, Detail: job.StalledAck})
	}
	l.Apply(at(2, 0, epoch), []Command{c})
	if err := holds(l); err != nil {
		t.Fatal(err)
	}
	before := l.LastEvent()
	c = &NoteWorkers{Node: "n1", Incarnation: 1, First: c.First + uint64(len(c.Notes))}
	for i := range MaxStalled + 1 {
		c.Notes = append(c.Notes, job.Note{Worker: worker(i), Detail: job.RecoveredCredit})
	}
	l.Apply(at(3, 0, epoch), []Command{c})
	if got := l.LastEvent() - before; got != MaxStalled {
		t.Errorf("%d recoveries are told, want %d", got, MaxStalled)
	}
	l.EventsAfter(before, func(_ uint64, _ time.Time, e *Event) bool {
		if e.A == worker(0) {
			t.Error("the first one's stall was not forgotten")
		}
		return true
	})
}
