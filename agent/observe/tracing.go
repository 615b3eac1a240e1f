package observe

import (
	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/tracing"
)

// tracedTarget begins a span for each dispatch that its target starts.
type tracedTarget struct {
	agent.Target
	tracer *tracing.Tracer
	node   string
}

// Start begins the span, which the job continues by its spec, and starts the dispatch at
// the target. The span is discarded if the target does not start it.
func (t tracedTarget) Start(a job.Assignment, spec job.Spec) bool {
	worker := a.Worker
	if a.Kind == job.RRQ {
		worker = runnerpool.WorkerID(t.node, worker)
	}
	spec.Trace = t.tracer.Begin(&a, spec.Trace, worker)
	started := t.Target.Start(a, spec)
	if !started {
		t.tracer.Discard(a.Job, a.N)
	}
	return started
}

func (t tracedTarget) Stop(r job.Recall) {
	t.tracer.Recalled(r.Job, r.N, r.Reason)
	t.Target.Stop(r)
	if r.Reason == job.RecallSuperseded && t.Kind() == job.Overhop {
		t.tracer.Moved(r.Job, r.N) // no outcome follows
	}
}

// tracedExecutor is the agent as its targets see it, with the job log. If tracing is on
// it ends the span of each dispatch.
type tracedExecutor struct {
	*agent.Agent
	JobLog
	tracer *tracing.Tracer
}

func (e tracedExecutor) Report(o job.Outcome, onSettled func(job.Settled)) {
	if e.tracer != nil {
		onSettled = e.tracer.Ended(&o, onSettled)
	}
	e.Agent.Report(o, onSettled)
}
