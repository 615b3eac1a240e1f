package node

import (
	"context"
	"errors"
	"strings"
	"testing"

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
