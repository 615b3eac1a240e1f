// Package procs starts nodes as separate processes of the program itself, on
// loopback addresses and in a directory of the caller's. It is for benchmarks and
// demos of real clusters.
package procs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/freeport"
)

const (
	startTimeout   = 30 * time.Second
	stopTimeout    = 5 * time.Second
	dialTimeout    = 2 * time.Second
	requestTimeout = 5 * time.Second // including the connection
)

// Options configures a cluster.
type Options struct {
	Nodes  int    // 1, 3 or 5
	Dir    string // an empty directory; the caller removes it
	Binary string // path of the program
	Config string // TOML appended to every node's configuration file
	// NodeConfig returns TOML appended to the configuration file of a node; nil: none.
	NodeConfig func(node string) string
	Env        []string
	// Profile opens a profiling listener on every node, at Node.Profile.
	Profile bool
}

// Cluster is a set of nodes that run as processes.
type Cluster struct {
	Nodes   []*Node
	Workers []*Process // other processes that Until watches, and that Stop stops first
}

// Node is one node of a cluster, running or stopped.
type Node struct {
	Name    string
	NATS    string // host:port for clients
	Edge    string // host:port for Overhop workers
	HTTP    string // host:port of its HTTP API
	Route   string // host:port for the routes of other NATS servers
	Raft    string // host:port for Raft
	Profile string // host:port of its profiling listener; "" without Options.Profile
	DataDir string
	*Process
	config string // path of its configuration file
}

// addresses is the number of addresses of a node.
const addresses = 6

// NewNode returns a node that keeps its files in dir. It starts nothing. addrs are its
// addresses in the order of the fields of Node; there may be none for profiles.
func NewNode(dir, binary, name string, addrs, env []string) *Node {
	path := func(suffix string) string { return filepath.Join(dir, name+"."+suffix) }
	n := &Node{Name: name, NATS: addrs[0], Edge: addrs[1], HTTP: addrs[2], Route: addrs[3], Raft: addrs[4], DataDir: path("data"), config: path("toml")}
	n.Process = &Process{Name: "node " + name, LogFile: path("log"), Env: slices.Clone(env), Args: []string{binary, "node", "--config", n.config}}
	return n
}

// WriteConfig writes the node's configuration file, with these members, if there are
// more than one, and more settings as TOML.
func (n *Node) WriteConfig(more string, members ...*Node) error {
	var b strings.Builder
	host, port, _ := net.SplitHostPort(n.Edge)
	fmt.Fprintf(&b, "[node]\nname = %q\ndata_dir = %q\n\n", n.Name, n.DataDir)
	fmt.Fprintf(&b, "[nats]\nlisten = %q\n\n", n.NATS)
	fmt.Fprintf(&b, "[http]\nlisten = %q\n\n", n.HTTP)
	fmt.Fprintf(&b, "[server]\nhost = %q\nport = %s\n", host, port)
	if len(members) > 1 {
		fmt.Fprintf(&b, "\n[cluster]\nmembers = [\n")
		for _, m := range members {
			fmt.Fprintf(&b, "  { name = %q, route = %q, raft = %q },\n", m.Name, m.Route, m.Raft)
		}
		fmt.Fprint(&b, "]\n")
	}
	if err := os.WriteFile(n.config, []byte(b.String()+"\n"+more), 0o600); err != nil {
		return fmt.Errorf("write the configuration of %s: %w", n.Name, err)
	}
	return nil
}

// Start lays out a cluster, starts its nodes and returns when all of them report that
// the cluster is ready. After an error no node is running.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c, err := LayOut(o)
	if err != nil {
		return nil, err
	}
	if err := c.Start(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// Start starts the nodes and returns when all of them report that the cluster is
// ready. After an error the nodes that were started keep running.
func (c *Cluster) Start(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return c.AwaitReady(ctx)
}

// LayOut chooses addresses and writes the configuration files. It starts nothing.
func LayOut(o Options) (*Cluster, error) {
	c := &Cluster{}
	free, err := freeport.Addresses(addresses * o.Nodes)
	if err != nil {
		return nil, err
	}
	i := 0
	for addrs := range slices.Chunk(free, addresses) {
		i++
		n := NewNode(o.Dir, o.Binary, fmt.Sprintf("n%d", i), addrs, o.Env)
		if o.Profile {
			n.Profile = addrs[5] // NewNode uses those before
			n.Env = append(n.Env, "YARD_PPROF="+n.Profile)
		}
		c.Nodes = append(c.Nodes, n)
	}
	for _, n := range c.Nodes {
		more := o.Config
		if o.NodeConfig != nil {
			more += "\n" + o.NodeConfig(n.Name)
		}
		if err := n.WriteConfig(more, c.Nodes...); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// URL returns the URL of the node for NATS clients.
func (n *Node) URL() string { return "nats://" + n.NATS }

// Ask sends a request to the node over a new connection, and decodes the JSON
// answer.
func (n *Node) Ask(ctx context.Context, subject string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode the request %s: %w", subject, err)
	}
	raw, err := n.Request(ctx, subject, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fmt.Errorf("decode the answer of %s to %s: %w", n.Name, subject, err)
	}
	return nil
}

// Request sends a request to the node and returns its raw answer.
func (n *Node) Request(ctx context.Context, subject string, request []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	c, err := cluster.Dial(ctx, n.URL(), cluster.DialOptions{Timeout: dialTimeout})
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", n.Name, err)
	}
	defer c.Close()
	raw, err := c.Request(ctx, subject, request)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", n.Name, err)
	}
	return raw, nil
}

// Status returns the node's status.
func (n *Node) Status(ctx context.Context) (s api.Status, err error) {
	err = n.Ask(ctx, api.SubjectStatus, struct{}{}, &s)
	return s, err
}

// AwaitReady waits until every node reports that the cluster is ready, with all
// members and runners up.
func (c *Cluster) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, n := range c.Nodes {
		err := c.Until(ctx, "node "+n.Name+" is ready", func() error {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			return CheckReady(&s, len(c.Nodes))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckReady returns an error unless the status of a node shows a ready cluster
// with this number of members up and all runners up.
func CheckReady(s *api.Status, members int) error {
	up := 0
	for _, m := range s.Members {
		if m.State == "up" {
			up++
		}
	}
	if up < members {
		return fmt.Errorf("%d of %d members are up", up, members)
	}
	for _, p := range s.Pools {
		if p.Up < p.Size {
			return fmt.Errorf("%d of %d runners are up", p.Up, p.Size)
		}
	}
	if !s.Readiness.Ready {
		return fmt.Errorf("not ready: %v", s.Readiness.Reasons)
	}
	return nil
}

// Authority returns the node that holds the authority, as the first node that
// answers reports it.
func (c *Cluster) Authority(ctx context.Context) (*Node, error) {
	var last error
	for _, asked := range c.Nodes {
		s, err := asked.Status(ctx)
		if err != nil {
			last = err
			continue
		}
		for _, n := range c.Nodes {
			if n.Name == s.Authority.Owner {
				return n, nil
			}
		}
		last = fmt.Errorf("%s reports no authority", asked.Name)
	}
	return nil, last
}

// AddQueue creates a queue through a running node, without a limit if limit is 0. It
// repeats the request until it is executed, refused as invalid, or ctx ends.
func (c *Cluster) AddQueue(ctx context.Context, name string, limit int) error {
	request := api.QueueRequest{Name: name}
	if limit > 0 {
		request.Limit = new(int64(limit))
	}
	var invalid error
	err := c.Until(ctx, "queue "+name+" is created", func() error {
		i := slices.IndexFunc(c.Nodes, (*Node).Running)
		if i < 0 {
			return errors.New("no node is running")
		}
		err := c.Nodes[i].Ask(ctx, api.SubjectAPI+".queue.add", request, new(any))
		refused, ok := errors.AsType[*api.Error](err)
		switch {
		case ok && refused.Code == api.CodeConflict: // created by an earlier request
			return nil
		case ok && refused.Code == api.CodeInvalid:
			invalid = err
			return nil
		}
		return err
	})
	return errors.Join(err, invalid)
}

// Until polls fact until it returns nil. It gives up when ctx ends or a process
// has exited unexpectedly.
func (c *Cluster) Until(ctx context.Context, what string, fact func() error) error {
	for {
		err := fact()
		if err == nil {
			return nil
		}
		if err := c.UnexpectedExit(); err != nil {
			return err
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("gave up waiting until %s: %w", what, err)
		}
	}
}

// UnexpectedExit returns an error if a process has exited without a request.
func (c *Cluster) UnexpectedExit() error {
	for _, p := range append(c.nodeProcesses(), c.Workers...) {
		if err := p.UnexpectedExit(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) nodeProcesses() (nodes []*Process) {
	for _, n := range c.Nodes {
		nodes = append(nodes, n.Process)
	}
	return nodes
}

// Stop stops all processes: the workers first, so that they can report their last
// outcomes.
func (c *Cluster) Stop() {
	for _, group := range [][]*Process{c.Workers, c.nodeProcesses()} {
		for _, p := range group {
			p.Term()
		}
		for _, p := range group {
			p.Stop(stopTimeout)
		}
	}
}
