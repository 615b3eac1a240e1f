package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

const (
	transferTries = 3
	restartAfter  = time.Second // a failed fn, when nobody else can lead
)

// ErrNoMember refuses to hand leadership to somebody who is no voter.
var ErrNoMember = errors.New("no voting member of that name")

// Lead runs fn in every term in which this node leads, one at a time, until
// ctx ends. Before fn starts, everything committed in earlier terms is applied
// here. Its ctx ends when the term's leadership does, and the next fn does not
// start before it has returned; so whatever a leader does belongs inside it.
//
// When fn returns while this node still leads, with or without an error, the
// leadership is handed to another member; if there is none, fn is started
// again after a second. When ctx ends, Lead waits for fn, hands over what it
// can and returns nil.
func (n *Node) Lead(ctx context.Context, fn func(ctx context.Context, term uint64) error) error {
	// Notices may be dropped and only wake: the state itself is what counts.
	changes := make(chan raft.Observation, 1)
	observer := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.RaftState)
		return ok
	})
	n.raft.RegisterObserver(observer)
	defer n.raft.DeregisterObserver(observer)
	for {
		if term, ok := n.leading(); ok && ctx.Err() == nil {
			n.tenure(ctx, term, changes, fn)
			continue
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return nil
		case <-n.done:
			return nil
		}
	}
}

// leading tells whether this node leads, and in which term. Terms tell apart a
// leadership that was lost and won again between two looks.
func (n *Node) leading() (uint64, bool) {
	term := n.raft.CurrentTerm()
	return term, n.raft.State() == raft.Leader && n.raft.CurrentTerm() == term
}

func (n *Node) leads(term uint64) bool {
	now, ok := n.leading()
	return ok && now == term
}

// tenure runs fn for one term and sees to it that the term is over after it.
func (n *Node) tenure(ctx context.Context, term uint64, changes <-chan raft.Observation, fn func(context.Context, uint64) error) {
	err := n.during(ctx, term, changes, fn)
	if !n.leads(term) {
		return
	}
	if ctx.Err() != nil {
		if err := n.transfer(""); err != nil {
			n.log.Info("leadership not handed over at the end", "error", err)
		}
		return
	}
	n.log.Warn("leader gives up its term", "term", term, "error", err)
	for range transferTries {
		if err = n.transfer(""); err == nil || !n.leads(term) {
			return
		}
	}
	n.log.Warn("leadership not handed over, starting again", "term", term, "error", err)
	select {
	case <-time.After(restartAfter):
	case <-ctx.Done():
	}
}

// during runs fn under a ctx that ends with the term.
func (n *Node) during(ctx context.Context, term uint64, changes <-chan raft.Observation, fn func(context.Context, uint64) error) error {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		defer cancel()
		for n.leads(term) {
			select {
			case <-changes:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { cancel(); <-watched }()
	if err := n.raft.Barrier(0).Error(); err != nil {
		return fmt.Errorf("wait for earlier terms: %w", err)
	}
	n.log.Info("leading", "term", term)
	defer n.log.Info("leading no longer", "term", term)
	return fn(ctx, term)
}

// Transfer hands the leadership to the named member, or with "" to the one
// that is furthest. It tries three times, each for at most an election timeout,
// and does not try again where that would outlast ctx. A node that does not lead
// gives [*NotLeaderError].
func (n *Node) Transfer(ctx context.Context, to string) error {
	var err error
	for range transferTries {
		if n.raft.State() != raft.Leader {
			return n.notLeader()
		}
		if err = n.transfer(to); err == nil || errors.Is(err, ErrNoMember) {
			return err
		}
		if due, limited := ctx.Deadline(); ctx.Err() != nil || limited && time.Until(due) < n.cfg.ElectionTimeout {
			return err
		}
	}
	return err
}

func (n *Node) transfer(to string) error {
	if to == "" {
		if err := n.raft.LeadershipTransfer().Error(); err != nil {
			return fmt.Errorf("hand over leadership: %w", err)
		}
		return nil
	}
	for _, m := range n.members() {
		if m.Name == to && m.Voter {
			err := n.raft.LeadershipTransferToServer(raft.ServerID(m.ID), raft.ServerAddress(m.ID)).Error()
			if err != nil {
				return fmt.Errorf("hand over leadership to %s: %w", to, err)
			}
			return nil
		}
	}
	return fmt.Errorf("%q: %w", to, ErrNoMember)
}
