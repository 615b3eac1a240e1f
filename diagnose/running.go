package diagnose

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// runningJobTimeout bounds the request for a job's progress. A job is shown without
// progress rather than waiting for a node in trouble.
const runningJobTimeout = 200 * time.Millisecond

// AddProgress adds the progress of a job that an Overhop worker runs, if its node
// answers. Runners do not report progress.
func (g *Diagnoser) AddProgress(ctx context.Context, v *job.View) {
	if v.State != job.Active || !strings.HasPrefix(v.Worker, job.Channel(job.Overhop, "")) {
		return
	}
	if v.Node == g.cfg.Node {
		if progress, ok := g.cfg.Workers.Running(v.ID, v.Dispatches); ok {
			v.Progress = &progress
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, runningJobTimeout)
	defer cancel()
	answer, err := g.cfg.Peers.Request(ctx, v.Node, verbRunningJob, []byte(job.RequestID(v.ID, v.Dispatches)))
	if err != nil {
		return // also if the node does not run the dispatch (any more)
	}
	var progress job.Progress
	if json.Unmarshal(answer, &progress) == nil {
		v.Progress = &progress
	}
}

// serveRunning answers a request of another node about a dispatch that this node runs.
func (g *Diagnoser) serveRunning(_ context.Context, request []byte) ([]byte, error) {
	id, n, ok := job.ParseRequestID(string(request))
	if !ok {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("%q names no dispatch", request)}
	}
	progress, ok := g.cfg.Workers.Running(id, n)
	if !ok {
		return nil, fmt.Errorf("dispatch %s: %w", request, job.ErrNotActive)
	}
	return json.Marshal(progress)
}
