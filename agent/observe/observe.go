// Package observe measures and traces the dispatches that pass between an agent and its
// targets, the edge and the runner pools.
package observe

import (
	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/tracing"
	"github.com/yardmaster-dev/yardmaster/web"
)

// JobLog stores the log lines of jobs. Log does not block.
type JobLog interface{ Log(l job.LogLine) }

// Observer wraps the agent for its targets, and the targets for the agent.
type Observer struct {
	node     string
	executor timedExecutor
}

// New returns an observer for the agent of a node. Without a tracer, which may be nil,
// dispatches are measured only.
func New(node string, a *agent.Agent, log JobLog, tracer *tracing.Tracer, metrics *web.Metrics) *Observer {
	timer := &dispatchTimer{metrics: metrics, started: map[job.DispatchID]startedDispatch{}}
	return &Observer{node, timedExecutor{tracedExecutor{a, log, tracer}, timer}}
}

// Executor is the agent as its targets see it, with the job log.
type Executor interface {
	edge.Executor
	runnerpool.Executor
}

// Executor returns the agent for its targets.
func (o *Observer) Executor() Executor { return o.executor }

// AddTarget adds a target to the agent.
func (o *Observer) AddTarget(t agent.Target) {
	if tracer := o.executor.tracer; tracer != nil {
		t = tracedTarget{t, tracer, o.node}
	}
	o.executor.Agent.AddTarget(timedTarget{t, o.executor.timer})
}
