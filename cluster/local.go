package cluster

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// local is what the types of this package share on one node: its configuration,
// the embedded server with the node's connections to it, and the members that the
// node knows. Its methods may be called concurrently.
type local struct {
	cfg       Config
	log       *slog.Logger
	srv       *server.Server
	serverLog *serverLog
	conns     []*nats.Conn
	js        jetstream.JetStream

	lanes atomic.Int32           // number of lanes
	peers atomic.Pointer[[]Peer] // the members, sorted by name

	// One connection per kind of traffic, so that a slow consumer of one kind does
	// not delay the others.
	ingest, reads, history, fleet, api, boards *inbox

	system *inbox // system account; nil if the node runs alone
}

// startLocal starts the embedded server and connects to it.
func startLocal(cfg Config, log *slog.Logger) (l *local, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	password := cfg.InternalPassword
	if password == "" {
		password = rand.Text()
	}
	l = &local{cfg: cfg, log: log}
	l.peers.Store(&cfg.Peers)
	l.setLanes(len(l.memberNames()))
	if l.srv, l.serverLog, err = startServer(&l.cfg, password, l.peerList, log); err != nil {
		return nil, err
	}
	if err := l.connect(password); err != nil {
		l.close()
		l.stopServer()
		return nil, err
	}
	return l, nil
}

// connect opens the in-process connections, each with its inbox.
func (l *local) connect(password string) error {
	type traffic struct {
		name string
		box  **inbox
		user string
	}
	kinds := []traffic{
		{"ingest", &l.ingest, userInternal}, {"reads", &l.reads, userInternal}, {"history", &l.history, userInternal},
		{"fleet", &l.fleet, userInternal}, {"api", &l.api, userInternal}, {"boards", &l.boards, userInternal},
	}
	if l.cfg.clustered() {
		kinds = append(kinds, traffic{"system", &l.system, userSystem})
	}
	for _, kind := range kinds {
		nc, err := nats.Connect("", nats.InProcessServer(l.srv), nats.UserInfo(kind.user, password),
			nats.Name("yard-"+kind.name), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
			nats.ErrorHandler(l.logConnError))
		if err != nil {
			return fmt.Errorf("connect %s to the node's own server: %w", kind.name, err)
		}
		l.conns = append(l.conns, nc)
		if *kind.box, err = newInbox(nc); err != nil {
			return fmt.Errorf("subscribe to the inbox of %s: %w", kind.name, err)
		}
	}
	js, err := jetstream.New(l.api.nc)
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	l.js = js
	return nil
}

// logConnError logs an asynchronous error of one of the node's own connections.
func (l *local) logConnError(nc *nats.Conn, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	l.log.Warn("error on in-process NATS connection", "connection", nc.Opts.Name, "subject", subject, "err", err)
}

// inboxes returns the inboxes of all open connections.
func (l *local) inboxes() []*inbox {
	all := []*inbox{l.ingest, l.reads, l.history, l.fleet, l.api, l.boards, l.system}
	return slices.DeleteFunc(all, func(b *inbox) bool { return b == nil })
}

// close closes the connections and fails the requests on them.
func (l *local) close() {
	for _, nc := range l.conns {
		nc.Close()
	}
	for _, box := range l.inboxes() {
		box.close()
	}
}

// shutdownTimeout bounds stopServer. A replica that catches up waits for the leader of
// its stream, and nats-server waits for the replica: when all members stop at once, for
// more than a minute.
const shutdownTimeout = 20 * time.Second

// stopServer stops the embedded server. It blocks until the server has stopped or
// shutdownTimeout has passed. The caller then ends the process, and the server's files
// are as after a crash, which loses nothing that was acknowledged.
func (l *local) stopServer() {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		l.srv.Shutdown()
		l.srv.WaitForShutdown()
	}()
	select {
	case <-stopped:
	case <-time.After(shutdownTimeout):
		l.log.Warn("embedded NATS server has not stopped: going on without it", "waited", shutdownTimeout)
	}
}

// setPeers replaces the list of members.
func (l *local) setPeers(peers []Peer) {
	sorted := sortedPeers(peers)
	l.peers.Store(&sorted)
}

// peerList returns the members, sorted by name.
func (l *local) peerList() []Peer { return *l.peers.Load() }

// memberNames returns the members' names, in the order of their lanes.
func (l *local) memberNames() []string {
	if !l.cfg.clustered() {
		return []string{l.cfg.Node}
	}
	peers := l.peerList()
	names := make([]string, len(peers))
	for i, p := range peers {
		names[i] = p.Node
	}
	return names
}

// setLanes sets the number of lanes, which the ledger decides. It is the number of
// members until the first call.
func (l *local) setLanes(n int) { l.lanes.Store(int32(min(max(n, 1), MaxLanes))) }

// laneCount returns the number of lanes.
func (l *local) laneCount() int { return int(l.lanes.Load()) }
