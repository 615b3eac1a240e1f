package consensus

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Propose submits a proposal and waits for its result; see [Node.Submit].
func (n *Node) Propose(ctx context.Context, p ledger.Proposal) (ledger.Commit, error) {
	wait, err := n.Submit(p)
	if err != nil {
		return ledger.Commit{}, err
	}
	return wait(ctx)
}
