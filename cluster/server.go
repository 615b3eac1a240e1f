package cluster

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

	"github.com/nats-io/nats-server/v2/server"
)

// The account of everything that is the yard's, its two users, and the account
// of users who have a role.
const (
	account      = "YARD"
	clients      = "CLIENTS"
	userInternal = "internal"
	userSystem   = "system" // of the server's own account, in this process alone
	userOperator = "operator"
)

// MaxMessage is the largest message, in bytes, headers included: an enqueue
// request of 1 MiB with room around it.
const MaxMessage = 2 << 20

// What clients may have of one server, and of one stream: each costs memory and
// descriptors on every member.
const (
	maxClients       = 10000 // connections
	maxSubscriptions = 10000 // of a connection
)

const (
	startPatience   = 15 * time.Second
	routePing       = 3 * time.Second // twice unanswered: the route is cut
	writeDeadline   = 5 * time.Second
	duplicateWindow = 30 * time.Second

	// The ledger knows duplicates among jobs. JetStream, which does not tell
	// queues apart, would drop a job whose key another queue's job has, so its
	// window is as short as it lets it be.
	laneWindow = 100 * time.Millisecond
)

// openServer starts the embedded server and returns when it accepts
// connections. JetStream may still be electing. Known lists the members of now.
func openServer(cfg *Config, password string, known func() []Peer, log *slog.Logger) (*server.Server, *serverLog, error) {
	opts := &server.Options{}
	if err := opts.ProcessConfigString(serverConfig(cfg, password)); err != nil {
		return nil, nil, fmt.Errorf("read the server's configuration: %w", err)
	}
	speakTLS(opts, cfg, known, log)
	// Its own signal handler would end the process behind our back.
	opts.NoSigs = true
	opts.DisableJetStreamBanner = true
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, nil, fmt.Errorf("make the NATS server: %w", err)
	}
	words := newServerLog(log)
	srv.SetLoggerV2(words, log.Enabled(context.Background(), slog.LevelDebug-4), false, false)
	// Start returns when the listeners are up; those run on their own until
	// Shutdown, which waits for them.
	srv.Start()
	if err := awaitServer(srv, words); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, nil, err
	}
	return srv, words, nil
}

func awaitServer(srv *server.Server, words *serverLog) error {
	for deadline := time.Now().Add(startPatience); ; {
		ready := srv.ReadyForConnections(50 * time.Millisecond)
		select {
		case <-words.failed:
			return &startError{words.fatal}
		default:
		}
		if ready {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("NATS server did not start: its listeners are not up after " + startPatience.String())
		}
	}
}

// ErrDamaged: what JetStream has agreed on is damaged on this node's disk, so that
// its server does not start.
var ErrDamaged = errors.New("what JetStream keeps on the disk is damaged")

// startError is the server's own word on why it did not start, which carries no
// other error.
type startError struct{ says string }

func (e *startError) Error() string { return "NATS server did not start: " + e.says }

func (e *startError) Is(target error) bool {
	if target == ErrDamaged {
		return strings.Contains(e.says, "snapshot corrupt")
	}
	return target == syscall.EADDRINUSE && strings.Contains(e.says, syscall.EADDRINUSE.Error())
}

// serverConfig is the server's configuration in its own language: the one
// road on which every option is checked together.
func serverConfig(cfg *Config, password string) string {
	var b strings.Builder
	line := func(format string, v ...any) { fmt.Fprintf(&b, format+"\n", v...) }
	line("server_name: %s", quote(cfg.Identity))
	line("listen: %s", quote(listenAddress(cfg.Client)))
	line("max_payload: %d", MaxMessage)
	line("max_pending: 64MB")
	line("max_connections: %d", maxClients)
	line("max_subscriptions: %d", maxSubscriptions)
	line("write_deadline: %q", writeDeadline)
	line("ping_interval: %q", 20*time.Second)
	line("jetstream {")
	line("  store_dir: %s", quote(cfg.Dir))
	line("  sync_interval: always") // accepted means on disk, also after a power cut
	line("  max_file_store: %d", cfg.MaxStore)
	line("  max_memory_store: %d", 64<<20)
	line("  limits { duplicate_window: %q }", duplicateWindow)
	line("}")
	if cfg.clustered() {
		writeRoutes(line, cfg)
	}
	writeAccounts(line, cfg, password)
	return b.String()
}

// writeRoutes names every member, this one included: the number of routes is
// what JetStream takes for the number of members when it forms.
func writeRoutes(line func(string, ...any), cfg *Config) {
	line("cluster {")
	line("  name: %s", quote(cfg.Yard))
	line("  listen: %s", quote(listenAddress(cfg.Route)))
	line("  no_advertise: true")
	// Members tell each other of members: under the address that all of them have
	// declared, which each knows already, and not one that it was seen under.
	for _, peer := range cfg.Peers {
		if peer.Node == cfg.Node {
			line("  advertise: %s", quote(peer.Route))
		}
	}
	line("  pool_size: 3")
	line("  accounts: [%s]", account)
	line("  ping_interval: %q", routePing)
	line("  ping_max: 2")
	line("  write_deadline: %q", writeDeadline)
	user := ""
	switch {
	case cfg.Secret != "":
		line("  authorization { user: %s, password: %s, timeout: 5 }", quote(cfg.routeName()), quote(cfg.Secret))
		user = url.UserPassword(cfg.routeName(), cfg.Secret).String() + "@"
	case cfg.MemberTLS != nil:
		user = url.User(cfg.routeName()).String() + "@"
	}
	line("  routes: [")
	for _, peer := range cfg.Peers {
		line("    %s", quote("nats-route://"+user+peer.Route))
	}
	line("  ]")
	line("}")
}

// writeAccounts names who may connect. The server checks a publish under its
// mapped subject, so what is mapped from yard.jobs.* and yard.enqueue.* has to
// stay open to an operator in the yard's own account: yard.lane.*.p.* and
// yard.local.>. Both only lead where the public subject leads.
func writeAccounts(line func(string, ...any), cfg *Config, password string) {
	line("accounts {")
	line("  \"$SYS\" { users: [ { user: %s, password: %s, allowed_connection_types: [\"IN_PROCESS\"] } ] }", userSystem, quote(password))
	line("  %s {", account)
	line("    jetstream: enabled")
	line("    users: [")
	line("      { user: %s, password: %s, allowed_connection_types: [\"IN_PROCESS\"] }", userInternal, quote(password))
	if len(cfg.Users) == 0 { // whoever reaches the port: everything but what the yard must do itself
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
		writeClients(line, cfg)
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

// deniedPublishes lists what a client may not say. A stream's name is one
// token, so "YARD_*" cannot be written as a pattern: every name is listed.
func deniedPublishes() []string {
	denied := []string{
		subjectLane + ".*." + nodePublish + ".>", subjectClosed + ".>", subjectTail + ".>", subjectNode + ".>", SubjectHistory,
		SubjectResults, subjectDLQ + ".>", subjectLogs + ".>", subjectBlob + ".>", SubjectLive + ".>", SubjectAdvisory + ".>",
	}
	streams := []string{StreamBlobs, StreamEvents, StreamResults, StreamDLQ, StreamLogs}
	for lane := range MaxLanes {
		streams = append(streams, LaneStream(uint8(lane)))
	}
	for _, bucket := range Boards {
		streams = append(streams, boardStream(bucket))
		denied = append(denied, boardSubject(bucket, ">"))
	}
	for _, stream := range streams {
		for _, verb := range []string{"CREATE", "UPDATE", "DELETE", "PURGE", "RESTORE", "MSG.DELETE", "PEER.REMOVE"} {
			denied = append(denied, "$JS.API.STREAM."+verb+"."+stream)
		}
	}
	return denied
}

// deniedSubscriptions: what nodes say to each other, and the lanes' own
// subjects, where a listener would hide that nobody leads the lane.
func deniedSubscriptions() []string {
	return []string{subjectLane + ".>", subjectTail + ".>", subjectNode + ".>", subjectLocal + ".>"}
}

// listenAddress says "any port" in the server's way: it takes 0 for "not
// given" and -1 for "any".
func listenAddress(hostPort string) string {
	if host, ok := strings.CutSuffix(hostPort, ":0"); ok {
		return host + ":-1"
	}
	return hostPort
}

func quote(s string) string { return strconv.Quote(s) }

func quoteAll(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = quote(s)
	}
	return strings.Join(quoted, ", ")
}
