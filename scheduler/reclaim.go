package scheduler

import (
	"context"
	"fmt"
	"time"

	"yardmaster/ledger"
)

// How lanes are reclaimed: seldom and much at a time, because a purge costs a
// stall that goes by the blocks it drops.
const (
	reclaimEvery = 30 * time.Second
	reclaimFrom  = 64 << 20  // bytes that are worth a purge
	blobSlack    = time.Hour // how much older than its job, by the members' clocks, a blob may be
)

// reclaimer is what one look leaves for the next.
type reclaimer struct {
	m    *mind
	ends []uint64  // of the lanes; nil: not all were seen
	at   time.Time // when they were seen
	done time.Time // blobs before this are gone
}

// reclaim frees the beginnings of lanes that nothing needs any more, and the
// blobs of hours that no job points into. A job that waits long at a lane's
// beginning holds up what lies behind it, and blobs that came after it.
func (m *mind) reclaim(ctx context.Context) error {
	r := &reclaimer{m: m}
	tick := time.NewTicker(reclaimEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		r.look(ctx)
	}
}

func (r *reclaimer) look(ctx context.Context) {
	at := time.Now()
	copied := r.m.ledger().Copy()
	// A backup points to what this copy, and no earlier one, may not need any
	// more: it holds first, and takes the ledger then.
	if holder, _ := copied.Held(); holder != "" {
		return
	}
	lanes, needed := copied.Lanes(), copied.Needed()
	ends := make([]uint64, 0, len(lanes))
	for i, lane := range lanes {
		info, err := r.m.sched.lanes.Info(ctx, uint8(i))
		if err != nil || info.Identity != lane.Identity {
			continue // no leader just now, or another stream: nothing of it is known to be free
		}
		ends = append(ends, info.Last)
		if err := r.lane(ctx, uint8(i), info, needed[i]); err != nil && ctx.Err() == nil {
			r.m.sched.log.Warn("lane is not reclaimed", "lane", i, "below", needed[i], "error", err)
		}
	}
	if err := r.blobs(ctx, copied); err != nil && ctx.Err() == nil {
		r.m.sched.log.Warn("blobs are not reclaimed", "error", err)
	}
	if r.ends, r.at = ends, at; len(ends) < len(lanes) {
		r.ends = nil
	}
}

func (r *reclaimer) lane(ctx context.Context, number uint8, info Lane, needed uint64) error {
	if needed <= info.First || info.Last < needed {
		return nil
	}
	share := float64(needed-info.First) / float64(info.Last-info.First+1)
	if share*float64(info.Bytes) < reclaimFrom {
		return nil
	}
	return r.m.sched.lanes.Purge(ctx, number, needed)
}

// blobs frees the hours before the oldest job that the ledger keeps: a blob's
// name begins with the hour it was stored in, and both a job's body and its
// results are stored after it was accepted, or moments before. Records that
// are not folded yet are no jobs yet: all that were there at the last look
// must be folded, so that none is older than that look.
func (r *reclaimer) blobs(ctx context.Context, copied *ledger.Ledger) error {
	if r.ends == nil {
		return nil
	}
	for i, lane := range copied.Lanes() {
		if lane.Cursor < r.ends[i] {
			return nil
		}
	}
	before := r.at
	if oldest := copied.OldestKept(); !oldest.IsZero() && oldest.Before(before) {
		before = oldest
	}
	before = before.Add(-blobSlack).Truncate(time.Hour)
	if !before.After(r.done) {
		return nil
	}
	if err := r.m.sched.lanes.PurgeBlobs(ctx, before); err != nil {
		return fmt.Errorf("before %s: %w", before.UTC().Format(time.RFC3339), err)
	}
	r.done = before
	return nil
}
