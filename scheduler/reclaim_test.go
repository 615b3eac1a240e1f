package scheduler

import (
	"fmt"
	"testing"
	"time"

	"yardmaster/job"
)

// What a lane holds goes when nothing needs it any more, and not before: a
// delayed job keeps its record and all behind it. In the fake lanes a record
// takes 1 MiB.
func TestReclaim_KeepsWhatIsNeeded(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 8)
		first := func() (seq uint64) {
			y.lanes.set(func() { seq = y.lanes.lanes[0].first })
			return seq
		}
		for range 99 {
			y.enqueue("mail", "", anyJob)
		}
		late := y.enqueue("mail", "", fmt.Sprintf(`{"params":{},"run_at":%q}`, time.Now().Add(5*time.Minute).Format(time.RFC3339)))
		for range 100 {
			y.enqueue("mail", "", anyJob)
		}
		y.until("all but one ran", func() bool { return y.counts().Delivered == 199 })
		if got := first(); got != 1 {
			t.Fatalf("the lane begins at %d before anything was reclaimed", got)
		}
		y.pass(reclaimEvery + time.Second)
		if got := first(); got != 100 {
			t.Fatalf("the lane begins at %d, want 100: the delayed job's record", got)
		}
		y.pass(5 * time.Minute)
		y.until("the late one ran", func() bool { return y.state(late) == job.Completed })
		y.pass(reclaimEvery + time.Second)
		if got := first(); got != 200 {
			t.Fatalf("the lane begins at %d, want 200: the record at the cursor", got)
		}
	})
}
