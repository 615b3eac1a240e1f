package scheduler

import (
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// entriesAfter returns the entries committed after an index, without renewals and
// MarkPublished.
func (h *harness) entriesAfter(n int) (found []logged) {
	for _, e := range h.raft.entries()[n:] {
		for _, c := range e.Commands {
			switch c.(type) {
			case *ledger.MarkPublished, *ledger.Renew, *ledger.Observe:
			default:
				found = append(found, e)
			}
			break
		}
	}
	return found
}

func TestGroupCommit_SettleWaitsForIngest(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = worksFor(100 * time.Millisecond) })
		n.offer(job.Overhop, "mail", "w1", 2)
		first := h.enqueue("mail", "", anyJob)
		h.until("it runs", func() bool { return h.state(first) == job.Active })
		h.advance(time.Until(h.fleet.assignments()[0].at.Add(100 * time.Millisecond))) // its outcome is reported now
		before := len(h.raft.entries())
		h.advance(4 * time.Millisecond)
		if got := h.state(first); got != job.Active || len(h.entriesAfter(before)) != 0 {
			t.Fatalf("it is %s, after 4 ms; entries %+v", got, h.entriesAfter(before))
		}
		second := h.enqueue("mail", "", anyJob) // the outcome shares its entry
		h.until("both", func() bool { return h.state(first) == job.Completed && h.state(second) == job.Active })
		entries := h.entriesAfter(before)
		if len(entries) != 1 || len(commandsOf[*ledger.Settle](entries)) != 1 || len(commandsOf[*ledger.Ingest](entries)) != 1 {
			t.Errorf("entries %+v", entries)
		}
		h.until("the outcome is committed alone after a while", func() bool { return h.state(second) == job.Completed })
		last := h.entriesAfter(before)[1]
		if wait := last.submitted.Sub(h.fleet.assignments()[1].at.Add(100 * time.Millisecond)); wait != settleMaxWait {
			t.Errorf("the outcome waited %v", wait)
		}
	})
}

func TestGroupCommit_BatchesBehindInFlight(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.raft.set(func() { h.raft.delay = 10 * time.Millisecond })
		h.advance(100 * time.Millisecond)
		before := len(h.raft.entries())
		began := time.Now()
		h.enqueue("mail", "", anyJob) // at once
		h.advance(time.Millisecond)
		h.enqueue("mail", "", anyJob) // when it has waited 3 ms
		h.advance(time.Millisecond)
		h.enqueue("mail", "", anyJob) // with it
		h.advance(20 * time.Millisecond)
		var at []time.Duration
		for _, e := range h.entriesAfter(before) {
			at = append(at, e.submitted.Sub(began))
		}
		if len(at) != 2 || at[0] != 0 || at[1] != time.Millisecond+entryMaxWait {
			t.Errorf("entries went after %v", at)
		}
		before = len(h.raft.entries())
		h.enqueue("mail", "", anyJob)
		h.advance(0)
		var many []job.Record
		for range 2 * fullEntrySize / recordSize { // enough for an entry
			many = append(many, h.lanes.store(0, "mail", "", anyJob))
		}
		h.sched.ReceiveRecords(many)
		h.advance(30 * time.Millisecond)
		entries := h.entriesAfter(before)
		if len(entries) < 2 || entries[1].submitted != entries[0].submitted {
			t.Errorf("%d entries, the second was not submitted at once", len(entries))
		}
	})
}

func TestGroupCommit_BoundsInFlight(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.raft.set(func() { h.raft.delay = 100 * time.Millisecond; h.raft.maxInFlight = 0 })
		h.node("n1").offer(job.Overhop, "mail", "w1", 5000)
		var callers sync.WaitGroup
		for i := range 3000 {
			h.enqueue("mail", "", anyJob)
			callers.Go(func() { h.propose(&ledger.AddQueue{ID: job.ID{byte(i), byte(i >> 8)}, Name: "q"}) })
		}
		h.until("all ran", func() bool { return h.counts().Delivered == 3000 })
		callers.Wait()
		if h.raft.maxInFlight != maxInFlight {
			t.Errorf("%d entries were in flight at most, want %d", h.raft.maxInFlight, maxInFlight)
		}
		for _, e := range h.raft.entries() {
			size := 0
			for _, c := range e.Commands {
				switch c := c.(type) {
				case *ledger.Ingest:
					size += len(c.Jobs) * (recordSize + 4)
				case *ledger.Place:
					size += len(c.Placements) * placementSize
				case *ledger.Settle:
					size += len(c.Settlements) * outcomeSize
				default:
					size += commandSize
				}
			}
			if size > maxEntrySize {
				t.Errorf("an entry takes %d bytes", size)
			}
		}
		h.checkNoOverlap()
	})
}
