package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/duration"

	"github.com/nats-io/nats-server/v2/server"
)

// Accounts and internal users of the embedded server.
const (
	AccountYard    = "YARD"     // all streams, and operators if there are no users
	accountNodes   = "NODES"    // messages between nodes, which no client can reach
	accountClients = "CLIENTS"  // prefix of the accounts of users with a role
	userInternal   = "internal" // this node's own connections; in-process only
	userNode       = "node"     // of the account of the nodes; in-process only
	userSystem     = "system"   // of the system account; in-process only
	userOperator   = "operator" // every client, if there are no users
)

// MaxMessage is the maximum size of a message in bytes, including headers. It
// leaves ample space for an enqueue request of 1 MiB.
const MaxMessage = 2 << 20

// Limits for clients of one server.
const (
	MaxClients       = 10000 // connections
	maxSubscriptions = 10000 // per connection
)

const (
	startTimeout      = 15 * time.Second
	routePingInterval = 3 * time.Second // a route with two unanswered pings is closed
	writeDeadline     = 5 * time.Second
	DuplicateWindow   = 30 * time.Second // in which a stream of the yard drops a message with the same key

	// LaneWindow is the duplicate window of lanes. The ledger detects duplicate jobs.
	// JetStream ignores the queue, and would drop a job that has the same key as a
	// job of another queue, so the window is the shortest that it permits.
	LaneWindow = 100 * time.Millisecond

	// maxWindow bounds the duplicate window of clients' own streams, which is kept in
	// memory. Client libraries and the nats CLI ask for this much by default.
	maxWindow = 2 * time.Minute
)

// startServer starts the embedded server and returns it and its log when it accepts
// connections. JetStream may still be electing its leader. password is that of this
// node's own connections; peers returns the current members.
func startServer(cfg *Config, password string, peers func() []Peer, log *slog.Logger) (*server.Server, *serverLog, error) {
	opts := &server.Options{}
	if err := opts.ProcessConfigString(serverConfig(cfg, password)); err != nil {
		return nil, nil, fmt.Errorf("read the server's configuration: %w", err)
	}
	configureTLS(opts, cfg, peers, log)
	// The server's signal handler would exit the process.
	opts.NoSigs = true
	opts.DisableJetStreamBanner = true
	opts.SyncInterval = syncInterval
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, nil, fmt.Errorf("create the NATS server: %w", err)
	}
	serverLog := newServerLog(log)
	srv.SetLoggerV2(serverLog, log.Enabled(context.Background(), slog.LevelDebug-4), false, false)
	if err := mapFromFirstRead(srv); err != nil {
		return nil, nil, err
	}
	// Start does not block; Shutdown and WaitForShutdown end the server's goroutines.
	srv.Start()
	if err := awaitServer(srv, serverLog); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, nil, err
	}
	return srv, serverLog, nil
}

// mapFromFirstRead makes the server apply the mappings of the yard's account, such as
// yard.jobs.*, to everything that a client sends.
//
// Before each read from a connection, the server checks whether the connection's account has
// mappings. Until CONNECT, a connection is in the global account. If a client sends CONNECT and
// publishes without waiting for the server, the server reads both at once, and would not map
// these publishes: they would reach subjects without subscribers. The server looks up the
// mappings in the client's own account, so any mapping of the global account, which has no
// users, is enough.
func mapFromFirstRead(srv *server.Server) error {
	if err := srv.GlobalAccount().AddMapping("yard.unused", "yard.unused.mapped"); err != nil {
		return fmt.Errorf("map a subject of the global account: %w", err)
	}
	return nil
}

// awaitServer blocks until the server accepts connections, fails, or startTimeout
// has passed.
func awaitServer(srv *server.Server, log *serverLog) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		ready := srv.ReadyForConnections(50 * time.Millisecond)
		select {
		case <-log.Failed:
			return &startError{log.Fatal}
		default:
		}
		if ready {
			return nil
		}
	}
	return errors.New("NATS server did not start: its listeners are not up after " + duration.Format(startTimeout))
}

// ErrDamaged means that a snapshot of one of JetStream's Raft groups is damaged on
// this node's disk. The server does not start that group.
var ErrDamaged = errors.New("JetStream data on disk is damaged")

// startError is the server's message about why it did not start. The server
// returns no error value, so Is matches its text.
type startError struct{ reason string }

func (e *startError) Error() string { return "NATS server did not start: " + e.reason }

func (e *startError) Is(target error) bool {
	if target == ErrDamaged {
		return strings.Contains(e.reason, "snapshot corrupt")
	}
	return target == syscall.EADDRINUSE && strings.Contains(e.reason, syscall.EADDRINUSE.Error())
}

// syncInterval is how often the server syncs the files of replicated streams. With
// "sync_interval: always" it syncs each write to their Raft logs, but to their own files only
// before a Raft snapshot, or every two minutes. If all members lose their power in between,
// after a stream has evicted or purged what was synced, no member has the messages that the
// snapshots refer to, and each waits for a leader to copy them from: none is ever elected.
const syncInterval = time.Second

// serverConfig returns the server's configuration in its own language, because
// only the configuration file's parser validates all options together.
func serverConfig(cfg *Config, password string) string {
	var b strings.Builder
	line := func(format string, v ...any) { fmt.Fprintf(&b, format+"\n", v...) }
	line("server_name: %q", cfg.Identity)
	line("listen: %q", listenAddress(cfg.ClientListen))
	line("max_payload: %d", MaxMessage)
	line("max_pending: 64MB")
	line("max_connections: %d", MaxClients)
	line("max_subscriptions: %d", maxSubscriptions)
	line("write_deadline: %q", writeDeadline)
	line("ping_interval: %q", 20*time.Second)
	line("jetstream {")
	line("  store_dir: %q", cfg.Dir)
	line("  sync_interval: always") // accepted jobs must survive a power failure
	line("  max_file_store: %d", cfg.MaxStore)
	line("  max_memory_store: %d", 64<<20)
	line("  limits { duplicate_window: %q }", maxWindow)
	line("}")
	if cfg.Clustered() {
		writeRoutes(line, cfg)
	}
	writeAccounts(line, cfg, password)
	return b.String()
}

// writeRoutes writes the section about routes, the connections between members. It
// lists every member, including this one, because JetStream takes the number of
// routes as the expected number of members when it forms.
func writeRoutes(line func(string, ...any), cfg *Config) {
	line("cluster {")
	line("  name: %q", cfg.Yard)
	line("  listen: %q", listenAddress(cfg.RouteListen))
	line("  no_advertise: true")
	// Members gossip each other's addresses. Advertise the configured address, which
	// every member already knows, and not the one a connection came from.
	for _, peer := range cfg.Peers {
		if peer.Node == cfg.Node {
			line("  advertise: %q", peer.Route)
		}
	}
	line("  pool_size: 3")
	line("  accounts: [%s, %s]", AccountYard, accountNodes)
	line("  ping_interval: %q", routePingInterval)
	line("  ping_max: 2")
	line("  write_deadline: %q", writeDeadline)
	login := "" // of the routes that this member opens
	switch {
	case cfg.Secret != "":
		line("  authorization { user: %q, password: %q, timeout: 5 }", cfg.routeUserName(), cfg.Secret)
		login = url.UserPassword(cfg.routeUserName(), cfg.Secret).String() + "@"
	case cfg.MemberTLS != nil:
		login = url.User(cfg.routeUserName()).String() + "@"
	}
	line("  routes: [")
	for _, peer := range cfg.Peers {
		line("    %q", "nats-route://"+login+peer.Route)
	}
	line("  ]")
	line("}")
}

// writeAccounts writes the accounts and their users. password is that of this node's
// own connections. The server checks the permission to publish after mapping, so
// operators in the yard's account must be allowed to publish to the targets of the
// mappings of yard.jobs.* and yard.enqueue.*: yard.lane.*.p.* and yard.local.>.
// Publishing there directly has the same effect as using the public subject.
func writeAccounts(line func(string, ...any), cfg *Config, password string) {
	line("accounts {")
	line("  \"$SYS\" { users: [ { user: %s, password: %q, allowed_connection_types: [\"IN_PROCESS\"] } ] }", userSystem, password)
	line("  %s { users: [ { user: %s, password: %q, allowed_connection_types: [\"IN_PROCESS\"] } ] }", accountNodes, userNode, password)
	line("  %s {", AccountYard)
	line("    jetstream: enabled")
	line("    users: [")
	line("      { user: %s, password: %q, allowed_connection_types: [\"IN_PROCESS\"] }", userInternal, password)
	if len(cfg.Users) == 0 { // every client may do everything, except for what is reserved for nodes
		line("      { user: %s, password: \"\", permissions {", userOperator)
		line("        publish { deny: [%s] }", quoteAll(deniedPublishes()))
		line("        subscribe { deny: [%s] }", quoteAll(deniedSubscriptions()))
		line("      } }")
	}
	line("    ]")
	if len(cfg.Users) > 0 {
		writeExports(line, cfg)
	}
	line("  }")
	if len(cfg.Users) > 0 {
		writeClientAccounts(line, cfg)
	}
	line("}")
	line("system_account: \"$SYS\"")
	switch {
	case len(cfg.Users) == 0:
		line("no_auth_user: %s", userOperator)
	case cfg.Anonymous != "":
		line("no_auth_user: %s", anonymous)
	}
}

// deniedPublishes lists the subjects that operators may not publish to if there
// are no users. A stream's name is a single token, which wildcards cannot match in
// part, so every stream is listed.
func deniedPublishes() []string {
	denied := []string{
		subjects.Lane + ".*." + subjects.NodePublish + ".>", subjects.ClosedLanes + ".>", subjects.Tail + ".>", api.SubjectNode + ".>", subjects.History,
		subjects.State, subjects.Results, subjects.DeadLetters + ".>", subjects.Logs + ".>", subjects.Blobs + ".>", subjects.ResultBlobs + ".>", subjects.Live + ".>", subjects.Advisory + ".>",
	}
	for _, bucket := range subjects.Boards {
		denied = append(denied, subjects.BoardSubject(bucket, ">"))
	}
	for _, stream := range subjects.Streams(subjects.MaxLanes) {
		for _, verb := range []string{"CREATE", "UPDATE", "DELETE", "PURGE", "RESTORE", "MSG.DELETE", "PEER.REMOVE"} {
			denied = append(denied, "$JS.API.STREAM."+verb+"."+stream)
		}
	}
	return denied
}

// deniedSubscriptions lists the subjects that operators may not subscribe to if
// there are no users: messages between nodes, and the lanes' own subjects, where a
// subscriber would hide that a lane has no leader.
func deniedSubscriptions() []string {
	return []string{subjects.Lane + ".>", subjects.Tail + ".>", api.SubjectNode + ".>", subjects.Local + ".>"}
}

// listenAddress converts port 0 to -1, which is the server's notation for any free
// port.
func listenAddress(hostPort string) string {
	if host, ok := strings.CutSuffix(hostPort, ":0"); ok {
		return host + ":-1"
	}
	return hostPort
}

// quoteAll returns the strings of list in double quotes, separated by commas.
func quoteAll(list []string) string {
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = strconv.Quote(text)
	}
	return strings.Join(quoted, ", ")
}
