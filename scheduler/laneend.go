package scheduler

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// laneEnd is the last sequence of a lane at a time. Once the lane is ingested up to it, every
// record that was stored before that time is ingested.
type laneEnd struct {
	last     uint64
	ledgerAt time.Time // the elapsed time of the ledger before the sequence was read; zero: none was read since the last one was reached
	seenAt   time.Time // the same, by this node's monotonic clock
}

// noteEnd records the end of a lane, unless an earlier one is not ingested yet.
func (lane *laneState) noteEnd(end laneEnd) {
	if lane.end.ledgerAt.IsZero() {
		lane.end = end
	}
}

// markIngested submits which lanes were ingested up to the ends that were noted.
func (ls *lanes) markIngested() {
	var cursors []ledger.LaneCursor
	ls.loop.ledger.View(func(l *ledger.Ledger) { cursors = l.Lanes() })
	c := &ledger.MarkIngested{}
	completeAt := time.Now()
	for i, lane := range ls.all {
		if end := lane.end; !end.ledgerAt.IsZero() && cursors[i].Cursor >= end.last {
			c.Lanes = append(c.Lanes, ledger.LaneEnd{Lane: lane.number, Last: end.last, At: end.ledgerAt})
			lane.completeAt, lane.end = end.seenAt, laneEnd{}
		}
		if lane.completeAt.Before(completeAt) {
			completeAt = lane.completeAt
		}
	}
	if !completeAt.IsZero() {
		ls.completeAt.Store(&completeAt)
	}
	if len(c.Lanes) > 0 {
		ls.loop.submitLazily(c, nil)
	}
}

// ingestedBefore returns a time, by this node's monotonic clock, before which no record was stored that
// is not ingested; zero: none is known. Any goroutine may call it.
func (ls *lanes) ingestedBefore() time.Time {
	if at := ls.completeAt.Load(); at != nil {
		return *at
	}
	return time.Time{}
}
