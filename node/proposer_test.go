package node

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// dyingPeer is an authority that dies when it receives a request; this node succeeds it.
type dyingPeer struct{ proposer *authority.Client }

func (d dyingPeer) Request(ctx context.Context, _, _ string, _ []byte) ([]byte, error) {
	_, epoch, _ := d.proposer.Watch.Current()
	d.proposer.Watch.Set(d.proposer.Node, epoch+1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// A command that was sent to an authority which has died goes to the next one, if it is
// idempotent. Otherwise its caller learns that the outcome is unknown.
func TestProposer_AuthorityDiesDuringCommand(t *testing.T) {
	n := startSingleNode(t, nil)
	c := &authority.Client{Node: n.cfg.Node.Name, Raft: n.raft, Scheduler: n.scheduler, Watch: authority.NewWatch()}
	c.Fleet = dyingPeer{c}
	c.Watch.Set("dead", 1)
	if d, err := c.Propose(t.Context(), &ledger.QueueDispatch{RequestID: "own-1", Target: "ops"}); err != nil || !strings.Contains(string(d.Event), `"own-1"`) {
		t.Errorf("a dispatch: %s, %v", d.Event, err)
	}
	if owner, _ := c.Watch.Watch(); owner != c.Node {
		t.Fatalf("%q holds the authority: the dead one was not asked", owner)
	}
	c.Watch.Set("dead", 3)
	mark := &ledger.MarkNotified{RequestID: "own-1", Channel: "tmux"}
	var away *job.UnavailableError
	if _, err := c.Propose(t.Context(), mark); !errors.As(err, &away) || !strings.Contains(err.Error(), "outcome is unknown") {
		t.Errorf("a mark: %v", err)
	}
	if _, err := c.Propose(t.Context(), mark); err != nil {
		t.Errorf("the mark repeated: %v", err)
	}
}

// racingPeer is an authority on which another client removes each queue as soon as it is
// added.
type racingPeer struct{ proposer *authority.Client }

func (q racingPeer) Request(ctx context.Context, _, _ string, payload []byte) ([]byte, error) {
	answer, err := q.proposer.Handlers()["propose"](ctx, payload)
	if err == nil {
		_, err = q.proposer.Handlers()["propose"](ctx, consensus.EncodeCommand(&ledger.RemoveQueue{Name: "mail"}))
	}
	return answer, err
}

// Adding a queue returns the added queue, even if another client has removed it since.
func TestChangeQueue_RemovedConcurrently(t *testing.T) {
	n := startSingleNode(t, nil)
	c := &authority.Client{Node: n.cfg.Node.Name, Raft: n.raft, Scheduler: n.scheduler, Watch: authority.NewWatch()}
	c.Fleet = racingPeer{c}
	c.Watch.Set("quick", 1)
	add := (&server.Queues{Authority: c, View: n.raft.View}).Handlers()["queue-add"]
	got, err := add(t.Context(), cluster.NewRequest([]byte(`{"name":"mail","concurrency_limit":3}`), "", nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	var q api.Queue
	err = json.Unmarshal(got, &q)
	if err != nil || q.Name != "mail" || *q.Limit != 3 || q.ID == (job.ID{}) || q.State != "running" || len(q.Counts) != job.States-1 {
		t.Errorf("%s, %v", got, err)
	}
	if left, err := c.Queue(t.Context(), "mail"); !errors.Is(err, job.ErrQueueNotFound) {
		t.Errorf("the queue still exists: %+v, %v", left, err)
	}
}
