package drill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill/disk"
	"github.com/yardmaster-dev/yardmaster/test/drill/hosts"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Cluster is a set of nodes that run as processes.
type Cluster struct {
	Dir    string // contains all files of the cluster
	Binary string // path of the program
	Nodes  []*Node
	Net    *hosts.Network // nil if all nodes use this host's loopback

	plan    Layout
	disks   []*disk.Disk
	workers []*procs.Process
	kills   []int64 // times, by the host's clock
}

// Node is a member of the cluster, running or not.
type Node struct {
	*procs.Node
	Witness string      // witness file of its runners
	Host    *hosts.Host // nil for this host
	Disk    *disk.Disk  // nil if DataDir is a plain directory
}

// Start starts all nodes and returns when they are ready.
func (c *Cluster) Start(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return c.WaitReady(ctx)
}

// Close kills every process and removes disks and network. Files in Dir are kept.
func (c *Cluster) Close() error {
	var failed error
	for _, d := range c.disks { // no signal reaches a process that waits for a frozen disk
		failed = errors.Join(failed, d.Thaw())
	}
	for _, w := range c.workers {
		w.Kill()
	}
	for _, n := range c.Nodes {
		n.Process.Kill()
	}
	for _, d := range c.disks {
		failed = errors.Join(failed, d.Close())
	}
	if c.Net != nil {
		failed = errors.Join(failed, c.Net.Close())
	}
	return failed
}

// Kill kills nodes simultaneously with SIGKILL, records the time and waits for
// their exit.
func (c *Cluster) Kill(nodes ...*Node) {
	c.kills = append(c.kills, HostClock())
	for _, n := range nodes {
		_ = n.Signal(syscall.SIGKILL) // fails if it has exited already
	}
	for _, n := range nodes {
		n.Process.Kill() // waits for its exit
	}
}

// Running returns the nodes that are running.
func (c *Cluster) Running() (running []*Node) {
	for _, n := range c.Nodes {
		if n.Running() {
			running = append(running, n)
		}
	}
	return running
}

// URLs returns the NATS URLs of all nodes, separated by commas.
func (c *Cluster) URLs() string {
	var urls []string
	for _, n := range c.Nodes {
		urls = append(urls, n.URL())
	}
	return strings.Join(urls, ",")
}

// Edges returns the Overhop addresses of all nodes.
func (c *Cluster) Edges() (edges []string) {
	for _, n := range c.Nodes {
		edges = append(edges, n.Edge)
	}
	return edges
}

// Authority returns the running node that holds the authority, as the running node
// with the highest epoch reports it.
func (c *Cluster) Authority(ctx context.Context) (*Node, error) {
	var found *Node
	epoch := uint64(0)
	for _, n := range c.Running() {
		s, err := n.Status(ctx)
		if err != nil || s.Authority.Epoch <= epoch || s.Authority.Expired {
			continue
		}
		for _, owner := range c.Running() {
			if owner.Name == s.Authority.Owner {
				found, epoch = owner, s.Authority.Epoch
			}
		}
	}
	if found == nil {
		return nil, errors.New("no running node holds the authority")
	}
	return found, nil
}

// WaitReady waits until every running node reports that it is ready and sees all
// running nodes as up.
func (c *Cluster) WaitReady(ctx context.Context) error {
	return until(ctx, "the cluster is ready", func() error {
		running := c.Running()
		for _, n := range running {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			seen := 0
			for _, m := range s.Members {
				if m.State == "up" {
					seen++
				}
			}
			if !s.Readiness.Ready || seen < len(running) {
				return fmt.Errorf("%s sees %d members up; its readiness reasons: %v", n.Name, seen, s.Readiness.Reasons)
			}
		}
		return nil
	})
}

// AddQueue creates a queue through a running node, without a limit if limit is 0.
func (c *Cluster) AddQueue(ctx context.Context, name string, limit int) error {
	var running procs.Cluster
	for _, n := range c.Nodes {
		running.Nodes = append(running.Nodes, n.Node)
	}
	return running.AddQueue(ctx, name, limit)
}

// until polls fact every 50 ms until it returns nil. If ctx ends first, it returns
// the last error, prefixed with what.
func until(ctx context.Context, what string, fact func() error) error {
	for {
		err := fact()
		if err == nil {
			return nil
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// Token is the token of the HTTP API of all nodes.
const Token = "drill"

// environment contains settings of all nodes. Those of a Layout's Env take precedence.
var environment = []string{"YARD_HTTP_TOKEN=" + Token, "YARD_CLUSTER_NAME=drill", "YARD_CLUSTER_SECRET=drill", "YARD_NATS_MAX_STORE_BYTES=2147483648"}

// Layout describes the nodes of a cluster and their environment.
type Layout struct {
	Nodes         int      // 0 means 3
	SeparateHosts bool     // each node has a simulated host, whose links can be cut
	SlowLinks     bool     // the same, with links that can be delayed as well
	Config        string   // TOML appended to every node's configuration file
	Env           []string // of every node; YARD_<TABLE>_<KEY>=… overrides the file
	Disk          int64    // size in bytes of a simulated disk for each node's data; 0 means a plain directory
}

// New prepares a cluster in dir: addresses and a configuration file for
// each node. It starts nothing. The caller must call Close in any case.
func New(dir, binary string, p Layout) (c *Cluster, err error) {
	c = &Cluster{Dir: dir, Binary: binary, plan: p}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if p.SlowLinks {
		c.Net, err = hosts.NewSlow()
	} else if p.SeparateHosts {
		c.Net, err = hosts.New()
	}
	if err != nil {
		return nil, err
	}
	for i := range cmp.Or(p.Nodes, 3) {
		if _, err := c.Add(fmt.Sprintf("n%d", i+1)); err != nil {
			return nil, err
		}
	}
	for _, n := range c.Nodes {
		if err := c.WriteConfig(n, c.Nodes...); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// The ports of nodes on simulated hosts.
const (
	RoutePort = 6222
	RaftPort  = 7222
)

// Add prepares one more node, without a configuration file, and does not start it.
func (c *Cluster) Add(name string) (n *Node, err error) {
	n = &Node{Witness: filepath.Join(c.Dir, name+"-runners.witness")}
	var addrs []string
	if c.Net == nil {
		addrs, err = freeport.Addresses(5)
	} else if n.Host, err = c.Net.Add(name); err == nil {
		for _, port := range []int{4222, 9876, 4280, RoutePort, RaftPort} {
			addrs = append(addrs, fmt.Sprintf("%s:%d", n.Host.Addr, port))
		}
	}
	if err != nil {
		return nil, err
	}
	n.Node = procs.NewNode(c.Dir, c.Binary, name, addrs, slices.Concat(environment, c.plan.Env))
	if n.Host != nil {
		n.Launch = n.Host.Start
	}
	if c.plan.Disk > 0 {
		if n.Disk, err = disk.New(filepath.Join(c.Dir, name+"-disk"), c.plan.Disk); err != nil {
			return nil, fmt.Errorf("mount the disk of %s: %w", name, err)
		}
		c.disks = append(c.disks, n.Disk)
		n.DataDir = filepath.Join(n.Disk.Dir, "data")
	}
	c.Nodes = append(c.Nodes, n)
	return n, nil
}

// WriteConfig writes the configuration file of a node, with these members.
func (c *Cluster) WriteConfig(n *Node, members ...*Node) error {
	var list []*procs.Node
	for _, m := range members {
		list = append(list, m.Node)
	}
	return n.Node.WriteConfig(fmt.Sprintf(`[scheduler]
retry_base = "50ms"
retry_max = "500ms"

[rrq.runners.demo]
type = "socket"
cmd = [%q, "runner"]
pool_size = 1
max_in_flight = 4
env = { YARD_WITNESS = %q }

%s`, c.Binary, n.Witness, c.plan.Config), list...)
}

// MemberCommand runs a "cluster" command of the program against the node and returns
// its output.
func (n *Node) MemberCommand(ctx context.Context, words ...string) (output string, err error) {
	return n.Command(ctx, append([]string{"cluster"}, words...)...)
}

// Command runs a command of the program against the node and returns its standard
// output and standard error.
func (n *Node) Command(ctx context.Context, words ...string) (output string, err error) {
	cmd := exec.CommandContext(ctx, n.Args[0], append([]string{"--server", n.URL()}, words...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	output = strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("%s at %s: %w: %s", strings.Join(words, " "), n.Name, err, output)
	}
	return output, err
}

// JoinCommand returns the "cluster" command with which an operator adds this node.
func (n *Node) JoinCommand() []string {
	return []string{"add", n.Name, "--route", n.Route, "--raft", n.Raft}
}

// Members returns the members of the cluster as the node reports them.
func (n *Node) Members(ctx context.Context) (v api.Membership, err error) {
	return v, n.Ask(ctx, api.SubjectAPI+".cluster.members", struct{}{}, &v)
}

// AddNode prepares and starts one more node, configured with the current members
// and itself, and waits until it logs the command that adds it.
func (h *Harness) AddNode(name string) *Node {
	n := must.Get(h.Add(name))
	must.Do(h.WriteConfig(n, h.Nodes...))
	must.Do(n.Start())
	must.Do(n.AwaitLog(h.Ctx, 0, "yardmaster cluster add "+name))
	return n
}

// AwaitLog waits until the node has logged text after the first bytes of its log.
func (n *Node) AwaitLog(ctx context.Context, after int, text string) error {
	return until(ctx, fmt.Sprintf("%s logs %q", n.Name, text), func() error {
		if log := n.Log(); !strings.Contains(log[min(after, len(log)):], text) {
			return errors.New("it has not logged it")
		}
		return nil
	})
}

// RemoveNode removes an exited node from c.Nodes, so that it is not restarted.
func (c *Cluster) RemoveNode(n *Node) {
	c.Nodes = slices.DeleteFunc(c.Nodes, func(other *Node) bool { return other == n })
}

// AwaitMembersInSync waits until every node reports the same members, each of them
// answering, voting and without lagging replicas, and no change in progress.
func (c *Cluster) AwaitMembersInSync(ctx context.Context) error {
	var expected []string
	for _, n := range c.Nodes {
		expected = append(expected, n.Name)
	}
	slices.Sort(expected)
	return until(ctx, "the members are in sync", func() error {
		for _, n := range c.Running() {
			v, err := n.Members(ctx)
			if err != nil {
				return err
			}
			var reported []string
			for i := range v.Members {
				m := &v.Members[i]
				if !m.Answers || !m.Voter || len(m.Behind) > 0 {
					text, _ := json.Marshal(m) // plain values
					return fmt.Errorf("%s reports member %s", n.Name, text)
				}
				reported = append(reported, m.Name)
			}
			slices.Sort(reported)
			if v.Change != "" || len(v.Skew) > 0 || !slices.Equal(reported, expected) {
				return fmt.Errorf("%s reports the members %q, want %q; change %q (%s), differences %q", n.Name, reported, expected, v.Change, v.Step, v.Skew)
			}
		}
		return nil
	})
}

// Recreate moves the data directories of all nodes, which must have exited, away and
// starts a new cluster of the given number of members at the same addresses, with
// the same secret and empty directories. It returns when the cluster is ready. One
// member is a standalone node.
func (h *Harness) Recreate(members int) {
	for _, n := range h.Nodes {
		must.Do(os.Rename(n.DataDir, n.DataDir+"-before"))
	}
	for len(h.Nodes) < members {
		must.Get(h.Add(fmt.Sprintf("n%d", len(h.Nodes)+1)))
	}
	h.Nodes = h.Nodes[:members]
	listed := h.Nodes
	if members == 1 {
		listed = nil
	}
	for _, n := range h.Nodes {
		must.Do(h.WriteConfig(n, listed...))
	}
	h.StartNodes()
}

// EndedJobs returns the jobs of a queue that have ended, as listed by a node, with
// their states.
func (h *Harness) EndedJobs(n *Node, queue string) map[job.ID]string {
	all := make(map[job.ID]string)
	for _, state := range []string{"completed", "failed", "cancelled"} {
		must.Do(h.eachEnded(h.Ctx, n, queue, state, func(id job.ID) { all[id] = state }))
	}
	return all
}
