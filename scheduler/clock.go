package scheduler

import (
	"fmt"
	"slices"
	"time"
)

// Limits of clock deviations.
const (
	maxTakeoverLead = 5 * time.Second        // maximum lead of a tenure's first stamp over the ledger's time; a failover takes less
	clockSlack      = 500 * time.Millisecond // deviation of the stamps from the members' time that is left alone: heartbeats are delayed, too
	maxClockSkew    = 2 * time.Second        // deviation of a member's clock that is reported
	clockSamples    = 3                      // heartbeats that a member's clock is judged by
	slewDivisor     = 8                      // a clock that is ahead loses one part in slewDivisor
)

// stampClock determines the times of entries. It follows the monotonic clock, so that a
// step of the wall clock does not affect it, and it never goes back: a clock that is
// ahead runs slower until it is right.
type stampClock struct {
	base, since time.Time     // it showed base at since
	slew        time.Duration // how far it was ahead at since; it loses that much
}

// newStampClock returns a clock that starts at the wall clock's time, but not before
// ledgerNow, the ledger's time. Unless single is true, for a cluster of one member,
// it does not start more than maxTakeoverLead ahead of ledgerNow either: one wrong
// clock must not move the ledger's time forward for ever. A ledger that has no time
// yet does not limit it.
func newStampClock(ledgerNow time.Time, single bool) stampClock {
	now := time.Now()
	base := now
	if limit := ledgerNow.Add(maxTakeoverLead); !single && ledgerNow.Unix() > 0 && base.After(limit) {
		base = limit
	}
	if ledgerNow.After(base) {
		base = ledgerNow
	}
	return stampClock{base: base.Round(0), since: now}
}

// now returns the clock's time.
func (c stampClock) now() time.Time {
	e := time.Since(c.since)
	return c.base.Add(e - min(e/slewDivisor, c.slew))
}

// adjust returns a clock that shows the time to: at once if c is behind, by running
// slower if c is ahead. A deviation within clockSlack changes nothing.
func (c stampClock) adjust(to time.Time) stampClock {
	now := time.Now()
	current := c.now()
	switch ahead := current.Sub(to); {
	case ahead < -clockSlack:
		return stampClock{base: to.Round(0), since: now}
	case ahead > clockSlack:
		return stampClock{base: current, since: now, slew: ahead}
	}
	return c
}

// clockOffsets holds the last samples of a member's clock: how far its time in a
// heartbeat was ahead of this node's clock on arrival. Each sample is too low by the
// heartbeat's travel time.
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
// back. ok is false unless these members are a majority.
func (c *capacity) medianOffset() (median time.Duration, ok bool) {
	var offsets []time.Duration
	for _, name := range c.members {
		if n := c.nodes[name]; n != nil && !n.silent && n.clock.n > 0 {
			offsets = append(offsets, n.clock.offset())
		}
	}
	if len(offsets) == 0 || len(offsets) <= len(c.members)/2 {
		return 0, false
	}
	slices.Sort(offsets)
	return offsets[(len(offsets)-1)/2], true
}

// clockWarnings returns a readiness reason for each member whose clock deviates from
// the median by more than maxClockSkew.
func (c *capacity) clockWarnings() (reasons []string) {
	median, ok := c.medianOffset()
	if !ok {
		return nil
	}
	for _, n := range c.nodes {
		if n.silent || n.clock.n == 0 {
			continue
		}
		if off := n.clock.offset() - median; off.Abs() > maxClockSkew {
			reasons = append(reasons, fmt.Sprintf("member %s's clock is off by %s: set it, and let a time service keep it", n.name, off.Round(100*time.Millisecond)))
		}
	}
	slices.Sort(reasons)
	return reasons
}
