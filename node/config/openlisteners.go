package config

import (
	"net"
	"net/netip"
)

// OpenListener is a listener without authentication.
type OpenListener struct{ Name, Address, Risk, Key string }

// OpenListeners returns the listeners beyond loopback that do not authenticate clients.
func (c *Config) OpenListeners() (open []OpenListener) {
	add := func(authenticated bool, l OpenListener) {
		if !authenticated && reachableFromNetwork(l.Address) {
			open = append(open, l)
		}
	}
	authenticated := len(c.NATS.Users) > 0 && c.NATS.Anonymous == ""
	add(authenticated || c.NATS.TLS.ClientCAFile != "", OpenListener{"NATS", c.NATS.Listen, "clients are not authenticated", "nats.users"})
	if !c.HTTP.Off() {
		authenticated := (c.HTTP.Token != "" || len(c.HTTP.Users) > 0) && c.HTTP.Anonymous == ""
		add(authenticated || c.HTTP.TLS.ClientCAFile != "", OpenListener{"HTTP", c.HTTP.Listen, "every client may use the whole API", "http.token"})
	}
	add(c.Server.Token != "" || c.Server.TLS.ClientCAFile != "", OpenListener{"Overhop", c.Server.Address(), "every client may take and enqueue jobs", "server.token"})
	if c.Clustered() {
		add(c.Cluster.TLS.IsSet() || c.Cluster.Secret != "", OpenListener{"NATS routes", c.NATS.RouteListen, "every client may act as a member", "cluster.tls"})
		add(c.Cluster.TLS.IsSet(), OpenListener{"Raft", c.Raft.Listen, "every client may act as a member", "cluster.tls"})
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
