package node

import (
	"net"
	"net/netip"
)

// warnOfOpenDoors says which doors others than this host can reach and nobody
// guards, and which key would close each.
func (n *Node) warnOfOpenDoors() {
	for _, d := range n.cfg.openDoors() {
		n.log.Warn("a door stands open to the network", "door", d.name, "address", d.address, "means", d.means, "close_it_with", d.key)
	}
}

// openDoor is a door without a guard.
type openDoor struct{ name, address, means, key string }

// openDoors lists doors beyond loopback that ask nobody who he is.
func (c *Config) openDoors() (open []openDoor) {
	add := func(guarded bool, d openDoor) {
		if !guarded && beyondLoopback(d.address) {
			open = append(open, d)
		}
	}
	named := len(c.NATS.Users) > 0 && c.NATS.Anonymous == ""
	add(named || c.NATS.TLS.ClientCAFile != "", openDoor{"NATS", c.NATS.Listen, "nobody is asked who he is", "nats.users"})
	if !c.HTTP.Off() {
		add(c.HTTP.Token != "" || c.HTTP.TLS.ClientCAFile != "", openDoor{"HTTP", c.HTTP.Listen, "whoever reaches it may do everything", "http.token"})
	}
	add(c.Server.Token != "" || c.Server.TLS.ClientCAFile != "", openDoor{"Overhop", c.Server.Address(), "whoever reaches it may take jobs and enqueue some", "server.token"})
	if c.Clustered() {
		add(c.Cluster.TLS.given() || c.Cluster.Secret != "", openDoor{"NATS routes", c.NATS.RouteListen, "whoever reaches it may pretend to be a member", "cluster.tls"})
		add(c.Cluster.TLS.given(), openDoor{"Raft", c.Raft.Listen, "whoever reaches it may pretend to be a member", "cluster.tls"})
	}
	return open
}

// beyondLoopback tells an address that other hosts could reach. A name may be
// theirs to reach; "localhost" is not.
func beyondLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false // refused by Validate
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return !ip.IsLoopback()
	}
	return host != "localhost"
}
