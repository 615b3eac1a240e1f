package diagnose

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// explainPlacement asks the authority, which may be this node, what prevents the
// placement of a job. Without an answer within queryTimeout, explanation is nil and
// noAnswer says why.
func (g *Diagnoser) explainPlacement(ctx context.Context, q scheduler.PlacementQuery) (explanation *scheduler.PlacementExplanation, noAnswer api.Reason) {
	if text := g.cfg.NoQuorum(); text != "" {
		return nil, api.Reason{Code: api.ReasonNoQuorum, Text: text}
	}
	owner, ok := g.cfg.Authority()
	if !ok {
		return nil, api.Reason{Code: api.ReasonNoAuthority, Text: "no authority is known: no node decides"}
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var answer scheduler.PlacementExplanation
	var err error
	if owner == g.cfg.Node {
		answer, err = g.cfg.Placement(ctx, q)
	} else {
		err = g.cfg.Peers.RequestJSON(ctx, owner, verbExplainPlacement, q, &answer)
	}
	if err != nil {
		return nil, api.Reason{Code: api.ReasonAuthoritySilent, Text: fmt.Sprintf("the authority, %s, does not answer: %s", owner, cluster.ErrorText(err))}
	}
	return &answer, api.Reason{}
}

// executorsRequest names a queue, for its workers, and a runner; "" for none.
type executorsRequest struct {
	Queue  string `json:"queue,omitempty"`
	Runner string `json:"runner,omitempty"`
}

// queryExecutors asks all members at the same time for their executors. The answers are
// in the order of [Config].Members; that of a member which does not answer within
// queryTimeout has only its name and an error.
func (g *Diagnoser) queryExecutors(ctx context.Context, req executorsRequest) []api.NodeExecutors {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	members := g.cfg.Members()
	all := make([]api.NodeExecutors, len(members))
	var queries crash.Group
	for i := range members {
		if members[i] == g.cfg.Node {
			all[i], _ = g.localExecutors(ctx, req)
			continue
		}
		queries.Run(func() {
			if err := g.cfg.Peers.RequestJSON(ctx, members[i], verbExecutors, req, &all[i]); err != nil {
				all[i] = api.NodeExecutors{Error: cluster.ErrorText(err)}
			}
			all[i].Node = members[i]
		})
	}
	_ = queries.Wait() // the functions return no errors
	return all
}

// localExecutors returns this node's executors that match req. The error is always nil.
func (g *Diagnoser) localExecutors(_ context.Context, req executorsRequest) (api.NodeExecutors, error) {
	n := api.NodeExecutors{Node: g.cfg.Node, Drained: g.cfg.Drained()}
	if req.Queue != "" {
		n.Workers = new(g.cfg.Workers.Subscribers(req.Queue))
	}
	for _, p := range g.cfg.Pools() {
		if p.Runner == req.Runner {
			p.Members = nil // the reply has only their sums
			n.Pool = &p
		}
	}
	return n, nil
}

// silentMembers returns the names of the members that did not answer.
func silentMembers(all []api.NodeExecutors) (silent []string) {
	for i := range all {
		if all[i].Error != "" {
			silent = append(silent, all[i].Node)
		}
	}
	return silent
}

// drainedReason returns the reason that nodes with suitable executors are drained. It
// returns nil if no such node is drained.
func drainedReason(all []api.NodeExecutors) *reason {
	var names []string
	for i := range all {
		if n := &all[i]; n.Drained && (n.Pool != nil || n.Workers != nil && n.Workers.Count > 0) {
			names = append(names, n.Node)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &reason{Reason: api.Reason{Code: api.ReasonDrained, Data: &api.ReasonData{Nodes: all},
		Text: "drained, so that nothing is started there: " + strings.Join(names, ", ") + "; 'yardmaster node resume " + names[0] + "' ends that"}, blocks: true}
}

// workersReason returns why no Overhop worker takes jobs of a queue, nil if one does.
// all are the answers of the nodes that are not drained.
func workersReason(queue string, all []api.NodeExecutors) *reason {
	count, stalled, credits, drained := 0, 0, 0, 0
	for i := range all {
		if w := all[i].Workers; w != nil {
			count, stalled, credits, drained = count+w.Count, stalled+w.Stalled, credits+w.Credits, drained+w.Drained
		}
	}
	r := reason{Reason: api.Reason{Text: "no worker has credit for queue " + queue, Data: &api.ReasonData{Queue: queue, Nodes: all}}, blocks: true}
	switch {
	case credits > 0:
		return nil
	case count == 0:
		r.Code = api.ReasonNoWorker
		r.Text += ": none is subscribed" + answeringSuffix(all)
	case stalled == count && count == 1:
		r.Code = api.ReasonWorkersStalled
		r.Text += ": the only one that is subscribed has stalled" + answeringSuffix(all)
	case stalled == count:
		r.Code = api.ReasonWorkersStalled
		r.Text += fmt.Sprintf(": all %d that are subscribed have stalled%s", count, answeringSuffix(all))
	default:
		r.Code = api.ReasonWorkersBusy
		r.Text += ": those that are subscribed take no more for now" + drainedSuffix(drained, count)
	}
	return &r
}

// drainedSuffix returns how many of the executors an operator has drained, "" if none.
func drainedSuffix(drained, count int) string {
	if drained == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d of %d drained; 'yardmaster worker resume' ends that)", drained, count)
}

// answeringSuffix returns a text that limits a statement to the members that answered,
// or "" if all did.
func answeringSuffix(all []api.NodeExecutors) string {
	if len(silentMembers(all)) == 0 {
		return ""
	}
	return " at the members that answer"
}

// runnerReason returns why no process of a runner takes jobs, nil if one does. all are
// the answers of the nodes that are not drained.
func runnerReason(runner string, all []api.NodeExecutors) *reason {
	var hosts, troubles []string
	nodesByTrouble := map[string][]string{} // a trouble is why a pool's process is down
	up, slots, busy, looping, drained := 0, 0, 0, 0, 0
	for i := range all {
		p := all[i].Pool
		if p == nil {
			continue
		}
		hosts = append(hosts, all[i].Node)
		up, slots, busy, looping, drained = up+p.Up, slots+p.Slots, busy+p.InFlight, looping+p.CrashLooping, drained+p.Drained
		if p.Reason != "" {
			nodesByTrouble[p.Reason] = append(nodesByTrouble[p.Reason], all[i].Node)
		}
	}
	for trouble, nodes := range nodesByTrouble {
		troubles = append(troubles, strings.Join(nodes, ", ")+": "+trouble)
	}
	slices.Sort(troubles)
	r := reason{Reason: api.Reason{Data: &api.ReasonData{Runner: runner, Nodes: all}}, blocks: true}
	switch {
	case len(hosts) == 0 && answeringSuffix(all) == "":
		r.Code, r.Text = api.ReasonRunnerMissing, fmt.Sprintf("no member has runner %s", runner)
	case len(hosts) == 0:
		r.Code, r.Text = api.ReasonRunnerMissing, fmt.Sprintf("no member that answers has runner %s", runner)
	case up > 0 && busy < slots:
		return nil
	case up > 0:
		r.Code, r.Text = api.ReasonRunnerBusy, fmt.Sprintf("all slots of runner %s are taken", runner)+drainedSuffix(drained, up)
	case len(troubles) == 0:
		r.Code, r.Text = api.ReasonRunnerDown, fmt.Sprintf("no process of runner %s is up yet", runner)
	default:
		r.Code, r.Text = api.ReasonRunnerDown, fmt.Sprintf("no process of runner %s is up: %s", runner, strings.Join(troubles, "; "))
	}
	if r.Code == api.ReasonRunnerDown && looping > 0 {
		r.Code = api.ReasonRunnerLooping
	}
	return &r
}

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
