package scheduler

import (
	"fmt"
	"slices"
	"time"

	"yardmaster/job"
)

// How far clocks are trusted.
const (
	takeOverAhead = 5 * time.Second        // most that a tenure's first stamp is ahead of the ledger; a failover takes less
	clockSlack    = 500 * time.Millisecond // how far from the members' time stamps may stay: beats are late, too
	clockOff      = 2 * time.Second        // how far a member's clock may be off
	clockBeats    = 3                      // beats that a member's clock is judged by
	dragShare     = 8                      // a clock that is ahead loses one part in as many
)

// stampClock gives the times of entries. It advances by the monotonic clock,
// so that a step of the wall clock moves nothing, and never goes back: one
// that is ahead is slowed down for as long as it takes.
type stampClock struct {
	base, since time.Time
	drag        time.Duration // to be lost since then
}

// newStampClock starts at the wall clock's time, but not before the ledger's.
// While others could say what time it is (alone is false), it does not start
// far ahead of the ledger's either: one wrong clock must not move the ledger's
// time for ever. A ledger without any time has nothing to lose.
func newStampClock(ledgerNow time.Time, alone bool) stampClock {
	now := time.Now()
	base := now
	if latest := ledgerNow.Add(takeOverAhead); !alone && ledgerNow.Unix() > 0 && base.After(latest) {
		base = latest
	}
	if ledgerNow.After(base) {
		base = ledgerNow
	}
	return stampClock{base: base.Round(0), since: now}
}

func (c stampClock) now() time.Time {
	e := time.Since(c.since)
	return c.base.Add(e - min(e/dragShare, c.drag))
}

// steer brings the clock to a time: forward at once, back by going slower.
func (c stampClock) steer(to time.Time) stampClock {
	now := time.Now()
	at := c.now()
	switch ahead := at.Sub(to); {
	case ahead < -clockSlack:
		return stampClock{base: to.Round(0), since: now}
	case ahead > clockSlack:
		return stampClock{base: at, since: now, drag: ahead}
	}
	return c
}

// clocks is what a member's beats told of its clock: how far ahead of this
// node's each was when it came in, which is too little by the time it took.
type clocks struct {
	ahead [clockBeats]time.Duration
	n     int
}

func (c *clocks) hear(ahead time.Duration) {
	c.ahead[c.n%clockBeats] = ahead
	c.n++
}

// off is how far the clock is ahead, by the quickest of the last beats.
func (c *clocks) off() time.Duration { return slices.Max(c.ahead[:min(c.n, clockBeats)]) }

// hearClock takes the time that a beat tells, and steers the stamps by what
// the members' clocks say together.
func (m *mind) hearClock(b job.Beat, arrived time.Time) {
	n := m.nodeOf(b.Node, b.Incarnation)
	if b.At.IsZero() || b.Incarnation < n.incarnation {
		return
	}
	n.clocks.hear(b.At.Sub(arrived))
	median, ok := m.membersTime()
	if len(m.members) <= 1 || !ok {
		return
	}
	m.crons.timed = true
	before := m.clock.now()
	m.clock = m.clock.steer(time.Now().Add(median))
	if after := m.clock.now(); after.Sub(before) > clockSlack {
		m.sched.log.Info("stamps go by the members' clocks", "forward", after.Sub(before).Round(time.Millisecond))
		m.renew() // the lease in the ledger ran by the old time
	}
}

// membersTime is the median of the clocks of the members that are heard,
// relative to this node's; of an even number the earlier, because the ledger's
// time cannot be taken back. ok is false unless they are a majority.
func (m *mind) membersTime() (median time.Duration, ok bool) {
	var offs []time.Duration
	for _, name := range m.members {
		if n := m.nodes[name]; n != nil && !n.silent && n.clocks.n > 0 {
			offs = append(offs, n.clocks.off())
		}
	}
	if len(offs) == 0 || len(offs) <= len(m.members)/2 {
		return 0, false
	}
	slices.Sort(offs)
	return offs[(len(offs)-1)/2], true
}

// wrongClocks gives a reason for each member whose clock is off.
func (m *mind) wrongClocks() (reasons []string) {
	median, ok := m.membersTime()
	if !ok {
		return nil
	}
	for _, n := range m.nodes {
		if n.silent || n.clocks.n == 0 {
			continue
		}
		if off := n.clocks.off() - median; off.Abs() > clockOff {
			reasons = append(reasons, fmt.Sprintf("member %s's clock is off by %s: set it, and let a time service keep it", n.name, off.Round(100*time.Millisecond)))
		}
	}
	slices.Sort(reasons)
	return reasons
}
