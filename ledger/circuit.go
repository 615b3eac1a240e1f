package ledger

import (
	"fmt"

	"github.com/yardmaster-dev/yardmaster/job"
)

// circuit is the state of a limit's circuit breaker: closed, or open. Some time after it has
// opened, a few jobs at a time may start as probes: the first that completes closes it.
type circuit struct {
	failures    []int64 // times of the failures that may open it, in Unix nanoseconds of elapsed time, oldest first
	openedAt    int64   // likewise; 0: it is closed
	probeAt     int64   // open: when the first probe may start, likewise
	probesSince int64   // open: a job that started then or later, in the ledger's time, is a probe
	probes      int     // active jobs that are probes; it follows from the active jobs
}

// startsAt returns the earliest time at which the circuit permits a start.
func (c *circuit) startsAt(m *limit) int64 {
	switch {
	case c.openedAt == 0:
		return 0
	case c.probes >= m.Circuit.Probes():
		return never
	}
	return c.probeAt
}

// isProbe reports whether an active job is a probe.
func (c *circuit) isProbe(stored *storedJob) bool {
	return c.openedAt != 0 && stored.run.started >= c.probesSince
}

// settleCircuits tells the circuits of an active job's limits how its attempt ends. An attempt
// that is given back, or was cancelled, says nothing about what the limits protect.
func (d *dispatches) settleCircuits(stored *storedJob, settlement *Settlement) {
	completed := settlement.Next == job.NextDone
	if !completed && (settlement.Next == job.NextGiveBack || stored.flags&cancelling != 0) {
		return
	}
	var fault job.Fault
	if settlement.Fault != nil {
		fault = *settlement.Fault
	}
	for _, m := range stored.waitlist.bounds {
		if m.Circuit.OpenAfter == 0 {
			continue
		}
		c := &m.circuit
		failed := !completed && m.Circuit.Counts(fault.Type, fault.Code)
		switch {
		case c.openedAt == 0 && failed:
			d.countFailure(m)
			if c.openedAt != 0 {
				d.circuitChanged(m, "limit.open", fmt.Sprintf("%d failures within %s", m.Circuit.OpenAfter, durationText(m.Circuit.Within, d.longDurations())))
			}
		case c.openedAt != 0 && c.isProbe(stored) && failed:
			d.openCircuit(m)
			d.circuitChanged(m, "limit.open", "a probe failed")
		case c.openedAt != 0 && c.isProbe(stored) && completed:
			*c = circuit{}
			d.circuitChanged(m, "limit.close", "a probe completed")
		}
	}
}

// countFailure counts a failure, and opens the limit's circuit if there were enough of them.
func (d *dispatches) countFailure(m *limit) {
	c, now := &m.circuit, d.elapsed
	recent := c.failures[:0]
	for _, at := range c.failures {
		if at > now-int64(m.Circuit.Within) {
			recent = append(recent, at)
		}
	}
	c.failures = append(recent, now)
	if len(c.failures) >= int(m.Circuit.OpenAfter) {
		d.openCircuit(m)
	}
}

// openCircuit opens the limit's circuit. No active job is a probe then.
func (d *dispatches) openCircuit(m *limit) {
	probeAt := d.elapsed + int64(m.Circuit.Pause())
	m.circuit = circuit{openedAt: d.elapsed, probeAt: probeAt, probesSince: d.probesSince(probeAt)}
}

// probesSince returns the time from which jobs that start are probes of an open circuit, which
// permits the first one at probeAt: that is any time after the present.
func (d *dispatches) probesSince(probeAt int64) int64 {
	if d.outbox.level < level8 {
		return probeAt
	}
	return d.now + 1
}

// circuitChanged records that a circuit has opened or closed as an act of the ledger.
func (d *dispatches) circuitChanged(m *limit, action, reason string) {
	d.act(byRule(reason), action, Event{}, m.Name, nil)
}
