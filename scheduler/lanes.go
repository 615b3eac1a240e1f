package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of ingesting lanes.
const (
	gapTimeout        = 2 * time.Millisecond // how long a missing record may still be received before it is read
	maxOutOfOrder     = 4096                 // records kept beyond a gap; others are read again
	maxPendingRecords = 8192                 // records per lane that are not in an entry yet
	maxRecordSize     = 256 << 10            // bytes; a lane with less free space is full
)

// laneState is the tenure's state of one lane. Its fields belong to the loop's
// goroutine, apart from lost, wake and behind.
type laneState struct {
	number       uint8
	identity     string
	served       bool             // a replica of its stream serves reads, as was found once in this tenure
	ready        bool             // its stream was verified to be the ledger's
	problem      string           // why it is not ingested; "" if it is, or is not verified yet
	full         bool             // its stream takes no more jobs
	lost         atomic.Bool      // its stream was deleted or replaced: no record of the lane can be read
	next         uint64           // sequence after the last message that is in an entry or pending
	lastReceived uint64           // highest sequence received
	pending      []pendingMessage // the last messages before next, which wait for an entry
	outOfOrder   map[uint64]pendingMessage
	gapSince     time.Time   // since when message next is missing and later ones were received; zero: no gap, or a read was requested
	wake         chan uint64 // holds at most one request to read from a sequence on
	reading      bool        // a read is requested or running
	receivedAt   time.Time   // when the first of the pending messages was received, or earlier ones were last ingested
	held         bool        // none of its records is ingested, see [ledger.Ledger.MayIngest]

	pendingRecords int // records in pending
	keptRecords    int // records in outOfOrder
	end            laneEnd
	completeAt     time.Time // every record that was stored before this time, by this node's monotonic clock, is ingested; zero: not known

	behind atomic.Bool // so many records are pending that received ones are not worth parsing
}

// lanes ingests the records of all lanes. Its fields belong to the loop's goroutine,
// apart from the first group and all, which do not change once run is called.
type lanes struct {
	loop     *eventLoop
	client   Lanes
	counters *counters
	operator operatorTopics

	all         []*laneState
	pending     []*laneState // lanes with pending messages, by the time of their first one
	bodies      bodyCache
	ingests     uint64 // ingest commands built so far
	provisional provisionalWaitlists
	blocked     string // why no job is ingested; "": jobs are
	forgotten   ledger.ForgottenIDs
	mayIngest   func(l *ledger.Ledger, lane uint8) bool // is [ledger.Ledger.MayIngest], except in tests

	completeAt atomic.Pointer[time.Time] // the earliest of the lanes; nil: not known. Any goroutine may read it
}

func newLanes(loop *eventLoop, client Lanes, c *counters, operator operatorTopics) *lanes {
	return &lanes{
		loop: loop, client: client, counters: c, operator: operator,
		bodies: newBodyCache(), provisional: provisionalWaitlists{}, mayIngest: (*ledger.Ledger).MayIngest,
	}
}

// load initializes the lanes from the ledger's cursors.
func (ls *lanes) load(l *ledger.Ledger) {
	for i, c := range l.Lanes() {
		ls.all = append(ls.all, &laneState{
			number: uint8(i), identity: c.Identity, next: c.Cursor + 1, lastReceived: c.Cursor,
			outOfOrder: map[uint64]pendingMessage{}, wake: make(chan uint64, 1),
		})
	}
}

// identities returns the identities of all lanes, by number.
func (ls *lanes) identities() []string {
	identities := make([]string, len(ls.all))
	for i, lane := range ls.all {
		identities[i] = lane.identity
	}
	return identities
}

// run verifies and reads each lane in a goroutine until ctx ends.
func (ls *lanes) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ls.tail(ctx) })
	for _, lane := range ls.all {
		r := &laneReader{ls, lane}
		group.Go(func() error { return r.run(ctx) })
	}
	return group.Wait()
}

// tail receives records as the lanes store them. Records that it misses are read.
func (ls *lanes) tail(ctx context.Context) error {
	for ctx.Err() == nil {
		err := ls.client.Tail(ctx, func(r job.Record) { ls.receiveRecords([]job.Record{r}) })
		if ctx.Err() == nil {
			ls.loop.log.Warn("lane subscription failed, polling lanes instead", "err", err)
			backoff.Sleep(ctx, time.Second)
		}
	}
	return nil
}

// markHealthy lets the loop ingest from a lane that was verified.
func (ls *lanes) markHealthy(lane *laneState) {
	lane.ready, lane.problem = true, ""
	if lane.lost.Swap(false) {
		ls.loop.placeDirty = true
	}
}

// markFaulty records err as the lane's problem.
func (ls *lanes) markFaulty(lane *laneState, err error) {
	lane.problem = err.Error()
	if isLaneLost(err) {
		lane.lost.Store(true)
	}
	ls.operator.note(lane.name(), err)
}

// LaneFull reports whether a lane that uses size bytes of max cannot take another
// record. A max of 0 means unlimited.
func LaneFull(size, max uint64) bool { return max > 0 && size+maxRecordSize > max }

func (l *laneState) name() string { return fmt.Sprintf("lane %d", l.number) }

// noteRead records the result of a read as the lane's problem; a nil err clears it. It
// logs the first failure.
func (ls *lanes) noteRead(lane *laneState, err error) {
	if err == nil {
		lane.problem = ""
		return
	}
	if lane.problem == "" {
		ls.loop.log.Warn("lane read failed", "lane", lane.number, "from", lane.next, "err", err)
	}
	ls.markFaulty(lane, err)
}

// receiveRecords parses records that arrived without a read, and posts them to the
// loop. The records of a message must be adjacent, and those of one lane should be
// adjacent: each run of them is one post.
func (ls *lanes) receiveRecords(records []job.Record) {
	for len(records) > 0 {
		n := 1
		for n < len(records) && records[n].Lane == records[0].Lane {
			n++
		}
		if number := int(records[0].Lane); number < len(ls.all) {
			lane, last := ls.all[number], records[n-1].Seq
			if lane.behind.Load() { // they are read once the lane's pending records are ingested
				ls.loop.post(func() { lane.lastReceived = max(lane.lastReceived, last) })
			} else {
				parsed, _ := ls.parse(context.Background(), lane, records[:n], false) // what cannot be parsed now is read
				ls.loop.post(func() { ls.receive(lane, parsed) })
			}
		}
		records = records[n:]
	}
}

// parse parses records of a lane, see [parseRecords]. If mayRead is set, it reads bodies that
// are stored apart from their records where that is necessary.
func (ls *lanes) parse(ctx context.Context, lane *laneState, records []job.Record, mayRead bool) ([]pendingMessage, error) {
	cfg := &ls.loop.cfg
	return parseRecords(ls.loop.log, records, lane.identity, cfg.Defaults, func(r *job.Record, spec *job.Spec, j *job.Job) (Verdict, error) {
		if cfg.LimitKey != nil && spec.Blob == nil {
			key, err := cfg.LimitKey(r.Queue, spec)
			if err != nil {
				return Verdict{Rejection: err}, nil
			}
			if key != nil {
				j.LimitKey = *key
			}
		}
		if cfg.Labels != nil {
			j.Labels = cfg.Labels(r, spec, j.ID)
		}
		if cfg.CheckPayload == nil {
			return Verdict{}, nil
		}
		return cfg.CheckPayload(ctx, r, spec, mayRead)
	})
}

// parseRecords parses and validates records, in which those of a message are adjacent. It
// runs outside the loop because parsing JSON is the most expensive part of an ingest. The
// result shares no memory with the lane's messages. check checks the payload of
// a valid record, and may complete its job; nil checks none. If it fails, parseRecords returns the messages before that
// record, with the error.
func parseRecords(log *slog.Logger, records []job.Record, identity string, d job.Defaults, check checkRecord) ([]pendingMessage, error) {
	parsed := make([]pendingRecord, len(records))
	messages := make([]pendingMessage, 0, len(records))
	for i := range records {
		parsed[i].record = records[i]
		if err := parsed[i].parse(log, identity, d, check); err != nil {
			return messagesBefore(messages, records[i].Seq), err
		}
		parsed[i].detach()
		if i == 0 || records[i].Seq != records[i-1].Seq {
			messages = append(messages, pendingMessage{seq: records[i].Seq, records: parsed[i:i:len(parsed)]})
		}
		m := &messages[len(messages)-1]
		m.records = m.records[:len(m.records)+1]
	}
	return messages, nil
}

// checkRecord checks the payload of a valid record and may complete its job; see [parseRecords].
type checkRecord func(*job.Record, *job.Spec, *job.Job) (Verdict, error)

// parse parses and checks the record. The error is that of check. A record that makes the code panic is
// rejected: it would end each member that becomes the authority, and so the yard.
func (r *pendingRecord) parse(log *slog.Logger, identity string, d job.Defaults, check checkRecord) (err error) {
	defer crash.Contain(log, crash.Job, func(cause error) {
		invalid := r.record
		invalid.Invalid = &job.InvalidError{Reason: cause.Error()}
		r.job, _, r.err = invalid.Parse(identity, d) // which does not read the body of such a record
		r.ingested, err = nil, nil
	})
	var spec job.Spec
	r.job, spec, r.err = r.record.Parse(identity, d)
	if r.err != nil || check == nil {
		return nil
	}
	verdict, err := check(&r.record, &spec, &r.job)
	if err == nil {
		r.err, r.ingested = verdict.Rejection, verdict.Ingested
	}
	return err
}

// messagesBefore returns messages without the last one if that is the message seq, of which not
// all records are parsed.
func messagesBefore(messages []pendingMessage, seq uint64) []pendingMessage {
	if n := len(messages); n > 0 && messages[n-1].seq == seq {
		return messages[:n-1]
	}
	return messages
}

// receive takes parsed messages of a lane in any order. It adds those that continue the
// lane to its pending ingest, keeps those beyond a gap, and ignores the others, which
// are known or are read again.
func (ls *lanes) receive(lane *laneState, messages []pendingMessage) {
	if !lane.ready {
		return // they are read once it is
	}
	for _, m := range messages {
		lane.lastReceived = max(lane.lastReceived, m.seq)
		switch {
		case !m.complete():
			// It is read.
		case m.seq < lane.next || lane.pendingRecords >= maxPendingRecords:
			// Already queued, or too many are pending: read again later.
		case m.seq == lane.next:
			lane.unkeep(m.seq)
			ls.addMessage(lane, m)
			ls.flushOutOfOrder(lane)
		case lane.keptRecords < maxOutOfOrder:
			lane.unkeep(m.seq)
			lane.outOfOrder[m.seq] = m
			lane.keptRecords += len(m.records)
		}
	}
	if lane.pendingRecords >= maxPendingRecords {
		lane.behind.Store(true)
	}
	if lane.next > lane.lastReceived {
		lane.gapSince = time.Time{}
	} else if lane.gapSince.IsZero() {
		lane.gapSince = time.Now()
	}
}

// flushOutOfOrder adds the kept messages that now continue the lane to its pending ingest.
func (ls *lanes) flushOutOfOrder(lane *laneState) {
	for len(lane.outOfOrder) > 0 && lane.pendingRecords < maxPendingRecords {
		m, ok := lane.outOfOrder[lane.next]
		if !ok {
			return
		}
		lane.unkeep(m.seq)
		ls.addMessage(lane, m)
	}
}

// unkeep removes a message from those beyond a gap.
func (lane *laneState) unkeep(seq uint64) {
	lane.keptRecords -= len(lane.outOfOrder[seq].records)
	delete(lane.outOfOrder, seq)
}

// readGaps requests a read of each lane whose next message has been missing for
// gapTimeout. It returns the time until the next lane has to be read.
func (ls *lanes) readGaps(now time.Time) time.Duration {
	wait := idleWait
	for _, lane := range ls.all {
		if lane.gapSince.IsZero() || lane.reading {
			continue
		}
		if remaining := gapTimeout - now.Sub(lane.gapSince); remaining > 0 {
			wait = min(wait, remaining)
			continue
		}
		lane.gapSince = time.Time{}
		ls.requestRead(lane)
	}
	return wait
}

// requestRead has the lane's reader read from next on, unless it is reading or too
// many records are pending.
func (ls *lanes) requestRead(lane *laneState) {
	if lane.pendingRecords >= maxPendingRecords || lane.reading {
		return
	}
	select {
	case lane.wake <- lane.next:
		lane.reading = true
	default:
	}
}

// resync drops a lane's pending messages and continues at the ledger's cursor.
func (ls *lanes) resync(lane *laneState) {
	ls.loop.ledger.View(func(l *ledger.Ledger) { lane.next = l.Lanes()[lane.number].Cursor + 1 })
	lane.pending, lane.pendingRecords = nil, 0
	lane.behind.Store(false)
	clear(lane.outOfOrder)
	lane.keptRecords = 0
	ls.pending = slices.DeleteFunc(ls.pending, func(other *laneState) bool { return other == lane })
	ls.requestRead(lane)
}

// unreadable reports whether a job's body can be read neither from the cache nor from
// its lane, because the lane is lost, or no replica serves it yet. Such a job waits:
// after a start of all nodes, it would use its limits without running, and jobs that were
// started one by one would reach their workers at once.
func (ls *lanes) unreadable(pos job.Position) bool {
	return (ls.isLost(pos) || int(pos.Lane) < len(ls.all) && !ls.all[pos.Lane].served) && !ls.bodies.has(pos)
}

// loadBody returns the body of a job's record, or nil if the record is gone or its lane
// is lost. Any goroutine may call it.
func (ls *lanes) loadBody(ctx context.Context, pos job.Position, id job.ID) ([]byte, error) {
	body, err := ls.client.Load(ctx, pos, id)
	if errors.Is(err, ErrRecordGone) || err != nil && ls.isLost(pos) {
		return nil, nil
	}
	return body, err
}

// isLost reports whether the lane of a position is lost. Any goroutine may call it.
func (ls *lanes) isLost(pos job.Position) bool {
	return int(pos.Lane) < len(ls.all) && ls.all[pos.Lane].lost.Load()
}
