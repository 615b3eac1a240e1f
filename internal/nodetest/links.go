package nodetest

import (
	"math/rand/v2"
	"testing"

	"yardmaster/internal/netfault"
	"yardmaster/node"
)

// link is the line on which one member reaches another.
type link struct {
	from, to    *Member
	raft, route *netfault.Proxy
}

func newLink(t testing.TB, from, to *Member, at node.MemberConfig) *link {
	t.Helper()
	l := &link{from: from, to: to}
	for _, line := range []struct {
		proxy  **netfault.Proxy
		target string
	}{{&l.raft, at.Raft}, {&l.route, at.Route}} {
		p, err := netfault.New(line.target)
		if err != nil {
			t.Fatal(err)
		}
		*line.proxy = p
	}
	return l
}

func (l *link) proxies() []*netfault.Proxy { return []*netfault.Proxy{l.raft, l.route} }

// declared is the member at the other end, as this end reaches it.
func (l *link) declared(m node.MemberConfig) node.MemberConfig {
	m.Raft, m.Route = l.raft.Addr(), l.route.Addr()
	return m
}

// Isolate takes the member off the network, without a word to anybody: its
// connections to the others stay open and silent. Its clients still reach it.
func (m *Member) Isolate() {
	for _, l := range m.yard.links {
		if l.from == m || l.to == m {
			for _, p := range l.proxies() {
				p.Hold()
			}
		}
	}
}

// Cut closes the member's connections to the others, and lets it have no new.
func (m *Member) Cut() {
	for _, l := range m.yard.links {
		if l.from == m || l.to == m {
			for _, p := range l.proxies() {
				p.Cut()
			}
		}
	}
}

// CutAgreement closes all connections by which members agree, and lets there be
// no new: messages go on, and nothing can be decided.
func (y *Yard) CutAgreement() {
	for _, l := range y.links {
		l.raft.Cut()
	}
}

// CutRoutes closes the NATS routes between the member and the others, and lets it
// have no new: it goes on agreeing with them.
func (m *Member) CutRoutes() {
	for _, l := range m.yard.links {
		if l.from == m || l.to == m {
			l.route.Cut()
		}
	}
}

// Heal joins all members again.
func (y *Yard) Heal() {
	for _, l := range y.links {
		for _, p := range l.proxies() {
			p.Heal()
		}
	}
}

// nextPort draws a port below the kernel's own range.
func nextPort() int { return 12000 + rand.IntN(18000) }
