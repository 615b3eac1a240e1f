package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

const (
	transferTries = 3
	restartDelay  = time.Second // before fn is started again when no other member can lead
)

// ErrNoMember is returned for a transfer of leadership to a name that is not a
// voting member.
var ErrNoMember = errors.New("no voting member of that name")

// Lead runs fn in every term in which this node leads, one at a time, until ctx
// ends. Before fn starts, everything committed in earlier terms is applied on
// this node. The ctx of fn ends when this node loses the leadership of that
// term, and fn is not called for the next term before it has returned; so all
// work that only a leader may do belongs inside fn.
//
// When fn returns while this node still leads, with or without an error, Lead
// transfers the leadership to another member; if that is not possible, it calls
// fn again after a second. When ctx ends, Lead waits for fn, tries to transfer
// the leadership and returns nil.
func (n *Node) Lead(ctx context.Context, fn func(ctx context.Context, term uint64) error) error {
	// Observations may be dropped and only wake this loop, which reads the
	// state itself.
	changes := make(chan raft.Observation, 1)
	observer := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.RaftState)
		return ok
	})
	n.raft.RegisterObserver(observer)
	defer n.raft.DeregisterObserver(observer)
	for {
		if term, ok := n.leadingTerm(); ok && ctx.Err() == nil {
			n.leadTerm(ctx, term, changes, fn)
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

// leadingTerm reports whether this node leads, and in which term. Comparing
// terms detects a leadership that was lost and regained between two calls.
func (n *Node) leadingTerm() (uint64, bool) {
	term := n.raft.CurrentTerm()
	return term, n.raft.State() == raft.Leader && n.raft.CurrentTerm() == term
}

// isLeading reports whether this node still leads in the given term.
func (n *Node) isLeading(term uint64) bool {
	now, ok := n.leadingTerm()
	return ok && now == term
}

// leadTerm runs fn while this node leads in the given term. If fn returns before the
// term has ended, leadTerm transfers the leadership to another member, or waits for
// restartDelay if that fails and ctx has not ended.
func (n *Node) leadTerm(ctx context.Context, term uint64, changes <-chan raft.Observation, fn func(context.Context, uint64) error) {
	err := n.runInTerm(ctx, term, changes, fn)
	if !n.isLeading(term) {
		return
	}
	if ctx.Err() != nil {
		if len(n.members()) == 1 { // there is no member to transfer it to
			return
		}
		if err := n.transfer(""); err != nil {
			n.log.Info("leadership transfer failed at shutdown", "err", err)
		}
		return
	}
	n.log.Warn("leader task ended, transferring leadership", "term", term, "err", err)
	for range transferTries {
		if err = n.transfer(""); err == nil || !n.isLeading(term) {
			return
		}
	}
	n.log.Warn("leadership transfer failed, restarting leader task", "term", term, "err", err)
	_ = backoff.Sleep(ctx, restartDelay) // the caller checks ctx
}

// runInTerm waits until all entries of earlier terms are applied on this node, and
// then runs fn with a context that ends with ctx or when this node no longer leads in
// the term. changes receives a value when the leadership may have changed.
func (n *Node) runInTerm(ctx context.Context, term uint64, changes <-chan raft.Observation, fn func(context.Context, uint64) error) error {
	ctx, cancel := context.WithCancel(ctx)
	watchEnded := make(chan struct{})
	go func() {
		defer close(watchEnded)
		defer cancel()
		for n.isLeading(term) {
			select {
			case <-changes:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		cancel()
		<-watchEnded
	}()

	if err := n.raft.Barrier(0).Error(); err != nil {
		return fmt.Errorf("wait for earlier terms: %w", err)
	}
	n.log.Info("leadership acquired", "term", term)
	defer n.log.Info("leadership ended", "term", term)
	return fn(ctx, term)
}

// Transfer transfers the leadership to the named member, or with "" to the
// member whose log reaches furthest. It tries up to three times, each for at
// most an election timeout, and does not retry beyond ctx's deadline. On a node
// that does not lead it returns a [*NotLeaderError].
func (n *Node) Transfer(ctx context.Context, to string) error {
	var err error
	for range transferTries {
		if n.raft.State() != raft.Leader {
			return n.notLeader()
		}
		if err = n.transfer(to); err == nil || errors.Is(err, ErrNoMember) {
			return err
		}
		deadline, limited := ctx.Deadline()
		noTimeLeft := limited && time.Until(deadline) < electionTimeout
		if ctx.Err() != nil || noTimeLeft {
			return err
		}
	}
	return err
}

// transfer is one attempt of [Node.Transfer].
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
