package scheduler

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestReclaim_UnneededBlobs checks that blobs are purged by the hour once no
// job may refer to them.
func TestReclaim_UnneededBlobs(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 8)
		later := func(d time.Duration) time.Time { // a tenure in which reclaim has run twice
			h.end()
			h.advance(d)
			h.begin()
			h.advance(2*reclaimInterval + time.Second)
			h.lanes.mu.Lock()
			defer h.lanes.mu.Unlock()
			return h.lanes.blobs
		}
		accepted := time.Now()
		id := h.enqueue("mail", "", anyJob)
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		if got := later(5 * time.Hour); got.After(accepted.Add(-blobSlack)) {
			t.Fatalf("blobs before %s are purged while a finished job of %s is kept", got, accepted)
		}
		h.propose(&ledger.RemoveJob{Job: id})
		if got := later(5 * time.Hour); !got.After(accepted) || time.Since(got) < blobSlack {
			t.Errorf("at %s blobs before %s are purged", time.Now(), got)
		}

		// A record that is not ingested may refer to a blob, too.
		h.end()
		stored := time.Now()
		h.lanes.store(0, "mail", "", anyJob)
		h.lanes.set(func() { h.lanes.readsFail = true })
		h.begin()
		if got := later(5 * time.Hour); got.After(stored.Add(-blobSlack)) {
			t.Errorf("blobs before %s are purged, a record of %s is not ingested", got, stored)
		}
	})
}
