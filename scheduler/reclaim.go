package scheduler

import (
	"context"
	"time"

	"yardmaster/ledger"
)

// How lanes are reclaimed: seldom and much at a time, because a purge costs a
// stall that goes by the blocks it drops.
const (
	reclaimEvery = 30 * time.Second
	reclaimFrom  = 64 << 20 // bytes that are worth a purge
)

// reclaim frees the beginnings of lanes that nothing needs any more. A job
// that waits long at a lane's beginning holds up what lies behind it.
func (m *mind) reclaim(ctx context.Context) error {
	tick := time.NewTicker(reclaimEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var copied *ledger.Ledger
		m.ledger().View(func(l *ledger.Ledger) { copied = l.Copy() })
		for lane, needed := range copied.Needed() {
			if err := m.reclaimLane(ctx, uint8(lane), needed); err != nil && ctx.Err() == nil {
				m.sched.log.Warn("lane is not reclaimed", "lane", lane, "below", needed, "error", err)
			}
		}
	}
}

func (m *mind) reclaimLane(ctx context.Context, lane uint8, needed uint64) error {
	info, err := m.sched.lanes.Info(ctx, lane)
	if err != nil {
		return nil // it has no leader just now; it is looked at again
	}
	if needed <= info.First || info.Last < needed {
		return nil
	}
	share := float64(needed-info.First) / float64(info.Last-info.First+1)
	if share*float64(info.Bytes) < reclaimFrom {
		return nil
	}
	return m.sched.lanes.Purge(ctx, lane, needed)
}
