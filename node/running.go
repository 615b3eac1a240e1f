package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/edge"
	"yardmaster/job"
)

// verbRunning asks a node what only it knows of a dispatch that it runs: the
// request is the dispatch's id, the answer a [job.Running].
const verbRunning = "running"

// runningTime is how long that may take. Whoever looks at a job does not wait
// for a node in trouble; the job is shown without.
const runningTime = 200 * time.Millisecond

// runningDesk asks nodes about what they run.
type runningDesk struct {
	node  string
	edge  *edge.Server
	fleet *cluster.Fleet
}

// add completes the view of a job that an Overhop worker runs, as far as its
// node answers. Runners tell nothing before they are done.
func (d *runningDesk) add(ctx context.Context, v *job.View) {
	if v.State != job.Active || !strings.HasPrefix(v.Worker, job.Channel(job.Overhop, "")) {
		return
	}
	if v.Node == d.node {
		if r, ok := d.edge.Running(v.ID, v.Dispatches); ok {
			v.Running = &r
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, runningTime)
	defer cancel()
	answer, err := d.fleet.Request(ctx, v.Node, verbRunning, []byte(job.RequestID(v.ID, v.Dispatches)))
	if err != nil {
		return // also if the dispatch is not there, or no more
	}
	var r job.Running
	if json.Unmarshal(answer, &r) == nil {
		v.Running = &r
	}
}

// serve answers another node.
func (d *runningDesk) serve(_ context.Context, request []byte) ([]byte, error) {
	id, n, ok := job.ParseRequestID(string(request))
	if !ok {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("%q names no dispatch", request)}
	}
	r, ok := d.edge.Running(id, n)
	if !ok {
		return nil, fmt.Errorf("dispatch %s: %w", request, job.ErrNotActive)
	}
	return json.Marshal(r)
}
