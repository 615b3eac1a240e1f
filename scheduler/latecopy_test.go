package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestLateCopy stores a record in a lane that cannot be read for an hour, and a copy of it
// in another lane, as a node does that gets no acknowledgement from the first. It checks
// that the job does not run again when the first lane is readable again, also under another
// authority.
func TestLateCopy(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		h.enqueueIn(1, "mail", "earlier", anyJob)
		h.until("a job of lane 1 ran", func() bool { return h.counts().Delivered == 1 })
		h.lanes.set(func() { h.lanes.lanes[1].down = true })
		h.lanes.store(1, "mail", "k", anyJob)
		id := h.enqueueIn(0, "mail", "k", anyJob)
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		h.propose(&ledger.RemoveJob{Job: id})

		h.advance(30 * time.Minute)
		h.end()
		h.begin()
		h.advance(30 * time.Minute)
		h.lanes.set(func() { h.lanes.lanes[1].down = false })
		h.advance(time.Minute)
		if n := h.counts().Delivered; n != 2 {
			t.Errorf("%d dispatches were delivered, want 2: the copy ran", n)
		}
		if got := h.sched.Counts(); got.Known != 1 || got.Jobs != 2 {
			t.Errorf("%d records are of known jobs, %d of new ones; want 1 and 2", got.Known, got.Jobs)
		}
	})
}

// TestLateCopy_HeldLane checks that a lane that may not be ingested, because no more ids of
// forgotten jobs can be kept, is not ingested and costs no entries, that the reason names
// the lane that prevents ids from being forgotten, and that ingestion goes on afterwards.
func TestLateCopy_HeldLane(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		h.lanes.set(func() { h.lanes.lanes[1].down = true })
		h.advance(2 * time.Minute)
		tenure, held := h.sched.current(), true
		tenure.loop.post(func() {
			tenure.lanes.mayIngest = func(_ *ledger.Ledger, lane uint8) bool { return !held || lane == 1 }
		})
		id := h.enqueue("mail", "k", anyJob)
		entries := len(h.raft.entries())
		h.advance(time.Minute)
		if _, known := h.find(id); known {
			t.Fatal("the lane is ingested")
		}
		if n := len(h.raft.entries()) - entries; n > 100 {
			t.Errorf("%d entries in a minute in which nothing was ingested", n)
		}
		if got := strings.Join(h.reasons(), "\n"); !strings.Contains(got, "lane 0 is not ingested: 0 ids of forgotten jobs are kept, the maximum, until lane 1 is ingested") {
			t.Errorf("reasons %q", got)
		}
		tenure.loop.post(func() { held = false })
		h.until("it runs", func() bool { return h.state(id) == job.Completed })
	})
}
