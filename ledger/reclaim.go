package ledger

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// ErrRecordNeeded refuses a [Reclaim] that is based on an outdated copy of the
// ledger: a job may need one of the records again since then.
var ErrRecordNeeded = errors.New("a job may need a record that was to be reclaimed")

// Reclaim permits that records are purged: those below sequence Below of a
// lane, or of the stream of relocated records if Lane is [job.RelocatedLane].
// AsOf is the index of the ledger whose [Ledger.Needs] showed that no job needs
// them. Reclaim is refused while a backup is made.
type Reclaim struct {
	Lane        uint8
	Below, AsOf uint64
}

// ReleaseBodies permits that large bodies of failed jobs are removed, because their dead
// letters are gone. AsOf is the index of the ledger that was read before the letters were
// looked for: a job that was retried since then may need its body again.
type ReleaseBodies struct{ AsOf uint64 }

// Relocate records that copies of records were stored in the stream of
// relocated records. A job whose record was meanwhile replaced or is no longer
// needed is skipped.
type Relocate struct{ Records []RelocatedRecord }

// RelocatedRecord is the copy of a job's record: at sequence To of the stream
// of relocated records. From is where the job's record was.
type RelocatedRecord struct {
	Job  job.ID
	From job.Position
	To   uint64
}

func (*Reclaim) Kind() Kind       { return KindReclaim }
func (*Relocate) Kind() Kind      { return KindRelocate }
func (*ReleaseBodies) Kind() Kind { return KindReleaseBodies }

// apply raises the lane's floor. A floor is never lowered.
func (c *Reclaim) apply(l *Ledger) Result {
	floor := l.floor(c.Lane)
	switch {
	case floor == nil:
		return Result{Err: fmt.Errorf("lane %d: %w", c.Lane, ErrLaneMismatch)}
	case c.Lane != job.RelocatedLane && c.Below > l.lanes[c.Lane].Cursor:
		return Result{Err: fmt.Errorf("lane %d is ingested up to %d, not %d: %w", c.Lane, l.lanes[c.Lane].Cursor, c.Below, ErrCursorMismatch)}
	case c.AsOf < l.revived:
		return Result{Err: ErrRecordNeeded}
	}
	if holder, _ := l.Holder(); holder != "" {
		return Result{Err: ErrBackupRunning}
	}
	*floor = max(*floor, c.Below)
	return Result{}
}

// apply records the index, with which retries compare when they have seen the letter.
func (c *ReleaseBodies) apply(l *Ledger) Result {
	if c.AsOf < l.revived {
		return Result{Err: ErrRecordNeeded}
	}
	if holder, _ := l.Holder(); holder != "" {
		return Result{Err: ErrRecordNeeded}
	}
	l.released = l.index
	return Result{}
}

func (c *Relocate) apply(l *Ledger) Result {
	for i := range c.Records {
		l.relocate(&c.Records[i])
	}
	return Result{}
}

// relocate lets an unfinished job refer to the copy of its record, unless its
// record is no longer the one that was copied, or the copy may be purged.
func (in *ingestion) relocate(r *RelocatedRecord) {
	old := in.jobs.find(r.Job)
	if old == nil || old.state.Ended() || old.position() != r.From || r.To < in.relocatedFloor {
		return
	}
	next := *old
	next.setPosition(job.Position{Lane: job.RelocatedLane, Seq: r.To})
	in.emitDetails(&next, "")
	in.store(old, &next)
}

// floor returns the floor of a lane or of the stream of relocated records; nil
// for a lane that does not exist.
func (in *ingestion) floor(lane uint8) *uint64 {
	switch {
	case lane == job.RelocatedLane:
		return &in.relocatedFloor
	case int(lane) < len(in.lanes):
		return &in.lanes[lane].Floor
	}
	return nil
}

// RelocatedFloor returns the sequence below which relocated records may have been purged.
func (in *ingestion) RelocatedFloor() uint64 { return in.relocatedFloor }

// reclaimed reports whether the record at p may have been purged.
func (in *ingestion) reclaimed(p job.Position) bool {
	floor := in.floor(p.Lane)
	return floor == nil || p.Seq < *floor
}

// LaneNeeds are the records of a lane, or of the stream of relocated records,
// that jobs may still need.
type LaneNeeds struct {
	Count  int            // number of these records
	Oldest []NeededRecord // the oldest of them, by sequence
	End    uint64         // records from here on are kept in any case: those not ingested yet, and the last ingested one
}

// NeededRecord is a record that a job may still need.
type NeededRecord struct {
	Seq   uint64
	Job   job.ID
	Index uint8
	Fixed bool // it should not be relocated: its job is young, or it is the record of a dead letter that is not published yet
}

// Position returns the place of the record in a lane, or in the stream of relocated records.
func (n *NeededRecord) Position(lane uint8) job.Position {
	return job.Position{Lane: lane, Seq: n.Seq, Index: n.Index}
}

// youngAge is the age up to which a job is expected to start soon.
const youngAge = 5 * time.Second

// Needs returns the needs of each lane by number, and last those of the stream
// of relocated records, each with at most limit oldest records. A record is
// needed by a job that has not ended, or by a dead letter that is not published
// yet. Needs scans all such jobs, so call it on a [Ledger.Copy].
func (in *ingestion) Needs(limit int) []LaneNeeds {
	needs := make([]LaneNeeds, len(in.lanes)+1)
	relocated := &needs[len(in.lanes)]
	relocated.End = ^uint64(0)
	for i, lane := range in.lanes {
		needs[i].End = lane.Cursor
	}
	add := func(at job.Position, id job.ID, fixed bool) {
		switch {
		case at.Lane == job.RelocatedLane:
			relocated.add(NeededRecord{at.Seq, id, at.Index, fixed}, limit)
		case int(at.Lane) < len(in.lanes):
			needs[at.Lane].add(NeededRecord{at.Seq, id, at.Index, fixed}, limit)
		}
	}
	for stored := range in.unended() {
		add(stored.position(), stored.id, in.now-stored.accepted < int64(youngAge))
	}
	for i := range in.outbox.deadLetters {
		letter := &in.outbox.deadLetters[i]
		add(letter.Position, letter.Job, true)
	}
	for i := range needs {
		slices.SortFunc(needs[i].Oldest, func(a, b NeededRecord) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Index, b.Index)) })
	}
	return needs
}

// add counts a record, and keeps it if it is among the limit oldest ones.
// Oldest is a heap with the newest record first.
func (n *LaneNeeds) add(r NeededRecord, limit int) {
	n.Count++
	oldest := (*newestFirst)(&n.Oldest)
	if len(n.Oldest) < limit {
		heap.Push(oldest, r)
	} else if r.Seq < n.Oldest[0].Seq {
		n.Oldest[0] = r
		heap.Fix(oldest, 0)
	}
}

// newestFirst is a heap of records.
type newestFirst []NeededRecord

func (h newestFirst) Len() int           { return len(h) }
func (h newestFirst) Less(i, j int) bool { return h[i].Seq > h[j].Seq }
func (h newestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *newestFirst) Push(x any)        { *h = append(*h, x.(NeededRecord)) }
func (h *newestFirst) Pop() any          { panic("ledger: needed records are never removed one by one") }

// Lowest returns the sequence below which no record is needed.
func (n *LaneNeeds) Lowest() uint64 {
	if len(n.Oldest) > 0 {
		return min(n.Oldest[0].Seq, n.End)
	}
	return n.End
}
