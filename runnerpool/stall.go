package runnerpool

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// stall records what was reported about a member that does not work.
type stall struct {
	reported atomic.Bool // Stalled was reported and Recovered was not
	channel  string      // the channel reported; guarded by Pools.mu
}

// reportStalled stops offering a member whose processes fail repeatedly, the
// last one because of err, and reports it once until it has recovered.
func (m *member) reportStalled(err error) {
	reason := job.StalledCrashLoop
	switch {
	case m.pools.cfg.Management == External:
		reason = job.StalledUnreachable
	case errors.Is(err, errPortTaken):
		reason = job.StalledPortTaken
	case errors.Is(err, errStartFailed):
		reason = job.StalledCannotStart
	}
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	if reason == job.StalledCrashLoop {
		m.reason = fmt.Sprintf("crash loop, %d exits within %s; last: %v; see the node's log for its output", crashLoopExits, crashLoopWindow, err)
	}
	if !m.crashLooping {
		m.log.Error("runner is failing, no jobs are offered to it", "reason", reason, "err", err)
	}
	m.crashLooping = true
	if !m.stall.reported.Swap(true) {
		m.stall.channel = job.Channel(job.RRQ, workerName(m.runner, m.port))
		m.pools.executor.Stalled(m.stall.channel, reason)
	}
}

// noteAnswered records that a request was answered, so the process works.
func (m *member) noteAnswered() {
	m.hasAnswered.Store(true)
	if m.stall.reported.Load() {
		m.reportRecovered()
	}
}

// startTrial makes a stalled member recover if its process lives for
// crashLoopWindow, even if it gets no requests. stop ends the trial.
func (m *member) startTrial() (stop func()) {
	if !m.stall.reported.Load() {
		return func() {}
	}
	trial := time.AfterFunc(crashLoopWindow, m.reportRecovered)
	return func() { trial.Stop() }
}

func (m *member) reportRecovered() {
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	if m.stall.reported.Swap(false) {
		m.log.Info("runner recovered")
		m.pools.executor.Recovered(m.stall.channel, job.RecoveredProven)
	}
}
