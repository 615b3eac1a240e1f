package scheduler

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of a replay, which reads lanes in the background. The longer a batch
// takes, because of other work, the longer the rest after it.
const (
	replayBatch          = 256                    // messages
	replayMinRest        = 20 * time.Millisecond  // minimum rest between two batches
	replayRestFactor     = 9                      // rest after a batch, as a multiple of its duration
	replayCommitInterval = 250 * time.Millisecond // between two commits of the progress
	replayLoadTimeout    = 2 * time.Second        // for loading single records after a read has failed
	replayMaxOwners      = 1 << 20                // jobs whose records are remembered by position, 24 bytes each
	replayRetryDelay     = time.Second            // before a lane that did not answer is read again; also the maximum rest
)

// replayer carries out a replay: it reads ingested records again and compares them
// with the ledger. It never passes a record to the loop, so no record can be
// ingested twice. Its progress is kept in the ledger, and the next tenure continues
// there.
type replayer struct {
	loop       *eventLoop
	client     Lanes
	identities []string      // of the lanes, by number
	wake       chan struct{} // a replay was requested
	replayProgress
}

// replayProgress is the state of one replay.
type replayProgress struct {
	number      uint64 // number of the request; 0: none
	lanes       []replayLane
	lastLane    int                   // the lane that was read last
	lastJob     job.ID                // the job of the last record read
	damage      []ledger.ReplayDamage // found and not yet committed
	dirty       bool                  // progress or damage is not yet committed
	committedAt time.Time             // when progress was last committed
}

// replayLane is the state of a replay's lane.
type replayLane struct {
	ledger.ReplayLane
	owners  []recordOwner // of the records not read yet, by sequence
	checked bool          // its stream was verified to be the one that was ingested
	retryAt time.Time     // not to be read before; zero: at once
}

// recordOwner is the job that a record belongs to.
type recordOwner struct {
	at job.Position
	id job.ID
}

// run carries out replay requests one after the other until ctx ends, first one
// that the previous tenure has not finished.
func (r *replayer) run(ctx context.Context, identities []string) error {
	r.identities = identities
	for ctx.Err() == nil {
		began := time.Now() // before loadRequest, whose duration counts for the rest as well
		if r.loadRequest() {
			r.step(ctx, began)
			continue
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		}
	}
	return nil
}

// loadRequest reads the replay request from the ledger. If there is none it reports false.
// If the request is a new one, the progress of the previous one is dropped.
func (r *replayer) loadRequest() bool {
	var request ledger.ReplayView
	r.loop.ledger.View(func(l *ledger.Ledger) { request = l.Replay() })
	if len(request.Lanes) == 0 {
		r.number = 0
		return false
	}
	if request.Number != r.number {
		r.replayProgress = replayProgress{number: request.Number, lanes: make([]replayLane, len(request.Lanes)), committedAt: time.Now()}
		for i, part := range request.Lanes {
			r.lanes[i].ReplayLane = part
		}
		r.loadOwners()
	}
	return true
}

// loadOwners records which jobs that have not completed own the records to be read,
// by position: a damaged record may no longer contain its job's id.
func (r *replayer) loadOwners() {
	n := 0
	for at, id := range r.loop.ledger.Copy().UnguardedJobs {
		if n == replayMaxOwners {
			break
		}
		if at.Relocated() {
			continue // not part of a replay
		}
		if lane := &r.lanes[at.Lane]; at.Seq > lane.At && at.Seq <= lane.End {
			lane.owners = append(lane.owners, recordOwner{at, id})
			n++
		}
	}
	for i := range r.lanes {
		slices.SortFunc(r.lanes[i].owners, func(a, b recordOwner) int { return a.at.Compare(b.at) })
	}
}

// step reads one batch, commits the progress if a commit is due, and then rests in
// proportion to the time since began.
func (r *replayer) step(ctx context.Context, began time.Time) {
	lane, more := r.nextLane(time.Now())
	if lane >= 0 {
		r.read(ctx, uint8(lane))
	}
	rest := min(max(replayMinRest, replayRestFactor*time.Since(began)), replayRetryDelay)
	if !more || r.dirty && time.Since(r.committedAt) >= replayCommitInterval {
		r.commit(ctx)
	}
	if more {
		backoff.Sleep(ctx, rest)
	}
}

// nextLane returns the next lane in turn, or -1 if all lanes with unread records are
// to be retried later. more is false once all records are read.
func (r *replayer) nextLane(now time.Time) (lane int, more bool) {
	for i := range r.lanes {
		number := (r.lastLane + 1 + i) % len(r.lanes)
		if l := &r.lanes[number]; l.At < l.End {
			more = true
			if !l.retryAt.After(now) {
				r.lastLane = number
				return number, true
			}
		}
	}
	return -1, more
}

// read reads a lane's next batch and compares it with the ledger.
func (r *replayer) read(ctx context.Context, number uint8) {
	lane := &r.lanes[number]
	if !lane.checked && !r.verifyLane(ctx, number) {
		return
	}
	limit := int(min(replayBatch, lane.End-lane.At))
	records, err := r.client.Read(ctx, number, lane.At+1, limit)
	if err != nil || len(records) == 0 {
		r.skipMissing(ctx, number)
		return
	}
	identity := r.identities[number]
	parsed, _ := parseRecords(r.loop.log, records, identity, r.loop.cfg.Defaults, nil) // fails only where payloads are checked
	r.loop.ledger.View(func(l *ledger.Ledger) {
		for i := range parsed {
			if !lane.matches(l, &parsed[i], identity) {
				r.addDamage(number, parsed[i].seq, ledger.DamageMismatch)
			}
		}
	})
	last := &parsed[len(parsed)-1]
	lane.At, r.lastJob, r.dirty = last.seq, last.records[len(last.records)-1].job.ID, true
}

// verifyLane verifies that a lane's stream is the one that was ingested, moves the progress
// past records that were reclaimed, and reports whether records are left to read. A stream that does not
// match is a condition of the lane, not damage: it is tried again later.
func (r *replayer) verifyLane(ctx context.Context, number uint8) bool {
	lane := &r.lanes[number]
	info, err := r.client.Info(ctx, number)
	if err != nil || info.Identity != r.identities[number] || info.Last < lane.End {
		lane.retryAt = time.Now().Add(replayRetryDelay)
		return false
	}
	lane.checked = true
	if from := min(info.First, lane.End+1); from > lane.At+1 {
		lane.At, r.dirty = from-1, true
	}
	return lane.At < lane.End
}

// skipMissing is called when a read returned nothing. If the lane does not answer, the
// lane is retried later. Records that were reclaimed meanwhile are skipped, and missing
// ones are recorded as damage, up to replayBatch in a row.
func (r *replayer) skipMissing(ctx context.Context, number uint8) {
	lane := &r.lanes[number]
	lane.checked = false
	ctx, cancel := context.WithTimeout(ctx, replayLoadTimeout)
	defer cancel()
	for range replayBatch {
		before := lane.At
		_, err := r.client.Load(ctx, job.Position{Lane: number, Seq: before + 1}, job.ID{})
		switch {
		case err == nil: // the first record after the gap, or the read asked a replica that lags
			lane.retryAt = time.Now().Add(replayMinRest)
			return
		case !errors.Is(err, ErrRecordGone):
			lane.retryAt = time.Now().Add(replayRetryDelay)
			return
		}
		if !r.verifyLane(ctx, number) {
			return
		}
		if lane.At == before {
			r.addDamage(number, before+1, ledger.DamageMissing)
			lane.At, r.dirty = before+1, true
		}
		if lane.At == lane.End {
			return
		}
	}
}

// matches reports whether a message that was read again can be the one that was ingested: all
// its records match, and none is missing.
func (lane *replayLane) matches(l *ledger.Ledger, m *pendingMessage, identity string) bool {
	matches := true
	for i := range m.records {
		matches = lane.recordMatches(l, &m.records[i], identity) && matches
	}
	last := m.records[len(m.records)-1].record.Position
	for ; len(lane.owners) > 0 && lane.owners[0].at.Seq == m.seq; lane.owners = lane.owners[1:] {
		if owner := lane.owners[0]; owner.at.Compare(last) > 0 {
			view, _, found := l.Find(owner.id)
			matches = matches && !(found && view.Position == owner.at) // the owners may be out of date
		}
	}
	return matches
}

// recordMatches reports whether a record that was read again can be the one that was ingested
// at its position. It always can if the ledger no longer has a job with this position. The
// records of a lane must be passed in order, because recordMatches drops the owners before them.
func (lane *replayLane) recordMatches(l *ledger.Ledger, r *pendingRecord, identity string) bool {
	position := r.record.Position
	for len(lane.owners) > 0 && lane.owners[0].at.Compare(position) < 0 {
		lane.owners = lane.owners[1:]
	}
	if len(lane.owners) > 0 && lane.owners[0].at == position {
		owner := lane.owners[0].id
		if owner != r.job.ID && owner != job.RecordID(identity, position, r.record.Stored) {
			view, _, found := l.Find(owner)
			stillOwner := found && view.Position == position // the owners may be out of date
			return !stillOwner
		}
	}
	view, _, found := l.Find(r.job.ID)
	if !found || view.Position != position {
		return true
	}
	if view.Fault != nil && view.Fault.Type == job.FaultRejected {
		return true // it was rejected when it was ingested, so it need not be valid now
	}
	return r.err == nil && view.Queue == r.job.Queue && view.Function == r.job.Function
}

// addDamage adds a damaged record; adjacent ones of a kind form one range.
func (r *replayer) addDamage(lane uint8, seq uint64, kind ledger.DamageKind) {
	if n := len(r.damage); n > 0 {
		if d := &r.damage[n-1]; d.Lane == lane && d.Kind == kind && d.To+1 == seq {
			d.To = seq
			return
		}
	}
	r.damage = append(r.damage, ledger.ReplayDamage{Lane: lane, From: seq, To: seq, Kind: kind})
}

// commit submits the replay's progress and damage with the next entry, and waits
// until it is applied or the tenure ends.
func (r *replayer) commit(ctx context.Context) {
	c := &ledger.AdvanceReplay{Number: r.number, Last: r.lastJob, Damage: r.damage}
	for i, lane := range r.lanes {
		c.Lanes = append(c.Lanes, ledger.ReplayProgress{Lane: uint8(i), To: lane.At})
	}
	for _, d := range r.damage {
		r.loop.log.Error("replay found damaged records", "lane", d.Lane, "from", d.From, "to", d.To, "missing", d.Kind == ledger.DamageMissing)
	}
	if _, err := r.loop.commit(ctx, c); err == nil {
		r.damage, r.dirty, r.committedAt = nil, false, time.Now()
	}
}
