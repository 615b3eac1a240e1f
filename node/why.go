package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"yardmaster/job"
	"yardmaster/runnerpool"
	"yardmaster/scheduler"
)

// Who knows why a job waits: the authority, and of a runner without room the
// nodes that have it.
const (
	verbWhy  = "why"  // the request is a [whyQuestion], the answer a [scheduler.Why]
	verbPool = "pool" // the request is a runner's name, the answer a [runnerpool.PoolStatus] or null
)

// whyTime is how long a node may take to answer either.
const whyTime = 400 * time.Millisecond

// whyQuestion is what decides where a job may run.
type whyQuestion struct {
	Queue    string `json:"queue"`
	Function string `json:"function"`
}

// because tells why a job does not run, as far as that can be told; "" if
// nothing is in its way but other jobs.
func (n *Node) because(ctx context.Context, v *job.View) string {
	switch v.State {
	case job.Delayed:
		return "it is due at " + v.RunAt.UTC().Format(time.RFC3339Nano)
	case job.Waiting:
	default:
		return ""
	}
	w, err := n.why(ctx, whyQuestion{v.Queue, v.Function})
	if err != nil {
		return err.Error()
	}
	if w.Runner == "" {
		return w.Text
	}
	runner, configured := n.whyRunner(ctx, w.Runner)
	switch {
	case w.Text == "":
		return runner
	case !configured || runner == "":
		return w.Text
	}
	return w.Text + ", and " + runner
}

// why asks the authority.
func (n *Node) why(ctx context.Context, q whyQuestion) (w scheduler.Why, err error) {
	ctx, cancel := context.WithTimeout(ctx, whyTime)
	defer cancel()
	owner, _, ok := n.watch.authority()
	switch {
	case !ok:
		return w, fmt.Errorf("no authority is known")
	case owner == n.cfg.Node.Name:
		w, err = n.mind.Why(ctx, q.Queue, q.Function)
	default:
		var request, answer []byte
		if request, err = json.Marshal(q); err == nil {
			answer, err = n.fleet.Request(ctx, owner, verbWhy, request)
		}
		if err == nil {
			err = json.Unmarshal(answer, &w)
		}
	}
	if err != nil {
		err = fmt.Errorf("the authority, %s, does not answer: %w", owner, err)
	}
	return w, err
}

func (n *Node) serveWhy(ctx context.Context, request []byte) ([]byte, error) {
	var q whyQuestion
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	w, err := n.mind.Why(ctx, q.Queue, q.Function)
	if err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// whyRunner asks all members how their pools of a runner are, and whether they
// have any; "" if there is room, or will be in a moment.
func (n *Node) whyRunner(ctx context.Context, runner string) (why string, configured bool) {
	ctx, cancel := context.WithTimeout(ctx, whyTime)
	defer cancel()
	members := n.raft.Status().Members
	pools := make([]*runnerpool.PoolStatus, len(members))
	var asking sync.WaitGroup
	for i := range members {
		if members[i].Name == n.cfg.Node.Name {
			pools[i] = n.pool(runner)
			continue
		}
		asking.Go(func() {
			answer, err := n.fleet.Request(ctx, members[i].Name, verbPool, []byte(runner))
			if err == nil && json.Unmarshal(answer, &pools[i]) != nil {
				pools[i] = nil
			}
		})
	}
	asking.Wait()
	var troubles []string
	for i, p := range pools {
		switch {
		case p == nil:
			continue
		case p.Up > 0 && p.InFlight >= p.Slots:
			return fmt.Sprintf("all slots of runner %s are taken", runner), true
		case p.Up > 0:
			return "", true
		case p.Reason != "":
			troubles = append(troubles, fmt.Sprintf("%s: %s", members[i].Name, p.Reason))
		}
		configured = true
	}
	switch {
	case !configured:
		return fmt.Sprintf("no member that answers has runner %s", runner), false
	case len(troubles) == 0:
		return fmt.Sprintf("no process of runner %s is up yet", runner), true
	}
	return fmt.Sprintf("no process of runner %s is up: %s", runner, strings.Join(troubles, "; ")), true
}

// pool is this node's pool of a runner; nil if it has none.
func (n *Node) pool(runner string) *runnerpool.PoolStatus {
	for _, p := range n.runners.Status() {
		if p.Runner == runner {
			p.Members = nil
			return &p
		}
	}
	return nil
}

func (n *Node) servePool(_ context.Context, runner []byte) ([]byte, error) {
	return json.Marshal(n.pool(string(runner)))
}
