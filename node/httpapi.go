package node

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/web"
)

// openHTTP opens the HTTP listener, so that the node's health can be asked for while it
// starts, once the certificates of all listeners are valid. close stops it and is
// called after everything else has ended.
func (n *Node) openHTTP(ctx context.Context) (close func() error, err error) {
	if n.certs, err = openCertificates(&n.cfg, n.log); err != nil {
		return nil, err
	}
	for _, l := range n.cfg.OpenListeners() {
		n.log.Warn("listener is reachable from the network without authentication", "listener", l.Name, "addr", l.Address, "risk", l.Risk, "key", l.Key)
	}
	n.metrics = web.NewMetrics()
	users, anonymous, err := httpUsers(&n.cfg.HTTP)
	if err != nil {
		return nil, fmt.Errorf("http.users: %w", err)
	}
	n.web = web.New(web.Config{
		Version: n.version, Users: users, Anonymous: anonymous, Ready: n.readyz, Metrics: n.metrics, TLS: n.certs.http.Server(),
	}, n.log)
	if n.cfg.HTTP.Off() {
		return func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", n.cfg.HTTP.Listen)
	if err != nil {
		return nil, portInUse(fmt.Errorf("open the HTTP listener: %w", err), "http.listen")
	}
	n.httpAddr = listener.Addr().String()
	loops := n.newLoops(ctx)
	loops.Go(func(ctx context.Context) error { return n.web.Serve(ctx, listener) })
	return loops.stop, nil
}

// httpUsers returns the users of the HTTP server, and the user of requests without a token
// if such requests are allowed. Their roles allow what they allow over NATS.
func httpUsers(c *config.HTTP) (users []web.User, anonymous *web.User, err error) {
	configured, err := c.ServerUsers()
	if err != nil {
		return nil, nil, err
	}
	for _, u := range configured {
		users = append(users, web.User{Name: u.Name, Role: string(u.Role), Token: u.Token, May: u.Permissions(), Queues: u.Queues, Quota: u.QuotaName()})
	}
	if c.Anonymous != "" {
		role := embedded.User{Role: embedded.Role(c.Anonymous)}
		anonymous = &web.User{Role: c.Anonymous, May: role.Permissions(), Quota: role.QuotaName()}
	}
	return users, anonymous, nil
}

// readyz returns the readiness of the node for GET /readyz.
func (n *Node) readyz(ctx context.Context) (bool, any) {
	select {
	case <-n.serving:
	default:
		text := "the node is starting"
		if waiting := n.waitingFor.Load(); waiting != nil && len(*waiting) > 0 {
			text = "the node waits: " + strings.Join(*waiting, "; ")
		}
		return false, api.Readiness{Readiness: ledger.Readiness{Reasons: []string{text}}}
	}
	r := n.reporter.Readiness(ctx)
	return r.Ready, r
}
