package cluster

import (
	"crypto/subtle"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"yardmaster/internal/certs"
)

// handshakeSeconds is how long a TLS handshake may take.
const handshakeSeconds = 5

// routeUser is what the members' side of [routeGuard] goes by when there are no
// certificates: one name for all.
const routeUser = "yard"

// speakTLS adds to opts what the server's own language could only say once: the
// files are read by us, again when they change.
func speakTLS(opts *server.Options, cfg *Config, known func() []Peer, log *slog.Logger) {
	if cfg.ClientTLS != nil {
		opts.TLS, opts.TLSConfig, opts.TLSTimeout = true, cfg.ClientTLS, handshakeSeconds
	}
	if cfg.MemberTLS == nil || !cfg.clustered() {
		return
	}
	// One config serves and dials: what is asked of a server's certificate does
	// not concern who is dialled.
	both := cfg.MemberTLS.Server()
	client := cfg.MemberTLS.Client(func(host string) []string { return membersAt(known(), host) })
	both.InsecureSkipVerify, both.VerifyConnection, both.GetClientCertificate = client.InsecureSkipVerify, client.VerifyConnection, client.GetClientCertificate
	opts.Cluster.TLSConfig, opts.Cluster.TLSTimeout = both, handshakeSeconds
	opts.Cluster.Username, opts.Cluster.Password = cfg.Node, cfg.Secret // for routes that the server makes by itself
	opts.CustomRouterAuthentication = &routeGuard{
		secret: cfg.Secret, member: func(name string) bool { return slices.Contains(membersAt(known(), ""), name) }, log: log, told: map[string]time.Time{},
	}
}

// routeName is as whom this member comes to another's route port.
func (c *Config) routeName() string {
	if c.MemberTLS != nil {
		return c.Node
	}
	return routeUser
}

// membersAt are those whose routes lead to a host. TLS does not tell which
// address was dialled, only names: at an address, any member may answer. Nobody
// gains by that what he has not as himself, and the Raft port knows better.
func membersAt(peers []Peer, host string) (names []string) {
	for _, p := range peers {
		if at, _, err := net.SplitHostPort(p.Route); host == "" || err == nil && at == host {
			names = append(names, p.Node)
		}
	}
	return names
}

// routeGuard lets members in by their certificates: who comes gives a member's
// name, and his certificate has to carry it.
type routeGuard struct {
	secret string
	member func(string) bool
	log    *slog.Logger

	mu   sync.Mutex
	told map[string]time.Time
}

// Check is [server.Authentication].
func (g *routeGuard) Check(c server.ClientAuthentication) bool {
	name, reason := c.GetOpts().Username, ""
	state := c.GetTLSConnectionState()
	switch {
	case state == nil || len(state.PeerCertificates) == 0:
		reason = "it shows no certificate"
	case !g.member(name):
		reason = "no member has the name it gives"
	case !certs.Names(state.PeerCertificates[0], name):
		reason = "its certificate is that of " + certs.Of(state.PeerCertificates[0]) + ", which speaks for nobody else"
	case subtle.ConstantTimeCompare([]byte(c.GetOpts().Password), []byte(g.secret)) != 1:
		reason = "cluster.secret there is another one than here"
	}
	if reason == "" {
		return true
	}
	from := ""
	if addr := c.RemoteAddress(); addr != nil {
		if from, _, _ = net.SplitHostPort(addr.String()); from == "" {
			from = addr.String()
		}
	}
	g.tell(from, name, reason)
	return false
}

// tell says once a minute why somebody is not let in: it comes again at once.
func (g *routeGuard) tell(from, name, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := from + " " + name + " " + reason
	if now := time.Now(); now.Sub(g.told[key]) >= time.Minute {
		if len(g.told) >= 128 {
			clear(g.told)
		}
		g.told[key] = now
		g.log.Warn("a caller at the route port is refused", "from", from, "as", name, "because", reason)
	}
}
