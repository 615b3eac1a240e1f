package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// ErrDirectoryUsed refuses a node that waits to be let in with a directory that
// belongs to a yard already.
var ErrDirectoryUsed = errors.New("its data directory belongs to a yard already")

// changeTime bounds one change of the group's configuration, when the caller's
// context does not.
const changeTime = 5 * time.Second

// Meet asks who waits at a raft address, within a second.
func (n *Node) Meet(addr string) (Newcomer, error) {
	door := n.id.Door()
	if door == nil {
		return Newcomer{}, errors.New("this node runs alone: it has no members")
	}
	return door.Meet(addr)
}

// Admit takes a seat into the group, first without a vote: it is sent the log
// and no commit waits for it. With vote its voice counts from then on, which it
// must have been told before (see [Node.Vouch]). To admit one that is in
// changes nothing. A node that does not lead gives [*NotLeaderError].
func (n *Node) Admit(ctx context.Context, id string, vote bool) error {
	for _, m := range n.members() {
		if m.ID == id && (m.Voter || !vote) {
			return nil
		}
	}
	if vote {
		s := server(id)
		return n.reconfigured(n.raft.AddVoter(s.ID, s.Address, 0, within(ctx)), "give "+id+" a vote")
	}
	s := server(id)
	return n.reconfigured(n.raft.AddNonvoter(s.ID, s.Address, 0, within(ctx)), "admit "+id)
}

// Expel takes a seat out of the group. One that is not in it changes nothing.
func (n *Node) Expel(ctx context.Context, id string) error {
	if !slices.ContainsFunc(n.members(), func(m MemberInfo) bool { return m.ID == id }) {
		return nil
	}
	return n.reconfigured(n.raft.RemoveServer(server(id).ID, 0, within(ctx)), "take "+id+" out")
}

func (n *Node) reconfigured(f raft.IndexFuture, what string) error {
	err := f.Error()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return n.notLeader()
	}
	return fmt.Errorf("%s: %w", what, err)
}

func within(ctx context.Context) time.Duration {
	if due, limited := ctx.Deadline(); limited {
		return max(time.Until(due), time.Millisecond)
	}
	return changeTime
}

// Vouch keeps, on disk, that this member's votes and log count from now on: a
// directory that loses them is not begun again. A newcomer is asked for it
// before it gets a vote.
func (n *Node) Vouch() error { return n.id.MarkBootstrapped() }
