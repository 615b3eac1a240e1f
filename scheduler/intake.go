package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"yardmaster/job"
	"yardmaster/ledger"
)

// How lanes are read.
const (
	pollEvery     = 50 * time.Millisecond // backstop, when no notice comes
	gapPatience   = 2 * time.Millisecond  // how long a gap may wait for its notice
	maxHeld       = 4096                  // records held beyond a gap; more are read again
	readBatch     = 1024
	maxUnfolded   = 8192 // records read and not yet proposed, per lane
	verifyEvery   = 10 * time.Second
	largestRecord = 256 << 10   // bytes: a lane with less room is full
	doubtFor      = time.Second // then a lane is looked at again before it is given up
)

// laneState is a lane as this tenure folds it.
type laneState struct {
	number   uint8
	identity string
	ready    bool        // its stream is the one the ledger knows
	trouble  string      // why it is not; "" while it is only not yet known
	full     bool        // it takes no more jobs
	lost     atomic.Bool // it is gone, or another one: no record that lies there can be read
	next     uint64      // sequence after the last one proposed or pending
	last     uint64      // highest sequence heard of
	held     map[uint64]pendingRecord
	gapSince time.Time   // since when records beyond next are heard of and not next; zero: not, or it is read
	wake     chan uint64 // asks the reader to read from a sequence; holds the newest wish
	reading  bool
	heardAt  time.Time // when the oldest unfolded record was heard of
}

// adopt starts from what the ledger holds: cursors and running dispatches.
func (m *mind) adopt(l *ledger.Ledger) {
	m.heedRoll(l)
	for i, c := range l.Lanes() {
		m.lanes = append(m.lanes, &laneState{
			number: uint8(i), identity: c.Identity, next: c.Cursor + 1, last: c.Cursor,
			held: map[uint64]pendingRecord{}, wake: make(chan uint64, 1),
		})
	}
	l.Active(func(a ledger.Active) bool {
		m.flights[dispatchKey{a.ID, a.N}] = m.adoptFlight(a, l.Index())
		return true
	})
	m.fenceBase = l.FenceBase()
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
	group.Go(func() error { return m.tail(ctx) })
	group.Go(func() error { return m.ensure(ctx, identities) })
	for _, lane := range m.lanes {
		group.Go(func() error { return m.readLane(ctx, lane) })
	}
	return group.Wait()
}

// tail hears of records as the lanes store them. What it misses is read.
func (m *mind) tail(ctx context.Context) error {
	for ctx.Err() == nil {
		err := m.sched.lanes.Tail(ctx, func(r job.Record) { m.notice([]job.Record{r}) })
		if ctx.Err() == nil {
			m.sched.log.Warn("lanes are not heard, only read", "error", err)
			pause(ctx, time.Second)
		}
	}
	return nil
}

// ensureEvery is how often the streams are looked at again: whether they are
// there, and whether each member leads its lane.
const ensureEvery = 15 * time.Second

// ensure makes the streams of a new yard and records that they exist. One that
// is missing later is not made again: it is a reason not to be ready.
func (m *mind) ensure(ctx context.Context, identities []string) error {
	made := m.streamsMade()
	if !made {
		m.post(func() { m.unmade = beingMade })
	}
	for failures := 0; ctx.Err() == nil; {
		err := m.sched.lanes.Ensure(ctx, identities, !made)
		if err != nil {
			if failures++; failures == 1 {
				m.sched.log.Warn("streams are not as they should be", "error", err)
			} else {
				m.post(func() {
					m.unmade = err.Error()
					m.decidable(aboutStreams, err)
				})
			}
			pause(ctx, time.Second)
			continue
		}
		failures = 0
		m.post(func() { m.unmade = "" })
		m.open.Do(func() { close(m.streams) })
		if !made {
			made = true
			m.post(func() { m.queue(&ledger.Found{Made: true}, nil) })
		}
		pause(ctx, ensureEvery)
	}
	return nil
}

func (m *mind) streamsMade() (made bool) {
	m.ledger().View(func(l *ledger.Ledger) { made = l.StreamsMade() })
	return made
}

// readLane checks the lane's identity, then reads it whenever asked, and every
// pollEvery unasked, until it is found to be another lane.
func (m *mind) readLane(ctx context.Context, lane *laneState) error {
	for wait := 20 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		err := m.verify(ctx, lane)
		if err == nil {
			m.post(func() { m.believe(lane) })
			err = m.readOn(ctx, lane)
			wait = time.Second
		}
		if ctx.Err() != nil {
			return nil
		}
		m.post(func() { m.mistrust(lane, err) })
		pause(ctx, wait)
	}
	return nil
}

// readOn serves a lane that is ready. It returns a reason to stop believing
// in it: a lane that only does not answer is asked again.
func (m *mind) readOn(ctx context.Context, lane *laneState) error {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	check := time.NewTimer(verifyEvery - pollEvery/2) // between two polls
	defer check.Stop()
	var doubt error
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
		case <-check.C:
			again := doubt != nil // a new leader may need a moment to know all
			doubt = nil
			if err := m.verify(ctx, lane); isStrange(err) {
				doubt = err
			}
			if doubt == nil {
				check.Reset(verifyEvery)
				continue
			}
			if again {
				m.disbelieve(lane, doubt)
				return doubt
			}
			check.Reset(doubtFor)
		}
	}
}

// believe goes on with a lane that is the ledger's.
func (m *mind) believe(lane *laneState) {
	lane.ready, lane.trouble = true, ""
	if lane.lost.Swap(false) {
		m.dirty = true
	}
}

// mistrust notes what is wrong with a lane.
func (m *mind) mistrust(lane *laneState, why error) {
	lane.trouble = why.Error()
	if isLost(why) {
		lane.lost.Store(true)
	}
	m.decidable(lane.name(), why)
}

// Full tells whether a lane of so many bytes, of at most so many, has no room for
// any job; most 0 is no limit.
func Full(bytes, most uint64) bool { return most > 0 && bytes+largestRecord > most }

func (l *laneState) name() string { return fmt.Sprintf("lane %d", l.number) }

// disbelieve stops folding a lane: nothing that was read of it goes on.
func (m *mind) disbelieve(lane *laneState, why error) {
	m.sched.log.Error("lane is not folded any more", "lane", lane.number, "error", why)
	m.post(func() {
		lane.ready = false
		m.mistrust(lane, why)
		m.resync(lane)
	})
}

// strangeLaneError: a stream is not the one that the ledger knows, or not all
// of it.
type strangeLaneError struct {
	lane   uint8
	reason string
	other  bool // none of the ledger's records is there
}

func (e *strangeLaneError) Error() string { return fmt.Sprintf("lane %d: %s", e.lane, e.reason) }

// isLost tells that a lane's stream does not exist, or is another one.
func isLost(why error) bool {
	var gone *DecideError
	var strange *strangeLaneError
	return errors.As(why, &gone) || errors.As(why, &strange) && strange.other
}

// isStrange tells that a lane's stream is not what the ledger knows.
func isStrange(why error) bool {
	var strange *strangeLaneError
	return isLost(why) || errors.As(why, &strange)
}

// verify compares the lane's stream with what the ledger knows of it, while
// both may go on. What does not fit is a [*strangeLaneError]; other errors say
// that it could not be seen.
func (m *mind) verify(ctx context.Context, lane *laneState) error {
	folded := m.known(lane).Cursor // the end must reach at least here
	info, err := m.sched.lanes.Info(ctx, lane.number)
	if err != nil {
		return fmt.Errorf("lane %d: %w", lane.number, err)
	}
	m.post(func() { lane.full = Full(info.Bytes, info.MaxBytes) })
	known := m.known(lane) // and what was reclaimed is below here
	strange := func(format string, args ...any) error {
		return &strangeLaneError{lane.number, fmt.Sprintf(format, args...), false}
	}
	switch {
	case info.Identity != known.Identity:
		return &strangeLaneError{lane.number, fmt.Sprintf("its stream is another one than the ledger's (%s, not %s): it was made anew; bring back the members' data directories that hold the right one", info.Identity, known.Identity), true}
	case info.First > known.Cursor+1:
		return strange("its stream begins at %d, the records from %d on were lost before they were folded: bring back the data directory of a member that has them", info.First, known.Cursor+1)
	case info.Last < folded:
		return strange("its stream ends at %d, before the folded position %d: it went back; start a member whose data directory has the rest", info.Last, folded)
	case known.Cursor == 0 || known.Cursor < info.First || known.LastID.IsZero():
		return nil
	}
	records, err := m.sched.lanes.Read(ctx, lane.number, known.Cursor, 1)
	if err != nil {
		return fmt.Errorf("lane %d: read the folded position: %w", lane.number, err)
	}
	if len(records) == 0 || records[0].Seq != known.Cursor {
		return fmt.Errorf("lane %d: the record at the folded position %d cannot be read", lane.number, known.Cursor)
	}
	facts, _ := records[0].Facts(known.Identity, m.cfg.Defaults)
	conflict := job.RecordID(known.Identity, records[0].Seq, records[0].Stored)
	if facts.ID != known.LastID && conflict != known.LastID {
		return strange("the record at the folded position %d is not the one that was folded: the stream went back and on another way; bring back the data directory of a member that has the right one", known.Cursor)
	}
	return nil
}

func (m *mind) known(lane *laneState) (known ledger.LaneCursor) {
	m.ledger().View(func(l *ledger.Ledger) { known = l.Lanes()[lane.number] })
	return known
}

// read reads the lane on from a sequence and posts what it found.
func (m *mind) read(ctx context.Context, lane *laneState, from uint64) {
	records, err := m.sched.lanes.Read(ctx, lane.number, from, readBatch)
	judged := judge(records, lane.identity, m.cfg.Defaults)
	m.post(func() {
		lane.reading = false
		m.readFailed(lane, err)
		m.hear(lane, judged)
		if len(judged) == readBatch {
			m.wantRead(lane)
		}
	})
}

// readFailed notes whether the lane can be read, and logs when that changes.
func (m *mind) readFailed(lane *laneState, err error) {
	if err == nil {
		lane.trouble = ""
		return
	}
	if lane.trouble == "" {
		m.sched.log.Warn("lane cannot be read", "lane", lane.number, "from", lane.next, "error", err)
	}
	m.mistrust(lane, err)
}

// notice takes records that were heard of without reading.
func (m *mind) notice(records []job.Record) {
	for len(records) > 0 { // they come by the lane
		n := 1
		for n < len(records) && records[n].Lane == records[0].Lane {
			n++
		}
		if number := int(records[0].Lane); number < len(m.lanes) {
			lane := m.lanes[number]
			judged := judge(records[:n], lane.identity, m.cfg.Defaults)
			m.post(func() { m.hear(lane, judged) })
		}
		records = records[n:]
	}
}

// judge reads records' facts, off the loop: parsing JSON is the dearest part
// of taking a job in.
func judge(records []job.Record, identity string, d job.Defaults) []pendingRecord {
	judged := make([]pendingRecord, len(records))
	for i := range records {
		judged[i].record = records[i]
		judged[i].facts, judged[i].err = records[i].Facts(identity, d)
		if len(records[i].Body) > maxBody {
			judged[i].record.Body = nil // no assignment would carry it
		}
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
	if lane.next > lane.last {
		lane.gapSince = time.Time{}
	} else if lane.gapSince.IsZero() {
		lane.gapSince = time.Now()
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

// closeGaps reads what no notice told of in time, and gives the time until the
// next gap is old enough.
func (m *mind) closeGaps(now time.Time) time.Duration {
	wait := never
	for _, lane := range m.lanes {
		if lane.gapSince.IsZero() || lane.reading {
			continue
		}
		if left := gapPatience - now.Sub(lane.gapSince); left > 0 {
			wait = min(wait, left)
			continue
		}
		lane.gapSince = time.Time{}
		m.wantRead(lane)
	}
	return wait
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

// resync starts a lane again at the ledger's cursor.
func (m *mind) resync(lane *laneState) {
	m.ledger().View(func(l *ledger.Ledger) { lane.next = l.Lanes()[lane.number].Cursor + 1 })
	clear(lane.held)
	m.entry.folds = slices.DeleteFunc(m.entry.folds, func(f *pendingFold) bool { return f.lane == lane })
	m.wantRead(lane)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
