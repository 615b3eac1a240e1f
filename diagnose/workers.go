package diagnose

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Limits of a list of workers.
const (
	maxListedWorkers = 100     // of one node
	maxListedJobs    = 10      // of one worker; 1000 if only one matches
	maxListedBytes   = 1 << 20 // of the JSON of all of them, so that it fits a NATS message
)

// ListWorkers returns the workers and the runner processes of all members that match the
// request. A member that does not answer within queryTimeout has only an error and the
// number of jobs that the ledger has there.
func (g *Diagnoser) ListWorkers(ctx context.Context, request *api.WorkerRequest) (*api.WorkerList, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	members := slices.Sorted(slices.Values(g.cfg.Members()))
	if request.Node != "" {
		if !slices.Contains(members, request.Node) {
			return nil, &job.InvalidError{Reason: "no member is named " + request.Node}
		}
		members = []string{request.Node}
	}
	nodes := make([]api.NodeWorkers, len(members))
	var queries crash.Group
	for i, member := range members {
		queries.Run(func() {
			if member == g.cfg.Node {
				nodes[i], _ = g.localWorkers(ctx, *request)
				return
			}
			if err := g.cfg.Peers.RequestJSON(ctx, member, verbWorkers, request, &nodes[i]); err != nil {
				nodes[i] = api.NodeWorkers{Node: member, Error: cluster.ErrorText(err), Running: len(g.activeAt(member))}
			}
		})
	}
	_ = queries.Wait() // the functions return no errors
	for i := range nodes {
		fitWorkers(&nodes[i], maxListedBytes/len(nodes))
	}
	return &api.WorkerList{Nodes: nodes}, nil
}

// fitWorkers cuts the list of a node's workers, and of the jobs of each, where its JSON
// exceeds size bytes.
func fitWorkers(node *api.NodeWorkers, size int) {
	for i := range node.Workers {
		w := &node.Workers[i]
		jobs := w.Jobs
		w.Jobs = nil
		if size -= jsonSize(w); size < 0 {
			node.Workers, node.More = node.Workers[:i], node.More+len(node.Workers)-i
			return
		}
		for _, j := range jobs {
			if size -= jsonSize(&j); size < 0 {
				break
			}
			w.Jobs = append(w.Jobs, j)
		}
	}
}

// jsonSize returns the size of the JSON of v, in bytes.
func jsonSize(v any) int {
	text, _ := json.Marshal(v) // what is listed can be encoded
	return len(text)
}

// activeAt returns the dispatches that the ledger has as active at a node, oldest first.
func (g *Diagnoser) activeAt(node string) (active []ledger.ActiveDispatch) {
	g.cfg.View(func(l *ledger.Ledger) {
		l.ActiveDispatches(func(d ledger.ActiveDispatch) bool {
			if d.Node == node {
				active = append(active, d)
			}
			return true
		})
	})
	slices.SortStableFunc(active, func(a, b ledger.ActiveDispatch) int { return a.Started.Compare(b.Started) })
	return active
}

// localWorkers returns this node's workers and runner processes that match the request.
// The error is always nil.
func (g *Diagnoser) localWorkers(_ context.Context, request api.WorkerRequest) (api.NodeWorkers, error) {
	active := g.activeAt(g.cfg.Node)
	node := api.NodeWorkers{Node: g.cfg.Node, Running: len(active)}
	node.Workers, node.More = g.cfg.Workers.Workers(&request, maxListedWorkers)
	for _, pool := range g.cfg.Pools() {
		for _, process := range pool.Members {
			listed := workerOfPool(pool.Runner, process)
			if request.Queue != "" || request.Worker != "" && request.Worker != pool.Runner && request.Worker != listed.Worker {
				continue
			}
			if len(node.Workers) == maxListedWorkers {
				node.More++
				continue
			}
			node.Workers = append(node.Workers, listed)
		}
	}

	limit := maxListedJobs
	if len(node.Workers) == 1 {
		limit = 100 * maxListedJobs
	}
	byWorker := map[string][]ledger.ActiveDispatch{}
	for _, d := range active {
		byWorker[d.Channel] = append(byWorker[d.Channel], d)
	}
	for i := range node.Workers {
		w := &node.Workers[i]
		running := byWorker[w.Worker]
		for _, d := range running[:min(len(running), limit)] {
			w.Jobs = append(w.Jobs, g.workerJob(d))
		}
	}
	return node, nil
}

// workerOfPool returns a process of a runner as a worker is listed.
func workerOfPool(runner string, process api.PoolProcess) api.Worker {
	w := api.Worker{
		Kind: "runner", Name: runner, PID: process.PID, Slots: process.Slots, Running: process.InFlight, Drained: process.Drained, Reason: process.Reason,
	}
	if process.Worker != "" {
		w.Worker = job.Channel(job.RRQ, process.Worker)
	}
	return w
}

// workerJob returns a dispatch as one of the jobs that a worker runs, with the percentage
// that an Overhop worker of this node reported last.
func (g *Diagnoser) workerJob(d ledger.ActiveDispatch) api.WorkerJob {
	listed := api.WorkerJob{
		ID: d.ID, JID: d.Queue + ":" + d.ID.String(), Function: d.Function, Attempt: d.Attempt, Started: d.Started,
	}
	if progress, ok := g.cfg.Workers.Running(d.ID, d.N); ok {
		listed.Percent = progress.Percent
	}
	return listed
}
