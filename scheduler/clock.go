package scheduler

import (
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Limits of clock deviations.
const (
	keptWait     = 3 * time.Second        // how long a new authority waits for the heartbeat of a member that has kept the elapsed time
	clockSlack   = 500 * time.Millisecond // deviation from the members' median that is left alone: heartbeats are delayed, too
	maxClockSkew = 2 * time.Second        // deviation of a clock that is reported
	clockSamples = 3                      // heartbeats that a member's clock is judged by
	slewDivisor  = 2                      // a time that is ahead loses one part in slewDivisor
	stepReported = time.Hour              // for how long a step of the members' clocks is reported
)

// stampClock determines the times of entries, see [ledger.Clock]. All follow the monotonic
// clock. Only Wall is set to what wall clocks show; Now follows it without going back, and
// Elapsed does not depend on wall clocks during a tenure.
type stampClock struct {
	since time.Time     // it showed start then
	start ledger.Clock  // without monotonic readings
	lead  time.Duration // how far Now was ahead of Wall at since; it loses that much
}

// newStampClock returns a clock that continues from the times of the last entry. passed is how long
// ago that entry was made; if it is 0 or less, that is not known. A single member then goes by its
// wall clock. A cluster of several, for which single is false, adds nothing, because one wrong clock
// must not end delays and waits: [stampClock.reach] and [stampClock.settle] do. The first tenure of a
// cluster begins with the time of the wall clock.
func newStampClock(last ledger.Clock, passed time.Duration, single bool) stampClock {
	now := time.Now()
	wall := now.Round(0)
	if last.Now.Unix() <= 0 {
		return stampClock{since: now, start: ledger.SameClock(wall)}
	}
	if passed = max(0, passed); passed == 0 && single {
		passed = max(0, wall.Sub(last.Wall))
	}
	c := stampClock{since: now, start: ledger.Clock{Now: last.Now, Elapsed: last.Elapsed.Add(passed), Wall: last.Wall.Add(passed)}}
	if single {
		return c.follow(wall)
	}
	return c.follow(c.start.Wall)
}

// show returns a clock that shows the time since the last entry, which was made some time ago, also as
// Now. Elapsed and Wall, which decide, stay. So the first event of an authority is not shown before
// what has happened since that entry. A part of clockSlack is left for settle to add, so that Now
// does not get ahead of Elapsed.
func (c stampClock) show(ago time.Duration) stampClock {
	ago = max(0, ago-clockSlack/2)
	c.since = c.since.Add(-ago)
	c.start.Elapsed, c.start.Wall = c.start.Elapsed.Add(-ago), c.start.Wall.Add(-ago)
	return c
}

// times returns what the clock shows.
func (c stampClock) times() ledger.Clock {
	e := time.Since(c.since)
	return ledger.Clock{
		Now: c.start.Now.Add(e - min(e/slewDivisor, c.lead)), Elapsed: c.start.Elapsed.Add(e), Wall: c.start.Wall.Add(e),
	}
}

// now returns the time that the ledger is to show.
func (c stampClock) now() time.Time { return c.times().Now }

// follow returns a clock with the given time as Wall. If Now is behind Wall, it is set to Wall; if it
// is ahead, it runs slower until it is not. Deviations within clockSlack change nothing, so that the
// clocks of a healthy cluster are the same.
func (c stampClock) follow(wall time.Time) stampClock {
	now, t := time.Now(), c.times()
	if wall.Sub(t.Wall).Abs() > clockSlack {
		t.Wall = wall
	}
	next := stampClock{since: now}
	switch ahead := t.Now.Sub(t.Wall); {
	case ahead > clockSlack:
		next.lead = ahead
	case ahead < -clockSlack:
		t.Now = t.Wall
	default:
		t.Wall = t.Now
	}
	next.start = t
	return next
}

// reach returns a clock whose Elapsed is not behind the given elapsed time.
func (c stampClock) reach(elapsed time.Time) stampClock {
	if behind := elapsed.Sub(c.times().Elapsed); behind > 0 {
		c.start.Elapsed = c.start.Elapsed.Add(behind)
	}
	return c
}

// settle is follow until a tenure knows the median and the elapsed time. If Elapsed is ahead of Now by no more than
// clockSlack, Now is set to it, so that both are the same again.
func (c stampClock) settle(wall time.Time) stampClock {
	c = c.follow(wall)
	t := &c.start
	if behind := t.Elapsed.Sub(t.Now); behind >= 0 && behind <= clockSlack && c.lead == 0 {
		t.Now, t.Wall = t.Elapsed, t.Wall.Add(behind)
	}
	return c
}

// memberClocks are the clocks of the ledger and of the members, as far as a tenure knows them. It
// belongs to the loop's goroutine.
type memberClocks struct {
	last         ledger.Clock  // of the ledger before the tenure
	epoch        uint64        // of the authority before the tenure
	keptKnown    bool          // the elapsed time that a member has kept is known
	elapsedKnown bool          // how much time has passed since last; from then on Elapsed only follows the monotonic clock
	settled      bool          // their median is known
	step         time.Duration // by which the median was last set
	stepAt       time.Time     // when it was; zero: it was not
}

// kept reports whether a member has kept its elapsed time of a heartbeat since an authority before the
// tenure sent it, and no restore has replaced the ledger since. That need not be the last authority:
// the elapsed time of an earlier one goes on as well.
func (c *memberClocks) kept(b *job.Heartbeat) bool {
	return !b.Elapsed.IsZero() && b.ElapsedEpoch <= c.epoch && c.epoch-b.ElapsedEpoch < ledger.RestoreJump
}

// clockOffsets holds the last samples of a member's clock: how far its time in a
// heartbeat was ahead of the tenure's local time on arrival, which no step of this node's clock
// affects, see [eventLoop.localTime]. Each sample is too low by the heartbeat's travel time.
type clockOffsets struct {
	samples [clockSamples]time.Duration
	n       int
}

func (c *clockOffsets) add(ahead time.Duration) {
	c.samples[c.n%clockSamples] = ahead
	c.n++
}

// offset returns how far the member's clock is ahead, by the heartbeat of the last
// clockSamples that travelled fastest.
func (c *clockOffsets) offset() time.Duration { return slices.Max(c.samples[:min(c.n, clockSamples)]) }

// medianOffset returns the median offset of the clocks of the members that are not
// silent; the lower one of an even number, because the ledger's time cannot be set
// back. heard, if not nil, counts as well: its heartbeat has just arrived. ok is false
// unless these members are a majority.
func (c *capacity) medianOffset(heard *node) (median time.Duration, ok bool) {
	var offsets []time.Duration
	for _, name := range c.members {
		if n := c.nodes[name]; n != nil && (!n.silent || n == heard) && n.clock.n > 0 {
			offsets = append(offsets, n.clock.offset())
		}
	}
	if len(offsets) == 0 || len(offsets) <= len(c.members)/2 {
		return 0, false
	}
	slices.Sort(offsets)
	return offsets[(len(offsets)-1)/2], true
}

// allHeard reports whether the time of every member's clock is known.
func (c *capacity) allHeard() bool {
	return !slices.ContainsFunc(c.members, func(name string) bool { n := c.nodes[name]; return n == nil || n.clock.n == 0 })
}

// clockDeviation returns how far the node's clock is ahead of the median of the members' clocks. ok is
// false if that is not known: the node is silent, or has sent no time.
func (n *node) clockDeviation(median time.Duration) (ahead time.Duration, ok bool) {
	if n.silent || n.clock.n == 0 {
		return 0, false
	}
	return n.clock.offset() - median, true
}

// localTime returns t, a time that [time.Now] has returned, by a clock that no step of this node's
// wall clock affects.
func (e *eventLoop) localTime(t time.Time) time.Time {
	return e.startedAt.Round(0).Add(t.Sub(e.startedAt))
}

// sampleClock adds the time in a heartbeat, which arrived at the given time, to the
// samples of its member's clock. Then it sets the stamp clock's wall clock to the median of the
// members' clocks.
func (t *tenure) sampleClock(b job.Heartbeat, arrived time.Time) {
	n := t.capacity.nodeOf(b.Node, b.Incarnation)
	if b.At.IsZero() || b.Incarnation < n.incarnation {
		return
	}
	n.clock.add(b.At.Round(0).Sub(t.loop.localTime(arrived)))
	c := &t.clocks
	before := c.elapsedKnown
	if !before && c.kept(&b) {
		t.loop.clock, c.keptKnown = t.loop.clock.reach(b.Elapsed.Add(time.Since(arrived))), true
	}
	if median, ok := t.capacity.medianOffset(n); ok {
		now := time.Now()
		t.setWallClock(t.loop.localTime(now).Add(median), now)
	}
	if !before && c.elapsedKnown {
		t.loop.placeDirty = true
		t.loop.markUrgent() // what was held back until the elapsed time is known
	}
}

// setWallClock has the stamp clock follow the median of the members' clocks. If no member has kept
// the elapsed time, it advances by as much as has passed on the wall clocks.
func (t *tenure) setWallClock(wall, now time.Time) {
	c, before := &t.clocks, t.loop.clock.times()
	known := c.settled && c.elapsedKnown
	switch {
	case c.elapsedKnown:
	case c.keptKnown:
		c.elapsedKnown = true
	case t.capacity.allHeard(), now.Sub(t.loop.startedAt) > keptWait:
		t.loop.clock, c.elapsedKnown = t.loop.clock.reach(c.last.Elapsed.Add(wall.Sub(c.last.Wall))), true
	}
	if known {
		t.loop.clock = t.loop.clock.follow(wall)
	} else {
		t.loop.clock = t.loop.clock.settle(wall)
	}
	after := t.loop.clock.times()
	if step := after.Wall.Sub(before.Wall); step.Abs() > maxClockSkew {
		t.loop.log.Warn("the members' clocks were set, or differ from the ledger's time", "by", step.Round(time.Millisecond))
		if c.settled {
			c.step, c.stepAt = step, now
		}
	}
	c.settled, t.crons.clockKnown = true, true
	if after.Wall.Before(before.Wall) {
		t.crons.moveAt, t.crons.dirty = now, true // the next ticks were computed for a later time
	}
	if after.Now.Sub(before.Now) > clockSlack {
		t.lease.renew(t.phase()) // the lease in the ledger was granted by the old time
	}
}

// ledgerTimeWarnings returns a warning if the ledger's time is ahead of the members' clocks, and one
// if these were set lately.
func (t *tenure) ledgerTimeWarnings(now time.Time) (warnings []string) {
	if ahead := t.loop.clock.times().Ahead(); t.clocks.settled && ahead > maxClockSkew {
		warnings = append(warnings, fmt.Sprintf("the yard's time is %s ahead of the members' clocks, because they were ahead before: it runs slower until it is right; delays and waits do not depend on it, times of events do", duration.Format(ahead.Round(100*time.Millisecond))))
	}
	if c := &t.clocks; !c.stepAt.IsZero() && now.Sub(c.stepAt) < stepReported {
		direction := "forward"
		if c.step < 0 {
			direction = "back"
		}
		warnings = append(warnings, fmt.Sprintf("the members' clocks were set %s by %s, %s ago: run_at, expires_at and cron follow them; let a time service keep them", direction, duration.Format(c.step.Abs().Round(100*time.Millisecond)), duration.Format(now.Sub(c.stepAt).Round(time.Minute))))
	}
	return warnings
}

// clockWarnings returns a readiness reason for each member whose clock deviates from
// the median by more than maxClockSkew.
func (c *capacity) clockWarnings() (reasons []string) {
	median, ok := c.medianOffset(nil)
	if !ok {
		return nil
	}
	for _, n := range c.nodes {
		if off, ok := n.clockDeviation(median); ok && off.Abs() > maxClockSkew {
			reasons = append(reasons, fmt.Sprintf("member %s's clock is off by %s: set it, and let a time service keep it", n.name, duration.Format(off.Round(100*time.Millisecond))))
		}
	}
	slices.Sort(reasons)
	return reasons
}
