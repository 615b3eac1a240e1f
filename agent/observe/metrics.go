package observe

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/web"
)

// dispatchTimer measures how long this node's dispatches run.
type dispatchTimer struct {
	metrics *web.Metrics
	mu      crash.Mutex
	started map[job.DispatchID]startedDispatch
}

type startedDispatch struct {
	dispatch web.Dispatch
	at       time.Time
}

// remove removes a dispatch and returns what was recorded at its start.
func (t *dispatchTimer) remove(id job.DispatchID) (started startedDispatch, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	started, ok = t.started[id]
	delete(t.started, id)
	return started, ok
}

// countFinished returns a function that counts the job of a dispatch if it has ended with
// it, and then calls then, unless that is nil.
func (t *dispatchTimer) countFinished(d web.Dispatch, then func(job.Settled)) func(job.Settled) {
	return func(settled job.Settled) {
		if !settled.Stale && settled.State.Ended() {
			t.metrics.Finished(d, settled.State.String())
		}
		if then != nil {
			then(settled)
		}
	}
}

// timedTarget records the dispatches that its target starts.
type timedTarget struct {
	agent.Target
	timer *dispatchTimer
}

// Start starts a dispatch at the target and records when it was started. How long the
// job waited is measured unless its worker brought the dispatch from another node,
// which has measured it.
func (t timedTarget) Start(a job.Assignment, spec job.Spec) bool {
	s := startedDispatch{dispatch: web.Dispatch{Kind: "worker", Queue: a.Queue, Function: a.Function}, at: time.Now()}
	if a.Kind == job.RRQ {
		s.dispatch.Kind, s.dispatch.Runner = "runner", a.Key
	}
	t.timer.mu.Lock()
	t.timer.started[a.DispatchID()] = s
	t.timer.mu.Unlock()
	if !t.Target.Start(a, spec) {
		t.timer.remove(a.DispatchID())
		return false
	}
	if a.Started.IsZero() {
		t.timer.metrics.Started(s.dispatch, s.at.Sub(a.RunAt))
	}
	return true
}

func (t timedTarget) Stop(r job.Recall) {
	t.Target.Stop(r)
	if r.Reason == job.RecallSuperseded && t.Kind() == job.Overhop {
		t.timer.remove(r.DispatchID()) // no outcome follows
	}
}

// timedExecutor records the ends of dispatches and of their jobs.
type timedExecutor struct {
	tracedExecutor
	timer *dispatchTimer
}

func (e timedExecutor) Report(o job.Outcome, onSettled func(job.Settled)) {
	if started, ok := e.timer.remove(o.DispatchID()); ok {
		e.timer.metrics.Ended(started.dispatch, o.Status.String(), time.Since(started.at))
		onSettled = e.timer.countFinished(started.dispatch, onSettled)
	}
	e.tracedExecutor.Report(o, onSettled)
}
