package scheduler

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestHeartbeat_EndsMissingDispatches checks that a dispatch that a live node
// took and no longer has is settled as lost, and that the job runs again.
func TestHeartbeat_EndsMissingDispatches(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		n1 := h.node("n1")
		n1.do(func() { n1.work = neverEnds })
		n1.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", anyJob)
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		n1.do(func() {
			for k, r := range n1.running { // the node drops it
				delete(n1.running, k)
				n1.fleet.count(&r.Assignment, -1)
				n1.setFree(slotKey{poolKey{r.Kind, r.Key}, r.Worker}, 1)
			}
		})
		h.until("it runs again", func() bool { return len(n1.startedNow()) == 2 })
		if n := n1.startedNow()[1].N; n != 2 {
			t.Errorf("dispatch %d was started again", n)
		}
	})
}

// TestHeartbeat_KeepsListedDispatches checks that a dispatch that its node
// lists is not ended, however long it runs.
func TestHeartbeat_KeepsListedDispatches(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		n1 := h.node("n1")
		n1.do(func() { n1.work = neverEnds })
		n1.offer(job.Overhop, "mail", "w1", 1)
		h.enqueue("mail", "", anyJob)
		h.until("it runs", func() bool { return len(n1.startedNow()) == 1 })
		h.advance(time.Minute)
		if n := len(n1.startedNow()); n != 1 {
			t.Errorf("started %d times", n)
		}
	})
}

// TestMove_RecallCarriesEntryIndex checks that a node which never gets a moved
// dispatch is sent a recall, and that a later move outdates the recall.
func TestMove_RecallCarriesEntryIndex(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		h.move(a)
		n1.do(func() { n1.fleet.count(&a, -1) }) // its worker is gone and resumes it nowhere
		h.until("n2 gets a recall", func() bool { return n2.recalls(job.RecallSuperseded) > 0 })
		n2.do(func() {
			for _, r := range n2.recalled {
				if r.MoveIndex == 0 {
					t.Errorf("recall %+v has no index: it would stop a dispatch that a later move brings", r)
				}
			}
		})
		h.advance(15 * time.Second)
	})
}

// TestHeartbeat_OfEarlierIncarnation checks that a heartbeat which a node sent before its
// restart, and which a new authority receives first, does not end what the node runs since.
func TestHeartbeat_OfEarlierIncarnation(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		n2 := h.node("n2")
		n2.restart()
		n2.do(func() { n2.work = neverEnds })
		n2.offer(job.RRQ, "py", "py/1", 1)
		id := h.enqueue("mail", "", `{"function":"py#f"}`)
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		n2.do(func() { n2.silent = true })
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		h.begin()
		late := job.Heartbeat{Node: "n2", Incarnation: n2.incarnation - 1, Runners: []string{"py"}}
		if err := h.sched.Heartbeat(late, func(job.HeartbeatAck) {}); err != nil {
			t.Fatal(err)
		}
		h.advance(2 * time.Second)
		n2.do(func() { n2.silent = false })
		h.advance(10 * time.Second)
		if view, _ := h.find(id); view.State != job.Active || view.Dispatches != 1 {
			t.Errorf("the job is %s, dispatch %d", view.State, view.Dispatches)
		}
	})
}
