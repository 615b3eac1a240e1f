package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// dyingPeer is an authority that dies when it receives a request; this node succeeds it.
type dyingPeer struct{ proposer *proposer }

func (d dyingPeer) Request(ctx context.Context, _, _ string, _ []byte) ([]byte, error) {
	_, epoch, _ := d.proposer.authority.current()
	d.proposer.authority.set(d.proposer.node, epoch+1)
	<-ctx.Done()
	return nil, ctx.Err()
}

// A command that was sent to an authority which has died goes to the next one, if it is
// idempotent. Otherwise its caller learns that the outcome is unknown.
func TestProposer_AuthorityDiesDuringCommand(t *testing.T) {
	n := startSingleNode(t, nil)
	c := &proposer{node: n.cfg.Node.Name, raft: n.raft, scheduler: n.scheduler, authority: newAuthorityWatch()}
	c.fleet = dyingPeer{c}
	c.authority.set("dead", 1)
	if d, err := c.propose(t.Context(), &ledger.QueueDispatch{RequestID: "own-1", Target: "ops"}); err != nil || !strings.Contains(string(d.Event), `"own-1"`) {
		t.Errorf("a dispatch: %s, %v", d.Event, err)
	}
	if owner, _ := c.authority.watch(); owner != c.node {
		t.Fatalf("%q holds the authority: the dead one was not asked", owner)
	}
	c.authority.set("dead", 3)
	mark := &ledger.MarkNotified{RequestID: "own-1", Channel: "tmux"}
	var away *job.UnavailableError
	if _, err := c.propose(t.Context(), mark); !errors.As(err, &away) || !strings.Contains(err.Error(), "outcome is unknown") {
		t.Errorf("a mark: %v", err)
	}
	if _, err := c.propose(t.Context(), mark); err != nil {
		t.Errorf("the mark repeated: %v", err)
	}
}

// refusing is an authority whose ledger rejects every command.
type refusing struct{ err error }

func (r refusing) Request(context.Context, string, string, []byte) ([]byte, error) {
	return json.Marshal(commandResult{Error: r.err.Error(), Code: sharedErrorCode(r.err)})
}

// Errors of the ledger that pass are answered as unavailable, with a time for a retry.
func TestProposer_RejectedForNow(t *testing.T) {
	n := startSingleNode(t, nil)
	c := &proposer{node: n.cfg.Node.Name, raft: n.raft, scheduler: n.scheduler, authority: newAuthorityWatch()}
	c.authority.set("another", 1)
	for _, refusal := range []error{ledger.ErrRestoring, fmt.Errorf("%w: the unfinished jobs ask for 100 others", ledger.ErrRunnersFull)} {
		c.fleet = refusing{refusal}
		_, err := c.propose(t.Context(), &ledger.RetryJob{Job: job.ID{1}})
		var later *job.UnavailableError
		if !errors.As(err, &later) || later.Reason != refusal.Error() || later.RetryAfter == 0 {
			t.Errorf("%v is answered with %v", refusal, err)
		}
	}
	c.fleet = refusing{job.ErrNotFailed}
	if _, err := c.propose(t.Context(), &ledger.RetryJob{Job: job.ID{1}}); !errors.Is(err, job.ErrNotFailed) {
		t.Errorf("a permanent error is answered with %v", err)
	}
}

// racingPeer is an authority on which another client removes each queue as soon as it is
// added.
type racingPeer struct{ proposer *proposer }

func (q racingPeer) Request(ctx context.Context, _, _ string, payload []byte) ([]byte, error) {
	answer, err := q.proposer.servePropose(ctx, payload)
	if err == nil {
		_, err = q.proposer.proposeLocal(ctx, &ledger.RemoveQueue{Name: "mail"})
	}
	return answer, err
}

// Adding a queue returns the added queue, even if another client has removed it since.
func TestChangeQueue_RemovedConcurrently(t *testing.T) {
	n := startSingleNode(t, nil)
	c := &proposer{node: n.cfg.Node.Name, raft: n.raft, scheduler: n.scheduler, authority: newAuthorityWatch()}
	c.fleet = racingPeer{c}
	c.authority.set("quick", 1)
	asked := &Node{cfg: n.cfg, raft: n.raft, proposer: c}
	got, err := asked.handleQueueAdd(t.Context(), &cluster.Request{Data: []byte(`{"name":"mail","concurrency_limit":3}`)})
	if q, ok := got.(queueJSON); err != nil || !ok || q.Name != "mail" || *q.Limit != 3 || q.ID == (job.ID{}) || q.State != "running" || len(q.Counts) != 5 {
		t.Errorf("%+v, %v", got, err)
	}
	if left, _, err := c.queue(t.Context(), "mail"); left.Name != "" || err != nil {
		t.Errorf("the queue still exists: %+v, %v", left, err)
	}
}
