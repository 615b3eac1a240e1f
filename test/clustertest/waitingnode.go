package clustertest

import (
	"path/filepath"
	"slices"

	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// StartWaitingNode starts a node with an empty data directory that is not a member
// of the cluster yet, and waits to be admitted. It reaches the members without
// links. A stopped member of the same name is removed from c.Members, because the
// new node replaces it.
func (c *Cluster) StartWaitingNode(name string, options ...Option) *Member {
	c.t.Helper()
	free := testnet.Addresses(c.t, 2)
	raft, route := free[0], free[1]
	cfg := config.Config{
		Node: config.Node{Name: name, DataDir: filepath.Join(c.t.TempDir(), name)},
		NATS: config.NATS{Listen: "127.0.0.1:0", MaxStore: 1 << 30},
		HTTP: config.HTTP{Listen: "127.0.0.1:0"},
	}
	cfg.Server.Port = -1
	c.RemoveMember(name)
	for _, m := range c.Members {
		cfg.Cluster.Members = append(cfg.Cluster.Members, config.Member{Name: m.Name, Raft: m.Config.Raft.Listen, Route: m.Config.NATS.RouteListen})
	}
	cfg.Cluster.Members = append(cfg.Cluster.Members, config.Member{Name: name, Raft: raft, Route: route})
	for _, option := range options {
		option(&cfg)
	}
	m := &Member{Name: name, Config: cfg.WithDefaults(), cluster: c}
	c.Members = append(c.Members, m)
	m.run()
	return m
}

// WaitServing waits until a node that has been admitted serves.
func (m *Member) WaitServing() {
	m.cluster.t.Helper()
	m.awaitServing()
}

// RemoveMember removes a stopped member from c.Members, so that it is not restarted
// for the final verification.
func (c *Cluster) RemoveMember(name string) {
	c.Members = slices.DeleteFunc(c.Members, func(m *Member) bool { return m.Name == name && m.node == nil })
}
