package drill

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/drill/disk"
	"github.com/yardmaster-dev/yardmaster/test/drill/hosts"
)

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
