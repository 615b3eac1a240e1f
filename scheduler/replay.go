package scheduler

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// How lanes are read again: in the background, a little at a time. The longer
// a batch takes, because there is other work, the longer is the rest after it.
const (
	rereadBatch  = 256
	rereadRest   = 20 * time.Millisecond  // at least, between two batches
	rereadShare  = 9                      // times what a batch took is its rest
	rereadTell   = 250 * time.Millisecond // between two commits of how far it has come
	rereadAnswer = 2 * time.Second        // how long a lane may take to tell of one record
	rereadKnown  = 1 << 20                // jobs whose records are known by their place, 24 bytes each
	rereadAgain  = time.Second            // then a lane that did not answer is asked again, and the longest rest
)

// replayer reads again what a replay asks for. It hands no record to the loop:
// what was folded before can never be folded by it. How far it has come is
// kept in the ledger, so the next tenure goes on from there.
type replayer struct {
	m      *mind
	number uint64 // of the request; 0: none seen yet
	lanes  []rereading
	turn   int // the lane that was read last
	last   job.ID
	damage []ledger.ReplayDamage // found and not yet told
	news   bool                  // something is not told yet
	told   time.Time             // when the ledger heard of it last
}

// rereading is a lane of a replay.
type rereading struct {
	ledger.RereadView
	owners  []owner   // of its records, by sequence
	checked bool      // its stream is the one that was folded
	after   time.Time // it did not answer: not before
}

// owner is the job that a record belongs to.
type owner struct {
	seq uint64
	id  job.ID
}

// replay serves requests one after the other, the first of them being one that
// the tenure before has left.
func (m *mind) replay(ctx context.Context) error {
	r := &replayer{m: m}
	for ctx.Err() == nil {
		began := time.Now() // to learn anew takes time, too, and may be asked for again and again
		if r.follow() {
			r.step(ctx, began)
			continue
		}
		select {
		case <-ctx.Done():
		case <-m.replays:
		}
	}
	return nil
}

// follow looks what the ledger asks for: a new request begins at the ledger's
// positions. False: nothing is left to read.
func (r *replayer) follow() bool {
	var asked ledger.ReplayView
	r.m.ledger().View(func(l *ledger.Ledger) { asked = l.Replay() })
	if len(asked.Lanes) == 0 {
		r.number = 0
		return false
	}
	if asked.Number != r.number {
		*r = replayer{m: r.m, number: asked.Number, lanes: make([]rereading, len(asked.Lanes)), told: time.Now()}
		for i, part := range asked.Lanes {
			r.lanes[i].RereadView = part
		}
		r.learn()
	}
	return true
}

// learn notes which records jobs need that have not completed: the place of a
// record says what its own bytes may not say any more.
func (r *replayer) learn() {
	n := 0
	r.m.ledger().Copy().Bodies(func(at job.Position, id job.ID) bool {
		if lane := &r.lanes[at.Lane]; at.Seq > lane.At && at.Seq <= lane.End {
			lane.owners = append(lane.owners, owner{at.Seq, id})
			n++
		}
		return n < rereadKnown
	})
	for i := range r.lanes {
		slices.SortFunc(r.lanes[i].owners, func(a, b owner) int { return cmp.Compare(a.seq, b.seq) })
	}
}

// step reads one batch, tells of it if it is time, and rests from what has been
// done since a time.
func (r *replayer) step(ctx context.Context, began time.Time) {
	lane, left := r.pick(time.Now())
	if lane >= 0 {
		r.read(ctx, uint8(lane))
	}
	rest := min(max(rereadRest, rereadShare*time.Since(began)), rereadAgain)
	if !left || r.news && time.Since(r.told) >= rereadTell {
		r.tell(ctx)
	}
	if left {
		pause(ctx, rest)
	}
}

// pick gives the next lane whose turn it is, -1 if none answers just now; left
// is false once all are read.
func (r *replayer) pick(now time.Time) (lane int, left bool) {
	for i := range r.lanes {
		at := (r.turn + 1 + i) % len(r.lanes)
		if l := &r.lanes[at]; l.At < l.End {
			if left = true; !l.after.After(now) {
				r.turn = at
				return at, true
			}
		}
	}
	return -1, left
}

// read reads a lane's next batch and compares it with the ledger.
func (r *replayer) read(ctx context.Context, number uint8) {
	lane := &r.lanes[number]
	if !lane.checked && !r.check(ctx, number) {
		return
	}
	most := int(min(rereadBatch, lane.End-lane.At))
	records, err := r.m.sched.lanes.Read(ctx, number, lane.At+1, most)
	if err != nil || len(records) == 0 {
		r.absent(ctx, number)
		return
	}
	identity := r.m.lanes[number].identity
	judged := judge(records[:min(most, len(records))], identity, r.m.cfg.Defaults)
	r.m.ledger().View(func(l *ledger.Ledger) {
		for i := range judged {
			if !lane.asFolded(l, &judged[i], identity) {
				r.found(number, judged[i].record.Seq, ledger.DamageStrange)
			}
		}
	})
	last := &judged[len(judged)-1]
	lane.At, r.last, r.news = last.record.Seq, last.facts.ID, true
}

// check makes sure once that the stream is the one that was folded, and passes
// over what was reclaimed. Another stream is none of a replay's business: that
// the lane is in trouble is told, and until it is mended nothing is read.
func (r *replayer) check(ctx context.Context, number uint8) bool {
	lane := &r.lanes[number]
	info, err := r.m.sched.lanes.Info(ctx, number)
	if err != nil || info.Identity != r.m.lanes[number].identity || info.Last < lane.End {
		lane.after = time.Now().Add(rereadAgain)
		return false
	}
	lane.checked = true
	if from := min(info.First, lane.End+1); from > lane.At+1 {
		lane.At, r.news = from-1, true
	}
	return lane.At < lane.End
}

// absent finds out why a record that was folded is not read: the lane does not
// answer, the record was reclaimed meanwhile, or it is lost; and how many
// behind it are lost, too.
func (r *replayer) absent(ctx context.Context, number uint8) {
	lane := &r.lanes[number]
	lane.checked = false
	ctx, cancel := context.WithTimeout(ctx, rereadAnswer)
	defer cancel()
	for range rereadBatch {
		was := lane.At
		switch _, err := r.m.sched.lanes.Load(ctx, job.Position{Lane: number, Seq: was + 1}, job.ID{}); {
		case err == nil: // behind the hole; or a replica was asked that is behind
			lane.after = time.Now().Add(rereadRest)
			return
		case !errors.Is(err, ErrRecordGone):
			lane.after = time.Now().Add(rereadAgain)
			return
		}
		if !r.check(ctx, number) {
			return
		}
		if lane.At == was {
			r.found(number, was+1, ledger.DamageMissing)
			lane.At, r.news = was+1, true
		}
		if lane.At == lane.End {
			return
		}
	}
}

// asFolded tells whether a record can still be what it was folded as. Of one
// whose job the ledger has forgotten nothing can be told.
func (lane *rereading) asFolded(l *ledger.Ledger, r *pendingRecord, identity string) bool {
	for len(lane.owners) > 0 && lane.owners[0].seq < r.record.Seq {
		lane.owners = lane.owners[1:]
	}
	if len(lane.owners) > 0 && lane.owners[0].seq == r.record.Seq {
		id := lane.owners[0].id
		if id != r.facts.ID && id != job.RecordID(identity, r.record.Seq, r.record.Stored) {
			view, _, known := l.Find(id)
			return !known || view.Position != r.record.Position // it is forgotten, or lies elsewhere
		}
	}
	view, _, known := l.Find(r.facts.ID)
	if !known || view.Position != r.record.Position {
		return true
	}
	if view.Fault != nil && view.Fault.Type == job.FaultRejected {
		return true // it was none then, too
	}
	return r.err == nil && view.Queue == r.facts.Queue && view.Function == r.facts.Function
}

// found notes damage; what follows on is one place.
func (r *replayer) found(lane uint8, seq uint64, kind ledger.DamageKind) {
	if n := len(r.damage); n > 0 {
		if d := &r.damage[n-1]; d.Lane == lane && d.Kind == kind && d.To+1 == seq {
			d.To = seq
			return
		}
	}
	r.damage = append(r.damage, ledger.ReplayDamage{Lane: lane, From: seq, To: seq, Kind: kind})
}

// tell commits how far the replay has come, with the next entry that goes, and
// waits for it.
func (r *replayer) tell(ctx context.Context) {
	c := &ledger.Reread{Number: r.number, Last: r.last, Damage: r.damage}
	for i, lane := range r.lanes {
		c.Lanes = append(c.Lanes, ledger.RereadLane{Lane: uint8(i), To: lane.At})
	}
	for _, d := range r.damage {
		r.m.sched.log.Error("replay finds records damaged", "lane", d.Lane, "from", d.From, "to", d.To, "missing", d.Kind == ledger.DamageMissing)
	}
	committed := make(chan struct{})
	r.m.post(func() {
		r.m.ride(c, func(ledger.Result, uint64) { close(committed) })
	})
	select {
	case <-committed:
		r.damage, r.news, r.told = nil, false, time.Now()
	case <-r.m.gone:
	case <-ctx.Done():
	}
}
