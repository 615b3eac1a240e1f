package hosts

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Packets are dropped where they arrive: the sender gets no error, as when a cable
// is cut far away.

// BlockFrom drops all packets from these hosts that arrive at h. Packets from h
// still arrive there.
func (h *Host) BlockFrom(from ...*Host) error {
	var rules []string
	for _, other := range from {
		rules = append(rules, fmt.Sprintf("ip saddr %s drop", other.Addr))
	}
	return h.addRules(rules...)
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
			err := end[0].addRules(fmt.Sprintf("ip saddr %s tcp dport %d drop", end[1].Addr, port),
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
	return h.addRules(rules...)
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

// AddRule adds an nft rule for packets that arrive at h, such as
// `tcp sport 40123 drop`.
func (h *Host) AddRule(rule string) error { return h.addRules(rule) }

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

func (h *Host) addRules(rules ...string) error {
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
