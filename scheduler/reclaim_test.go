package scheduler

import (
	"fmt"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
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

// Another stream under the lane's name is not purged by the ledger's numbers.
func TestReclaim_LeavesAnotherStreamAlone(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 8)
		for range 100 {
			y.enqueue("mail", "", anyJob)
		}
		y.until("all ran", func() bool { return y.counts().Delivered == 100 })
		y.lanes.set(func() { y.lanes.lanes[0].identity = "another" })
		y.pass(2 * reclaimEvery)
		y.lanes.set(func() {
			if got := y.lanes.lanes[0].first; got != 1 {
				t.Errorf("the other stream was purged below %d", got)
			}
		})
	})
}

// Blobs go by the hour once no job is left that may point to them.
func TestReclaim_BlobsOfHoursThatNothingNeeds(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 8)
		later := func(d time.Duration) time.Time { // a tenure that has looked twice
			y.end()
			y.pass(d)
			y.begin()
			y.pass(2*reclaimEvery + time.Second)
			y.lanes.mu.Lock()
			defer y.lanes.mu.Unlock()
			return y.lanes.blobs
		}
		accepted := time.Now()
		id := y.enqueue("mail", "", anyJob)
		y.until("it ran", func() bool { return y.state(id) == job.Completed })
		if got := later(5 * time.Hour); got.After(accepted.Add(-blobSlack)) {
			t.Fatalf("blobs before %s are gone while a finished job of %s is kept", got, accepted)
		}
		y.do(&ledger.RemoveJob{Job: id})
		if got := later(5 * time.Hour); !got.After(accepted) || time.Since(got) < blobSlack {
			t.Errorf("at %s blobs before %s are gone", time.Now(), got)
		}

		// A record that nobody folds may point to a blob, too.
		y.end()
		stored := time.Now()
		y.lanes.store(0, "mail", "", anyJob)
		y.lanes.set(func() { y.lanes.unread = true })
		y.begin()
		if got := later(5 * time.Hour); got.After(stored.Add(-blobSlack)) {
			t.Errorf("blobs before %s are gone, a record of %s is not folded", got, stored)
		}
	})
}
