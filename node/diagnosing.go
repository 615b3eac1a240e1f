package node

import (
	"github.com/yardmaster-dev/yardmaster/diagnose"
	"github.com/yardmaster-dev/yardmaster/health"
)

// newDiagnoser returns the diagnoser of this node.
func (n *Node) newDiagnoser() *diagnose.Diagnoser {
	config := n.schedulerConfig()
	return diagnose.New(diagnose.Config{
		Node: n.cfg.Node.Name, DefaultTimeout: config.DefaultTimeout, MaxAttempts: config.Policy.MaxAttempts,
		Defaults: config.Defaults, Route: config.Route,
		View: n.raft.View, Members: n.raftMemberNames, Authority: n.knownAuthority,
		NoQuorum: func() string { return health.NoQuorum(n.raft.Status()) },
		FindJob:  n.viewer.Locate, FindQueue: n.proposer.Queue,
		Placement: n.scheduler.ExplainPlacement, Peers: n.fleet, Records: n.cluster.Reader, Workers: n.edge,
		Pools: n.runners.Status, Drained: n.drainer.Drained,
	})
}

// raftMemberNames returns the names of all members of the Raft group.
func (n *Node) raftMemberNames() []string {
	members := n.raft.Status().Members
	names := make([]string, len(members))
	for i := range members {
		names[i] = members[i].Name
	}
	return names
}
