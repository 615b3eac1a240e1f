package hosts

import (
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// What a host does not hear is dropped where it comes in: whoever sent it is
// told nothing, as when a cable is cut far away.

// Deafen makes h hear nothing of what these hosts say; they still hear h.
func (h *Host) Deafen(to ...*Host) error {
	var rules []string
	for _, other := range to {
		rules = append(rules, fmt.Sprintf("ip saddr %s drop", other.Addr))
	}
	return h.add(rules...)
}

// Cut cuts the link between h and these hosts, both ways.
func (h *Host) Cut(from ...*Host) error {
	for _, other := range from {
		if err := other.Deafen(h); err != nil {
			return err
		}
	}
	return h.Deafen(from...)
}

// CutPort cuts what h and these hosts say to each other over TCP connections
// to a port of either.
func (h *Host) CutPort(port int, from ...*Host) error {
	for _, other := range from {
		for _, end := range [][2]*Host{{h, other}, {other, h}} {
			err := end[0].add(fmt.Sprintf("ip saddr %s tcp dport %d drop", end[1].Addr, port),
				fmt.Sprintf("ip saddr %s tcp sport %d drop", end[1].Addr, port))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Lose drops so many of a hundred packets, 1 to 99, of what h hears of these
// hosts.
func (h *Host) Lose(percent int, of ...*Host) error {
	var rules []string
	for _, other := range of {
		rules = append(rules, fmt.Sprintf("ip saddr %s numgen random mod 100 < %d drop", other.Addr, percent))
	}
	return h.add(rules...)
}

// Delay keeps back what goes in or out at h, for a time between these each way,
// in its order. It needs a network of [NewSlow].
func (h *Host) Delay(least, most time.Duration) error {
	if h.cable == nil {
		return fmt.Errorf("the cable of %s cannot be slowed down: the network was not made for it", h.Name)
	}
	h.cable.slow(least, most)
	return nil
}

// Drop adds a rule of nft's to what h does not hear: `tcp sport 40123 drop`.
func (h *Host) Drop(rule string) error { return h.add(rule) }

// Heal lets h hear everything again.
func (h *Host) Heal() error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.rules = nil
	if h.cable != nil {
		h.cable.slow(0, 0)
	}
	return h.load()
}

// Heal heals every host.
func (n *Network) Heal() error {
	for _, h := range n.Hosts {
		if err := h.Heal(); err != nil {
			return err
		}
	}
	return nil
}

// Others are all hosts but these.
func (n *Network) Others(but ...*Host) (others []*Host) {
next:
	for _, h := range n.Hosts {
		for _, b := range but {
			if h == b {
				continue next
			}
		}
		others = append(others, h)
	}
	return others
}

func (h *Host) add(rules ...string) error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.rules = append(h.rules, rules...)
	return h.load()
}

// load replaces the host's rules in one step.
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
	cmd := exec.Command("ip", "netns", "exec", h.space, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(b.String())
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("set the rules of %s: %w: %s", h.Name, err, strings.TrimSpace(string(said)))
	}
	return nil
}
