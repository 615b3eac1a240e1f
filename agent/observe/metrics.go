package observe

import (
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/web"
)

// dispatchTimer measures how long this node's dispatches run.
type dispatchTimer struct {
	metrics *web.Metrics
	mu      sync.Mutex
	started map[job.DispatchID]startedDispatch
}

type startedDispatch struct {
	executor web.Executor
	at       time.Time
}

// remove removes a dispatch and returns what was recorded at its start.
func (t *dispatchTimer) remove(id job.ID, n uint32) (b startedDispatch, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, ok = t.started[job.DispatchID{Job: id, N: n}]
	delete(t.started, job.DispatchID{Job: id, N: n})
	return b, ok
}

// timedTarget records the dispatches that its target starts.
type timedTarget struct {
	agent.Target
	timer *dispatchTimer
}

func (t timedTarget) Start(a job.Assignment, spec job.Spec) bool {
	s := startedDispatch{executor: web.Worker(), at: time.Now()}
	if a.Kind == job.RRQ {
		s.executor = web.Runner(a.Key)
	}
	t.timer.mu.Lock()
	t.timer.started[a.DispatchID()] = s
	t.timer.mu.Unlock()
	if !t.Target.Start(a, spec) {
		t.timer.remove(a.Job, a.N)
		return false
	}
	if a.Started.IsZero() { // else its worker brought it from another node, which counted it
		t.timer.metrics.Started(s.executor, s.at.Sub(a.RunAt))
	}
	return true
}

func (t timedTarget) Stop(r job.Recall) {
	t.Target.Stop(r)
	if r.Reason == job.RecallSuperseded && t.Kind() == job.Overhop {
		t.timer.remove(r.Job, r.N) // no outcome follows
	}
}

// timedExecutor records the ends of dispatches.
type timedExecutor struct {
	tracedExecutor
	timer *dispatchTimer
}

func (e timedExecutor) Report(o job.Outcome, then func(job.Settled)) {
	if b, ok := e.timer.remove(o.Job, o.N); ok {
		e.timer.metrics.Ended(b.executor, o.Status.String(), time.Since(b.at))
	}
	e.tracedExecutor.Report(o, then)
}
