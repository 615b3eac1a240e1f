package node

import (
	"yardmaster/agent"
	"yardmaster/job"
	"yardmaster/runnerpool"
	"yardmaster/tracing"
)

// What tracing sees of the hands: it stands between the agent and its targets,
// and only if runs are traced.

// tracedTarget makes a span of everything its target starts.
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
		t.tracer.Forget(a.Job, a.N)
	}
	return started
}

func (t tracedTarget) Stop(id job.ID, n uint32, why job.RecallReason) {
	t.tracer.Recalled(id, n, why)
	t.Target.Stop(id, n, why)
	if why == job.RecallSuperseded && t.Kind() == job.Overhop {
		t.tracer.Moved(id, n) // no outcome follows
	}
}

// tracedHands are the agent as its targets see it, with the journal of what jobs say.
// The tracer, if there is one, hears of every end.
type tracedHands struct {
	*agent.Agent
	*journal
	tracer *tracing.Tracer
}

func (h tracedHands) Report(o job.Outcome, then func(job.Settled)) {
	if h.tracer != nil {
		then = h.tracer.Ended(&o, then)
	}
	h.Agent.Report(o, then)
}

// traced is a target as the agent is to see it.
func (n *Node) traced(t agent.Target) agent.Target {
	if n.tracer == nil {
		return t
	}
	return tracedTarget{t, n.tracer, n.cfg.Node.Name}
}
