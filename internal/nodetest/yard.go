package nodetest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/node"
)

// patience is how long a fact may take to come true on a busy machine.
const patience = 30 * time.Second

// Yard is a set of nodes that belong together.
type Yard struct {
	Members []*Member

	t     testing.TB
	log   slog.Handler
	links []*link
	work  sync.WaitGroup // the links
	end   context.CancelFunc
}

// Member is one node of a yard, running or not.
type Member struct {
	Name   string
	Config node.Config

	yard   *Yard
	node   *node.Node // nil while it does not run
	client *cluster.Client
	stop   context.CancelFunc
	ended  chan error
	lost   bool // it cannot be started again
}

// Option changes the config of every member before the yard starts.
type Option func(*node.Config)

// Start runs a yard of n members, 1 or 3, and returns when it is ready. It is
// stopped and examined when the test ends.
func Start(t testing.TB, n int, options ...Option) *Yard {
	t.Helper()
	before := goroutines()
	ctx, cancel := context.WithCancel(context.Background())
	y := &Yard{t: t, log: newLog(t), end: cancel}
	for i := range n {
		y.Members = append(y.Members, &Member{Name: fmt.Sprintf("n%d", i+1), yard: y})
	}
	y.configure(options)
	for _, l := range y.links {
		for _, p := range l.proxies() {
			y.work.Go(func() {
				if err := p.Serve(ctx); err != nil {
					t.Errorf("line to %s: %v", l.to.Name, err)
				}
			})
		}
	}
	t.Cleanup(func() { y.finish(before) })
	for _, m := range y.Members {
		m.run()
	}
	for _, m := range y.Members {
		m.awaitServing()
	}
	y.WaitReady()
	return y
}

// nowhere is where a member says that it is reached, so that those who hear of
// it from others find no way beside the links.
const nowhere = "127.0.0.1:1"

// configure gives every member a config in which the others are reached
// through links.
func (y *Yard) configure(options []Option) {
	dir := y.t.TempDir()
	raft, route := map[string]string{}, map[string]string{}
	for _, m := range y.Members {
		raft[m.Name], route[m.Name] = freePort(y.t), freePort(y.t)
	}
	for _, m := range y.Members {
		c := node.Config{
			Node: node.NodeConfig{Name: m.Name, DataDir: filepath.Join(dir, m.Name)},
			NATS: node.NATSConfig{Listen: "127.0.0.1:0", MaxStore: 1 << 30},
			HTTP: node.HTTPConfig{Listen: "127.0.0.1:0"},
			Disk: node.DiskConfig{RefuseBytes: 64 << 20, StopBytes: 32 << 20, BallastBytes: -1}, // on whatever disk there is
		}
		c.Server.Port = -1
		if len(y.Members) > 1 {
			c.Raft.Listen, c.NATS.RouteListen = raft[m.Name], route[m.Name]
			for _, other := range y.Members {
				declared := node.MemberConfig{Name: other.Name, Raft: raft[other.Name], Route: route[other.Name]}
				if other == m {
					declared.Route = nowhere
				} else {
					l := newLink(y.t, m, other, declared)
					y.links = append(y.links, l)
					declared = l.declared(declared)
				}
				c.Cluster.Members = append(c.Cluster.Members, declared)
			}
		}
		for _, option := range options {
			option(&c)
		}
		m.Config = c.WithDefaults()
	}
}

// run starts the member's node.
func (m *Member) run() {
	t := m.yard.t
	t.Helper()
	n, err := node.New(m.Config, "v0.0.0-test", slog.New(m.yard.log))
	if err != nil {
		t.Fatalf("node %s: %v", m.Name, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.node, m.stop, m.ended = n, cancel, make(chan error, 1)
	ended := m.ended
	go func() { ended <- n.Run(ctx) }() // joined by Stop
}

// awaitServing waits until the node listens, and connects to it.
func (m *Member) awaitServing() {
	t := m.yard.t
	t.Helper()
	select {
	case <-m.node.Serving():
	case err := <-m.ended:
		m.ended <- err
		t.Fatalf("node %s ended at once: %v", m.Name, err)
	case <-time.After(patience):
		t.Fatalf("node %s does not serve", m.Name)
	}
	client, err := cluster.Dial(context.Background(), m.node.Addresses().NATS, cluster.DialOptions{Name: "test"})
	if err != nil {
		t.Fatalf("connect to %s: %v", m.Name, err)
	}
	m.client = client
}

// Running tells that the member's node has been started and not stopped.
func (m *Member) Running() bool { return m.node != nil }

// Node is the running node.
func (m *Member) Node() *node.Node { return m.node }

// Client is a connection to this member as the operator.
func (m *Member) Client() *cluster.Client { return m.client }

// Stop ends the member's node, which must have nothing to complain of.
func (m *Member) Stop() {
	m.yard.t.Helper()
	if m.node == nil {
		return
	}
	if m.client != nil {
		m.client.Close()
	}
	m.stop()
	select {
	case err := <-m.ended:
		if err != nil {
			m.yard.t.Errorf("node %s ended with: %v", m.Name, err)
		}
	case <-time.After(patience):
		m.yard.t.Fatalf("node %s does not stop:\n%s", m.Name, stacks())
	}
	m.node, m.client = nil, nil
}

// Ended waits until the member's node has ended by itself, and gives why.
func (m *Member) Ended() (err error) {
	m.yard.t.Helper()
	select {
	case err = <-m.ended:
	case <-time.After(patience):
		m.yard.t.Fatalf("node %s does not end", m.Name)
	}
	m.stop()
	if m.client != nil {
		m.client.Close()
	}
	m.node, m.client = nil, nil
	return err
}

// Begin starts the member's node and waits for nothing.
func (m *Member) Begin() { m.run() }

// Lose leaves the member out of the yard's examination: it cannot be started.
func (m *Member) Lose() { m.lost = true }

// Restart starts the member's node again in its data directory.
func (m *Member) Restart() {
	m.yard.t.Helper()
	m.Stop()
	m.run()
	m.awaitServing()
}

// Running lists the members that run.
func (y *Yard) Running() []*Member {
	var running []*Member
	for _, m := range y.Members {
		if m.Running() {
			running = append(running, m)
		}
	}
	return running
}

// finish examines the yard and takes it down.
func (y *Yard) finish(before map[string]bool) {
	if !y.t.Failed() {
		y.Heal()
		for _, m := range y.Members {
			if !m.Running() && !m.lost {
				m.Restart()
			}
		}
		y.waitServing()
		if len(y.Running()) == len(y.Members) { // else copies lack
			y.waitStreams() // a server that stops while it still opens a stream leaves goroutines behind
		}
		y.RequireOneAuthority()
		y.RequireSameLedger()
	}
	for _, m := range y.Members {
		m.Stop()
	}
	y.end()
	y.work.Wait()
	requireNoGoroutines(y.t, before)
}

// freePort finds a loopback address below the ports that the kernel gives to
// outgoing connections, so that nobody takes it before the node does.
func freePort(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", nextPort())
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		ln.Close()
		return addr
	}
	t.Fatal("no free port found")
	return ""
}
