package node

import (
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/diagnose"
	"github.com/yardmaster-dev/yardmaster/health"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/internal/zoneinfo"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/node/config"
)

// newMonitor returns the health monitor of this node.
func (n *Node) newMonitor() *health.Monitor {
	checks := health.NewChecks(health.ChecksConfig{
		Node: n.cfg.Node.Name, DataDir: n.cfg.Node.DataDir, Clustered: n.cfg.Clustered(), Members: voters(n.raft, n.cfg.MemberNames()),
		Raft: n.raft, Authority: n.authority.Holder, NATS: n.cluster,
		AvailableLanes: n.cluster.Publisher.AvailableLanes, Leaving: func() bool { return n.transfer.Leaving.Load() }, Drained: func() time.Time { return n.drainer.Since() },
	})
	return health.New(health.Config{
		Node: n.cfg.Node.Name, Members: voters(n.raft, n.cfg.MemberNames()), Disk: n.cfg.FileSystem(),
		Check: func() health.NodeStatus { return checks.Status(time.Now()) },
		PeerStatus: func(member string) (status health.NodeStatus, err error) {
			raw, err := n.raft.PeerStatus(member)
			if err == nil {
				err = json.Unmarshal(raw, &status)
			}
			return status, err
		},
		PublishStatus: func(status health.NodeStatus) {
			if raw, err := json.Marshal(status); err == nil { // plain fields: it does not fail
				n.raft.SetNodeStatus(raw)
			}
		},
		HoldsAuthority: func() bool {
			owner := n.authority.Holder()
			return owner == n.cfg.Node.Name && n.raft.Status().Leader == owner
		},
		TransferAuthority: n.raft.Transfer,
		SetClosed:         n.cluster.Publisher.SetIntakeClosed,
	}, n.log)
}

// makeBallast creates the ballast file, whose space an operator can release when the disk is
// full. It logs why there is none: a node without one still runs.
func makeBallast(cfg *config.Config, log *slog.Logger) {
	disk := cfg.FileSystem()
	bytes, err := disk.EnsureBallast(cfg.Disk.BallastBytes)
	switch {
	case err != nil:
		log.Warn("ballast file not created", "err", err)
	case bytes == 0 && cfg.Disk.BallastBytes != health.NoBallast:
		log.Info("ballast file not created: too little free space, or a file system in memory")
	}
}

// newReporter returns what reports the status of this node.
func (n *Node) newReporter() *health.Reporter {
	return health.NewReporter(health.ReporterConfig{
		Node: n.cfg.Node.Name, Version: n.version, TimeZones: zoneinfo.Version(), Clustered: n.cfg.Clustered(), Started: n.started, HTTP: n.httpAddr,
		View: n.raft.View, Now: n.raft.LedgerTime, Raft: n.raft.Status, Authority: n.authority.Known, Tenure: n.scheduler.Status,
		Request: n.fleet.Request, AddPeers: n.addPeerInfo, Skew: n.member.Reasons,
		NATSHealth: n.cluster.Health, LaneInfo: n.cluster.Reader.LaneInfo, Streams: n.cluster.Reader.Usage,
		Workers: func() api.WorkerStatus { return n.edge.Counts() }, Pools: n.runners.Status, Drain: n.drainer.Status,
		Monitor: n.monitor, LedgerReasons: func(l *ledger.Ledger) []string { return append(n.consistency.Reasons(), n.chronicle.Reasons(l)...) },
		Warnings: func() []string {
			pressure := n.cluster.Publisher.Pressure()
			storage, _ := n.cluster.Replication.Storage() // has no streams on an error
			return slices.Concat(certs.Warnings(n.certs.stores(n.edge), time.Now()), n.monitor.DrainWarnings(), pressure.Warnings(), storage.Warnings(), n.index.Warnings())
		},
	})
}

// newDiagnoser returns the diagnoser of this node.
func (n *Node) newDiagnoser() *diagnose.Diagnoser {
	config := n.schedulerConfig()
	return diagnose.New(diagnose.Config{
		Node: n.cfg.Node.Name, DefaultTimeout: config.DefaultTimeout, MaxAttempts: config.Policy.MaxAttempts,
		Defaults: config.Defaults, Route: config.Route,
		View: n.raft.View, Members: func() (names []string) {
			for _, m := range n.raft.Status().Members {
				names = append(names, m.Name)
			}
			return names
		}, Authority: n.authority.Known,
		NoQuorum: func() string { return health.NoQuorum(n.raft.Status()) },
		FindJob:  n.viewer.Locate, FindQueue: n.proposer.Queue, Ended: n.viewer.Ended, LetterGone: n.viewer.LetterGone,
		Placement: n.scheduler.ExplainPlacement, Peers: n.fleet, Records: n.cluster.Reader, Workers: n.edge,
		Pools: n.runners.Status, Drained: n.drainer.Drained,
	})
}

// addPeerInfo sets in each of members its version and its time zones, whether its connection to this node uses TLS, and why the two refuse each other, as far as this node knows.
func (n *Node) addPeerInfo(members []api.MemberStatus) {
	contacts := map[string]consensus.Contact{n.cfg.Node.Name: {Build: n.build(), TLS: n.certs.cluster != nil}}
	if listener := n.id.Listener(); listener != nil {
		for _, p := range listener.Contacts() {
			contacts[p.Name] = p
		}
	}
	for i := range members {
		contact := contacts[members[i].Name]
		members[i].Version, members[i].TimeZones, members[i].TLS, members[i].Refused = contact.Build.Version, contact.Build.Zones, contact.TLS, contact.Refused
	}
}
