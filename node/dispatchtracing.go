package node

import (
	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/server/joblog"
	"github.com/yardmaster-dev/yardmaster/tracing"
)

// Wrappers between the agent and its targets that trace dispatches, if tracing is on.

// tracedTarget begins a span for each dispatch that its target starts.
type tracedTarget struct {
	agent.Target
	tracer *tracing.Tracer
	node   string
}

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
	*joblog.Writer
	tracer *tracing.Tracer
}

func (e tracedExecutor) Report(o job.Outcome, then func(job.Settled)) {
	if e.tracer != nil {
		then = e.tracer.Ended(&o, then)
	}
	e.Agent.Report(o, then)
}

// traced returns t, wrapped in a tracedTarget if tracing is on.
func (n *Node) traced(t agent.Target) agent.Target {
	if n.tracer == nil {
		return t
	}
	return tracedTarget{t, n.tracer, n.cfg.Node.Name}
}
