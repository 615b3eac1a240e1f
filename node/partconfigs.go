package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/index"
	"github.com/yardmaster-dev/yardmaster/internal/zoneinfo"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/operations"
	"github.com/yardmaster-dev/yardmaster/server/schemas"
)

// The configurations of the parts.

// build describes this node's program to other members.
func (n *Node) build() consensus.Build {
	return consensus.Build{Version: n.version, Level: protocolVersion, Zones: zoneinfo.Version()}
}

// identityConfig returns what determines which member this node is. Only a node with
// declared members opens a Raft port.
func (n *Node) identityConfig() consensus.IdentityConfig {
	c := consensus.IdentityConfig{
		Yard: n.cfg.Cluster.Name, Node: n.cfg.Node.Name, Dir: n.cfg.Node.DataDir,
		Build: n.build(), Certificates: n.certs.cluster,
		Secret: string(n.cfg.Cluster.Secret),
	}
	if n.cfg.Clustered() {
		c.Listen, c.Route = n.cfg.Raft.Listen, n.cfg.Self().Route
		for _, m := range n.cfg.Cluster.Members {
			c.Members = append(c.Members, consensus.Member{Name: m.Name, Addr: m.Raft})
		}
		c.OnWaiting = func(reasons []string) { n.waitingFor.Store(&reasons) }
	}
	return c
}

// clusterConfig returns the configuration of the NATS server, without its users. Its
// peers are the members that this node's identity lists, each route once; if this node
// replaces a member of the same name, the replaced one is left out.
func (n *Node) clusterConfig() embedded.Config {
	c := embedded.Config{
		Node: n.cfg.Node.Name, Identity: n.id.MemberID.ServerID(), Yard: n.id.Yard,
		Dir: filepath.Join(n.cfg.Node.DataDir, "nats"), IndexDir: n.indexDir(), ClientListen: n.cfg.NATS.Listen,
		Secret: n.cfg.Cluster.Secret, MaxStore: n.cfg.NATS.MaxStore, Anonymous: embedded.Role(n.cfg.NATS.Anonymous),
		ClientTLS: n.certs.nats.Server(), MemberTLS: n.certs.cluster,
	}
	if !n.cfg.Clustered() {
		return c
	}
	c.RouteListen = n.cfg.NATS.RouteListen
	for _, p := range n.id.Peers() {
		isReplaced := p.Node == n.id.Node && p.MemberID != n.id.MemberID
		route := routeAddress(&n.cfg, p)
		isListed := slices.ContainsFunc(c.Peers, func(listed embedded.Peer) bool { return listed.Route == route })
		if !isReplaced && !isListed {
			c.Peers = append(c.Peers, embedded.Peer{Node: p.Node, Identity: p.ServerID(), Route: route})
		}
	}
	return c
}

// routeAddress returns the NATS route address of a member. The configuration of this
// node wins for members of the first configuration, because this node may reach them
// by another address; members that joined later have theirs in the ledger.
func routeAddress(cfg *config.Config, p consensus.Peer) string {
	for _, m := range cfg.Cluster.Members {
		if m.Name == p.Node && (p.JoinRevision == 0 || p.Route == "" || m.Name == cfg.Node.Name) {
			return m.Route
		}
	}
	return p.Route
}

func (n *Node) raftConfig() consensus.Config {
	return consensus.Config{Dir: n.cfg.Node.DataDir, SnapshotBytes: n.cfg.Raft.SnapshotBytes, OnFatal: n.exitAtOnce, Projection: n.statistics}
}

func (n *Node) indexDir() string { return filepath.Join(n.cfg.Node.DataDir, "index") }

// indexConfig returns what the index depends on. It gives way before the disk has so little free space
// that this node refuses jobs.
func (n *Node) indexConfig() index.Config {
	return index.Config{
		Node: n.cfg.Node.Name, History: historyAdapter{n.cluster.Reader}, Dir: n.indexDir(), Yard: n.id.Yard,
		LowSpace: func(more int64) bool { return n.monitor.SpaceIsScarce(more) }, // the monitor is made later
	}
}

// schedulerConfig returns what the scheduler uses of the configuration. The tables of
// [rrq] set defaults and routes of jobs, too.
func (n *Node) schedulerConfig() scheduler.Config {
	s := n.cfg.Scheduler
	crons, _ := n.cfg.Crons() // checked by Validate
	return scheduler.Config{
		Node: n.cfg.Node.Name, Members: n.cfg.MemberNames(),
		Policy:         job.Policy{MaxAttempts: s.MaxAttempts, BaseDelay: s.RetryBase, MaxDelay: s.RetryMax, Jitter: *s.RetryJitter},
		Defaults:       n.cfg.RRQ.Defaults(),
		DefaultTimeout: s.DefaultTimeout, Routes: n.cfg.RRQ.RoutesByQueue(), DefaultRunner: n.cfg.RRQ.DefaultRunnerName(),
		CreateQueues: *s.CreateQueues, Crons: crons, Retention: n.cfg.Retention.Settings(),
		CheckPayload: n.schemas.CheckRecord, LimitKey: n.limitKeys.Find, Labels: n.limitKeys.Labels, ConsistencyCheckInterval: s.ConsistencyCheckInterval, BlockedReason: func() string { return n.monitor.HoldReason() },
	}
}

// schemasConfig returns what the check of payloads depends on.
func (n *Node) schemasConfig() schemas.Config {
	return schemas.Config{
		Schemas: n.raft.Schemas, Msgpack: edge.CheckPayload, ToJSON: edge.JSONOf, LoadBody: n.cluster.Reader.LoadRecordBody, Log: n.log,
		Secret: func() (secret []byte) {
			n.raft.View(func(l *ledger.Ledger) { secret = l.Secret() })
			return secret
		},
	}
}

// schemaPeers returns what adds up the counts of the members.
func (n *Node) schemaPeers() *schemas.Peers {
	return &schemas.Peers{Checker: n.schemas, Node: n.cfg.Node.Name, Members: voters(n.raft, n.cfg.MemberNames()), Fleet: n.fleet}
}

// membershipConfig returns what this node's membership depends on. A node without declared
// members declares itself.
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

// drainConfig returns the parts from which a drain moves work and leadership away.
func (n *Node) drainConfig() membership.DrainConfig {
	return membership.DrainConfig{
		Clustered: n.cfg.Clustered(), Agent: n.agent, Edge: n.edge, Streams: n.cluster.Replication, DrainClients: n.cluster.DrainClients,
		ActiveJobs: func() []api.ActiveJob {
			return membership.ActiveJobs(n.raft.View, n.cfg.Node.Name, n.cfg.Scheduler.DefaultTimeout)
		},
		StopReason: edge.DrainReasonStop, Log: n.log,
	}
}

// operationRunner returns what carries out operations while this node holds the authority.
func (n *Node) operationRunner() *operations.Runner {
	return &operations.Runner{
		Ledger: n.raft, Find: n.index, Propose: n.scheduler.Propose, Restore: n.retrier.RestoreRecords, Letters: n.deadLetters, Log: n.log,
	}
}

// backupConfig returns what a backup reads, and a restore writes.
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

// buildTime returns when the program was built, as RFC 3339: the time of the commit that it
// was built from, or else that of its file. It returns "" if neither is known.
func buildTime() string {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range build.Settings {
			if setting.Key == "vcs.time" && setting.Value != "" {
				return setting.Value
			}
		}
	}
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	file, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return file.ModTime().UTC().Format(time.RFC3339)
}
