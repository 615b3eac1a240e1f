package embedded

import (
	"crypto/subtle"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// handshakeSeconds is the timeout of a TLS handshake.
const handshakeSeconds = 5

// routeUser is the user name on routes without certificates; it is the same for
// all members.
const routeUser = "yard"

// configureTLS sets the TLS options in opts of the NATS server's listeners: the one for
// clients if cfg has ClientTLS, and the one for routes from other members if cfg has
// MemberTLS and the node belongs to a cluster. peers returns the current members, whose
// names are the only ones that a certificate and the user name of a route may have.
// The options are set in code, because the server's configuration language reads
// certificate files only once, and these are reloaded when they change.
func configureTLS(opts *server.Options, cfg *Config, peers func() []Peer, log *slog.Logger) {
	if cfg.ClientTLS != nil {
		opts.TLS, opts.TLSConfig, opts.TLSTimeout = true, cfg.ClientTLS, handshakeSeconds
	}
	if cfg.MemberTLS == nil || !cfg.Clustered() {
		return
	}

	// The server uses one TLS configuration to accept and to dial routes. The fields of
	// the two directions do not overlap.
	routeTLS := cfg.MemberTLS.Server()
	dialTLS := cfg.MemberTLS.Client(func(host string) []string { return membersAt(peers(), host) })
	routeTLS.InsecureSkipVerify = dialTLS.InsecureSkipVerify // VerifyConnection verifies instead
	routeTLS.VerifyConnection = dialTLS.VerifyConnection
	routeTLS.GetClientCertificate = dialTLS.GetClientCertificate
	opts.Cluster.TLSConfig, opts.Cluster.TLSTimeout = routeTLS, handshakeSeconds

	opts.Cluster.Username, opts.Cluster.Password = cfg.Node, cfg.Secret // for routes that the server opens after gossip
	opts.CustomRouterAuthentication = &routeAuth{
		secret:     cfg.Secret,
		isMember:   func(name string) bool { return slices.Contains(membersAt(peers(), ""), name) },
		log:        log,
		lastLogged: map[string]time.Time{},
	}
}

// routeUserName returns the user name with which this member connects to routes.
func (c *Config) routeUserName() string {
	if c.MemberTLS != nil {
		return c.Node
	}
	return routeUser
}

// membersAt returns the names of the members whose route address has this host, or
// of all members for "". During a TLS handshake only the host name is known, and
// "" if an IP address was dialled; then any member may answer. A member gains
// nothing by answering for another one, and Raft's port checks identities exactly.
func membersAt(peers []Peer, host string) (names []string) {
	for _, p := range peers {
		if h, _, err := net.SplitHostPort(p.Route); host == "" || err == nil && h == host {
			names = append(names, p.Node)
		}
	}
	return names
}

// routeAuth admits route connections of members: the user name must be a member's
// name, and the certificate must carry it.
type routeAuth struct {
	secret   string
	isMember func(string) bool
	log      *slog.Logger

	mu         crash.Mutex
	lastLogged map[string]time.Time
}

// Check implements [server.Authentication]: it reports whether the connection is
// admitted, and logs why it is refused.
func (a *routeAuth) Check(c server.ClientAuthentication) bool {
	name, reason := c.GetOpts().Username, ""
	state := c.GetTLSConnectionState()
	switch {
	case state == nil || len(state.PeerCertificates) == 0:
		reason = "no certificate presented"
	case !a.isMember(name):
		reason = "no member has that name"
	case !certs.HasName(state.PeerCertificates[0], name):
		reason = "its certificate is for " + certs.SubjectOf(state.PeerCertificates[0])
	case subtle.ConstantTimeCompare([]byte(c.GetOpts().Password), []byte(a.secret)) != 1:
		reason = "its cluster.secret differs from the one here"
	}
	if reason != "" {
		a.logRefusal(remoteHost(c), name, reason)
	}
	return reason == ""
}

// remoteHost returns the host that a connection comes from, or its whole address if
// that has no port.
func remoteHost(c server.ClientAuthentication) string {
	address := c.RemoteAddress()
	if address == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(address.String())
	if err != nil || host == "" {
		return address.String()
	}
	return host
}

// logRefusal logs a refused connection, at most once a minute for the same reason:
// servers reconnect at once.
func (a *routeAuth) logRefusal(remote, name, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := remote + " " + name + " " + reason
	if now := time.Now(); now.Sub(a.lastLogged[key]) >= time.Minute {
		if len(a.lastLogged) >= 128 {
			clear(a.lastLogged)
		}
		a.lastLogged[key] = now
		a.log.Warn("route connection refused", "remote", remote, "name", name, "reason", reason)
	}
}
