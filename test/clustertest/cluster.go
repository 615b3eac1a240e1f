// Package clustertest runs whole clusters in one process for tests: real nodes
// with real NATS, Raft and disks, connected through links that a test can break.
//
//	c := clustertest.Start(t, 3)
//	c.WaitAuthority().Isolate()
//	c.WaitAuthority() // of another node
//
// When the test ends, the cluster is healed and verified: there must be one
// authority, the same ledger on every node, and, after the nodes have stopped, no
// goroutine left. Nodes in one process can only be stopped gracefully. The effects
// of SIGKILL are tested by package test/drill, with real processes.
package clustertest

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/node"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/netfault"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// waitTimeout is how long a fact may take to become true on a busy machine.
const waitTimeout = time.Minute

// Cluster is a set of nodes in one process. A standalone node is a cluster of one.
type Cluster struct {
	Members []*Member

	t      testing.TB
	log    *slog.Logger
	links  []*link
	work   sync.WaitGroup // goroutines that serve the links
	cancel context.CancelFunc
}

// Member is one node of a cluster, running or stopped.
type Member struct {
	Name   string
	Config config.Config

	cluster  *Cluster
	node     *node.Node // nil while stopped
	client   *cluster.Client
	stop     context.CancelFunc
	runErr   chan error
	excluded bool // cannot be restarted
}

// Option changes the config of every member before the cluster starts.
type Option func(*config.Config)

// RetryAfter makes the backoff after a first failed attempt short.
func RetryAfter(delay time.Duration) Option {
	return func(c *config.Config) { c.Scheduler.RetryBase = delay }
}

// Start runs a cluster of n members, 1 or 3, and returns when it is ready. It is
// verified and stopped when the test ends.
func Start(t testing.TB, n int, options ...Option) *Cluster {
	t.Helper()
	countCluster()
	ctx, cancel := context.WithCancel(context.Background())
	cl := &Cluster{t: t, log: testlog.From(t, slog.LevelInfo), cancel: cancel} // lower levels would bury the rest of a failed test's log
	for i := range n {
		cl.Members = append(cl.Members, &Member{Name: fmt.Sprintf("n%d", i+1), cluster: cl})
	}
	cl.configure(options)
	for _, l := range cl.links {
		for _, p := range l.proxies() {
			cl.work.Go(func() {
				if err := p.Serve(ctx); err != nil {
					t.Errorf("link to %s: %v", l.to.Name, err)
				}
			})
		}
	}
	t.Cleanup(cl.verifyAndStop)
	for _, m := range cl.Members {
		m.StartAsync()
	}
	for _, m := range cl.Members {
		m.WaitServing()
	}
	cl.WaitReady()
	return cl
}

// unreachable is the route address a member announces for itself, so that members
// that learn of it from others cannot bypass the links.
const unreachable = "127.0.0.1:1"

// configure gives every member a config in which it reaches the other members
// through links.
func (c *Cluster) configure(options []Option) {
	dir := c.t.TempDir()
	raft, route := map[string]string{}, map[string]string{}
	free := testnet.Addresses(c.t, 2*len(c.Members))
	for i, m := range c.Members {
		raft[m.Name], route[m.Name] = free[2*i], free[2*i+1]
	}
	for _, m := range c.Members {
		cfg := config.Config{
			Node: config.Node{Name: m.Name, DataDir: filepath.Join(dir, m.Name)},
			NATS: config.NATS{Listen: "127.0.0.1:0", MaxStore: 1 << 30},
			HTTP: config.HTTP{Listen: "127.0.0.1:0"},
			Disk: config.Disk{RefuseBytes: 64 << 20, StopBytes: 32 << 20, BallastBytes: -1}, // for any disk
		}
		cfg.Server.Port = -1
		if len(c.Members) > 1 {
			cfg.Raft.Listen, cfg.NATS.RouteListen = raft[m.Name], route[m.Name]
			for _, other := range c.Members {
				declared := config.Member{Name: other.Name, Raft: raft[other.Name], Route: route[other.Name]}
				if other == m {
					declared.Route = unreachable
				} else {
					l := newLink(c.t, m, other, declared)
					c.links = append(c.links, l)
					declared.Raft, declared.Route = l.raft.Addr(), l.route.Addr()
				}
				cfg.Cluster.Members = append(cfg.Cluster.Members, declared)
			}
		}
		for _, option := range options {
			option(&cfg)
		}
		m.Config = cfg.WithDefaults()
	}
}

// StartAsync starts the member's node in a goroutine, without waiting for it.
func (m *Member) StartAsync() {
	t := m.cluster.t
	t.Helper()
	n, err := node.New(m.Config, "v0.0.0-test", m.cluster.log)
	if err != nil {
		t.Fatalf("node %s: %v", m.Name, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.node, m.stop, m.runErr = n, cancel, make(chan error, 1)
	ended := m.runErr
	go func() { ended <- n.Run(ctx) }() // joined by Stop
}

// WaitServing waits until the node listens, and connects m.client to it. A node with an
// empty data directory listens once it has been admitted.
func (m *Member) WaitServing() {
	t := m.cluster.t
	t.Helper()
	select {
	case <-m.node.Serving():
	case err := <-m.runErr:
		m.runErr <- err
		t.Fatalf("node %s ended during start: %v", m.Name, err)
	case <-time.After(waitTimeout):
		t.Fatalf("node %s is not serving", m.Name)
	}
	client, err := cluster.Dial(context.Background(), m.node.Addresses().NATS, cluster.DialOptions{Name: "test"})
	if err != nil {
		t.Fatalf("connect to %s: %v", m.Name, err)
	}
	m.client = client
}

// Running reports whether the member's node has been started and not stopped.
func (m *Member) Running() bool { return m.node != nil }

// Node returns the running node, nil while the member is stopped.
func (m *Member) Node() *node.Node { return m.node }

// Client returns an operator's connection to this member.
func (m *Member) Client() *cluster.Client { return m.client }

// Stop stops the member's node. It fails the test if the node reports an error.
func (m *Member) Stop() {
	m.cluster.t.Helper()
	if m.node == nil {
		return
	}
	if m.client != nil {
		m.client.Close()
	}
	m.stop()
	select {
	case err := <-m.runErr:
		if err != nil {
			m.cluster.t.Errorf("node %s ended with: %v", m.Name, err)
		}
	case <-time.After(waitTimeout):
		m.cluster.t.Fatalf("node %s has not stopped:\n%s", m.Name, stacks())
	}
	m.node, m.client = nil, nil
}

// WaitEnd waits until the member's node has ended by itself, and returns its error.
func (m *Member) WaitEnd() (err error) {
	m.cluster.t.Helper()
	select {
	case err = <-m.runErr:
	case <-time.After(waitTimeout):
		m.cluster.t.Fatalf("node %s has not ended", m.Name)
	}
	m.stop()
	if m.client != nil {
		m.client.Close()
	}
	m.node, m.client = nil, nil
	return err
}

// Exclude leaves a member that cannot be restarted out of the final verification.
func (m *Member) Exclude() { m.excluded = true }

// Restart stops the member's node and starts it again in its data directory.
func (m *Member) Restart() {
	m.cluster.t.Helper()
	m.Stop()
	m.StartAsync()
	m.WaitServing()
}

// Running returns the members that are running.
func (c *Cluster) Running() []*Member {
	var running []*Member
	for _, m := range c.Members {
		if m.Running() {
			running = append(running, m)
		}
	}
	return running
}

// verifyAndStop checks the state of the cluster, unless the test has failed, and
// stops all its members at once.
func (c *Cluster) verifyAndStop() {
	defer uncountCluster(c.t)
	if !c.t.Failed() {
		c.Heal()
		for _, m := range c.Members {
			if !m.Running() && !m.excluded {
				m.Restart()
			}
		}
		c.waitServing()
		if len(c.Running()) == len(c.Members) { // otherwise some streams lack a replica
			c.waitStreams() // a server stopped while opening a stream leaks goroutines
		}
		c.RequireOneAuthority()
		c.RequireSameLedger()
	}
	for _, m := range c.Running() {
		m.stop()
	}
	for _, m := range c.Members {
		m.Stop()
	}
	c.cancel()
	c.work.Wait()
}

// link is the network path over which one member reaches another.
type link struct {
	from, to    *Member
	raft, route *netfault.Proxy
}

// newLink returns proxies to the addresses of member to, which declared holds.
func newLink(t testing.TB, from, to *Member, declared config.Member) *link {
	t.Helper()
	proxyTo := func(target string) *netfault.Proxy {
		p, err := netfault.New(target)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	return &link{from: from, to: to, raft: proxyTo(declared.Raft), route: proxyTo(declared.Route)}
}

func (l *link) proxies() []*netfault.Proxy { return []*netfault.Proxy{l.raft, l.route} }

// eachLink calls do for all links from and to the member.
func (m *Member) eachLink(do func(*link)) {
	for _, l := range m.cluster.links {
		if l.from == m || l.to == m {
			do(l)
		}
	}
}

// Isolate stalls all links of the member: its connections to other members stay
// open and silent. Clients still reach it.
func (m *Member) Isolate() {
	m.eachLink(func(l *link) {
		l.raft.Stall()
		l.route.Stall()
	})
}

// Cut closes the member's connections to other members and refuses new ones.
func (m *Member) Cut() {
	m.eachLink(func(l *link) {
		l.raft.Cut()
		l.route.Cut()
	})
}

// CutRoutes closes the member's NATS routes and refuses new ones. Its Raft
// connections stay up.
func (m *Member) CutRoutes() { m.eachLink(func(l *link) { l.route.Cut() }) }

// CutRaft closes all Raft connections between members and refuses new ones. NATS
// messages still pass, but no decision can be committed.
func (c *Cluster) CutRaft() {
	for _, l := range c.links {
		l.raft.Cut()
	}
}

// Heal restores all links.
func (c *Cluster) Heal() {
	for _, l := range c.links {
		l.raft.Heal()
		l.route.Heal()
	}
}

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
	m.StartAsync()
	return m
}

// RemoveMember removes a stopped member from c.Members, so that it is not restarted
// for the final verification.
func (c *Cluster) RemoveMember(name string) {
	c.Members = slices.DeleteFunc(c.Members, func(m *Member) bool { return m.Name == name && m.node == nil })
}
