package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Requests about why a job waits: to the authority about placement, and to each node
// about its workers and runners.
const (
	verbExplainPlacement = "explain_placement" // the request is a [scheduler.PlacementQuery], the answer a [scheduler.PlacementExplanation]
	verbExecutors        = "executors"         // the request is a [executorsRequest], the answer a [nodeExecutors]
)

// explainTimeout bounds each of these requests.
const explainTimeout = 400 * time.Millisecond

// noAnswer is the reason why the authority's explanation is not known.
type noAnswer struct {
	code code
	text string
}

// explainPlacement asks the authority. If it does not answer, none has the reason.
func (n *Node) explainPlacement(ctx context.Context, q scheduler.PlacementQuery) (explanation *scheduler.PlacementExplanation, none noAnswer) {
	if text := n.noQuorum(); text != "" {
		return nil, noAnswer{codeNoQuorum, text}
	}
	owner, _, ok := n.authority.current()
	if !ok {
		return nil, noAnswer{codeNoAuthority, "no authority is known: no node decides"}
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	var answer scheduler.PlacementExplanation
	var err error
	if owner == n.cfg.Node.Name {
		answer, err = n.scheduler.ExplainPlacement(ctx, q)
	} else {
		err = n.request(ctx, owner, verbExplainPlacement, q, &answer)
	}
	if err != nil {
		return nil, noAnswer{codeAuthoritySilent, fmt.Sprintf("the authority, %s, does not answer: %s", owner, errorText(err))}
	}
	return &answer, noAnswer{}
}

// request sends a JSON request to another node and decodes its reply.
func (n *Node) request(ctx context.Context, name, verb string, req, reply any) error {
	request, err := json.Marshal(req)
	if err != nil {
		return err
	}
	text, err := n.fleet.Request(ctx, name, verb, request)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, reply)
}

func (n *Node) serveExplainPlacement(ctx context.Context, request []byte) ([]byte, error) {
	var q scheduler.PlacementQuery
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	w, err := n.scheduler.ExplainPlacement(ctx, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// executorsRequest names a queue, for its workers, and a runner; "" for none.
type executorsRequest struct {
	Queue  string `json:"queue,omitempty"`
	Runner string `json:"runner,omitempty"`
}

// queryExecutors asks all members at the same time for their executors.
func (n *Node) queryExecutors(ctx context.Context, req executorsRequest) []nodeExecutors {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	members := n.raft.Status().Members
	all := make([]nodeExecutors, len(members))
	var queries sync.WaitGroup
	for i := range members {
		if members[i].Name == n.cfg.Node.Name {
			all[i] = n.localExecutors(req)
			continue
		}
		queries.Go(func() {
			if err := n.request(ctx, members[i].Name, verbExecutors, req, &all[i]); err != nil {
				all[i] = nodeExecutors{Error: errorText(err)}
			}
			all[i].Node = members[i].Name
		})
	}
	queries.Wait()
	return all
}

// localExecutors returns this node's executors.
func (n *Node) localExecutors(q executorsRequest) nodeExecutors {
	h := nodeExecutors{Node: n.cfg.Node.Name, Drained: n.drain.active()}
	if q.Queue != "" {
		workers := n.edge.Subscribers(q.Queue)
		h.Workers = &workers
	}
	for _, p := range n.runners.Status() {
		if p.Runner == q.Runner {
			p.Members = nil
			h.Pool = &p
		}
	}
	return h
}

func (n *Node) serveExecutors(_ context.Context, request []byte) ([]byte, error) {
	var q executorsRequest
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	return json.Marshal(n.localExecutors(q))
}

// silentMembers returns the names of the members that did not answer.
func silentMembers(all []nodeExecutors) (silent []string) {
	for i := range all {
		if all[i].Error != "" {
			silent = append(silent, all[i].Node)
		}
	}
	return silent
}

// drainedReason names the nodes that have suitable executors but are drained, or
// returns nil.
func drainedReason(all []nodeExecutors) *reason {
	var names []string
	for i := range all {
		if h := &all[i]; h.Drained && (h.Pool != nil || h.Workers != nil && h.Workers.Count > 0) {
			names = append(names, h.Node)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &reason{Code: codeDrained, Data: &reasonData{Nodes: all}, blocks: true,
		Text: "drained, so that nothing is started there: " + strings.Join(names, ", ") + "; 'yardmaster node resume " + names[0] + "' ends that"}
}

// workersReason returns why no Overhop worker takes jobs of a queue; nil if one does.
func workersReason(queue string, all []nodeExecutors) *reason {
	count, stalled, credits := 0, 0, 0
	for i := range all {
		if w := all[i].Workers; w != nil {
			count, stalled, credits = count+w.Count, stalled+w.Stalled, credits+w.Credits
		}
	}
	r := reason{Text: "no worker has credit for queue " + queue, Data: &reasonData{Queue: queue, Nodes: all}, blocks: true}
	switch {
	case credits > 0:
		return nil
	case count == 0:
		r.Code = codeNoWorker
		r.Text += ": none is subscribed" + answeringSuffix(all)
	case stalled == count && count == 1:
		r.Code = codeWorkersStalled
		r.Text += ": the only one that is subscribed has stalled" + answeringSuffix(all)
	case stalled == count:
		r.Code = codeWorkersStalled
		r.Text += fmt.Sprintf(": all %d that are subscribed have stalled%s", count, answeringSuffix(all))
	default:
		r.Code = codeWorkersBusy
		r.Text += ": those that are subscribed take no more for now"
	}
	return &r
}

// answeringSuffix returns a text that limits a statement to the members that answered,
// or "" if all did.
func answeringSuffix(all []nodeExecutors) string {
	if len(silentMembers(all)) == 0 {
		return ""
	}
	return " at the members that answer"
}

// runnerReason returns why no process of a runner takes jobs; nil if one does.
func runnerReason(runner string, all []nodeExecutors) *reason {
	var hosts, troubles []string
	where := map[string][]string{} // nodes, by their pool's trouble
	up, slots, busy, looping := 0, 0, 0, 0
	for i := range all {
		p := all[i].Pool
		if p == nil {
			continue
		}
		hosts = append(hosts, all[i].Node)
		up, slots, busy, looping = up+p.Up, slots+p.Slots, busy+p.InFlight, looping+p.CrashLooping
		if p.Reason != "" {
			where[p.Reason] = append(where[p.Reason], all[i].Node)
		}
	}
	for trouble, nodes := range where {
		troubles = append(troubles, strings.Join(nodes, ", ")+": "+trouble)
	}
	slices.Sort(troubles)
	r := reason{Data: &reasonData{Runner: runner, Nodes: all}, blocks: true}
	switch {
	case len(hosts) == 0 && answeringSuffix(all) == "":
		r.Code, r.Text = codeRunnerMissing, fmt.Sprintf("no member has runner %s", runner)
	case len(hosts) == 0:
		r.Code, r.Text = codeRunnerMissing, fmt.Sprintf("no member that answers has runner %s", runner)
	case up > 0 && busy < slots:
		return nil
	case up > 0:
		r.Code, r.Text = codeRunnerBusy, fmt.Sprintf("all slots of runner %s are taken", runner)
	case len(troubles) == 0:
		r.Code, r.Text = codeRunnerDown, fmt.Sprintf("no process of runner %s is up yet", runner)
	default:
		r.Code, r.Text = codeRunnerDown, fmt.Sprintf("no process of runner %s is up: %s", runner, strings.Join(troubles, "; "))
	}
	if r.Code == codeRunnerDown && looping > 0 {
		r.Code = codeRunnerLooping
	}
	return &r
}
