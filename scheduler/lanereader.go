package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of reading lanes.
const (
	pollInterval   = 50 * time.Millisecond // between two reads without a received record
	readBatch      = 1024                  // messages per read
	verifyInterval = 10 * time.Second
	recheckAfter   = time.Second // a mismatch counts if it is still there after this time
)

// laneReader verifies and reads one lane, in its own goroutine. It posts what it finds to
// the loop, which alone changes the lane's state.
type laneReader struct {
	lanes *lanes
	lane  *laneState
}

// run waits until the lane is served, verifies it and then serves it, again after each
// failure, until ctx ends.
func (r *laneReader) run(ctx context.Context) error {
	r.awaitReplica(ctx)
	for wait := 20 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		err := r.verify(ctx)
		if err == nil {
			r.lanes.loop.post(func() { r.lanes.markHealthy(r.lane) })
			err = r.serve(ctx)
			wait = time.Second
		}
		if ctx.Err() != nil {
			return nil
		}
		r.lanes.loop.post(func() { r.lanes.markFaulty(r.lane, err) })
		backoff.Sleep(ctx, wait)
	}
	return nil
}

// awaitReplica blocks until a replica of the lane serves reads, and lets its jobs start.
func (r *laneReader) awaitReplica(ctx context.Context) {
	for !r.lanes.client.Served(ctx, r.lane.number) {
		if backoff.Sleep(ctx, pollInterval) != nil {
			return
		}
	}
	r.lanes.loop.post(func() { r.lane.served, r.lanes.loop.placeDirty = true, true })
}

// serve reads a verified lane on request and every pollInterval, and verifies it
// every verifyInterval. It returns an error once two verifications in a row have
// found a mismatch. A lane that does not answer is asked again.
func (r *laneReader) serve(ctx context.Context) error {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	check := time.NewTimer(verifyInterval - pollInterval/2) // between two polls
	defer check.Stop()
	mismatched := false // the last verification found a mismatch
	for {
		select {
		case <-ctx.Done():
			return nil
		case from := <-r.lane.wake:
			r.read(ctx, from)
		case <-poll.C:
			r.lanes.loop.post(func() {
				if !r.lane.reading {
					r.lanes.requestRead(r.lane)
				}
			})
		case <-check.C:
			err := r.verify(ctx)
			switch {
			case !isStreamMismatch(err):
				mismatched = false
				check.Reset(verifyInterval)
			case !mismatched:
				mismatched = true
				check.Reset(recheckAfter) // a new leader may not have caught up yet
			default:
				r.stopIngest(err)
				return err
			}
		}
	}
}

// stopIngest records err as the lane's problem and drops its pending records. The lane is
// ingested again once it is verified.
func (r *laneReader) stopIngest(err error) {
	r.lanes.loop.log.Warn("lane ingest stopped until the lane matches", "lane", r.lane.number, "err", err)
	r.lanes.loop.post(func() {
		r.lane.ready = false
		r.lanes.markFaulty(r.lane, err)
		r.lanes.resync(r.lane)
	})
}

// streamMismatchError reports that a lane's stream is not the one in the ledger, or
// lacks records of it.
type streamMismatchError struct {
	lane     uint8
	reason   string
	replaced bool // it is another stream, with none of the ledger's records
}

func (e *streamMismatchError) Error() string { return fmt.Sprintf("lane %d: %s", e.lane, e.reason) }

// isLaneLost reports whether err means that a lane's stream was deleted or replaced.
func isLaneLost(err error) bool {
	_, deleted := errors.AsType[*OperatorError](err)
	mismatch, ok := errors.AsType[*streamMismatchError](err)
	return deleted || ok && mismatch.replaced
}

// isStreamMismatch reports whether err means that a lane's stream does not match the
// ledger.
func isStreamMismatch(err error) bool {
	var mismatch *streamMismatchError
	return isLaneLost(err) || errors.As(err, &mismatch)
}

// verify compares the lane's stream with the ledger, and notes where the stream ends. It
// returns a [*streamMismatchError] if the stream does not match, and another error if the
// stream could not be read.
func (r *laneReader) verify(ctx context.Context) error {
	end := laneEnd{seenAt: time.Now()}
	var ingested uint64 // read before Info: the stream must not end below it
	r.lanes.loop.ledger.View(func(l *ledger.Ledger) { ingested, end.ledgerAt = l.Lanes()[r.lane.number].Cursor, l.Clock().Elapsed })
	info, err := r.lanes.client.Info(ctx, r.lane.number)
	if err != nil {
		return fmt.Errorf("lane %d: %w", r.lane.number, err)
	}
	r.lanes.loop.post(func() { r.lane.full = LaneFull(info.Bytes, info.MaxBytes) })
	if err := r.compare(ctx, info, ingested); err != nil {
		return err
	}
	end.last = info.Last
	r.lanes.loop.post(func() {
		r.lane.noteEnd(end)
		r.lane.lastReceived = max(r.lane.lastReceived, end.last) // so that the lane is read to its end
	})
	return nil
}

// compare compares the lane's stream with the ledger, while both may advance: the stream
// must be the same one, not end below the sequence ingested, have all records after the
// cursor, and have the last ingested record at the cursor.
func (r *laneReader) compare(ctx context.Context, info LaneInfo, ingested uint64) error {
	cursor := r.cursor() // read after Info: every record purged before is below it
	mismatchf := func(format string, args ...any) error {
		return &streamMismatchError{r.lane.number, fmt.Sprintf(format, args...), false}
	}
	switch {
	case info.Identity != cursor.Identity:
		return &streamMismatchError{r.lane.number, fmt.Sprintf("its stream is another one than the ledger's (%s, not %s): it was deleted and created again; restore the members' data directories that hold the right one", info.Identity, cursor.Identity), true}
	case info.First > cursor.Cursor+1:
		return mismatchf("its stream begins at %d, the records from %d on were lost before they were ingested: bring back the data directory of a member that has them", info.First, cursor.Cursor+1)
	case info.Last < ingested:
		return mismatchf("its stream ends at %d, before the ingested position %d: its leader has not caught up, or it went back; if this lasts for a minute, start a member whose data directory has the rest", info.Last, ingested)
	case cursor.Cursor == 0 || cursor.Cursor < info.First || cursor.LastID.IsZero():
		return nil
	}
	records, err := r.lanes.client.Read(ctx, r.lane.number, cursor.Cursor, 1)
	if err != nil {
		return fmt.Errorf("lane %d: read the ingested position: %w", r.lane.number, err)
	}
	if len(records) == 0 || records[0].Seq != cursor.Cursor {
		return fmt.Errorf("lane %d: the record at the ingested position %d cannot be read", r.lane.number, cursor.Cursor)
	}
	last := &records[len(records)-1]
	j, _ := last.Job(cursor.Identity, r.lanes.loop.cfg.Defaults)
	conflict := job.RecordID(cursor.Identity, last.Position, last.Stored)
	if j.ID != cursor.LastID && conflict != cursor.LastID {
		return mismatchf("the record at the ingested position %d is not the one that was ingested: the stream went back and on another way; bring back the data directory of a member that has the right one", cursor.Cursor)
	}
	return nil
}

// cursor returns how far the ledger has ingested the lane.
func (r *laneReader) cursor() (cursor ledger.LaneCursor) {
	r.lanes.loop.ledger.View(func(l *ledger.Ledger) { cursor = l.Lanes()[r.lane.number] })
	return cursor
}

// read reads up to readBatch messages of the lane from a sequence on, and posts them to
// the loop.
func (r *laneReader) read(ctx context.Context, from uint64) {
	records, err := r.lanes.client.Read(ctx, r.lane.number, from, readBatch)
	parsed, parseErr := r.lanes.parse(ctx, r.lane, records, true)
	if err == nil {
		err = parseErr
	}
	r.lanes.loop.post(func() {
		r.lane.reading = false
		r.lanes.noteRead(r.lane, err)
		r.lanes.receive(r.lane, parsed)
		if r.lane.next > from && r.lane.next <= r.lane.lastReceived {
			r.lanes.requestRead(r.lane)
		}
	})
}
