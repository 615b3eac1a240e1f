package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"yardmaster/consensus/roster"
	"yardmaster/ledger"
)

// Proposal is one entry to be: commands that are applied in order, at one time
// and under one epoch.
type Proposal struct {
	At       time.Time
	Epoch    uint64
	Commands []ledger.Command
}

// Commit is what became of a proposal: its place in the log and one result for
// each command.
type Commit struct {
	Index, Term uint64
	Results     []ledger.Result
}

// NotLeaderError says that the proposal went nowhere, because this node does
// not lead (or is just handing over).
type NotLeaderError struct {
	Leader string // member's name; "" if none is known
}

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return "this node does not lead, and no leader is known"
	}
	return "this node does not lead, " + e.Leader + " does"
}

// How else a proposal can fail. Only after ErrUnknown it may still commit.
var (
	ErrUnknown  = errors.New("outcome unknown: the proposal may or may not be committed")
	ErrBusy     = errors.New("raft takes no proposals at the moment")
	ErrClosed   = errors.New("consensus is closed")
	ErrTooLarge = errors.New("proposal is too large for one log entry")
)

// Pending is a proposal on its way.
type Pending struct {
	node   *Node
	future raft.ApplyFuture
	done   chan struct{}
	commit Commit
	err    error
}

// Submit hands a proposal to raft and does not wait for its commit. Proposals
// of one goroutine are appended in the order of their calls. Submit itself
// blocks only while raft has a few dozen unread, at most Config.WriteDeadline.
func (n *Node) Submit(p Proposal) (*Pending, error) {
	raw, err := encodeEntry(&p)
	if err != nil {
		return nil, err
	}
	if len(raw) > n.cfg.MaxEntryBytes {
		return nil, fmt.Errorf("%d bytes, at most %d: %w", len(raw), n.cfg.MaxEntryBytes, ErrTooLarge)
	}
	if n.raft.State() != raft.Leader {
		return nil, n.notLeader()
	}
	n.submit.Lock()
	defer n.submit.Unlock()
	if n.closing {
		return nil, ErrClosed
	}
	pending := &Pending{node: n, done: make(chan struct{}), future: n.raft.Apply(raw, n.cfg.WriteDeadline)}
	n.pending <- pending
	return pending, nil
}

// Propose submits and waits.
func (n *Node) Propose(ctx context.Context, p Proposal) (Commit, error) {
	pending, err := n.Submit(p)
	if err != nil {
		return Commit{}, err
	}
	return pending.Wait(ctx)
}

// Done closes when Wait will not block any more.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Wait waits until the proposal is applied on this node or has failed. When
// ctx ends first, or the node closes, the error is [ErrUnknown].
func (p *Pending) Wait(ctx context.Context) (Commit, error) {
	select {
	case <-p.done:
		return p.commit, p.err
	case <-ctx.Done():
		return Commit{}, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-p.node.done:
	}
	select { // closing settles what it can first
	case <-p.done:
		return p.commit, p.err
	default:
		return Commit{}, fmt.Errorf("%w: %w", ErrUnknown, ErrClosed)
	}
}

// collect settles pending proposals in their order, which is the order in
// which raft answers them.
func (n *Node) collect() {
	defer close(n.collected)
	for p := range n.pending {
		if err := p.future.Error(); err != nil {
			p.err = n.verdict(err)
		} else {
			p.commit = *p.future.Response().(*Commit)
		}
		close(p.done)
	}
}

// verdict tells what is certain from what is not. An error of the disk is not:
// the entry may have been written.
func (n *Node) verdict(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return n.notLeader()
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return ErrBusy
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

func (n *Node) notLeader() error { return &NotLeaderError{Leader: n.leader()} }

// leader is the leading member's name, as far as this node knows.
func (n *Node) leader() string {
	_, id := n.raft.LeaderWithID()
	if id == "" {
		return ""
	}
	return roster.NodeOf(string(id))
}
