package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// defaultChangeTimeout is the time limit of a change of the group's configuration if
// the caller's context has no deadline.
const defaultChangeTimeout = 5 * time.Second

// Probe returns which node answers at a raft address. It takes at most a
// second.
func (n *Node) Probe(addr string) (WaitingNode, error) {
	listener := n.id.Listener()
	if listener == nil {
		return WaitingNode{}, errors.New("this node runs alone: it has no members")
	}
	return listener.Probe(addr)
}

// AddMember adds a server to the group. Without vote it receives the log, but
// no commit waits for it. With vote it becomes a voter, for which it must have
// been prepared before with [Node.Promote]. Adding a server that is already in
// the group has no effect. On a node that does not lead it returns a
// [*NotLeaderError].
func (n *Node) AddMember(ctx context.Context, id string, vote bool) error {
	for _, m := range n.members() {
		if m.ID == id && (m.Voter || !vote) {
			return nil
		}
	}
	s := server(id)
	if vote {
		return n.awaitConfigChange(n.raft.AddVoter(s.ID, s.Address, 0, changeTimeout(ctx)), "make "+id+" a voter")
	}
	return n.awaitConfigChange(n.raft.AddNonvoter(s.ID, s.Address, 0, changeTimeout(ctx)), "add "+id)
}

// RemoveVoter removes a server from the group, with its vote if it has one. Without
// such a server it has no effect.
func (n *Node) RemoveVoter(ctx context.Context, id string) error {
	if !slices.ContainsFunc(n.members(), func(m MemberInfo) bool { return m.ID == id }) {
		return nil
	}
	return n.awaitConfigChange(n.raft.RemoveServer(server(id).ID, 0, changeTimeout(ctx)), "remove "+id)
}

// awaitConfigChange blocks until a change of the configuration is committed or has
// failed, and returns its error. what describes the change.
func (n *Node) awaitConfigChange(f raft.IndexFuture, what string) error {
	err := f.Error()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return n.notLeader()
	}
	return fmt.Errorf("%s: %w", what, err)
}

// changeTimeout returns the time until ctx's deadline, or defaultChangeTimeout if it has
// none. It never returns 0, which Raft takes for no limit.
func changeTimeout(ctx context.Context) time.Duration {
	if due, limited := ctx.Deadline(); limited {
		return max(time.Until(due), time.Millisecond)
	}
	return defaultChangeTimeout
}

// Promote records on disk that this member's votes and log count from now on,
// so that a directory that later loses them cannot start again as new. A
// joining node must be promoted before it becomes a voter.
func (n *Node) Promote() error { return n.id.MarkBootstrapped() }
