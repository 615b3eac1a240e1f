package node

import (
	"context"
	"errors"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

func (n *Node) membershipConfig() membership.Config {
	declared := []ledger.Member{{Node: n.cfg.Node.Name}}
	if n.cfg.Clustered() {
		declared = nil
	}
	for _, m := range n.cfg.Cluster.Members {
		declared = append(declared, ledger.Member{Node: m.Name, Route: m.Route, Raft: m.Raft})
	}
	return membership.Config{
		Cluster: n.cfg.Cluster.Name, Version: n.version, Clustered: n.cfg.Clustered(), Declared: declared,
		Identity: n.id, Group: n.raft, NATS: n.cluster, Replication: n.cluster.Replication, Running: n.agent.Running,
		Authority: n.authority.Watch, ProposeLocal: func(ctx context.Context, c ledger.Command) error {
			r, _, err := n.scheduler.Propose(ctx, c)
			return errors.Join(err, r.Err)
		},
		NotProposed: authority.NotProposed, CheckAddress: config.CheckAddress, Log: n.log,
	}
}

func (n *Node) drainConfig() membership.DrainConfig {
	return membership.DrainConfig{
		Clustered: n.cfg.Clustered(), Agent: n.agent, Edge: n.edge, Streams: n.cluster.Replication, DrainClients: n.cluster.DrainClients,
		ActiveJobs: func() []api.ActiveJob {
			return membership.ActiveJobs(n.raft.View, n.cfg.Node.Name, n.cfg.Scheduler.DefaultTimeout)
		},
		StopReason: edge.DrainReasonStop, Log: n.log,
	}
}
