// Package embedded runs the NATS server of a node and the node's own connections to it:
// its configuration, accounts, users and TLS, its log, and requests and their replies.
//
// Without configured users clients have one account, YARD, where the streams are. The
// node's connections are in-process and unrestricted. Messages between nodes have an
// account of their own, NODES: in a client's account JetStream would send them what a
// client has stored, if the client names their subject as that of the reply. A client without a user name is an operator: it may read
// everything, enqueue and send requests, but may neither change the yard's streams nor
// publish on the subjects that nodes use among themselves. The server checks the permission
// to publish after it has mapped the subject, so permissions name mapped subjects. Users
// with a role live in a second account; see accounts.go.
package embedded

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// Server is what the other parts of cluster share on one node: its configuration, the
// embedded server with the node's connections to it, and the members that the node
// knows. Its methods may be called concurrently.
type Server struct {
	Config    Config
	Log       *slog.Logger
	NATS      *server.Server
	ServerLog *serverLog
	Conns     []*nats.Conn
	JS        jetstream.JetStream

	laneCount atomic.Int32           // number of lanes
	peerList  atomic.Pointer[[]Peer] // the members, sorted by name

	// One connection per kind of traffic, so that a slow consumer of one kind does
	// not delay the others. Fleet is in the account of the nodes; Direct receives the direct
	// publishes of clients.
	Ingest, Direct, Reads, History, Fleet, API, Boards *Inbox

	System *Inbox // system account; nil if the node runs alone
}

// Start validates cfg, starts the embedded server, and connects to it. JetStream may
// still be electing its leader when Start returns.
func Start(cfg Config, log *slog.Logger) (l *Server, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	password := cfg.InternalPassword
	if password == "" {
		password = rand.Text()
	}
	l = &Server{Config: cfg, Log: log}
	l.peerList.Store(&cfg.Peers)
	l.SetLanes(len(l.Members()))
	if l.NATS, l.ServerLog, err = startServer(&l.Config, password, l.Peers, log); err != nil {
		return nil, err
	}
	if err := l.connect(password); err != nil {
		l.Close()
		l.Shutdown()
		return nil, err
	}
	return l, nil
}

// connect opens the in-process connections, each with its inbox. password is that of
// the internal users.
func (l *Server) connect(password string) error {
	type traffic struct {
		name string
		box  **Inbox
		user string
	}
	kinds := []traffic{
		{"ingest", &l.Ingest, userInternal}, {"direct", &l.Direct, userInternal}, {"reads", &l.Reads, userInternal}, {"history", &l.History, userInternal},
		{"fleet", &l.Fleet, userNode}, {"api", &l.API, userInternal}, {"boards", &l.Boards, userInternal},
	}
	if l.Config.Clustered() {
		kinds = append(kinds, traffic{"system", &l.System, userSystem})
	}
	for _, kind := range kinds {
		nc, err := nats.Connect("", nats.InProcessServer(l.NATS), nats.UserInfo(kind.user, password),
			nats.Name("yard-"+kind.name), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
			nats.ErrorHandler(l.logConnError))
		if err != nil {
			return fmt.Errorf("connect %s to the node's own server: %w", kind.name, err)
		}
		l.Conns = append(l.Conns, nc)
		if *kind.box, err = newInbox(nc); err != nil {
			return fmt.Errorf("subscribe to the inbox of %s: %w", kind.name, err)
		}
	}
	var err error
	if l.JS, err = jetstream.New(l.API.Conn); err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	return nil
}

// logConnError logs an asynchronous error of one of the node's own connections.
func (l *Server) logConnError(nc *nats.Conn, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	l.Log.Warn("error on in-process NATS connection", "connection", nc.Opts.Name, "subject", subject, "err", err)
}

// Inboxes returns the inboxes of all open connections.
func (l *Server) Inboxes() []*Inbox {
	all := []*Inbox{l.Ingest, l.Direct, l.Reads, l.History, l.Fleet, l.API, l.Boards, l.System}
	return slices.DeleteFunc(all, func(b *Inbox) bool { return b == nil })
}

// Close closes the connections and fails the requests on them.
func (l *Server) Close() {
	for _, nc := range l.Conns {
		nc.Close()
	}
	for _, box := range l.Inboxes() {
		box.close()
	}
}

// shutdownTimeout bounds [Server.Shutdown]. A replica that catches up waits for the
// leader of its stream, and nats-server waits for the replica: when all members stop at
// once, for more than a minute.
const shutdownTimeout = 20 * time.Second

// Shutdown stops the embedded server. It blocks until the server has stopped or
// shutdownTimeout has passed. The caller then ends the process, and the server's files
// are as after a crash, which loses nothing that was acknowledged.
func (l *Server) Shutdown() {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		l.NATS.Shutdown()
		l.NATS.WaitForShutdown()
	}()
	select {
	case <-stopped:
	case <-time.After(shutdownTimeout):
		l.Log.Warn("embedded NATS server has not stopped: going on without it", "waited", shutdownTimeout)
	}
}

// SetPeers replaces the list of members.
func (l *Server) SetPeers(peers []Peer) {
	sorted := sortedPeers(peers)
	l.peerList.Store(&sorted)
}

// Peers returns the members, sorted by name.
func (l *Server) Peers() []Peer { return *l.peerList.Load() }

// Members returns the members' names, in the order of their lanes.
func (l *Server) Members() []string {
	if !l.Config.Clustered() {
		return []string{l.Config.Node}
	}
	peers := l.Peers()
	names := make([]string, len(peers))
	for i, p := range peers {
		names[i] = p.Node
	}
	return names
}

// SetLanes sets the number of lanes, which the ledger decides. It is the number of
// members until the first call.
func (l *Server) SetLanes(n int) { l.laneCount.Store(int32(min(max(n, 1), subjects.MaxLanes))) }

// Lanes returns the number of lanes.
func (l *Server) Lanes() int { return int(l.laneCount.Load()) }

// ClientAddress returns the address of the client of this server that subscribes to a
// reply subject, "" if there is none.
func (l *Server) ClientAddress(reply string) string {
	inbox, _, _ := strings.Cut(reply, ".")
	if inbox == "" {
		return ""
	}
	found, err := l.NATS.Connz(&server.ConnzOptions{Account: AccountYard, FilterSubject: reply, Subscriptions: true})
	if err != nil {
		return ""
	}
	for _, c := range found.Conns {
		// Not a client that only monitors all subjects.
		if slices.ContainsFunc(c.Subs, func(subject string) bool { return strings.HasPrefix(subject, inbox+".") }) {
			return net.JoinHostPort(c.IP, strconv.Itoa(c.Port))
		}
	}
	return ""
}
