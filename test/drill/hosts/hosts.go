// Package hosts simulates several hosts on one machine: network namespaces with
// an address each, connected by a switch, whose links can be cut, made lossy,
// delayed and healed without any notice to the processes that use them. It needs
// root and the programs ip and nft.
//
// The switch has its own namespace, so that the firewall of the machine does
// not affect the traffic between hosts. The calling process is connected to the
// switch and reaches every host.
package hosts

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// prefix begins the names of all namespaces and devices that this package creates.
// The pid of the creating process follows.
const prefix = "yd"

// Network is a set of hosts and the switch that connects them.
type Network struct {
	Hosts []*Host
	name  string // prefix of the names of its namespaces
	net   string // the first three numbers of its addresses, with a final dot
	local string // the calling process's device at the switch
	slow  bool   // hosts are connected through relays

	mu sync.Mutex // guards the rules of all hosts
}

// Host is a network namespace with one address.
type Host struct {
	Name string
	Addr string // IP address

	net   *Network
	netns string   // name of the namespace
	relay *relay   // nil unless the network is slow
	rules []string // nft rules for incoming packets
}

// Missing returns what this machine lacks to simulate hosts, or "" if nothing.
func Missing() string {
	if os.Geteuid() != 0 {
		return "network namespaces need root"
	}
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			return "missing program " + program + " (Debian: apt-get install iproute2 nftables)"
		}
	}
	return ""
}

// networkCount numbers the networks of this process.
var networkCount struct {
	sync.Mutex
	n int
}

// New creates a network without hosts. Close removes it and the hosts added to it.
// What a killed process has left is removed by the next New of any process.
func New() (*Network, error) { return build(false) }

// NewSlow is like [New], but the frames between host and switch pass through this
// process, so that they can be delayed: see [Host.Delay].
func NewSlow() (*Network, error) { return build(true) }

// build creates the switch of a network. The hosts of a slow network are connected to it
// through relays.
func build(slow bool) (*Network, error) {
	removeStale()
	networkCount.Lock()
	networkCount.n++
	n := &Network{name: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), networkCount.n), local: fmt.Sprintf("%s%dx%d", prefix, os.Getpid(), networkCount.n), slow: slow}
	networkCount.Unlock()
	var err error
	if n.net, err = freeNet(); err != nil {
		return nil, err
	}
	sw := n.name + "-sw"
	err = run([][]string{
		{"ip", "netns", "add", sw},
		{"ip", "-n", sw, "link", "add", "name", "switch", "type", "bridge"},
		{"ip", "-n", sw, "link", "set", "switch", "up"},
		{"ip", "link", "add", n.local, "type", "veth", "peer", "name", "own", "netns", sw},
		{"ip", "-n", sw, "link", "set", "own", "master", "switch", "up"},
		{"ip", "addr", "add", n.net + "1/24", "dev", n.local},
		{"ip", "link", "set", n.local, "up"},
	})
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Add adds a host.
func (n *Network) Add(name string) (*Host, error) {
	h := &Host{Name: name, net: n, netns: n.name + "-" + name, Addr: n.net + strconv.Itoa(len(n.Hosts)+11)}
	n.Hosts = append(n.Hosts, h)
	sw, port := n.name+"-sw", "p"+strconv.Itoa(len(n.Hosts))
	err := run([][]string{{"ip", "netns", "add", h.netns}, {"ip", "-n", h.netns, "link", "set", "lo", "up"}})
	switch {
	case err != nil:
	case n.slow:
		h.relay, err = newRelay(h.netns, sw, port)
	default:
		err = run([][]string{{"ip", "-n", h.netns, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", sw}})
	}
	if err != nil {
		return nil, err
	}
	return h, run([][]string{
		{"ip", "-n", sw, "link", "set", port, "master", "switch", "up"},
		{"ip", "-n", h.netns, "addr", "add", h.Addr + "/24", "dev", "eth0"},
		{"ip", "-n", h.netns, "link", "set", "eth0", "up"},
	})
}

// Close removes the hosts. Processes still running there lose their network.
func (n *Network) Close() error {
	var failed error
	for _, h := range n.Hosts {
		if h.relay != nil {
			h.relay.close()
		}
		if err := run([][]string{{"ip", "netns", "del", h.netns}}); err != nil {
			failed = err
		}
	}
	if err := run([][]string{{"ip", "netns", "del", n.name + "-sw"}}); err != nil {
		failed = err
	}
	// A namespace that a process still uses survives, with its end of the device.
	_ = exec.Command("ip", "link", "del", n.local).Run() // fails if it is gone already
	return failed
}

// Start starts a command on the host.
func (h *Host) Start(cmd *exec.Cmd) error { return inNamespace(h.netns, cmd.Start) }

// removeStale removes the namespaces of processes that no longer exist.
func removeStale() {
	listed, err := os.ReadDir("/var/run/netns")
	if err != nil {
		return // no namespace was ever created
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

// freeNet returns the prefix of a random /24 network that this machine does not
// use.
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

// run runs commands one after the other until one fails.
func run(commands [][]string) error {
	for _, c := range commands {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(c, " "), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// Packets are dropped where they arrive: the sender gets no error, as when a cable
// is cut far away.

// BlockFrom drops all packets from these hosts that arrive at h. Packets from h
// still arrive there.
func (h *Host) BlockFrom(from ...*Host) error {
	var rules []string
	for _, other := range from {
		rules = append(rules, fmt.Sprintf("ip saddr %s drop", other.Addr))
	}
	return h.AddRules(rules...)
}

// Cut cuts the links between h and these hosts in both directions.
func (h *Host) Cut(from ...*Host) error {
	for _, other := range from {
		if err := other.BlockFrom(h); err != nil {
			return err
		}
	}
	return h.BlockFrom(from...)
}

// CutPort drops the packets between h and these hosts that belong to TCP
// connections to a port of either side.
func (h *Host) CutPort(port int, from ...*Host) error {
	for _, other := range from {
		for _, end := range [][2]*Host{{h, other}, {other, h}} {
			err := end[0].AddRules(fmt.Sprintf("ip saddr %s tcp dport %d drop", end[1].Addr, port),
				fmt.Sprintf("ip saddr %s tcp sport %d drop", end[1].Addr, port))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// DropPackets drops the given percentage, 1 to 99, of the packets from these hosts
// that arrive at h.
func (h *Host) DropPackets(percent int, from ...*Host) error {
	var rules []string
	for _, other := range from {
		rules = append(rules, fmt.Sprintf("ip saddr %s numgen random mod 100 < %d drop", other.Addr, percent))
	}
	return h.AddRules(rules...)
}

// Delay delays all frames to and from h by a random time between minimum and
// maximum, without reordering them. The network must have been created by
// [NewSlow].
func (h *Host) Delay(minimum, maximum time.Duration) error {
	if h.relay == nil {
		return fmt.Errorf("the link of %s cannot be delayed: the network was not created by NewSlow", h.Name)
	}
	h.relay.setDelay(minimum, maximum)
	return nil
}

// Heal removes all rules and delays of h.
func (h *Host) Heal() error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.rules = nil
	if h.relay != nil {
		h.relay.setDelay(0, 0)
	}
	return h.load()
}

// Heal heals all hosts.
func (n *Network) Heal() error {
	for _, h := range n.Hosts {
		if err := h.Heal(); err != nil {
			return err
		}
	}
	return nil
}

// Others returns all other hosts.
func (h *Host) Others() []*Host {
	return slices.DeleteFunc(slices.Clone(h.net.Hosts), func(other *Host) bool { return other == h })
}

// AddRules adds nft rules for packets that arrive at h, such as `tcp sport 40123 drop`.
func (h *Host) AddRules(rules ...string) error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.rules = append(h.rules, rules...)
	return h.load()
}

// load replaces the host's nft rules in one step.
func (h *Host) load() error {
	var b strings.Builder
	b.WriteString("flush ruleset\n")
	if len(h.rules) > 0 {
		b.WriteString("table inet drill {\n chain in {\n  type filter hook input priority 0; policy accept;\n")
		for _, r := range h.rules {
			b.WriteString("  " + r + "\n")
		}
		b.WriteString(" }\n}\n")
	}
	cmd := exec.Command("ip", "netns", "exec", h.netns, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(b.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("set the rules of %s: %w: %s", h.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
