package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// dying is the way to an authority that takes a question and dies of it: this
// node is the next one.
type dying struct{ commander *commander }

func (d dying) Request(ctx context.Context, _, _ string, _ []byte) ([]byte, error) {
	_, epoch, _ := d.commander.watch.authority()
	d.commander.watch.set(d.commander.node, epoch+1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// A command under way to an authority that has died goes to the next one, or,
// if that could do something twice, its caller hears that nobody knows.
func TestCommander_AuthorityDiesUnderACommand(t *testing.T) {
	n := alone(t, nil)
	c := &commander{node: n.cfg.Node.Name, raft: n.raft, mind: n.mind, watch: newAuthorityWatch()}
	c.fleet = dying{c}
	c.watch.set("dead", 1)
	if d, err := c.do(t.Context(), &ledger.QueueDispatch{RequestID: "own-1", Target: "ops"}); err != nil || !strings.Contains(string(d.Event), `"own-1"`) {
		t.Errorf("a dispatch: %s, %v", d.Event, err)
	}
	if owner, _ := c.watch.holder(); owner != c.node {
		t.Fatalf("%q has the authority: nobody was asked before", owner)
	}
	c.watch.set("dead", 3)
	mark := &ledger.MarkNotified{RequestID: "own-1", Channel: "tmux"}
	var away *job.UnavailableError
	if _, err := c.do(t.Context(), mark); !errors.As(err, &away) || !strings.Contains(err.Error(), "outcome is unknown") {
		t.Errorf("a mark: %v", err)
	}
	if _, err := c.do(t.Context(), mark); err != nil {
		t.Errorf("the mark, which nobody had heard, repeated: %v", err)
	}
}

// quick is an authority beside which somebody removes every queue as soon as
// it is made.
type quick struct{ commander *commander }

func (q quick) Request(ctx context.Context, _, _ string, payload []byte) ([]byte, error) {
	answer, err := q.commander.serveDo(ctx, payload)
	if err == nil {
		_, err = q.commander.here(ctx, &ledger.RemoveQueue{Name: "mail"})
	}
	return answer, err
}

// Who makes a queue hears what was made, whoever has removed it since.
func TestChangeQueue_RemovedMeanwhile(t *testing.T) {
	n := alone(t, nil)
	c := &commander{node: n.cfg.Node.Name, raft: n.raft, mind: n.mind, watch: newAuthorityWatch()}
	c.fleet = quick{c}
	c.watch.set("quick", 1)
	asked := &Node{cfg: n.cfg, raft: n.raft, commander: c}
	got, err := asked.handleQueueAdd(t.Context(), &cluster.Request{Data: []byte(`{"name":"mail","concurrency_limit":3}`)})
	if q, ok := got.(queueJSON); err != nil || !ok || q.Name != "mail" || *q.Limit != 3 || q.ID == (job.ID{}) || q.State != "running" || len(q.Counts) != 5 {
		t.Errorf("%+v, %v", got, err)
	}
	if left, _, err := c.queue(t.Context(), "mail"); left.Name != "" || err != nil {
		t.Errorf("the queue is there still: %+v, %v", left, err)
	}
}
