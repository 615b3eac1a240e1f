package consensus

import "context"

// Propose submits a proposal and waits for its result; see [Pending.Wait].
func (n *Node) Propose(ctx context.Context, p Proposal) (Commit, error) {
	pending, err := n.Submit(p)
	if err != nil {
		return Commit{}, err
	}
	return pending.Wait(ctx)
}
