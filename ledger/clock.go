package ledger

import (
	"bytes"
	"cmp"
	"time"

	"github.com/tidwall/btree"
)

// Clock is a time on the ledger's three clocks. They show the same unless a wall clock was
// wrong or was set.
type Clock struct {
	// Now is the time that the ledger shows, of events for example. It follows Wall, but
	// never decreases: while it is ahead of Wall, it is slower.
	Now time.Time
	// Elapsed advances as time passes, whatever wall clocks show, and never decreases.
	// Relative times end by it: delays, waits before a retry, keys held for a time, rates.
	Elapsed time.Time
	// Wall is the median of the members' wall clocks. It may step in either direction.
	// What names a wall-clock time is compared with it: run_at, expires_at, cron.
	Wall time.Time
}

// SameClock returns a Clock on which all three clocks show the time at.
func SameClock(at time.Time) Clock { return Clock{at, at, at} }

// Ahead returns how far Now is ahead of Wall.
func (c Clock) Ahead() time.Duration { return c.Now.Sub(c.Wall) }

// Offsets returns how far Elapsed and Wall are ahead of Now.
func (c Clock) Offsets() Offsets { return Offsets{c.Elapsed.Sub(c.Now), c.Wall.Sub(c.Now)} }

// Offsets are the leads of the clocks Elapsed and Wall over Now, see [Clock]. They are zero in
// entries of earlier builds, which have one clock.
type Offsets struct{ Elapsed, Wall time.Duration }

// clocks are the times of the last entry, in Unix nanoseconds, see [Clock].
type clocks struct{ now, elapsed, wall int64 }

// Clock returns the ledger's time on all its clocks.
func (c *clocks) Clock() Clock {
	return Clock{unixNano(c.now).UTC(), unixNano(c.elapsed).UTC(), unixNano(c.wall).UTC()}
}

// Now returns the ledger's time: the latest stamp.
func (c *clocks) Now() time.Time { return unixNano(c.now).UTC() }

// shift returns what is added to a wall-clock time to get the same moment in elapsed time.
func (c *clocks) shift() int64 { return c.elapsed - c.wall }

// shown returns the wall-clock time of a moment in elapsed time, as far as is known now.
func (c *clocks) shown(elapsed int64) time.Time { return unixNano(elapsed - c.shift()).UTC() }

// shownOn returns the wall-clock time of a time on the wall clock, or in elapsed time.
func (c *clocks) shownOn(at int64, wall bool) time.Time {
	if wall {
		return unixNano(at).UTC()
	}
	return c.shown(at)
}

// elapsedAt returns the moment in elapsed time of a wall-clock time.
func (c *clocks) elapsedAt(wall time.Time) int64 { return wall.UnixNano() + c.shift() }

// advance sets the clocks to the times of an entry. Elapsed and Wall follow only entries of the
// present epoch, and those that acquire the authority: an entry of an earlier epoch may have been
// proposed before a restore.
func (l *Ledger) advance(at Stamp, cmds []Command) {
	l.now = max(l.now, at.At.UnixNano())
	acquires := false
	if len(cmds) > 0 {
		_, acquires = cmds[0].(*Lead)
	}
	switch {
	case l.outbox.level < level8:
		l.elapsed, l.wall = l.now, l.now
	case at.Epoch == l.authority.epoch || acquires:
		l.elapsed = max(l.elapsed, l.now+int64(at.Elapsed))
		l.wall = l.now + int64(at.Wall)
	}
	l.jobs.limits.clocks = l.clocks
}

// follow sets the clocks of a backup's ledger from those of the ledger that it replaces. The time
// that has passed since the backup was made is the difference of the two wall clocks.
func (l *Ledger) follow(c *clocks) {
	l.now = max(l.now, c.now)
	if l.outbox.level < level8 {
		l.elapsed, l.wall = l.now, l.now
	} else {
		l.elapsed, l.wall = l.elapsed+max(0, c.wall-l.wall), c.wall
	}
	l.jobs.limits.clocks = l.clocks
}

// emptyUntil returns the time up to which a lane that is added now is ingested: it has no records.
// Entries of an earlier level leave it unknown.
func (l *Ledger) emptyUntil() time.Time {
	if l.outbox.level < level8 {
		return time.Time{}
	}
	return unixNano(l.elapsed).UTC()
}

// Passed tells a member how much time has passed since the last entry that it has applied, by the
// member's monotonic clock. The zero value is ready to use.
type Passed struct {
	elapsed time.Time // of the entry that was applied soonest after it was made
	at      time.Time // when it was applied; zero: none was
	epoch   uint64    // of the authority that made it
}

// Applied notes that an entry has been applied to l at a time, which has a monotonic reading.
func (p *Passed) Applied(l *Ledger, at time.Time) {
	elapsed, epoch := l.Clock().Elapsed, l.authority.epoch
	if p.at.IsZero() || p.epoch != epoch || elapsed.Sub(p.elapsed) > at.Sub(p.at) {
		*p = Passed{elapsed, at, epoch}
	}
}

// Since returns how long before a time the last entry of l was made, or less: by as much as the fastest
// entry of its authority took to be applied here. It returns 0 if none was applied.
func (p *Passed) Since(l *Ledger, at time.Time) time.Duration {
	if p.at.IsZero() {
		return 0
	}
	return max(0, p.elapsed.Add(at.Sub(p.at)).Sub(l.Clock().Elapsed))
}

// moment is when something happens to a job: by the wall clock, or in elapsed time. at is always
// the wall-clock time, as it was known when the moment was set; shift is what had to be added to
// it then to get the elapsed time. For example, after the wall clocks were set back by an hour, the
// moment five minutes from now has a shift of an hour.
type moment struct {
	at    int64 // Unix nanoseconds
	shift int64
	wall  bool
}

// after returns the moment that is a time after now, in elapsed time.
func (c *clocks) after(d time.Duration) moment {
	return moment{at: c.wall + int64(d), shift: c.shift()}
}

// past returns a moment that has passed: a time of the ledger that is not after the present.
func (c *clocks) past(at int64) moment { return moment{at: at, shift: c.elapsed - c.now} }

// wallMoment returns the moment at a wall-clock time. Builds before level 8 had only one clock.
func (l *Ledger) wallMoment(at int64) moment {
	return moment{at: at, wall: l.outbox.level >= level8}
}

// key returns the time of the moment on its own clock.
func (m moment) key() int64 {
	if m.wall {
		return m.at
	}
	return m.at + m.shift
}

// elapsedOf returns the moment in elapsed time. A wall-clock time is converted by what the clocks
// show now.
func (c *clocks) elapsedOf(m moment) int64 {
	if m.wall {
		return m.at + c.shift()
	}
	return m.at + m.shift
}

// passed reports whether a moment has passed.
func (c *clocks) passed(m moment) bool { return c.left(m.key(), m.wall) <= 0 }

// left returns how long it is until a time on the wall clock, or in elapsed time.
func (c *clocks) left(at int64, wall bool) int64 {
	if wall {
		return at - c.wall
	}
	return at - c.elapsed
}

// timers is an index of jobs by a moment of each.
type timers struct{ elapsed, wall *btree.BTreeG[timeItem] }

func newTimers() timers {
	return timers{btree.NewBTreeGOptions(timeLess, treeOptions), btree.NewBTreeGOptions(timeLess, treeOptions)}
}

func (t timers) copy() timers { return timers{t.elapsed.Copy(), t.wall.Copy()} }

// of returns the index of the clock of a moment.
func (t timers) of(m moment) *btree.BTreeG[timeItem] {
	if m.wall {
		return t.wall
	}
	return t.elapsed
}

// next returns the item whose moment comes first, and how long it is until then.
func (t timers) next(c *clocks) (first timeItem, left int64, ok bool) {
	first, ok = t.elapsed.Min()
	left = c.left(first.at, false)
	other, found := t.wall.Min()
	if !found {
		return first, left, ok
	}
	untilOther := c.left(other.at, true)
	if !ok || cmp.Or(cmp.Compare(untilOther, left), bytes.Compare(other.id[:], first.id[:])) < 0 {
		return other, untilOther, true
	}
	return first, left, true
}

// Due is when the ledger next changes because time has passed, on two of its clocks; a zero time:
// nothing waits for this clock.
type Due struct{ Elapsed, Wall time.Time }

// IsZero reports whether nothing waits for either clock.
func (d Due) IsZero() bool { return d.Elapsed.IsZero() && d.Wall.IsZero() }

// Wait returns how long it is from a time until something is due; ok is false if nothing is.
func (d Due) Wait(at Clock) (wait time.Duration, ok bool) {
	if !d.Elapsed.IsZero() {
		wait, ok = d.Elapsed.Sub(at.Elapsed), true
	}
	if !d.Wall.IsZero() && (!ok || d.Wall.Sub(at.Wall) < wait) {
		wait, ok = d.Wall.Sub(at.Wall), true
	}
	return wait, ok
}

// NextDue returns when the next delayed job is due, a job expires, or waiting jobs are free of the
// rate of a limit. It must not be called on a copy.
func (j *jobs) NextDue() (due Due) {
	earlier := func(at *time.Time, item timeItem, ok bool) {
		if t := unixNano(item.at); ok && (at.IsZero() || t.Before(*at)) {
			*at = t
		}
	}
	if at := j.limits.nextWake(); at != 0 {
		due.Elapsed = unixNano(at)
	}
	for _, index := range [...]timers{j.due, j.expiring} {
		first, ok := index.elapsed.Min()
		earlier(&due.Elapsed, first, ok)
		first, ok = index.wall.Min()
		earlier(&due.Wall, first, ok)
	}
	return due
}

func unixNano(at int64) time.Time { return time.Unix(0, at) }
