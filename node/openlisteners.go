package node

import (
	"net"
	"net/netip"
)

// warnOpenListeners logs each listener that other hosts can reach without
// authentication, and the configuration key that closes it.
func (n *Node) warnOpenListeners() {
	for _, l := range n.cfg.openListeners() {
		n.log.Warn("listener is reachable from the network without authentication", "listener", l.name, "addr", l.address, "risk", l.risk, "key", l.key)
	}
}

// openListener is a listener without authentication.
type openListener struct{ name, address, risk, key string }

// openListeners returns the listeners beyond loopback that do not authenticate clients.
func (c *Config) openListeners() (open []openListener) {
	add := func(authenticated bool, l openListener) {
		if !authenticated && reachableFromNetwork(l.address) {
			open = append(open, l)
		}
	}
	authenticated := len(c.NATS.Users) > 0 && c.NATS.Anonymous == ""
	add(authenticated || c.NATS.TLS.ClientCAFile != "", openListener{"NATS", c.NATS.Listen, "clients are not authenticated", "nats.users"})
	if !c.HTTP.Off() {
		add(c.HTTP.Token != "" || c.HTTP.TLS.ClientCAFile != "", openListener{"HTTP", c.HTTP.Listen, "every client may use the whole API", "http.token"})
	}
	add(c.Server.Token != "" || c.Server.TLS.ClientCAFile != "", openListener{"Overhop", c.Server.Address(), "every client may take and enqueue jobs", "server.token"})
	if c.Clustered() {
		add(c.Cluster.TLS.isSet() || c.Cluster.Secret != "", openListener{"NATS routes", c.NATS.RouteListen, "every client may act as a member", "cluster.tls"})
		add(c.Cluster.TLS.isSet(), openListener{"Raft", c.Raft.Listen, "every client may act as a member", "cluster.tls"})
	}
	return open
}

// reachableFromNetwork reports whether other hosts may reach the address. It assumes
// so of every host name but "localhost".
func reachableFromNetwork(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false // Validate rejects it
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return !ip.IsLoopback()
	}
	return host != "localhost"
}
