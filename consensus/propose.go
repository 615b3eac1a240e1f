package consensus

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/consensus/peers"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// NotLeaderError is returned when a proposal was not made, because this node
// does not lead or is transferring the leadership.
type NotLeaderError struct {
	Leader string // name of the leading member; "": not known
}

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return "this node does not lead, and no leader is known"
	}
	return "this node does not lead, " + e.Leader + " does"
}

// Other errors of proposals. Only after ErrUnknown the proposal may still be
// committed.
var (
	ErrUnknown  = errors.New("outcome unknown: the proposal may or may not be committed")
	ErrBusy     = errors.New("raft does not accept proposals at the moment")
	ErrClosed   = errors.New("consensus is closed")
	ErrTooLarge = errors.New("proposal is too large for one log entry")
)

// pendingProposal is a proposal that Raft has not answered yet.
type pendingProposal struct {
	future raft.ApplyFuture
	done   chan struct{} // closed when commit or err is set
	commit ledger.Commit
	err    error
}

// Submit passes a proposal to Raft and does not wait for its commit. Proposals
// of one goroutine are appended in the order of the calls. Submit blocks only
// while Raft's queue is full, at most for writeDeadline.
//
// The returned function blocks until the proposal is applied on this node or has
// failed. If its ctx ends or the node closes first, its error is [ErrUnknown].
func (n *Node) Submit(p ledger.Proposal) (wait func(context.Context) (ledger.Commit, error), err error) {
	raw := encodeEntry(&p)
	if len(raw) > maxEntryBytes {
		return nil, fmt.Errorf("%d bytes, at most %d: %w", len(raw), maxEntryBytes, ErrTooLarge)
	}
	if n.raft.State() != raft.Leader {
		return nil, n.notLeader()
	}
	n.submitMu.Lock()
	defer n.submitMu.Unlock()
	if n.closing {
		return nil, ErrClosed
	}
	pending := &pendingProposal{done: make(chan struct{}), future: n.raft.Apply(raw, n.cfg.writeDeadline)}
	n.pending <- pending
	return func(ctx context.Context) (ledger.Commit, error) { return n.await(ctx, pending) }, nil
}

// await blocks until p is resolved. It returns [ErrUnknown] if ctx ends or the node
// closes before that.
func (n *Node) await(ctx context.Context, p *pendingProposal) (ledger.Commit, error) {
	select {
	case <-p.done:
		return p.commit, p.err
	case <-ctx.Done():
		return ledger.Commit{}, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-n.done:
	}
	select { // closing may have resolved it
	case <-p.done:
		return p.commit, p.err
	default:
		return ledger.Commit{}, fmt.Errorf("%w: %w", ErrUnknown, ErrClosed)
	}
}

// resolvePending resolves pending proposals in order, which is the order in
// which Raft answers them.
func (n *Node) resolvePending() {
	defer close(n.resolved)
	for p := range n.pending {
		if err := p.future.Error(); err != nil {
			p.err = n.proposalError(err)
		} else {
			p.commit = *p.future.Response().(*ledger.Commit)
		}
		close(p.done)
	}
}

// proposalError translates an error of Raft. An error of the disk is
// ErrUnknown, because the entry may have been written.
func (n *Node) proposalError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return n.notLeader()
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return ErrBusy
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

func (n *Node) notLeader() error { return &NotLeaderError{Leader: n.leader()} }

// leader returns the name of the leading member, as far as this node knows.
func (n *Node) leader() string {
	_, id := n.raft.LeaderWithID()
	if id == "" {
		return ""
	}
	return peers.NodeOf(string(id))
}
