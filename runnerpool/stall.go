package runnerpool

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"yardmaster/job"
)

// stall is what the yard has been told of a member that does not work: once
// when it stalls, once when it has recovered.
type stall struct {
	told atomic.Bool // and not taken back
	as   string      // the channel it was told of; under the pools' lock
}

// stalled takes a member whose processes end again and again out of service
// and tells the yard, once until it has recovered.
func (m *member) stalled(err error) {
	why := job.StalledCrashes
	switch {
	case m.pools.cfg.Management == External:
		why = job.StalledUnreachable
	case errors.Is(err, errPortTaken):
		why = job.StalledPort
	case errors.Is(err, errNoStart):
		why = job.StalledNoStart
	}
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	if why == job.StalledCrashes {
		m.reason = fmt.Sprintf("crash loop, %d ends within %s; last: %v; the node's log has what it printed", loopEnds, loopWindow, err)
	}
	if !m.looping {
		m.log.Error("runner does not work and is not offered", "why", why, "err", err)
	}
	m.looping = true
	if !m.stall.told.Swap(true) {
		m.stall.as = job.Channel(job.RRQ, workerName(m.runner, m.port))
		m.pools.hands.Stalled(m.stall.as, why)
	}
}

// answered notes that a request has been answered: the process works.
func (m *member) answered() {
	m.proved.Store(true)
	if m.stall.told.Load() {
		m.recovered()
	}
}

// onTrial lets a member whose stall has been told recover by living for a
// while, if nobody has a request for it. The returned function ends that.
func (m *member) onTrial() (over func()) {
	if !m.stall.told.Load() {
		return func() {}
	}
	trial := time.AfterFunc(loopWindow, m.recovered)
	return func() { trial.Stop() }
}

func (m *member) recovered() {
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	if m.stall.told.Swap(false) {
		m.log.Info("runner works again")
		m.pools.hands.Recovered(m.stall.as, job.RecoveredProven)
	}
}
