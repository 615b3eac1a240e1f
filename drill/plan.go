package drill

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"yardmaster/drill/disk"
	"yardmaster/drill/hosts"
)

// Token is asked for at the HTTP doors of a drill's nodes.
const Token = "drill"

// Plan says how a yard is laid out.
type Plan struct {
	Nodes  int  // 3 if 0
	Apart  bool // each node is on a host of its own, whose links can be cut
	Slow   bool // and whose links can be slowed down
	Config string
	Env    []string // of every node: YARD_<TABLE>_<KEY>=… overrides the file
	Disk   int64    // bytes; each node's data lies on a disk of its own, 0: in a directory
}

// New lays out a yard of three nodes on loopback.
func New(dir, binary string) (*Yard, error) { return Lay(dir, binary, Plan{}) }

// Lay lays a yard out in dir: a config file and addresses for each node.
// Nothing runs yet; Close is needed all the same.
func Lay(dir, binary string, p Plan) (y *Yard, err error) {
	if p.Nodes == 0 {
		p.Nodes = 3
	}
	y = &Yard{Dir: dir, Binary: binary, plan: p}
	defer func() {
		if err != nil {
			err = errors.Join(err, y.Close())
		}
	}()
	if p.Apart || p.Slow {
		lay := hosts.New
		if p.Slow {
			lay = hosts.NewSlow
		}
		if y.Net, err = lay(); err != nil {
			return nil, err
		}
	}
	for i := range p.Nodes {
		if _, err := y.Add(fmt.Sprintf("n%d", i+1)); err != nil {
			return nil, err
		}
	}
	for _, n := range y.Nodes {
		if err := y.WriteConfig(n, y.Nodes...); err != nil {
			return nil, err
		}
	}
	return y, nil
}

// Add lays out one more node, without a config file, and does not start it.
func (y *Yard) Add(name string) (*Node, error) {
	n := &Node{Name: name, DataDir: filepath.Join(y.Dir, name), config: filepath.Join(y.Dir, name+".toml"),
		Witness: filepath.Join(y.Dir, name+"-runners.witness"), Env: slices.Clone(y.plan.Env)}
	if y.plan.Disk > 0 {
		var err error
		if n.Disk, err = disk.New(filepath.Join(y.Dir, name+"-disk"), y.plan.Disk); err != nil {
			return nil, fmt.Errorf("mount the disk of %s: %w", name, err)
		}
		y.disks = append(y.disks, n.Disk)
		n.DataDir = filepath.Join(n.Disk.Dir, "data")
	}
	addr := func(port int) (string, error) { return fmt.Sprintf("%s:%d", n.Host.Addr, port), nil }
	if y.Net == nil {
		addr = func(int) (string, error) { return freeAddress() }
	} else {
		var err error
		if n.Host, err = y.Net.Add(name); err != nil {
			return nil, err
		}
	}
	for _, door := range []struct {
		at     *string
		port   int
		scheme string
	}{{&n.NATS, 4222, "nats://"}, {&n.Overhop, 9876, ""}, {&n.HTTP, 4280, "http://"}, {&n.route, RoutePort, ""}, {&n.raft, RaftPort, ""}} {
		a, err := addr(door.port)
		if err != nil {
			return nil, err
		}
		*door.at = door.scheme + a
	}
	n.Process = &Process{name: n.Name, log: filepath.Join(y.Dir, n.Name+".log"), host: n.Host, args: []string{y.Binary, "node", "--config", n.config}}
	y.Nodes = append(y.Nodes, n)
	return n, nil
}

// The ports of nodes that have a host of their own.
const (
	RoutePort = 6222
	RaftPort  = 7222
)

// WriteConfig writes a node's file, which lists these members.
func (y *Yard) WriteConfig(n *Node, members ...*Node) error {
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
		host, port, list.String(), y.Binary, n.Witness, y.plan.Config)
	if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write config: %w", err)
	}
	return nil
}

// given holds the ports that were found free: none is given twice.
var given sync.Map

// freeAddress finds a port below those the kernel gives to outgoing connections.
func freeAddress() (string, error) {
	for range 200 {
		port := 12000 + rand.IntN(18000)
		if _, before := given.LoadOrStore(port, true); before {
			continue
		}
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return ln.Addr().String(), ln.Close()
		}
	}
	return "", errors.New("no free port found")
}
