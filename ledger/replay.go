package ledger

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"yardmaster/job"
)

// maxDamage bounds how many places of damage a replay keeps; of those beyond
// it only their number is known.
const maxDamage = 8

// replay is the reading again of records that were folded before. It makes no
// job: it only shows that they still are what they were, and how far it has
// come. The next request replaces it, finished or not.
type replay struct {
	cursor *string  // what was asked for last, for a ledger without lanes
	number uint64   // of the request; what is said of an earlier one is left out
	lanes  []reread // by lane; nil while nothing is left to read
	last   job.ID   // of the last record that was read again
	damage []ReplayDamage
	more   uint64 // places of damage beyond maxDamage
}

// reread is a lane's part of a replay: the records from at (exclusive) to end.
type reread struct{ at, end uint64 }

// Reread says how far the replay of this number has come. What it says again
// of records that were read before is left out.
type Reread struct {
	Number uint64
	Lanes  []RereadLane
	Last   job.ID // of the last record that was read
	Damage []ReplayDamage
}

// RereadLane says that a lane was read again up to a sequence.
type RereadLane struct {
	Lane uint8
	To   uint64
}

// DamageKind is what is wrong with a record that was folded before.
type DamageKind uint8

// The kinds of damage.
const (
	DamageMissing DamageKind = iota + 1 // the lane holds records before and after it
	DamageStrange                       // it is not what was folded
)

// ReplayDamage is a stretch of a lane, From and To included, whose records are
// no longer what they were when they were folded.
type ReplayDamage struct {
	Lane     uint8
	From, To uint64
	Kind     DamageKind
}

// String is the reason not to be ready: what, where, and what to do.
func (d ReplayDamage) String() string {
	where, verb := fmt.Sprintf("record %d", d.From), "is"
	if d.To > d.From {
		where, verb = fmt.Sprintf("records %d to %d", d.From, d.To), "are"
	}
	what := "missing from the stream"
	if d.Kind == DamageStrange {
		what = "not what was folded"
	}
	return fmt.Sprintf("lane %d: %s %s %s: mend the member that lost the data, or cancel the jobs that need it; then request a replay of %d@%d, or of null to accept the loss",
		d.Lane, where, verb, what, d.Lane, d.From-1)
}

func (*Reread) Kind() Kind { return KindReread }

// ReplayView is the replay under way. Lanes is empty if there is none.
type ReplayView struct {
	Number uint64
	Lanes  []RereadView // by lane
}

// RereadView is a lane's part: what is left are the records from At
// (exclusive) to End.
type RereadView struct{ At, End uint64 }

// Replay gives the replay under way.
func (l *Ledger) Replay() ReplayView {
	view := ReplayView{Number: l.replay.number}
	for _, r := range l.replay.lanes {
		view.Lanes = append(view.Lanes, RereadView{At: r.at, End: r.end})
	}
	return view
}

// requestReplay begins a replay in the place of any other; null only ends it.
// What lies beyond the folded positions is not its business: that is folded
// anyway. So each lane's end is fixed here.
func (l *Ledger) requestReplay(c *RequestReplay) Result {
	l.replay = replay{cursor: c.Cursor, number: l.replay.number + 1}
	if c.Cursor != nil && len(l.lanes) > 0 {
		l.replay.lanes = make([]reread, len(l.lanes))
		from := l.replayFrom(*c.Cursor)
		for i, ln := range l.lanes {
			l.replay.lanes[i] = reread{at: min(from[i], ln.cursor), end: ln.cursor}
		}
		l.finishReplay()
	}
	return l.answer(Event{Kind: ReplayRequested, Extra: &Extra{Cursor: c.Cursor}})
}

// replayFrom reads a cursor of the form "<lane>@<seq>,…": for each lane the
// sequence after which it is read again, which is beyond its end for a lane
// that the cursor does not name. A text that is no such cursor of this yard
// stands for the beginning: to read too much costs nothing but time.
func (l *Ledger) replayFrom(cursor string) []uint64 {
	from := make([]uint64, len(l.lanes))
	for i := range from {
		from[i] = math.MaxUint64
	}
	for part := range strings.SplitSeq(cursor, ",") {
		lane, seq, ok := strings.Cut(part, "@")
		number, err := strconv.ParseUint(lane, 10, 8)
		at, atErr := strconv.ParseUint(seq, 10, 64) // a number too large for it is the largest
		if !ok || err != nil || int(number) >= len(from) || atErr != nil && !errors.Is(atErr, strconv.ErrRange) {
			return make([]uint64, len(l.lanes))
		}
		from[number] = min(from[number], at)
	}
	return from
}

// reread takes what the authority has read again.
func (l *Ledger) reread(c *Reread) Result {
	r := &l.replay
	if c.Number != r.number || len(r.lanes) == 0 {
		return Result{} // of a replay that is over
	}
	for _, d := range c.Damage {
		if int(d.Lane) < len(r.lanes) && d.From > r.lanes[d.Lane].at && d.To >= d.From {
			l.harmed(d)
		}
	}
	for _, lane := range c.Lanes {
		if int(lane.Lane) < len(r.lanes) {
			part := &r.lanes[lane.Lane]
			part.at = min(max(part.at, lane.To), part.end)
		}
	}
	if !c.Last.IsZero() {
		r.last = c.Last
	}
	l.finishReplay()
	return Result{}
}

// harmed keeps a place of damage, joined with the one before it, and tells
// history that somebody has to decide about it.
func (l *Ledger) harmed(d ReplayDamage) {
	r := &l.replay
	for i := range r.damage {
		if known := &r.damage[i]; known.Lane == d.Lane && known.Kind == d.Kind && known.To+1 == d.From {
			known.To = d.To
			return
		}
	}
	if len(r.damage) == maxDamage {
		r.more++
		return
	}
	r.damage = append(r.damage, d)
	l.outbox.emit(Event{Kind: RunBlockedOnUser, A: l.authority.owner, B: d.String()})
}

// finishReplay ends a replay with nothing left to read. What it found stays
// until the next request.
func (l *Ledger) finishReplay() {
	for _, r := range l.replay.lanes {
		if r.at < r.end {
			return
		}
	}
	l.replay.lanes, l.replay.last = nil, job.ID{}
}

// left counts the records that are still to be read again.
func (r *replay) left() (n uint64) {
	for _, part := range r.lanes {
		n += part.end - part.at
	}
	return n
}

// reasons are what a replay has found wrong.
func (r *replay) reasons() (reasons []string) {
	for _, d := range r.damage {
		reasons = append(reasons, d.String())
	}
	if r.more > 0 {
		reasons = append(reasons, fmt.Sprintf("the replay found damage in %d more places; the authority's log names them", r.more))
	}
	return reasons
}

func (r *replay) copy() replay {
	c := *r
	c.lanes, c.damage = slices.Clone(r.lanes), slices.Clone(r.damage)
	return c
}

// replayCursor is where each lane stands, "<lane>@<seq>" joined by commas: as
// far as it is read again while a replay has to, else as far as it is folded.
// Without lanes it is what the last request named.
func (l *Ledger) replayCursor() *string {
	if len(l.lanes) == 0 {
		return l.replay.cursor
	}
	parts := make([]string, len(l.lanes))
	for i, ln := range l.lanes {
		at := ln.cursor
		if i < len(l.replay.lanes) && l.replay.lanes[i].at < l.replay.lanes[i].end {
			at = l.replay.lanes[i].at
		}
		parts[i] = fmt.Sprintf("%d@%d", i, at)
	}
	cursor := strings.Join(parts, ",")
	return &cursor
}

// lastReplayed is the last record that a replay under way has read again, else
// the last one that was folded.
func (l *Ledger) lastReplayed() *string {
	id := l.lastFolded
	if len(l.replay.lanes) > 0 {
		id = l.replay.last
	}
	if id.IsZero() {
		return nil
	}
	text := id.String()
	return &text
}

func (e *encoder) replay(r *replay) {
	if e.optional(r.cursor != nil) {
		e.text(*r.cursor)
	}
	e.uint(r.number)
	e.uint(uint64(len(r.lanes)))
	for _, part := range r.lanes {
		e.uint(part.at)
		e.uint(part.end)
	}
	e.id(r.last)
	e.uint(uint64(len(r.damage)))
	for _, d := range r.damage {
		e.uint(uint64(d.Lane))
		e.uint(d.From)
		e.uint(d.To)
		e.uint(uint64(d.Kind))
	}
	e.uint(r.more)
}

func (d *decoder) replay(r *replay) {
	if d.bool() {
		cursor := d.text()
		r.cursor = &cursor
	}
	r.number = d.uint()
	d.times(func() {
		part := reread{at: d.uint(), end: d.uint()}
		if part.at > part.end {
			d.fail(errCorrupt)
		}
		r.lanes = append(r.lanes, part)
	})
	r.last = d.id()
	d.times(func() {
		r.damage = append(r.damage, ReplayDamage{Lane: uint8(d.uint()), From: d.uint(), To: d.uint(), Kind: DamageKind(d.uint())})
	})
	r.more = d.uint()
}
