package node

import (
	"context"
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/health"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
)

// newMonitor returns the health monitor of this node.
func (n *Node) newMonitor() *health.Monitor {
	checks := health.NewChecks(health.ChecksConfig{
		Node: n.cfg.Node.Name, DataDir: n.cfg.Node.DataDir, Clustered: n.cfg.Clustered(), Members: n.memberNames,
		Raft: n.raft, Authority: n.authorityName, NATS: n.cluster, Replicas: n.cluster.Replication,
		AvailableLanes: n.cluster.Publisher.AvailableLanes, Leaving: func() bool { return n.transfer.Leaving.Load() }, Drained: func() time.Time { return n.drainer.Since() },
	})
	return health.New(health.Config{
		Node: n.cfg.Node.Name, Members: n.memberNames, Disk: n.cfg.FileSystem(),
		Check: func(ctx context.Context) health.NodeStatus { return checks.Status(ctx, time.Now()) },
		PeerStatus: func(member string) (w health.NodeStatus, err error) {
			raw, err := n.raft.PeerStatus(member)
			if err == nil {
				err = json.Unmarshal(raw, &w)
			}
			return w, err
		},
		PublishStatus: func(w health.NodeStatus) {
			if raw, err := json.Marshal(w); err == nil { // plain fields: it does not fail
				n.raft.SetNodeStatus(raw)
			}
		},
		HoldsAuthority: func() bool {
			owner := n.authorityName()
			return owner == n.cfg.Node.Name && n.raft.Status().Leader == owner
		},
		TransferAuthority: n.raft.Transfer,
		SetClosed:         n.cluster.Publisher.SetIntakeClosed,
	}, n.log)
}

// makeBallast creates the ballast file. A node without one still runs.
func (n *Node) makeBallast() {
	disk := n.cfg.FileSystem()
	bytes, err := disk.EnsureBallast(n.cfg.Disk.BallastBytes)
	switch {
	case err != nil:
		n.log.Warn("ballast file not created", "err", err)
	case bytes == 0 && n.cfg.Disk.BallastBytes != health.NoBallast:
		n.log.Info("ballast file not created: too little free space, or a file system in memory")
	}
}

// memberNames returns the names of the Raft voters, or the configured members if the
// group has no voters yet.
func (n *Node) memberNames() (names []string) {
	for _, m := range n.raft.Status().Members {
		if m.Voter {
			names = append(names, m.Name)
		}
	}
	if len(names) == 0 {
		return n.cfg.MemberNames()
	}
	return names
}

// authorityName returns the node that is the authority according to the ledger, or "".
func (n *Node) authorityName() string {
	owner, _ := n.knownAuthority()
	return owner
}

// newReporter returns what reports the status of this node.
func (n *Node) newReporter() *health.Reporter {
	return health.NewReporter(health.ReporterConfig{
		Node: n.cfg.Node.Name, Version: n.version, Clustered: n.cfg.Clustered(), Started: n.started, HTTP: n.httpAddr,
		View: n.raft.View, Raft: n.raft.Status, Authority: n.knownAuthority, Tenure: n.scheduler.Status,
		Request: n.fleet.Request, AddPeers: n.addPeerInfo, Skew: n.member.Reasons,
		NATSHealth: n.cluster.Health, LaneInfo: n.cluster.Reader.LaneInfo,
		Workers: func() api.WorkerStatus { return api.WorkerStatus(n.edge.Counts()) }, Pools: n.runners.Status, Drain: n.drainer.Status,
		Monitor: n.monitor, LedgerReasons: n.consistency.Reasons,
		Warnings: func() []string { return append(certs.Warnings(n.certStores(), time.Now()), n.drainWarnings()...) },
	})
}

// knownAuthority returns the node that is the authority according to the ledger, and
// whether there is one.
func (n *Node) knownAuthority() (owner string, known bool) {
	owner, _, known = n.authority.Current()
	return owner, known
}
