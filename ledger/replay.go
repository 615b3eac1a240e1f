package ledger

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
)

// maxDamage is how many damaged ranges a replay records; further ones are only
// counted.
const maxDamage = 8

// replay is the state of reading ingested records again. It creates no jobs: it
// only checks that the records are unchanged, and records its progress. The
// next request replaces it, whether it has finished or not.
type replay struct {
	cursor     *string      // of the last request; used only by a ledger without lanes
	number     uint64       // number of the request; progress of earlier ones is ignored
	lanes      []ReplayLane // by lane; nil when all is read
	last       job.ID       // id of the last record that was read again
	damage     []ReplayDamage
	moreDamage uint64 // number of damaged ranges beyond maxDamage
}

// AdvanceReplay records the progress of the replay with this number. Progress
// that is already recorded is ignored.
type AdvanceReplay struct {
	Number uint64
	Lanes  []ReplayProgress
	Last   job.ID // id of the last record that was read
	Damage []ReplayDamage
}

// ReplayProgress is the sequence up to which a lane was read again.
type ReplayProgress struct {
	Lane uint8
	To   uint64
}

// DamageKind is what is wrong with a record that was ingested.
type DamageKind uint8

// The kinds of damage.
const (
	DamageMissing  DamageKind = iota + 1 // absent, although the lane has records before and after it
	DamageMismatch                       // not the record that was ingested
)

// ReplayDamage is a range of a lane, From to To inclusive, whose records are
// missing or changed since they were ingested.
type ReplayDamage struct {
	Lane     uint8
	From, To uint64
	Kind     DamageKind
}

// String returns the damage as a readiness reason: what is damaged, where, and
// what to do.
func (d ReplayDamage) String() string {
	where, verb := fmt.Sprintf("record %d", d.From), "is"
	if d.To > d.From {
		where, verb = fmt.Sprintf("records %d to %d", d.From, d.To), "are"
	}
	what := "missing from the stream"
	if d.Kind == DamageMismatch {
		what = "not what was ingested"
	}
	return fmt.Sprintf("lane %d: %s %s %s: repair or replace the member that lost the data, or cancel the jobs that need it; then request a replay of %d@%d, or of null to accept the loss",
		d.Lane, where, verb, what, d.Lane, d.From-1)
}

func (*AdvanceReplay) Kind() Kind { return KindAdvanceReplay }

// ReplayView is the replay in progress. Lanes is empty without one.
type ReplayView struct {
	Number uint64
	Lanes  []ReplayLane // by lane
}

// ReplayLane is one lane's part: records after At, up to and including End, are
// still to be read.
type ReplayLane struct{ At, End uint64 }

// Replay returns the replay in progress.
func (l *Ledger) Replay() ReplayView {
	return ReplayView{Number: l.replay.number, Lanes: slices.Clone(l.replay.lanes)}
}

// apply begins a replay and ends any other; a nil cursor only ends it. Each lane is read up to its present cursor: later records are not part of the
// replay, because they are still to be ingested.
func (c *RequestReplay) apply(l *Ledger) Result {
	l.replay = replay{cursor: c.Cursor, number: l.replay.number + 1}
	if c.Cursor != nil && len(l.lanes) > 0 {
		l.replay.lanes = make([]ReplayLane, len(l.lanes))
		from := replayFrom(*c.Cursor, len(l.lanes))
		for i, lane := range l.lanes {
			l.replay.lanes[i] = ReplayLane{At: min(from[i], lane.Cursor), End: lane.Cursor}
		}
		l.replay.finish()
	}
	return l.respond(Event{Kind: ReplayRequested, Extra: &Extra{Cursor: c.Cursor}})
}

// replayFrom parses a cursor of the form "<lane>@<seq>,…" and returns, for each
// lane, the sequence after which it is read again. For a lane that is not named
// it is MaxUint64, which is after the lane's end. A text that is not a valid
// cursor of this cluster means the beginning: reading too much costs only time.
func replayFrom(cursor string, lanes int) []uint64 {
	from := make([]uint64, lanes)
	for i := range from {
		from[i] = math.MaxUint64
	}
	for part := range strings.SplitSeq(cursor, ",") {
		lane, seq, ok := strings.Cut(part, "@")
		number, err := strconv.ParseUint(lane, 10, 8)
		after, seqErr := strconv.ParseUint(seq, 10, 64) // the largest number if out of range
		validLane := ok && err == nil && int(number) < lanes
		validSeq := seqErr == nil || errors.Is(seqErr, strconv.ErrRange)
		if !validLane || !validSeq {
			return make([]uint64, lanes)
		}
		from[number] = min(from[number], after)
	}
	return from
}

// apply records what the authority has read again, and the damage that it found
// beyond the recorded progress. Progress of an earlier replay is ignored.
func (c *AdvanceReplay) apply(l *Ledger) Result {
	current := &l.replay
	if c.Number != current.number || len(current.lanes) == 0 {
		return Result{}
	}
	for _, damage := range c.Damage {
		isNew := int(damage.Lane) < len(current.lanes) && damage.From > current.lanes[damage.Lane].At && damage.To >= damage.From
		if isNew && current.addDamage(damage) {
			l.emit(Event{Kind: RunBlockedOnUser, A: l.authority.owner, B: damage.String()})
		}
	}
	for _, progress := range c.Lanes {
		if int(progress.Lane) < len(current.lanes) {
			lane := &current.lanes[progress.Lane]
			lane.At = min(max(lane.At, progress.To), lane.End)
		}
	}
	if !c.Last.IsZero() {
		current.last = c.Last
	}
	current.finish()
	return Result{}
}

// addDamage records a damaged range, merged with the one that it continues. It
// reports whether the range is a separate one that the replay's view lists, so
// that an operator has to decide about it.
func (r *replay) addDamage(d ReplayDamage) bool {
	for i := range r.damage {
		previous := &r.damage[i]
		if previous.Lane == d.Lane && previous.Kind == d.Kind && previous.To+1 == d.From {
			previous.To = d.To
			return false
		}
	}
	if len(r.damage) == maxDamage {
		r.moreDamage++
		return false
	}
	r.damage = append(r.damage, d)
	return true
}

// finish ends a replay that has nothing left to read. The damage it found is
// kept until the next request.
func (r *replay) finish() {
	if r.remaining() == 0 {
		r.lanes, r.last = nil, job.ID{}
	}
}

// remaining returns the number of records that are still to be read again.
func (r *replay) remaining() (n uint64) {
	for _, lane := range r.lanes {
		n += lane.End - lane.At
	}
	return n
}

// reasons returns the readiness reasons for the damage that was found.
func (r *replay) reasons() (reasons []string) {
	for _, d := range r.damage {
		reasons = append(reasons, d.String())
	}
	if r.moreDamage > 0 {
		reasons = append(reasons, fmt.Sprintf("the replay found damage in %d more places; the authority's log names them", r.moreDamage))
	}
	return reasons
}

func (r *replay) copy() replay {
	c := *r
	c.lanes, c.damage = slices.Clone(r.lanes), slices.Clone(r.damage)
	return c
}

// replayCursor returns the position in each lane, as "<lane>@<seq>" joined by
// commas: that of the replay while one is in progress, else the lane's cursor.
// Without lanes it is the last request's cursor.
func (l *Ledger) replayCursor() *string {
	if len(l.lanes) == 0 {
		return l.replay.cursor
	}
	positions := make([]string, len(l.lanes))
	for i, lane := range l.lanes {
		at := lane.Cursor
		if i < len(l.replay.lanes) && l.replay.lanes[i].At < l.replay.lanes[i].End {
			at = l.replay.lanes[i].At
		}
		positions[i] = fmt.Sprintf("%d@%d", i, at)
	}
	return new(strings.Join(positions, ","))
}

// lastReplayed returns the id of the last record that was read again by the
// replay in progress, or else of the last record that was ingested; nil without
// such a record.
func (l *Ledger) lastReplayed() *string {
	id := l.lastIngested
	if len(l.replay.lanes) > 0 {
		id = l.replay.last
	}
	if id.IsZero() {
		return nil
	}
	return new(id.String())
}

// replay encodes or decodes the replay. A lane beyond its end fails with
// errCorrupt.
func (c *codec) replay(r *replay) {
	if optional(c, &r.cursor) {
		c.fields(r.cursor)
	}
	c.fields(&r.number)
	list(c, &r.lanes, func(lane *ReplayLane) {
		c.fields(&lane.At, &lane.End)
		if lane.At > lane.End {
			c.fail(errCorrupt)
		}
	})
	c.fields(&r.last)
	list(c, &r.damage, func(d *ReplayDamage) { c.fields(&d.Lane, &d.From, &d.To, (*uint8)(&d.Kind)) })
	c.fields(&r.moreDamage)
}
