package nodetest

import (
	"path/filepath"
	"slices"

	"yardmaster/node"
)

// Newcomer starts a node that the yard has formed without, in an empty
// directory; it waits to be let in. The others are reached without links. A
// member of that name that does not run is forgotten: this is another directory.
func (y *Yard) Newcomer(name string, options ...Option) *Member {
	y.t.Helper()
	raft, route := freePort(y.t), freePort(y.t)
	c := node.Config{
		Node: node.NodeConfig{Name: name, DataDir: filepath.Join(y.t.TempDir(), name)},
		NATS: node.NATSConfig{Listen: "127.0.0.1:0", MaxStore: 1 << 30},
		HTTP: node.HTTPConfig{Listen: "127.0.0.1:0"},
	}
	c.Server.Port = -1
	y.Forget(name)
	for _, m := range y.Members {
		c.Cluster.Members = append(c.Cluster.Members, node.MemberConfig{Name: m.Name, Raft: m.Config.Raft.Listen, Route: m.Config.NATS.RouteListen})
	}
	c.Cluster.Members = append(c.Cluster.Members, node.MemberConfig{Name: name, Raft: raft, Route: route})
	for _, option := range options {
		option(&c)
	}
	m := &Member{Name: name, Config: c.WithDefaults(), yard: y}
	y.Members = append(y.Members, m)
	m.run()
	return m
}

// Await waits until a member that was let in serves.
func (m *Member) Await() {
	m.yard.t.Helper()
	m.awaitServing()
}

// Forget takes a member that does not run out of the yard that is examined.
func (y *Yard) Forget(name string) {
	y.Members = slices.DeleteFunc(y.Members, func(m *Member) bool { return m.Name == name && m.node == nil })
}
