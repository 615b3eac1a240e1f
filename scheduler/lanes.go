package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of reading lanes.
const (
	pollInterval      = 50 * time.Millisecond // between two reads without a received record
	gapTimeout        = 2 * time.Millisecond  // how long a missing record may still be received before it is read
	maxOutOfOrder     = 4096                  // records kept beyond a gap; others are read again
	readBatch         = 1024                  // records per read
	maxPendingRecords = 8192                  // records per lane that are not in an entry yet
	verifyInterval    = 10 * time.Second
	maxRecordSize     = 256 << 10   // bytes; a lane with less free space is full
	recheckAfter      = time.Second // a mismatch counts if it is still there after this time
)

// laneState is the tenure's state of one lane. Its fields belong to the loop's
// goroutine, apart from lost and wake.
type laneState struct {
	number       uint8
	identity     string
	ready        bool        // its stream was verified to be the ledger's
	problem      string      // why it is not ingested; "" if it is, or is not verified yet
	full         bool        // its stream takes no more jobs
	lost         atomic.Bool // its stream was deleted or replaced: no record of the lane can be read
	next         uint64      // sequence after the last record that is in an entry or pending
	lastReceived uint64      // highest sequence received
	outOfOrder   map[uint64]pendingRecord
	gapSince     time.Time   // since when record next is missing and later ones were received; zero: no gap, or a read was requested
	wake         chan uint64 // holds at most one request to read from a sequence on
	reading      bool        // a read is requested or running
	receivedAt   time.Time   // when the oldest pending record was received
}

// loadLedger initializes the tenure from the ledger: members, lane cursors and
// running dispatches.
func (t *tenure) loadLedger(l *ledger.Ledger) {
	t.updateMembership(l)
	for i, c := range l.Lanes() {
		t.lanes = append(t.lanes, &laneState{
			number: uint8(i), identity: c.Identity, next: c.Cursor + 1, lastReceived: c.Cursor,
			outOfOrder: map[uint64]pendingRecord{}, wake: make(chan uint64, 1),
		})
	}
	l.ActiveDispatches(func(a ledger.ActiveDispatch) bool {
		t.dispatches[dispatchKey{a.ID, a.N}] = t.adoptDispatch(a, l.Index())
		return true
	})
	t.fenceBase = l.FenceBase()
	t.placeDirty = true
	if at, ok := l.NextDue(); ok {
		t.nextDue = at
	}
}

// runLanes ensures that the streams exist, and verifies and reads each lane in a
// goroutine until ctx ends.
func (t *tenure) runLanes(ctx context.Context) error {
	identities := make([]string, len(t.lanes))
	for i, lane := range t.lanes {
		identities[i] = lane.identity
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.tailLanes(ctx) })
	group.Go(func() error { return t.ensureStreams(ctx, identities) })
	for _, lane := range t.lanes {
		group.Go(func() error { return t.readLane(ctx, lane) })
	}
	return group.Wait()
}

// tailLanes receives records as the lanes store them. Records that it misses are
// read.
func (t *tenure) tailLanes(ctx context.Context) error {
	for ctx.Err() == nil {
		err := t.sched.lanes.Tail(ctx, func(r job.Record) { t.receiveRecords([]job.Record{r}) })
		if ctx.Err() == nil {
			t.sched.log.Warn("lane subscription failed, polling lanes instead", "err", err)
			sleep(ctx, time.Second)
		}
	}
	return nil
}

// ensureInterval is how often the streams are verified: that they exist, and that
// each member leads its lane.
const ensureInterval = 15 * time.Second

// ensureStreams creates the streams of a new cluster, records in the ledger that
// they exist, and verifies them every ensureInterval. A stream that is missing
// later is not created again: it makes the node not ready.
func (t *tenure) ensureStreams(ctx context.Context, identities []string) error {
	created := t.streamsCreated()
	if !created {
		t.post(func() { t.streamsProblem = streamsBeingCreated })
	}
	for failures := 0; ctx.Err() == nil; {
		err := t.sched.lanes.Ensure(ctx, identities, !created)
		if err != nil {
			if failures++; failures == 1 {
				t.sched.log.Warn("stream verification failed", "err", err)
			} else {
				t.post(func() {
					t.streamsProblem = err.Error()
					t.setNeedsOperator(topicStreams, err)
				})
			}
			sleep(ctx, time.Second)
			continue
		}
		failures = 0
		t.post(func() { t.streamsProblem = "" })
		t.streamsOnce.Do(func() { close(t.streamsReady) })
		if !created {
			created = true
			t.post(func() { t.submitCommand(&ledger.Bootstrap{StreamsCreated: true}, nil) })
		}
		sleep(ctx, ensureInterval)
	}
	return nil
}

// streamsCreated reports whether the ledger records that the streams were created.
func (t *tenure) streamsCreated() (created bool) {
	t.ledger().View(func(l *ledger.Ledger) { created = l.StreamsCreated() })
	return created
}

// readLane verifies a lane and then serves it, again after each failure, until ctx
// ends.
func (t *tenure) readLane(ctx context.Context, lane *laneState) error {
	for wait := 20 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		err := t.verify(ctx, lane)
		if err == nil {
			t.post(func() { t.markHealthy(lane) })
			err = t.serveLane(ctx, lane)
			wait = time.Second
		}
		if ctx.Err() != nil {
			return nil
		}
		t.post(func() { t.markFaulty(lane, err) })
		sleep(ctx, wait)
	}
	return nil
}

// serveLane reads a verified lane on request and every pollInterval, and verifies it
// every verifyInterval. It returns an error once two verifications in a row have
// found a mismatch. A lane that does not answer is asked again.
func (t *tenure) serveLane(ctx context.Context, lane *laneState) error {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	check := time.NewTimer(verifyInterval - pollInterval/2) // between two polls
	defer check.Stop()
	var mismatch error
	for {
		select {
		case <-ctx.Done():
			return nil
		case from := <-lane.wake:
			t.read(ctx, lane, from)
		case <-poll.C:
			t.post(func() {
				if !lane.reading {
					t.requestRead(lane)
				}
			})
		case <-check.C:
			rechecked := mismatch != nil // a new leader may not have caught up at first
			mismatch = nil
			if err := t.verify(ctx, lane); isStreamMismatch(err) {
				mismatch = err
			}
			if mismatch == nil {
				check.Reset(verifyInterval)
				continue
			}
			if rechecked {
				t.stopLane(lane, mismatch)
				return mismatch
			}
			check.Reset(recheckAfter)
		}
	}
}

// markHealthy lets the loop ingest from a lane that was verified.
func (t *tenure) markHealthy(lane *laneState) {
	lane.ready, lane.problem = true, ""
	if lane.lost.Swap(false) {
		t.placeDirty = true
	}
}

// markFaulty records err as the lane's problem.
func (t *tenure) markFaulty(lane *laneState, err error) {
	lane.problem = err.Error()
	if isLaneLost(err) {
		lane.lost.Store(true)
	}
	t.setNeedsOperator(lane.name(), err)
}

// LaneFull reports whether a lane that uses size bytes of max cannot take another
// record. A max of 0 means unlimited.
func LaneFull(size, max uint64) bool { return max > 0 && size+maxRecordSize > max }

func (l *laneState) name() string { return fmt.Sprintf("lane %d", l.number) }

// stopLane stops ingesting a lane and drops its pending records.
func (t *tenure) stopLane(lane *laneState, err error) {
	t.sched.log.Error("lane ingest stopped", "lane", lane.number, "err", err)
	t.post(func() {
		lane.ready = false
		t.markFaulty(lane, err)
		t.resync(lane)
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
	var deleted *OperatorError
	var mismatch *streamMismatchError
	return errors.As(err, &deleted) || errors.As(err, &mismatch) && mismatch.replaced
}

// isStreamMismatch reports whether err means that a lane's stream does not match the
// ledger.
func isStreamMismatch(err error) bool {
	var mismatch *streamMismatchError
	return isLaneLost(err) || errors.As(err, &mismatch)
}

// verify compares a lane's stream with the ledger, while both may advance. It
// returns a [*streamMismatchError] if they do not match, and another error if the
// stream could not be read.
func (t *tenure) verify(ctx context.Context, lane *laneState) error {
	ingested := t.laneCursor(lane).Cursor // read before Info: the stream must not end below it
	info, err := t.sched.lanes.Info(ctx, lane.number)
	if err != nil {
		return fmt.Errorf("lane %d: %w", lane.number, err)
	}
	t.post(func() { lane.full = LaneFull(info.Bytes, info.MaxBytes) })
	cursor := t.laneCursor(lane) // read after Info: every record purged before is below it
	mismatchf := func(format string, args ...any) error {
		return &streamMismatchError{lane.number, fmt.Sprintf(format, args...), false}
	}
	switch {
	case info.Identity != cursor.Identity:
		return &streamMismatchError{lane.number, fmt.Sprintf("its stream is another one than the ledger's (%s, not %s): it was deleted and created again; restore the members' data directories that hold the right one", info.Identity, cursor.Identity), true}
	case info.First > cursor.Cursor+1:
		return mismatchf("its stream begins at %d, the records from %d on were lost before they were folded: bring back the data directory of a member that has them", info.First, cursor.Cursor+1)
	case info.Last < ingested:
		return mismatchf("its stream ends at %d, before the folded position %d: it went back; start a member whose data directory has the rest", info.Last, ingested)
	case cursor.Cursor == 0 || cursor.Cursor < info.First || cursor.LastID.IsZero():
		return nil
	}
	records, err := t.sched.lanes.Read(ctx, lane.number, cursor.Cursor, 1)
	if err != nil {
		return fmt.Errorf("lane %d: read the folded position: %w", lane.number, err)
	}
	if len(records) == 0 || records[0].Seq != cursor.Cursor {
		return fmt.Errorf("lane %d: the record at the folded position %d cannot be read", lane.number, cursor.Cursor)
	}
	j, _ := records[0].Job(cursor.Identity, t.cfg.Defaults)
	conflict := job.RecordID(cursor.Identity, records[0].Seq, records[0].Stored)
	if j.ID != cursor.LastID && conflict != cursor.LastID {
		return mismatchf("the record at the folded position %d is not the one that was folded: the stream went back and on another way; bring back the data directory of a member that has the right one", cursor.Cursor)
	}
	return nil
}

// laneCursor returns how far the ledger has ingested a lane.
func (t *tenure) laneCursor(lane *laneState) (cursor ledger.LaneCursor) {
	t.ledger().View(func(l *ledger.Ledger) { cursor = l.Lanes()[lane.number] })
	return cursor
}

// read reads up to readBatch records of a lane from a sequence on, and posts them to
// the loop.
func (t *tenure) read(ctx context.Context, lane *laneState, from uint64) {
	records, err := t.sched.lanes.Read(ctx, lane.number, from, readBatch)
	parsed := parseRecords(records, lane.identity, t.cfg.Defaults)
	t.post(func() {
		lane.reading = false
		t.noteRead(lane, err)
		t.receive(lane, parsed)
		if len(parsed) == readBatch {
			t.requestRead(lane)
		}
	})
}

// noteRead records whether a lane can be read, and logs when it no longer can.
func (t *tenure) noteRead(lane *laneState, err error) {
	if err == nil {
		lane.problem = ""
		return
	}
	if lane.problem == "" {
		t.sched.log.Warn("lane read failed", "lane", lane.number, "from", lane.next, "err", err)
	}
	t.markFaulty(lane, err)
}

// receiveRecords parses records that arrived without a read, and posts them to the
// loop. Records of one lane should be adjacent: each run of them is one post.
func (t *tenure) receiveRecords(records []job.Record) {
	for len(records) > 0 {
		n := 1
		for n < len(records) && records[n].Lane == records[0].Lane {
			n++
		}
		if number := int(records[0].Lane); number < len(t.lanes) {
			lane := t.lanes[number]
			parsed := parseRecords(records[:n], lane.identity, t.cfg.Defaults)
			t.post(func() { t.receive(lane, parsed) })
		}
		records = records[n:]
	}
}

// parseRecords parses and validates records. It runs outside the loop because
// parsing JSON is the most expensive part of an ingest. The result shares no memory
// with the records' messages.
func parseRecords(records []job.Record, identity string, d job.Defaults) []pendingRecord {
	parsed := make([]pendingRecord, len(records))
	for i := range records {
		parsed[i].record = records[i]
		parsed[i].job, parsed[i].err = records[i].Job(identity, d)
		parsed[i].detach()
	}
	return parsed
}

// receive takes parsed records of a lane in any order, queues the contiguous ones
// for ingest and keeps those beyond a gap.
func (t *tenure) receive(lane *laneState, records []pendingRecord) {
	if !lane.ready {
		return // they are read once it is
	}
	for _, r := range records {
		lane.lastReceived = max(lane.lastReceived, r.record.Seq)
		switch seq := r.record.Seq; {
		case seq < lane.next || t.pendingRecords(lane) >= maxPendingRecords:
			// Already queued, or too many are pending: read again later.
		case seq == lane.next:
			t.addRecord(lane, r)
			t.flushOutOfOrder(lane)
		case len(lane.outOfOrder) < maxOutOfOrder:
			lane.outOfOrder[seq] = r
		}
	}
	if lane.next > lane.lastReceived {
		lane.gapSince = time.Time{}
	} else if lane.gapSince.IsZero() {
		lane.gapSince = time.Now()
	}
}

// flushOutOfOrder queues kept records that have become contiguous.
func (t *tenure) flushOutOfOrder(lane *laneState) {
	for len(lane.outOfOrder) > 0 {
		r, ok := lane.outOfOrder[lane.next]
		if !ok {
			return
		}
		delete(lane.outOfOrder, lane.next)
		t.addRecord(lane, r)
	}
}

// closeGaps requests reads for gaps that are older than gapTimeout, and returns the
// time until the next gap is.
func (t *tenure) closeGaps(now time.Time) time.Duration {
	wait := idleWait
	for _, lane := range t.lanes {
		if lane.gapSince.IsZero() || lane.reading {
			continue
		}
		if remaining := gapTimeout - now.Sub(lane.gapSince); remaining > 0 {
			wait = min(wait, remaining)
			continue
		}
		lane.gapSince = time.Time{}
		t.requestRead(lane)
	}
	return wait
}

// requestRead has the lane's reader read from next on, unless it is reading or too
// many records are pending.
func (t *tenure) requestRead(lane *laneState) {
	if t.pendingRecords(lane) >= maxPendingRecords || lane.reading {
		return
	}
	select {
	case lane.wake <- lane.next:
		lane.reading = true
	default:
	}
}

// resync drops a lane's pending records and continues at the ledger's cursor.
func (t *tenure) resync(lane *laneState) {
	t.ledger().View(func(l *ledger.Ledger) { lane.next = l.Lanes()[lane.number].Cursor + 1 })
	clear(lane.outOfOrder)
	t.entry.ingests = slices.DeleteFunc(t.entry.ingests, func(in *pendingIngest) bool { return in.lane == lane })
	t.requestRead(lane)
}

// sleep blocks for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
