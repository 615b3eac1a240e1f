package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestReclaim_KeepsWhatIsNeeded checks that a lane's records are purged once
// no job needs them, and not before: a delayed job keeps its record and all
// after it. In the fake lanes a record takes 1 MiB.
func TestReclaim_KeepsWhatIsNeeded(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		first := func() (seq uint64) {
			h.lanes.set(func() { seq = h.lanes.lanes[0].first })
			return seq
		}
		for range 99 {
			h.enqueue("mail", "", anyJob)
		}
		late := h.enqueue("mail", "", fmt.Sprintf(`{"params":{},"run_at":%q}`, time.Now().Add(5*time.Minute).Format(time.RFC3339)))
		for range 100 {
			h.enqueue("mail", "", anyJob)
		}
		h.until("all but one ran", func() bool { return h.counts().Delivered == 199 })
		if got := first(); got != 1 {
			t.Fatalf("the lane begins at %d before anything was reclaimed", got)
		}
		h.advance(reclaimInterval + time.Second)
		if got := first(); got != 100 {
			t.Fatalf("the lane begins at %d, want 100: the delayed job's record", got)
		}
		h.advance(5 * time.Minute)
		h.until("the late one ran", func() bool { return h.state(late) == job.Completed })
		h.advance(reclaimInterval + time.Second)
		if got := first(); got != 200 {
			t.Fatalf("the lane begins at %d, want 200: the record at the cursor", got)
		}
	})
}

// TestReclaim_SkipsReplacedStream checks that another stream under the lane's
// name is not purged.
func TestReclaim_SkipsReplacedStream(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		for range 100 {
			h.enqueue("mail", "", anyJob)
		}
		h.until("all ran", func() bool { return h.counts().Delivered == 100 })
		h.lanes.set(func() { h.lanes.lanes[0].identity = "another" })
		h.advance(2 * reclaimInterval)
		h.lanes.set(func() {
			if got := h.lanes.lanes[0].first; got != 1 {
				t.Errorf("the other stream was purged below %d", got)
			}
		})
	})
}
