package agent

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// coalesceDelay is how long a lowered offer may wait for others to share a report
// with. The authority itself subtracts what it has placed, and an assignment to a
// worker that is gone is answered with NoCapacity.
const coalesceDelay = 10 * time.Millisecond

// slotKey identifies the capacity of one worker for one key (queue or runner).
type slotKey struct {
	kind        job.Kind
	key, worker string
}

// compare orders slots, so that the order of offers in a report is reproducible.
func (k slotKey) compare(o slotKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.key, o.key), cmp.Compare(k.worker, o.worker))
}

func slotKeyOf(asg *job.Assignment) slotKey { return slotKey{asg.Kind, asg.Key, asg.Worker} }

// slot is the capacity of one worker for one key, in jobs.
type slot struct {
	free     int  // as its target last offered
	reserved int  // for assignments that wait for their bodies
	dirty    bool // is in capacity.dirty
}

// available returns the capacity to offer.
func (s *slot) available() int { return max(s.free-s.reserved, 0) }

// capacity holds the node's slots and which of them are to be reported. It is
// guarded by the reporter's mu.
type capacity struct {
	slots    map[slotKey]*slot
	dirty    []slotKey // slots to be reported, in the order of their changes
	sendFull bool      // the next report must contain all slots
	urgent   bool      // capacity has become free: report at once
	flushAt  time.Time // when to report lowered offers; zero: none are dirty
	inFlight bool      // a report with offers is in flight

	rev      uint64 // revision of the last report with offers
	ackedRev uint64 // revision of the last one that was acknowledged

	seenEpoch, seenBatch uint64 // epoch and number of the last batch of assignments
}

func newCapacity() capacity { return capacity{slots: map[slotKey]*slot{}} }

// Offer sets the free capacity of one worker for one key; 0 withdraws it. The last
// value counts. It may be called with a target's locks held.
func (a *Agent) Offer(o job.Offer) {
	a.reporter.offer(o)
}

// set sets how many dispatches the slot with key k can take, 0 or less for none. It
// reports whether an offer has changed and the reporter must be woken to report it.
func (c *capacity) set(k slotKey, free int, now time.Time) (wake bool) {
	s := c.slots[k]
	if s == nil {
		if free <= 0 {
			return false
		}
		s = &slot{}
		c.slots[k] = s
	}
	availableBefore := s.available()
	s.free = max(free, 0)
	if s.available() == availableBefore {
		return false
	}
	return c.changed(k, s, availableBefore, now)
}

// changed marks a slot dirty whose available capacity was before. Capacity that has
// become free is reported at once, lowered capacity after coalesceDelay. It reports
// whether the reporter should be woken.
func (c *capacity) changed(k slotKey, s *slot, before int, now time.Time) bool {
	c.markDirty(k, s)
	if s.available() > before {
		c.urgent = true
		return true
	}
	return c.scheduleFlush(now)
}

// markDirty adds a slot to those to be reported.
func (c *capacity) markDirty(k slotKey, s *slot) {
	if !s.dirty {
		s.dirty = true
		c.dirty = append(c.dirty, k)
	}
}

// scheduleFlush sets the time at which lowered offers are reported, unless it is set.
// It reports whether it has set it.
func (c *capacity) scheduleFlush(now time.Time) bool {
	if !c.flushAt.IsZero() {
		return false
	}
	c.flushAt = now.Add(coalesceDelay)
	return true
}

// reserve reserves capacity for n assignments that wait for their bodies; a negative
// n releases it.
func (c *capacity) reserve(k slotKey, n int, now time.Time) {
	s := c.slots[k]
	if s == nil {
		return // the worker is gone; Target.Start will return false
	}
	before := s.available()
	s.reserved = max(s.reserved+n, 0)
	c.changed(k, s, before, now)
}

// batchSeen records that the agent has handled a batch of assignments, so that later
// offers take it into account. The slots of all assignments in the batch are reported
// again, even if unchanged, because until then the authority subtracts the batch from
// the offers that it has.
func (c *capacity) batchSeen(b job.AssignmentBatch, now time.Time) {
	c.seenEpoch, c.seenBatch = b.Epoch, max(b.Number, c.lastSeen(b.Epoch))
	for i := range b.Assignments {
		k := slotKeyOf(&b.Assignments[i])
		if s := c.slots[k]; s != nil {
			c.markDirty(k, s)
		}
	}
	c.scheduleFlush(now)
}

// lastSeen returns the number of the last batch handled in an epoch; 0 for none.
func (c *capacity) lastSeen(epoch uint64) uint64 {
	if c.seenEpoch != epoch {
		return 0
	}
	return c.seenBatch
}

// resendAll has the next report contain all slots, at once.
func (c *capacity) resendAll() { c.sendFull, c.urgent = true, true }

// due reports whether offers must be reported now. If not, at is when they must be, or
// zero if no report is necessary until an offer changes.
func (c *capacity) due(now time.Time) (isDue bool, at time.Time) {
	switch {
	case c.inFlight:
		return false, time.Time{} // checked again when that report is acknowledged
	case c.sendFull, c.urgent && len(c.dirty) > 0:
		return true, time.Time{}
	case c.flushAt.IsZero():
		return false, time.Time{}
	}
	return !now.Before(c.flushAt), c.flushAt
}

// fill adds to a report the offers of all slots that have changed, or of all slots with
// capacity if a full report is due. epoch is that of the authority that gets the report.
// Until reportDone no other report with offers is due, so that they arrive in order.
func (c *capacity) fill(report *job.Report, epoch uint64) {
	c.rev++
	report.Rev, report.Full, report.SeenBatch = c.rev, c.sendFull, c.lastSeen(epoch)
	if c.sendFull {
		for _, k := range slices.SortedFunc(maps.Keys(c.slots), slotKey.compare) {
			if s := c.slots[k]; s.available() > 0 {
				report.Offers = append(report.Offers, job.Offer{Kind: k.kind, Key: k.key, Worker: k.worker, Free: s.available()})
			}
		}
	}
	for _, k := range c.dirty {
		s := c.slots[k]
		s.dirty = false
		if !c.sendFull {
			report.Offers = append(report.Offers, job.Offer{Kind: k.kind, Key: k.key, Worker: k.worker, Free: s.available()})
		}
		if s.free == 0 && s.reserved == 0 {
			delete(c.slots, k) // if this report is lost, the next is full
		}
	}
	c.dirty = c.dirty[:0]
	c.sendFull, c.urgent, c.flushAt, c.inFlight = false, false, time.Time{}, true
}

// reportDone records the result of a report with offers.
func (c *capacity) reportDone(rev uint64, err error) {
	c.inFlight = false
	if err != nil {
		c.resendAll() // it may or may not have arrived
		return
	}
	c.ackedRev = rev
}
