package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/server/consolecalls"
	"github.com/yardmaster-dev/yardmaster/web/console"
	"github.com/yardmaster-dev/yardmaster/web/console/pages"
	"github.com/yardmaster-dev/yardmaster/web/console/session"
)

// newConsoleCaller returns what sends the requests of the console.
func (n *Node) newConsoleCaller() *consolecalls.Caller {
	return &consolecalls.Caller{
		Node: n.cfg.Node.Name, Endpoints: n.endpoints,
		NodeEndpoints: func() []cluster.Endpoint { return n.binding().Bind(api.NodeEndpoints, n.nodeHandlers()) },
		Request:       n.fleet.RequestJSON,
		Members: func() (members []ledger.Member) {
			n.raft.View(func(l *ledger.Ledger) { members = slices.Clone(l.Membership().Members) })
			return members
		},
		HTTP: n.httpAddr, TLS: n.certs.http != nil, Reader: n.cluster.Reader,
	}
}

// serveConsole serves the console until ctx ends.
func (n *Node) serveConsole(ctx context.Context) error {
	users, anonymous, err := consoleUsers(&n.cfg)
	if err != nil {
		return err
	}
	c, err := console.New(ctx, console.Config{
		Node: n.cfg.Node.Name, Version: n.version, TLS: n.certs.http != nil, Users: users, Anonymous: anonymous,
		Secret: func() (secret []byte) {
			n.raft.View(func(l *ledger.Ledger) { secret = l.Secret() })
			return secret
		},
		Call: n.consoleCaller.Call, Applied: n.raft.Applied, Events: n.consoleCaller.Events(), Peers: n.consoleCaller.Peers,
		Settings: n.consoleSettings(), Log: n.log,
	})
	if err != nil {
		return fmt.Errorf("open the console: %w", err)
	}
	return n.web.ServeConsole(ctx, c)
}

// consoleSettings returns settings of the node that the console shows. None is a secret.
func (n *Node) consoleSettings() []pages.Setting {
	list := []pages.Setting{
		{Key: "node.name", Value: n.cfg.Node.Name}, {Key: "version", Value: n.version}, {Key: "node.data_dir", Value: n.cfg.Node.DataDir},
		{Key: "cluster.name", Value: n.cfg.Cluster.Name}, {Key: "cluster.members", Value: strings.Join(n.cfg.MemberNames(), ", ")},
		{Key: "http.listen", Value: n.httpAddr}, {Key: "nats.listen", Value: n.cfg.NATS.Listen}, {Key: "server", Value: n.edgeAddr.String()},
		{Key: "scheduler.max_attempts", Value: fmt.Sprint(n.cfg.Scheduler.MaxAttempts)}, {Key: "scheduler.default_timeout", Value: duration.Format(n.cfg.Scheduler.DefaultTimeout)},
		{Key: "scheduler.retry_base", Value: duration.Format(n.cfg.Scheduler.RetryBase)}, {Key: "scheduler.retry_max", Value: duration.Format(n.cfg.Scheduler.RetryMax)},
		{Key: "scheduler.create_queues", Value: fmt.Sprint(*n.cfg.Scheduler.CreateQueues)},
	}
	for _, runner := range n.cfg.RRQ.RunnerNames() {
		list = append(list, pages.Setting{Key: "rrq.runners", Value: runner})
	}
	return list
}

// consoleUsers returns the users of the console: those of HTTP with their tokens, and those
// of NATS with their passwords, if their role may see queues. anonymous is the user without
// a sign-in, as over HTTP; nil if there is none.
func consoleUsers(c *config.Config) (users []session.User, anonymous *session.User, err error) {
	tokens, err := c.HTTP.ServerUsers()
	if err != nil {
		return nil, nil, fmt.Errorf("http.users: %w", err)
	}
	passwords, err := c.NATS.ServerUsers()
	if err != nil {
		return nil, nil, fmt.Errorf("nats.users: %w", err)
	}
	add := func(u *embedded.User, token string) {
		may := u.Permissions()
		if (token != "" || u.Password != "") && may(api.Subject("queue-list")) {
			users = append(users, session.User{Name: u.Name, Role: string(u.Role), Token: token, Password: u.Password, Quota: u.QuotaName(), May: may})
		}
	}
	for i := range tokens {
		add(&tokens[i].User, tokens[i].Token)
	}
	switch {
	case c.HTTP.Anonymous != "":
		u := embedded.User{Role: embedded.Role(c.HTTP.Anonymous)}
		anonymous = &session.User{Role: c.HTTP.Anonymous, Quota: u.QuotaName(), May: u.Permissions()}
	case len(tokens) == 0:
		anonymous = &session.User{May: func(string) bool { return true }}
	}
	if len(tokens) > 0 { // otherwise everyone may do everything
		for i := range passwords {
			add(&passwords[i], "")
		}
	}
	return users, anonymous, nil
}
