// Package hosts makes several hosts of this one: network namespaces with an
// address each, joined by a switch, whose links can be cut, narrowed and healed
// without a word to those who talk over them. It needs root, ip and nft.
//
// The switch has a namespace of its own, so that the firewall of the machine,
// whatever it forbids, has no say in what the hosts tell each other. This
// program stands at the switch, too, and reaches every host.
package hosts

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// prefix begins the names of all that this package makes; the number of the
// process that made it follows.
const prefix = "yd"

// Network is the hosts of one yard and what joins them.
type Network struct {
	Hosts []*Host
	name  string // begins the names of its namespaces
	net   string // the first three numbers of its addresses, with a dot
	own   string // this program's device at the switch
	slow  bool   // cables are relays

	mu sync.Mutex // guards the rules of all hosts
}

// Host is one of them.
type Host struct {
	Name string
	Addr string // its address

	net   *Network
	space string   // its namespace
	cable *relay   // nil: the kernel's own
	rules []string // what it does not hear, in nft's words
}

// Missing says what this machine lacks for hosts; "" if nothing.
func Missing() string {
	if os.Geteuid() != 0 {
		return "network namespaces need root"
	}
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			return "no program " + program + " (Debian: apt-get install iproute2 nftables)"
		}
	}
	return ""
}

// made tells the networks of this process apart.
var made struct {
	sync.Mutex
	n int
}

// New makes hosts of these names. Close removes them; so does the next New of
// any process when this one was killed.
func New(names ...string) (*Network, error) { return build(false, names) }

// NewSlow makes hosts whose cables this program carries, frame by frame, so that
// they can be delayed: see [Host.Delay].
func NewSlow(names ...string) (*Network, error) { return build(true, names) }

func build(slow bool, names []string) (*Network, error) {
	sweep()
	made.Lock()
	made.n++
	n := &Network{name: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), made.n), own: fmt.Sprintf("%s%dx%d", prefix, os.Getpid(), made.n), slow: slow}
	made.Unlock()
	var err error
	if n.net, err = freeNet(); err != nil {
		return nil, err
	}
	sw := n.name + "-sw"
	err = run([][]string{
		{"ip", "netns", "add", sw},
		{"ip", "-n", sw, "link", "add", "name", "switch", "type", "bridge"},
		{"ip", "-n", sw, "link", "set", "switch", "up"},
		{"ip", "link", "add", n.own, "type", "veth", "peer", "name", "own", "netns", sw},
		{"ip", "-n", sw, "link", "set", "own", "master", "switch", "up"},
		{"ip", "addr", "add", n.net + "1/24", "dev", n.own},
		{"ip", "link", "set", n.own, "up"},
	})
	for _, name := range names {
		if err == nil {
			_, err = n.Add(name)
		}
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Add makes one more host.
func (n *Network) Add(name string) (*Host, error) {
	h := &Host{Name: name, net: n, space: n.name + "-" + name, Addr: n.net + strconv.Itoa(len(n.Hosts)+11)}
	n.Hosts = append(n.Hosts, h)
	sw, port := n.name+"-sw", "p"+strconv.Itoa(len(n.Hosts))
	err := run([][]string{{"ip", "netns", "add", h.space}, {"ip", "-n", h.space, "link", "set", "lo", "up"}})
	switch {
	case err != nil:
	case n.slow:
		h.cable, err = newRelay(h.space, sw, port)
	default:
		err = run([][]string{{"ip", "-n", h.space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", sw}})
	}
	if err != nil {
		return nil, err
	}
	return h, run([][]string{
		{"ip", "-n", sw, "link", "set", port, "master", "switch", "up"},
		{"ip", "-n", h.space, "addr", "add", h.Addr + "/24", "dev", "eth0"},
		{"ip", "-n", h.space, "link", "set", "eth0", "up"},
	})
}

// Close removes the hosts. Processes that still run there go on without a
// network.
func (n *Network) Close() error {
	var failed error
	for _, h := range n.Hosts {
		if h.cable != nil {
			h.cable.close()
		}
		if err := run([][]string{{"ip", "netns", "del", h.space}}); err != nil {
			failed = err
		}
	}
	if err := run([][]string{{"ip", "netns", "del", n.name + "-sw"}}); err != nil {
		failed = err
	}
	// A device in a namespace that something still holds open goes by name.
	_ = exec.Command("ip", "link", "del", n.own).Run() // gone already, if all is well
	return failed
}

// Start starts a command on the host.
func (h *Host) Start(cmd *exec.Cmd) error { return inside(h.space, cmd.Start) }

// sweep removes what killed processes have left.
func sweep() {
	listed, err := os.ReadDir("/var/run/netns")
	if err != nil {
		return // there were never any
	}
	for _, e := range listed {
		owner, _, ok := strings.Cut(strings.TrimPrefix(e.Name(), prefix), "-")
		pid, err := strconv.Atoi(owner)
		if !ok || err != nil || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if syscall.Kill(pid, 0) == syscall.ESRCH {
			_ = run([][]string{{"ip", "netns", "del", e.Name()}}) // another process may do the same
		}
	}
}

// freeNet finds 254 addresses that nobody here has.
func freeNet() (string, error) {
	taken, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("list this machine's addresses: %w", err)
	}
next:
	for range 50 {
		first := fmt.Sprintf("10.%d.%d.", 64+rand.IntN(128), rand.IntN(256))
		for _, a := range taken {
			if _, there, err := net.ParseCIDR(a.String()); err == nil && there.Contains(net.ParseIP(first+"1")) {
				continue next
			}
		}
		return first, nil
	}
	return "", fmt.Errorf("no free network of 50 tried below 10.0.0.0/8")
}

func run(commands [][]string) error {
	for _, c := range commands {
		if said, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(c, " "), err, strings.TrimSpace(string(said)))
		}
	}
	return nil
}
