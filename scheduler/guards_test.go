package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestIngest_UniqueKeys checks that exactly one of the jobs with a unique key
// runs, though several are read and placed while the deciding ingest is in
// flight, and that the capacity reserved for the others is released.
func TestIngest_UniqueKeys(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		const keys, each = 20, 6
		h.raft.set(func() { h.raft.delay = 12 * time.Millisecond })
		n := h.node("n1")
		n.offer(job.Overhop, "mail", "w1", 3)
		for i := range each {
			for k := range keys {
				h.enqueueIn(uint8((i+k)%2), "mail", "", fmt.Sprintf(`{"params":{},"unique_key":"k%d"}`, k))
			}
			h.advance(time.Millisecond)
		}
		h.enqueue("mail", "", anyJob) // after all of them
		h.until("one of each key ran, and the last", func() bool { return h.counts().Delivered == keys+1 })
		h.advance(time.Second)
		if c := h.counts(); c.Delivered != keys+1 || c.Pending != 0 || c.Notified != 0 || c.Failed != 0 {
			t.Errorf("the backlog is %+v", c)
		}
		if started := len(n.startedNow()); started != keys+1 {
			t.Errorf("%d dispatches started, want %d", started, keys+1)
		}
	})
}

// TestIngest_Debounced checks that a job that is debounced while it waits
// starts once, as the newest record asks and with its body.
func TestIngest_Debounced(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		var id job.ID
		for i := range 5 {
			made := h.enqueue("mail", "", fmt.Sprintf(`{"params":{"i":%d},"debounce_key":"d","debounce_ms":50}`, i))
			if i == 0 {
				id = made
			}
			h.advance(80 * time.Millisecond) // it is due, and no worker is there
		}
		h.until("it waits", func() bool { return h.state(id) == job.Waiting })
		n.offer(job.Overhop, "mail", "w1", 2)
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		h.advance(time.Second)
		started := n.startedNow()
		if len(started) != 1 || started[0].Position.Seq != 5 || started[0].Job != id {
			t.Errorf("started %+v", started)
		}
	})
}
