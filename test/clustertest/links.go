package clustertest

import (
	"testing"

	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/netfault"
)

// link is the network path over which one member reaches another.
type link struct {
	from, to    *Member
	raft, route *netfault.Proxy
}

// newLink returns proxies to the addresses of member to, which at holds.
func newLink(t testing.TB, from, to *Member, at config.Member) *link {
	t.Helper()
	l := &link{from: from, to: to}
	for _, path := range []struct {
		proxy  **netfault.Proxy
		target string
	}{{&l.raft, at.Raft}, {&l.route, at.Route}} {
		p, err := netfault.New(path.target)
		if err != nil {
			t.Fatal(err)
		}
		*path.proxy = p
	}
	return l
}

func (l *link) proxies() []*netfault.Proxy { return []*netfault.Proxy{l.raft, l.route} }

// declared returns m with the addresses at which l.from reaches it.
func (l *link) declared(m config.Member) config.Member {
	m.Raft, m.Route = l.raft.Addr(), l.route.Addr()
	return m
}

// Isolate stalls all links of the member: its connections to other members stay
// open and silent. Clients still reach it.
func (m *Member) Isolate() {
	for _, l := range m.cluster.links {
		if l.from == m || l.to == m {
			for _, p := range l.proxies() {
				p.Stall()
			}
		}
	}
}

// Cut closes the member's connections to other members and refuses new ones.
func (m *Member) Cut() {
	for _, l := range m.cluster.links {
		if l.from == m || l.to == m {
			for _, p := range l.proxies() {
				p.Cut()
			}
		}
	}
}

// CutRaft closes all Raft connections between members and refuses new ones. NATS
// messages still pass, but no decision can be committed.
func (c *Cluster) CutRaft() {
	for _, l := range c.links {
		l.raft.Cut()
	}
}

// CutRoutes closes the member's NATS routes and refuses new ones. Its Raft
// connections stay up.
func (m *Member) CutRoutes() {
	for _, l := range m.cluster.links {
		if l.from == m || l.to == m {
			l.route.Cut()
		}
	}
}

// Heal restores all links.
func (c *Cluster) Heal() {
	for _, l := range c.links {
		for _, p := range l.proxies() {
			p.Heal()
		}
	}
}
