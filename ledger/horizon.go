package ledger

import (
	"fmt"
	"math"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// MarkIngested records that lanes were ingested to their ends. A lane that is not
// ingested up to the given end yet is skipped.
type MarkIngested struct{ Lanes []LaneEnd }

// LaneEnd is the last sequence of a lane, as it was after the time At, which is the
// elapsed time of an earlier entry, see [Clock].
type LaneEnd struct {
	Lane uint8
	Last uint64
	At   time.Time
}

func (*MarkIngested) Kind() Kind { return KindMarkIngested }

func (c *MarkIngested) apply(l *Ledger) Result {
	for _, end := range c.Lanes {
		if int(end.Lane) >= len(l.lanes) {
			return Result{Err: fmt.Errorf("lane %d: %w", end.Lane, ErrLaneMismatch)}
		}
		lane := &l.lanes[end.Lane]
		if lane.Cursor >= end.Last && end.At.After(lane.IngestedUntil) && end.At.UnixNano() <= l.elapsed {
			lane.IngestedUntil = end.At
		}
	}
	return Result{}
}

// slowestLane returns the lane whose records were ingested up to the earliest time, and
// this time in Unix nanoseconds of elapsed time: a record that was stored earlier is ingested,
// whatever its lane. Without lanes it returns -1 and the present time.
func (in *ingestion) slowestLane() (lane int, until int64) {
	lane, until = -1, in.elapsed
	for i := range in.lanes {
		at := int64(math.MinInt64 / 2) // never ingested to its end
		if !in.lanes[i].IngestedUntil.IsZero() {
			at = in.lanes[i].IngestedUntil.UnixNano()
		}
		if lane < 0 || at < until {
			lane, until = i, at
		}
	}
	return lane, until
}

// forget forgets the ids of jobs whose records were removed so long ago that no copy of
// them, and no repetition within the dedupe horizon, is still to be ingested. That is
// measured in the time of the slowest lane: a lane that cannot be read may hold copies,
// so no id is forgotten until it is read again.
func (in *ingestion) forget() {
	_, until := in.slowestLane()
	in.trimForgotten(until)
	in.decisions.trim(until - int64(DedupeHorizon))
	in.refused.trim(until - int64(DedupeHorizon))
}

// trimForgotten forgets ids, given the time of the slowest lane. The last ones are kept for longer, because the
// records of completed jobs are removed soon, and their producers may repeat them for hours.
func (in *ingestion) trimForgotten(until int64) {
	ids := in.jobs.forgotten
	if in.outbox.level == 0 {
		ids.trim(until - int64(DedupeHorizon))
		return
	}
	ids.trim(until - int64(DedupeAge))
	for ids.size > DedupeCount && ids.slabs[0].at < until-int64(DedupeHorizon) {
		ids.removeOldest()
	}
}

// ForgottenIDs describes the ids of jobs whose records the ledger has removed, and of records with
// guards that became no jobs. Each is kept for the dedupe horizon, and longer if a lane is not ingested.
type ForgottenIDs struct {
	Count, Max int // of ids; one of a record that became no job counts as recordIDs
	// Lane is the lane that prevents the oldest ids from being forgotten, Until the time
	// up to which it was ingested, which is zero if it never was ingested to its end. Lane
	// is -1 if the ids are kept only because of their age.
	Lane  int
	Until time.Time
}

// recordIDs is how many ids of jobs the id of a record that became no job counts as. It takes up to
// 96 bytes of memory, the id of a job about 24.
const recordIDs = 4

// idCount returns the number of ids that are kept, see [ForgottenIDs].
func (in *ingestion) idCount() int {
	ids := in.jobs.forgotten
	return ids.size + (recordIDs-1)*ids.aliases + recordIDs*in.refused.size
}

// laneLag is how long the ingestion of a lane may lag before the lane is said to prevent
// ids from being forgotten. Lanes are marked as ingested every few seconds.
const laneLag = int64(time.Minute)

// ForgottenIDs returns how many ids are kept, and why.
func (in *ingestion) ForgottenIDs() ForgottenIDs {
	ids := ForgottenIDs{Count: in.idCount(), Max: MaxDedupeIDs, Lane: -1}
	if lane, until := in.slowestLane(); lane >= 0 && in.elapsed-until > laneLag {
		ids.Lane = lane
		if at := in.lanes[lane].IngestedUntil; !at.IsZero() {
			ids.Until = in.shown(at.UnixNano())
		}
	}
	return ids
}

// MayIngest reports whether records of a lane may be ingested. While the ledger has as
// many ids of forgotten jobs as it may have, only the lanes that prevent it from
// forgetting the oldest ones may be.
func (in *ingestion) MayIngest(lane uint8) bool {
	if in.idCount() < MaxDedupeIDs {
		return true
	}
	oldest := in.oldestID() + int64(DedupeHorizon)
	if in.elapsed <= oldest {
		return false
	}
	until := in.lanes[lane].IngestedUntil
	return until.IsZero() || until.UnixNano() <= oldest
}

// oldestID returns when the id that may be forgotten next was added, in Unix nanoseconds of elapsed
// time.
func (in *ingestion) oldestID() int64 {
	oldest := int64(math.MaxInt64 / 2)
	if ids := in.jobs.forgotten; ids.size > DedupeCount { // fewer are kept for longer than the horizon
		oldest = ids.slabs[0].at
	}
	if refused := in.refused.oldest(); refused != nil {
		oldest = min(oldest, refused.at)
	}
	return oldest
}

// Warning returns what an operator should know about the ids; "": nothing. While a lane
// prevents them from being forgotten, the warning names the lane.
func (f ForgottenIDs) Warning() string {
	share := fmt.Sprintf("%d of at most %d", f.Count, f.Max)
	const slower = "jobs are accepted more slowly the more there are"
	switch {
	case f.Lane >= 0 && f.Count > f.Max/2 && f.Until.IsZero():
		return fmt.Sprintf("ids of forgotten jobs are kept, %s, because lane %d was never ingested to its end: make the lane readable; %s", share, f.Lane, slower)
	case f.Lane >= 0 && f.Count > f.Max/2:
		return fmt.Sprintf("ids of forgotten jobs are kept, %s, because lane %d is ingested only up to %s: make the lane readable; %s", share, f.Lane, FormatTime(f.Until), slower)
	case f.Count > f.Max/10*9:
		return fmt.Sprintf("ids of forgotten jobs are kept, %s, because more jobs end within %s than are expected: %s", share, duration.Format(DedupeHorizon), slower)
	}
	return ""
}
