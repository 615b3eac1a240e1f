package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"yardmaster/job"
	"yardmaster/scheduler"
)

// Who knows why a job waits: the authority, and each node of its own workers
// and runners.
const (
	verbWhy   = "why"   // the request is a [scheduler.WhyQuestion], the answer a [scheduler.Why]
	verbHands = "hands" // the request is a [handsQuestion], the answer a [nodeHands]
)

// whyTime is how long a node may take to answer either.
const whyTime = 400 * time.Millisecond

// silence is why the authority says nothing.
type silence struct {
	code code
	text string
}

// askWhy asks the authority; if nobody answers, silence says why not.
func (n *Node) askWhy(ctx context.Context, q scheduler.WhyQuestion) (w *scheduler.Why, s silence) {
	if text := n.noQuorum(); text != "" {
		return nil, silence{codeNoQuorum, text}
	}
	owner, _, ok := n.watch.authority()
	if !ok {
		return nil, silence{codeNoAuthority, "no authority is known: no node decides"}
	}
	ctx, cancel := context.WithTimeout(ctx, whyTime)
	defer cancel()
	var answer scheduler.Why
	var err error
	if owner == n.cfg.Node.Name {
		answer, err = n.mind.Why(ctx, q)
	} else {
		err = n.askNode(ctx, owner, verbWhy, q, &answer)
	}
	if err != nil {
		return nil, silence{codeSilent, fmt.Sprintf("the authority, %s, does not answer: %s", owner, plainly(err))}
	}
	return &answer, silence{}
}

// askNode asks another node in JSON.
func (n *Node) askNode(ctx context.Context, name, verb string, question, answer any) error {
	request, err := json.Marshal(question)
	if err != nil {
		return err
	}
	text, err := n.fleet.Request(ctx, name, verb, request)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, answer)
}

func (n *Node) serveWhy(ctx context.Context, request []byte) ([]byte, error) {
	var q scheduler.WhyQuestion
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	w, err := n.mind.Why(ctx, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// handsQuestion names a queue's workers and a runner; "" for none.
type handsQuestion struct {
	Queue  string `json:"queue,omitempty"`
	Runner string `json:"runner,omitempty"`
}

// askHands asks all members at once what they have.
func (n *Node) askHands(ctx context.Context, q handsQuestion) []nodeHands {
	ctx, cancel := context.WithTimeout(ctx, whyTime)
	defer cancel()
	members := n.raft.Status().Members
	all := make([]nodeHands, len(members))
	var asking sync.WaitGroup
	for i := range members {
		if members[i].Name == n.cfg.Node.Name {
			all[i] = n.handsHere(q)
			continue
		}
		asking.Go(func() {
			if err := n.askNode(ctx, members[i].Name, verbHands, q, &all[i]); err != nil {
				all[i] = nodeHands{Error: plainly(err)}
			}
			all[i].Node = members[i].Name
		})
	}
	asking.Wait()
	return all
}

// handsHere is what this node has.
func (n *Node) handsHere(q handsQuestion) nodeHands {
	h := nodeHands{Node: n.cfg.Node.Name, Drained: n.drain.under()}
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

func (n *Node) serveHands(_ context.Context, request []byte) ([]byte, error) {
	var q handsQuestion
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	return json.Marshal(n.handsHere(q))
}

// unheardOf names the members that did not say what they have.
func unheardOf(all []nodeHands) (unheard []string) {
	for i := range all {
		if all[i].Error != "" {
			unheard = append(unheard, all[i].Node)
		}
	}
	return unheard
}

// whyDrained tells which nodes have the hands and are drained; nil if none is.
func whyDrained(all []nodeHands) *reason {
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

// whyWorkers tells why no Overhop worker takes a queue's jobs; nil if one does.
func whyWorkers(queue string, all []nodeHands) *reason {
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
		r.Text += ": none is subscribed" + answering(all)
	case stalled == count && count == 1:
		r.Code = codeWorkersStalled
		r.Text += ": the only one that is subscribed has stalled" + answering(all)
	case stalled == count:
		r.Code = codeWorkersStalled
		r.Text += fmt.Sprintf(": all %d that are subscribed have stalled%s", count, answering(all))
	default:
		r.Code = codeWorkersBusy
		r.Text += ": those that are subscribed take no more for now"
	}
	return &r
}

// answering limits what is said of hands to the members that were heard.
func answering(all []nodeHands) string {
	if len(unheardOf(all)) == 0 {
		return ""
	}
	return " at the members that answer"
}

// whyRunner tells why no process of a runner takes jobs; nil if one does.
func whyRunner(runner string, all []nodeHands) *reason {
	var having, troubles []string
	where := map[string][]string{} // by what is wrong
	up, slots, busy, looping := 0, 0, 0, 0
	for i := range all {
		p := all[i].Pool
		if p == nil {
			continue
		}
		having = append(having, all[i].Node)
		up, slots, busy, looping = up+p.Up, slots+p.Slots, busy+p.InFlight, looping+p.Looping
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
	case len(having) == 0 && answering(all) == "":
		r.Code, r.Text = codeRunnerMissing, fmt.Sprintf("no member has runner %s", runner)
	case len(having) == 0:
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
