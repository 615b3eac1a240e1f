package scheduler

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"yardmaster/job"
	"yardmaster/ledger"
)

// How lanes are read.
const (
	pollEvery   = 50 * time.Millisecond // backstop, when no notice comes
	gapPatience = 2 * time.Millisecond  // how long a gap may wait for its notice
	maxHeld     = 4096                  // records held beyond a gap; more are read again
	readBatch   = 1024
	maxUnfolded = 8192 // records read and not yet proposed, per lane
)

// laneState is a lane as this tenure folds it.
type laneState struct {
	number   uint8
	identity string
	ready    bool   // its stream is the one the ledger knows
	trouble  string // why it is not; "" while it is only not yet known
	next     uint64 // sequence after the last one proposed or pending
	last     uint64 // highest sequence heard of
	held     map[uint64]pendingRecord
	gapSince time.Time
	wake     chan uint64 // asks the reader to read from a sequence; holds the newest wish
	reading  bool
	heardAt  time.Time // when the oldest unfolded record was heard of
}

// pendingRecord is a record read and judged.
type pendingRecord struct {
	record job.Record
	facts  job.Job
	err    error
}

// pendingFold is a stretch of one lane that waits for its entry.
type pendingFold struct {
	lane    *laneState
	from    uint64
	records []pendingRecord
}

// adopt starts from what the ledger holds: cursors and running dispatches.
func (m *mind) adopt(l *ledger.Ledger) {
	for i, c := range l.Lanes() {
		m.lanes = append(m.lanes, &laneState{
			number: uint8(i), identity: c.Identity, next: c.Cursor + 1, last: c.Cursor,
			held: map[uint64]pendingRecord{}, wake: make(chan uint64, 1),
		})
	}
	l.Active(func(a ledger.Active) bool {
		m.flights[dispatchKey{a.ID, a.N}] = adoptFlight(a)
		return true
	})
	m.dirty = true
	if at, ok := l.NextDue(); ok {
		m.nextDue = at
	}
}

// intake makes or checks the lanes, each on its own, and reads those that
// notices leave behind.
func (m *mind) intake(ctx context.Context) error {
	identities := make([]string, len(m.lanes))
	for i, lane := range m.lanes {
		identities[i] = lane.identity
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.sched.lanes.Tail(ctx, func(r job.Record) { m.notice([]job.Record{r}) }) })
	group.Go(func() error { return m.ensure(ctx, identities) })
	for _, lane := range m.lanes {
		group.Go(func() error { return m.readLane(ctx, lane) })
	}
	return group.Wait()
}

// ensure makes the streams of a new yard and records that they exist. One that
// is missing later is not made again: its lane says so (see verify).
func (m *mind) ensure(ctx context.Context, identities []string) error {
	made := false
	m.ledger().View(func(l *ledger.Ledger) { made = l.StreamsMade() })
	for ctx.Err() == nil {
		err := m.sched.lanes.Ensure(ctx, identities, !made)
		if err == nil {
			if !made {
				m.post(func() { m.queue(&ledger.Found{Made: true}, nil) })
			}
			return nil
		}
		m.sched.log.Warn("streams are not ready", "error", err)
		pause(ctx, time.Second)
	}
	return nil
}

// readLane checks the lane's identity, then reads it whenever asked, and every
// pollEvery unasked.
func (m *mind) readLane(ctx context.Context, lane *laneState) error {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := m.verify(ctx, lane)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		m.post(func() { lane.trouble = err.Error() })
		pause(ctx, wait)
	}
	m.post(func() { lane.ready, lane.trouble = true, "" })
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case from := <-lane.wake:
			m.read(ctx, lane, from)
		case <-poll.C:
			m.post(func() {
				if !lane.reading {
					m.wantRead(lane)
				}
			})
		}
	}
}

// verify compares the lane's stream with what the ledger knows of it.
func (m *mind) verify(ctx context.Context, lane *laneState) error {
	info, err := m.sched.lanes.Info(ctx, lane.number)
	if err != nil {
		return fmt.Errorf("lane %d: %w", lane.number, err)
	}
	var known ledger.LaneCursor
	m.ledger().View(func(l *ledger.Ledger) { known = l.Lanes()[lane.number] })
	switch {
	case info.Identity != known.Identity:
		return fmt.Errorf("lane %d: its stream is another one than the ledger's (%s, not %s)", lane.number, info.Identity, known.Identity)
	case info.Last < known.Cursor:
		return fmt.Errorf("lane %d: its stream ends at %d, before the folded position %d", lane.number, info.Last, known.Cursor)
	case known.Cursor == 0 || known.Cursor < info.First || known.LastID.IsZero():
		return nil
	}
	records, err := m.sched.lanes.Read(ctx, lane.number, known.Cursor, 1)
	if err != nil {
		return fmt.Errorf("lane %d: read the folded position: %w", lane.number, err)
	}
	if len(records) == 0 {
		return fmt.Errorf("lane %d: the record at the folded position %d cannot be read", lane.number, known.Cursor)
	}
	facts, _ := records[0].Facts(known.Identity)
	conflict := job.RecordID(known.Identity, records[0].Seq, records[0].Stored)
	if facts.ID != known.LastID && conflict != known.LastID {
		return fmt.Errorf("lane %d: the record at the folded position %d is not the one that was folded", lane.number, known.Cursor)
	}
	return nil
}

// read reads the lane on from a sequence and posts what it found.
func (m *mind) read(ctx context.Context, lane *laneState, from uint64) {
	records, err := m.sched.lanes.Read(ctx, lane.number, from, readBatch)
	if err != nil && ctx.Err() == nil {
		m.sched.log.Warn("lane cannot be read", "lane", lane.number, "from", from, "error", err)
	}
	judged := judge(records, lane.identity)
	m.post(func() {
		lane.reading = false
		m.hear(lane, judged)
		if len(judged) == readBatch {
			m.wantRead(lane)
		}
	})
}

// notice takes records that were heard of without reading.
func (m *mind) notice(records []job.Record) {
	byLane := map[uint8][]job.Record{}
	for _, r := range records {
		byLane[r.Lane] = append(byLane[r.Lane], r)
	}
	for number, records := range byLane {
		if int(number) >= len(m.lanes) {
			continue
		}
		lane := m.lanes[number]
		judged := judge(records, lane.identity)
		m.post(func() { m.hear(lane, judged) })
	}
}

// judge reads records' facts, off the loop: parsing JSON is the dearest part
// of taking a job in.
func judge(records []job.Record, identity string) []pendingRecord {
	judged := make([]pendingRecord, len(records))
	for i := range records {
		judged[i].record = records[i]
		judged[i].facts, judged[i].err = records[i].Facts(identity)
	}
	return judged
}

// hear takes judged records of a lane, in any order, and passes on what is
// contiguous.
func (m *mind) hear(lane *laneState, records []pendingRecord) {
	if !lane.ready {
		return // they will be read
	}
	for _, r := range records {
		lane.last = max(lane.last, r.record.Seq)
		switch seq := r.record.Seq; {
		case seq < lane.next || m.unfolded(lane) >= maxUnfolded:
			// known, or too much at once: read again when there is room
		case seq == lane.next:
			m.accept(lane, r)
			m.release(lane)
		case len(lane.held) < maxHeld:
			lane.held[seq] = r
		}
	}
	switch {
	case lane.next > lane.last:
		lane.gapSince = time.Time{}
	case lane.gapSince.IsZero():
		lane.gapSince = time.Now()
		time.AfterFunc(gapPatience, func() { m.post(func() { m.closeGap(lane) }) })
	}
}

// release accepts held records that have become contiguous.
func (m *mind) release(lane *laneState) {
	for len(lane.held) > 0 {
		r, ok := lane.held[lane.next]
		if !ok {
			return
		}
		delete(lane.held, lane.next)
		m.accept(lane, r)
	}
}

// closeGap reads what no notice told of.
func (m *mind) closeGap(lane *laneState) {
	if lane.next <= lane.last && !lane.reading {
		m.wantRead(lane)
	}
	lane.gapSince = time.Time{}
}

// wantRead asks the lane's reader, unless too much waits already.
func (m *mind) wantRead(lane *laneState) {
	if m.unfolded(lane) >= maxUnfolded || lane.reading {
		return
	}
	select {
	case lane.wake <- lane.next:
		lane.reading = true
	default:
	}
}

// accept puts a record into the fold that the next entry carries.
func (m *mind) accept(lane *laneState, r pendingRecord) {
	f := m.foldOf(lane)
	if f == nil {
		f = &pendingFold{lane: lane, from: lane.next - 1}
		m.entry.folds = append(m.entry.folds, f)
		lane.heardAt = time.Now()
	}
	f.records = append(f.records, r)
	lane.next++
	m.entry.size += foldSize + len(r.facts.Function)
	if m.blocked == "" {
		m.hurry()
	}
	if r.err == nil {
		m.bodies.put(r.facts.ID, r.record.Body)
	}
}

func (m *mind) foldOf(lane *laneState) *pendingFold {
	for _, f := range m.entry.folds {
		if f.lane == lane {
			return f
		}
	}
	return nil
}

func (m *mind) unfolded(lane *laneState) int {
	if f := m.foldOf(lane); f != nil {
		return len(f.records)
	}
	return 0
}

// leftover counts what stays for the next entry.
func (m *mind) leftover() {
	for _, f := range m.entry.folds {
		m.entry.size += foldSize * len(f.records)
	}
	m.entry.size += endSize * len(m.entry.ends)
	if len(m.entry.ends) > 0 || len(m.entry.folds) > 0 && m.blocked == "" {
		m.hurry()
	}
}

// addFolds moves pending records into the entry: whole lanes in turn, as far
// as the entry has room. Due jobs join the shadow lines, where they may be
// placed at once.
func (m *mind) addFolds(l *ledger.Ledger, at time.Time, add func(ledger.Command, func(ledger.Result, uint64))) {
	if m.checkOutbox(l); m.blocked != "" {
		return
	}
	room := maxEntry / foldSize / 2
	keep := m.entry.folds[:0]
	for _, f := range m.entry.folds {
		n := min(room, len(f.records))
		if n > 0 {
			m.addFold(l, at, f.lane, f.from, f.records[:n], add)
			room -= n
			f.from += uint64(n)
			f.records = f.records[n:]
		}
		if len(f.records) > 0 {
			keep = append(keep, f)
		}
	}
	clear(m.entry.folds[len(keep):])
	m.entry.folds = keep
}

func (m *mind) addFold(l *ledger.Ledger, at time.Time, lane *laneState, from uint64, records []pendingRecord, add func(ledger.Command, func(ledger.Result, uint64))) {
	c := &ledger.Fold{
		Lane: lane.number, Identity: lane.identity, From: from, To: from + uint64(len(records)),
		CreateQueues: m.cfg.CreateQueues,
	}
	var shadowed []dispatchKey
	for i := range records {
		r := &records[i]
		if r.err != nil {
			c.Rejected = append(c.Rejected, ledger.Rejection{
				ID: r.facts.ID, Queue: r.record.Queue, Seq: r.record.Seq, Accepted: r.record.Stored, Reason: r.err.Error(),
			})
			continue
		}
		c.Jobs = append(c.Jobs, r.facts)
		if _, known := l.Known(r.facts.ID); !known && !r.facts.RunAt.After(at) {
			m.shadow[lineOf(&r.facts)] = append(m.shadow[lineOf(&r.facts)], ledger.Waiting{Job: r.facts, N: 1, Attempt: 1, Due: at})
			shadowed = append(shadowed, dispatchKey{r.facts.ID, 1})
		}
	}
	add(c, func(result ledger.Result, _ uint64) {
		m.unshadow(shadowed)
		if result.Err != nil {
			m.sched.log.Error("fold refused", "lane", lane.number, "from", from, "error", result.Err)
			m.resync(lane)
		}
	})
}

// unshadow takes jobs out of the shadow lines: the ledger has them now.
func (m *mind) unshadow(keys []dispatchKey) {
	gone := make(map[job.ID]struct{}, len(keys))
	for _, k := range keys {
		gone[k.id] = struct{}{}
	}
	if len(gone) == 0 {
		return
	}
	for line, jobs := range m.shadow {
		keep := jobs[:0]
		for _, w := range jobs {
			if _, ok := gone[w.ID]; !ok {
				keep = append(keep, w)
			}
		}
		if clear(jobs[len(keep):]); len(keep) == 0 {
			delete(m.shadow, line)
		} else {
			m.shadow[line] = keep
		}
	}
}

// resync starts a lane again at the ledger's cursor.
func (m *mind) resync(lane *laneState) {
	m.ledger().View(func(l *ledger.Ledger) { lane.next = l.Lanes()[lane.number].Cursor + 1 })
	clear(lane.held)
	keep := m.entry.folds[:0]
	for _, f := range m.entry.folds {
		if f.lane != lane {
			keep = append(keep, f)
		}
	}
	m.entry.folds = keep
	m.wantRead(lane)
}

// checkOutbox stops folding while the outbox is half full.
func (m *mind) checkOutbox(l *ledger.Ledger) {
	m.blocked = ""
	if l.OutboxBytes() >= ledger.MaxOutbox/2 {
		m.blocked = "the outbox is half full: history, results or dead letters cannot be published"
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
