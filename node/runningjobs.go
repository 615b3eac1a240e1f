package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/job"
)

// verbRunningJob asks a node about a dispatch that it runs: the request is the id of the
// dispatch, the reply a [job.Progress].
const verbRunningJob = "running_job"

// runningJobTimeout bounds that request. A job is shown without progress rather than
// waiting for a node in trouble.
const runningJobTimeout = 200 * time.Millisecond

// runningLookup asks nodes about the dispatches that they run.
type runningLookup struct {
	node  string
	edge  *edge.Server
	fleet *cluster.Fleet
}

// addProgress adds the progress of a job that an Overhop worker runs, if its node
// answers. Runners do not report progress.
func (l *runningLookup) addProgress(ctx context.Context, v *job.View) {
	if v.State != job.Active || !strings.HasPrefix(v.Worker, job.Channel(job.Overhop, "")) {
		return
	}
	if v.Node == l.node {
		if r, ok := l.edge.Running(v.ID, v.Dispatches); ok {
			v.Progress = &r
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, runningJobTimeout)
	defer cancel()
	answer, err := l.fleet.Request(ctx, v.Node, verbRunningJob, []byte(job.RequestID(v.ID, v.Dispatches)))
	if err != nil {
		return // also if the node does not run the dispatch (any more)
	}
	var r job.Progress
	if json.Unmarshal(answer, &r) == nil {
		v.Progress = &r
	}
}

// serve answers a request of another node.
func (l *runningLookup) serve(_ context.Context, request []byte) ([]byte, error) {
	id, n, ok := job.ParseRequestID(string(request))
	if !ok {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("%q names no dispatch", request)}
	}
	r, ok := l.edge.Running(id, n)
	if !ok {
		return nil, fmt.Errorf("dispatch %s: %w", request, job.ErrNotActive)
	}
	return json.Marshal(r)
}
