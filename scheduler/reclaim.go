package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of reclaiming lanes. Purges are rare and large, because each stalls the
// stream.
const (
	laneCheckInterval = time.Second      // between two looks at the sizes of the streams
	reclaimInterval   = 30 * time.Second // between two steps, unless a stream grows sooner
	reclaimPause      = 10               // between two steps while a stream is filling, in durations of a step
	reclaimMinSize    = 64 << 20         // bytes that are worth a purge, or an eighth of a smaller stream

	relocateMax      = 2048 // records relocated in one round
	relocateMaxBytes = 64 << 20
	relocateBatch    = 128 // records that are relocated together

	// What part of a stream's oldest records may be relocated to reclaim the others:
	// normally, and once three quarters of the stream are used.
	relocateShare       = 0.05
	relocateShareUrgent = 0.5

	reclaimRounds = 4 // rounds of relocating and purging in one step
	maxHolders    = 3 // oldest jobs that are named when a lane is full
)

// laneReclaimer purges the records at the beginning of the lanes that no job needs. A
// few records that are needed, of jobs that wait long, are first copied to the stream
// of relocated records, which is reclaimed in the same way. Before a purge, the ledger
// records it, see [ledger.Reclaim]. A crash between two of these steps leaves a copy
// that no job refers to, or records that are purged later.
type laneReclaimer struct {
	loop    *eventLoop
	lanes   Lanes
	log     *slog.Logger
	streams []reclaimedStream // the lanes by number, and last the stream of relocated records

	stepAt   time.Time     // when the last step ended
	stepTook time.Duration // how long it took
}

// reclaimedStream is the state of one stream between two steps.
type reclaimedStream struct {
	number  uint8
	kept    uint64 // bytes that the last step left
	failure string // error of the last step; "": it succeeded
	holders atomic.Pointer[streamHolders]
}

// streamHolders are the jobs whose records a lane keeps.
type streamHolders struct {
	count  int
	oldest []job.ID
	err    error // why the oldest ones could not be relocated
}

func newLaneReclaimer(loop *eventLoop, lanes Lanes, log *slog.Logger) *laneReclaimer {
	return &laneReclaimer{loop: loop, lanes: lanes, log: log, stepAt: time.Now()}
}

// load prepares the streams of l's lanes.
func (r *laneReclaimer) load(l *ledger.Ledger) {
	n := len(l.Lanes())
	r.streams = make([]reclaimedStream, n+1)
	for i := range n {
		r.streams[i].number = uint8(i)
	}
	r.streams[n].number = job.RelocatedLane
}

// holders returns what the last step found of a lane. Any goroutine may call it.
func (r *laneReclaimer) holders(lane uint8) *streamHolders {
	if int(lane) >= len(r.streams) {
		return nil
	}
	return r.streams[lane].holders.Load()
}

// run reclaims when a stream has grown enough since the last step, every reclaimInterval,
// and more often while a stream is more than half full, until ctx ends.
func (r *laneReclaimer) run(ctx context.Context) error {
	for backoff.Sleep(ctx, laneCheckInterval) == nil {
		if r.due(ctx) {
			began := time.Now()
			r.step(ctx)
			r.stepAt, r.stepTook = time.Now(), time.Since(began)
		}
	}
	return nil
}

// due reports whether a step is worth its cost, which grows with the number of jobs.
func (r *laneReclaimer) due(ctx context.Context) bool {
	passed := time.Since(r.stepAt) >= reclaimInterval
	soon := time.Since(r.stepAt) >= reclaimPause*r.stepTook
	for i := range r.streams {
		s := &r.streams[i]
		info, err := r.lanes.Info(ctx, s.number)
		if err != nil {
			continue // no leader at present; lanes report that themselves
		}
		s.kept = min(s.kept, info.Bytes)
		grown := info.Bytes - s.kept
		filling := info.MaxBytes > 0 && info.Bytes > info.MaxBytes/2 // acceptance slows down from here on
		if grown >= worthPurging(info) || passed && info.Bytes >= worthPurging(info) || soon && filling {
			return true
		}
	}
	return false
}

// worthPurging returns how many bytes of a stream are worth a purge.
func worthPurging(info LaneInfo) uint64 {
	if info.MaxBytes == 0 {
		return reclaimMinSize
	}
	return min(reclaimMinSize, info.MaxBytes/8)
}

// step reclaims what it can of each stream. After it has relocated records, it looks at
// the ledger again.
func (r *laneReclaimer) step(ctx context.Context) {
	for i := range r.streams {
		s := &r.streams[i]
		var err error
		for round, relocated := 0, true; relocated && err == nil && round < reclaimRounds; round++ {
			relocated, err = r.reclaim(ctx, i)
		}
		if ctx.Err() != nil {
			return
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != s.failure {
			r.log.Warn("lane not reclaimed", "lane", s.name(), "err", err)
		}
		s.failure = text
	}
}

// name returns the stream's name in logs.
func (s *reclaimedStream) name() string {
	if s.number == job.RelocatedLane {
		return "relocated"
	}
	return fmt.Sprint(s.number)
}

// reclaim purges what no job needs from the beginning of stream i, or relocates the few
// records that prevent it, which it reports.
func (r *laneReclaimer) reclaim(ctx context.Context, i int) (relocated bool, err error) {
	s := &r.streams[i]
	copied := r.loop.ledger.Copy()
	lanes := copied.Lanes()
	info, err := r.lanes.Info(ctx, s.number)
	if err != nil || s.number != job.RelocatedLane && info.Identity != lanes[s.number].Identity {
		return false, nil // no leader at present, or a replaced stream
	}
	s.kept = info.Bytes
	index, needs := copied.Index(), copied.Needs(relocateMax)[i]
	plan := planReclaim(info, &needs, s.number == job.RelocatedLane, r.perMessage(ctx, s, &needs))
	if plan.relocate > 0 {
		err = r.relocate(ctx, s, copied.RelocatedFloor(), needs.Oldest[:plan.relocate])
	}
	s.noteHolders(&needs, err)
	if plan.relocate > 0 && s.number == job.RelocatedLane && errors.Is(err, errRelocatedFull) {
		plan = reclaimPlan{below: min(needs.End, needs.Oldest[0].Seq)} // any purge makes space for its first records
	}
	switch {
	case plan.relocate > 0:
		return err == nil, err
	case plan.below <= info.First:
		return false, err
	}
	if purgeErr := r.purge(ctx, s, index, plan); purgeErr != nil {
		err = purgeErr
	}
	return false, err
}

// sampledMessages is from how many messages perMessage estimates.
const sampledMessages = 16

// perMessage estimates how many records a message of the stream's oldest part holds, by those
// from the first needed record on.
func (r *laneReclaimer) perMessage(ctx context.Context, s *reclaimedStream, needs *ledger.LaneNeeds) float64 {
	if s.number == job.RelocatedLane || len(needs.Oldest) == 0 {
		return 1
	}
	records, err := r.lanes.Read(ctx, s.number, needs.Oldest[0].Seq, sampledMessages)
	if err != nil || len(records) == 0 {
		return 1 // fewer records are relocated than could be
	}
	return float64(len(records)) / float64(records[len(records)-1].Seq-records[0].Seq+1)
}

// purge records in the ledger that a stream is purged as planned with the ledger at index,
// and purges it.
func (r *laneReclaimer) purge(ctx context.Context, s *reclaimedStream, index uint64, plan reclaimPlan) error {
	result, err := r.loop.commit(ctx, &ledger.Reclaim{Lane: s.number, Below: plan.below, AsOf: index})
	if err == nil {
		err = result.Err
	}
	switch {
	case errors.Is(err, ledger.ErrBackupRunning), errors.Is(err, ledger.ErrRecordNeeded):
		return nil // at the next step
	case err != nil:
		return fmt.Errorf("record the purge below %d: %w", plan.below, err)
	}
	s.kept -= min(s.kept, plan.gain)
	return r.lanes.Purge(ctx, s.number, plan.below)
}

// noteHolders keeps the oldest jobs that need records of the stream, for the reason
// that it is full.
func (s *reclaimedStream) noteHolders(needs *ledger.LaneNeeds, err error) {
	h := &streamHolders{count: needs.Count, err: err}
	for _, r := range needs.Oldest[:min(len(needs.Oldest), maxHolders)] {
		h.oldest = append(h.oldest, r.Job)
	}
	s.holders.Store(h)
}

// reclaimPlan is what to do with a stream: relocate its oldest needed records, as many
// as relocate, or else purge the records below a sequence; both 0: nothing.
type reclaimPlan struct {
	relocate int
	below    uint64
	gain     uint64 // bytes that the purge frees, estimated
}

// planReclaim decides how far a stream is purged. If no purge is worth it, it decides how
// many needed records are relocated first: as many as free the most, but not more than a
// share of the records that can then be purged, of which a message holds perMessage.
func planReclaim(info LaneInfo, needs *ledger.LaneNeeds, isRelocated bool, perMessage float64) (plan reclaimPlan) {
	if info.Last <= info.First {
		return plan
	}
	share := relocateShare
	if isRelocated || info.MaxBytes > 0 && info.Bytes > info.MaxBytes/4*3 {
		share = relocateShareUrgent
	}
	messageSize := float64(info.Bytes) / float64(info.Last-info.First+1)
	end := min(needs.End, info.Last) // a purge keeps the last message
	for n := 0; n <= len(needs.Oldest); n++ {
		below := end
		if n < len(needs.Oldest) {
			below = min(end, needs.Oldest[n].Seq)
		} else if n < needs.Count {
			return plan // the next needed record is not known
		}
		freed := float64(max(below, info.First) - info.First) // messages
		if gain := uint64(freed * messageSize); float64(n) <= share*freed*perMessage && gain >= max(worthPurging(info), 1) {
			plan = reclaimPlan{relocate: n, below: below, gain: gain}
			if n == 0 {
				return plan
			}
		}
		if n < len(needs.Oldest) && needs.Oldest[n].Fixed {
			return plan
		}
	}
	return plan
}

// errRelocatedFull is returned if the stream of relocated records has no space.
var errRelocatedFull = errors.New("the stream of relocated records is nearly full")

// RelocatedLimit returns how many bytes of the stream of relocated records, which has at
// most max, records of lanes and of retried jobs may use. The rest is needed to reclaim
// the stream itself.
func RelocatedLimit(max uint64) uint64 { return max / 4 * 3 }

// relocationSpace returns how many bytes of records of a stream may be relocated.
func (r *laneReclaimer) relocationSpace(ctx context.Context, from uint8) (uint64, error) {
	info, err := r.lanes.Info(ctx, job.RelocatedLane)
	limit := info.MaxBytes
	switch {
	case err != nil:
		return 0, err
	case limit == 0:
		return math.MaxUint64, nil
	case from != job.RelocatedLane:
		limit = RelocatedLimit(limit)
	}
	return limit - min(limit, info.Bytes), nil
}

// relocate copies records to the stream of relocated records and lets their jobs refer
// to the copies. It stops after relocateMaxBytes, or when that stream has no more space
// for records of s; if it has none for the first, the error is errRelocatedFull. floor is
// that of the stream of relocated records in the ledger that records were read from.
func (r *laneReclaimer) relocate(ctx context.Context, s *reclaimedStream, floor uint64, records []ledger.NeededRecord) error {
	lane, moved, bytes := s.number, 0, uint64(0)
	for part := range slices.Chunk(records, relocateBatch) {
		space, err := r.relocationSpace(ctx, lane)
		if err != nil {
			return err
		}
		seqs, size, err := r.lanes.Relocate(ctx, lane, floor, space, part)
		c := &ledger.Relocate{}
		for i, to := range seqs {
			c.Records = append(c.Records, ledger.RelocatedRecord{Job: part[i].Job, From: part[i].Position(lane), To: to})
		}
		if len(seqs) > 0 {
			result, commitErr := r.loop.commit(ctx, c)
			err = errors.Join(err, commitErr, result.Err)
		}
		if err != nil {
			return err
		}
		moved, bytes = moved+len(seqs), bytes+size
		if bytes >= relocateMaxBytes || len(seqs) < len(part) {
			break
		}
	}
	if moved == 0 {
		return errRelocatedFull
	}
	r.log.Info("records relocated", "lane", s.name(), "records", moved, "bytes", bytes)
	return nil
}

// remedy returns what an operator can do about a full lane.
func (h *streamHolders) remedy() string {
	const size = "nats.max_store_bytes, once raised on every member, makes lanes larger"
	if h == nil || h.count == 0 {
		return "its records are being ingested or purged; if that takes long, more jobs are accepted than can be ingested; " + size
	}
	text := fmt.Sprintf("%d unfinished jobs need their records, the oldest is", h.count)
	if len(h.oldest) > 1 {
		text = fmt.Sprintf("%d unfinished jobs need their records, the oldest are", h.count)
	}
	for _, id := range h.oldest {
		text += " " + id.String()
	}
	text += "; 'yardmaster job explain ID' shows why a job waits, 'yardmaster job cancel ID' ends it; " + size
	if h.err != nil {
		text += "; their records cannot be moved: " + h.err.Error()
	}
	return text
}
