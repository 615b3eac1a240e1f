package node

import (
	"context"
	"errors"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// proposeTransfer commits a command for [membership.Transferer], which handles a
// rejected command itself.
func (n *Node) proposeTransfer(ctx context.Context, c ledger.Command) (membership.Proposed, error) {
	d, err := n.proposer.Propose(ctx, c)
	var rejected *authority.RejectedError
	if errors.As(err, &rejected) {
		return membership.Proposed{Index: d.Index, Rejected: rejected}, nil
	}
	return membership.Proposed{Index: d.Index, Event: d.Event}, err
}
