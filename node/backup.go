package node

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

func (n *Node) backupConfig() backup.Config {
	return backup.Config{
		Node: n.cfg.Node.Name, Yard: n.id.Yard, Version: n.version, Ledger: n.raft,
		Streams: n.cluster.Admin, LaneInfo: n.cluster.Reader.LaneInfo, Members: n.cluster.Members, Routed: n.cluster.Routed,
		Propose: func(ctx context.Context, c ledger.Command) error {
			_, err := n.proposer.Propose(ctx, c)
			return err
		},
		ReadBarrier: n.proposer.ReadBarrier, Log: n.log,
	}
}
