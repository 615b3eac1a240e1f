package drill

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/drill/disk"
	"github.com/yardmaster-dev/yardmaster/test/drill/hosts"
)

// Token is the token of the HTTP API of all nodes.
const Token = "drill"

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
	if p.Nodes == 0 {
		p.Nodes = 3
	}
	c = &Cluster{Dir: dir, Binary: binary, plan: p}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if p.SeparateHosts || p.SlowLinks {
		newNetwork := hosts.New
		if p.SlowLinks {
			newNetwork = hosts.NewSlow
		}
		if c.Net, err = newNetwork(); err != nil {
			return nil, err
		}
	}
	for i := range p.Nodes {
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

// Add prepares one more node, without a configuration file, and does not start it.
func (c *Cluster) Add(name string) (*Node, error) {
	n := &Node{Name: name, DataDir: filepath.Join(c.Dir, name), config: filepath.Join(c.Dir, name+".toml"),
		Witness: filepath.Join(c.Dir, name+"-runners.witness")}
	n.Process = &procs.Process{Name: name, LogFile: filepath.Join(c.Dir, name+".log"), Env: slices.Clone(c.plan.Env),
		Args: []string{c.Binary, "node", "--config", n.config}}
	if c.plan.Disk > 0 {
		var err error
		if n.Disk, err = disk.New(filepath.Join(c.Dir, name+"-disk"), c.plan.Disk); err != nil {
			return nil, fmt.Errorf("mount the disk of %s: %w", name, err)
		}
		c.disks = append(c.disks, n.Disk)
		n.DataDir = filepath.Join(n.Disk.Dir, "data")
	}
	var addrs []string
	var err error
	if c.Net == nil {
		addrs, err = freeport.Addresses(5)
	} else if n.Host, err = c.Net.Add(name); err == nil {
		n.Launch = n.Host.Start
		for _, port := range []int{4222, 9876, 4280, RoutePort, RaftPort} {
			addrs = append(addrs, fmt.Sprintf("%s:%d", n.Host.Addr, port))
		}
	}
	if err != nil {
		return nil, err
	}
	n.NATS, n.Overhop, n.HTTP, n.route, n.raft = "nats://"+addrs[0], addrs[1], "http://"+addrs[2], addrs[3], addrs[4]
	c.Nodes = append(c.Nodes, n)
	return n, nil
}

// The ports of nodes on simulated hosts.
const (
	RoutePort = 6222
	RaftPort  = 7222
)

// WriteConfig writes the configuration file of a node, with these members.
func (c *Cluster) WriteConfig(n *Node, members ...*Node) error {
	var list strings.Builder
	for _, m := range members {
		fmt.Fprintf(&list, "  { name = %q, route = %q, raft = %q },\n", m.Name, m.route, m.raft)
	}
	host, port, _ := net.SplitHostPort(n.Overhop)
	text := fmt.Sprintf(`[node]
name = %q
data_dir = %q

[nats]
listen = %q
max_store_bytes = 2147483648

[http]
listen = %q
token = %q

[server]
host = %q
port = %s

[scheduler]
retry_base = "50ms"
retry_max = "500ms"

[cluster]
name = "drill"
secret = "drill"
members = [
%s]

[rrq.runners.demo]
type = "socket"
cmd = [%q, "runner"]
pool_size = 1
max_in_flight = 4
env = { YARD_WITNESS = %q }

%s`, n.Name, n.DataDir, strings.TrimPrefix(n.NATS, "nats://"), strings.TrimPrefix(n.HTTP, "http://"), Token,
		host, port, list.String(), c.Binary, n.Witness, c.plan.Config)
	if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write config: %w", err)
	}
	return nil
}
