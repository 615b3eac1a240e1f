package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// blobSlack is how much older than its job, by the members' clocks, a blob may be.
const blobSlack = time.Hour

// blobs purges the hours before the oldest job that the ledger keeps: a blob's name
// begins with the hour it was stored in, and a job's body and results are stored
// after the job was accepted or moments before. Records that are not ingested yet
// are not in the ledger. Therefore all records that were in the lanes at the last
// step must be ingested, and blobs stored since that step are kept.
func (r *reclaimer) blobs(ctx context.Context, copied *ledger.Ledger) error {
	if r.laneEnds == nil {
		return nil
	}
	for i, lane := range copied.Lanes() {
		if lane.Cursor < r.laneEnds[i] {
			return nil
		}
	}
	before := r.seenAt
	if oldest := copied.OldestKept(); !oldest.IsZero() && oldest.Before(before) {
		before = oldest
	}
	before = before.Add(-blobSlack).Truncate(time.Hour)
	if !before.After(r.blobsPurgedBefore) {
		return nil
	}
	if err := r.lanes.PurgeBlobs(ctx, before); err != nil {
		return fmt.Errorf("before %s: %w", before.UTC().Format(time.RFC3339), err)
	}
	r.blobsPurgedBefore = before
	return nil
}
