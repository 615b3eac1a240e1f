package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/replication"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// Server is this node's embedded NATS server. Its fields are what can be done
// through it; [Start] sets them, and they do not change. All methods may be called
// concurrently.
type Server struct {
	Publisher   *lanes.Publisher
	Reader      *streams.Reader
	Writer      *streams.Writer
	Admin       *streams.Admin
	Replication *replication.Replication
	Stalls      *replication.StallDetector
	Boards      *streams.BoardStore
	Fleet       *Fleet

	local         *embedded.Server
	userConsumers *userConsumers  // nil if there are no users
	hasUsers      bool            // users are configured
	unrecovered   map[string]bool // streams on disk that could not be recovered at start; only of a node that runs alone
}

// Start starts the embedded server and connects to it. JetStream may still be
// electing its leader when Start returns; see [Server.Health]. Publishes and
// requests only complete or time out while [Server.Run] runs.
func Start(ctx context.Context, cfg embedded.Config, log *slog.Logger) (*Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	local, err := embedded.Start(cfg, log)
	if err != nil {
		return nil, err
	}
	s := newServer(local)
	if !local.Config.Clustered() {
		s.unrecovered = unrecoveredStreams(local.NATS)
	}
	if err := s.subscribe(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// newServer returns a server whose parts share local.
func newServer(local *embedded.Server) *Server {
	publisher := lanes.New(local)
	mover := replication.New(local, publisher)
	return &Server{
		hasUsers:  len(local.Config.Users) > 0,
		Publisher: publisher, Reader: streams.NewReader(local), Writer: streams.NewWriter(local), Admin: streams.NewAdmin(local),
		Replication: mover, Stalls: replication.NewStallDetector(local, stallCheckInterval, stallTimeout),
		Boards: streams.NewBoardStore(local, mover.MoveLeaderAway), Fleet: &Fleet{local}, local: local,
	}
}

// subscribe subscribes to the subjects that the server answers itself.
func (s *Server) subscribe() (err error) {
	if err := s.mapLocalSubjects(); err != nil {
		return fmt.Errorf("map the node's local subjects: %w", err)
	}
	if err := s.Publisher.Open(); err != nil {
		return err
	}
	if len(s.local.Config.Users) > 0 {
		if s.userConsumers, err = startUserConsumers(s.local); err != nil {
			return fmt.Errorf("serve consumer requests of users: %w", err)
		}
		if err := refuseChanges(s.local); err != nil {
			return fmt.Errorf("serve refused requests of users: %w", err)
		}
	}
	return nil
}

// Run routes publishes to lanes that answer and fails requests that have timed
// out. It returns nil when ctx ends, [embedded.ErrDamaged] if the server found damage that
// it cannot repair, and another error if the server failed.
func (s *Server) Run(ctx context.Context) error {
	var background sync.WaitGroup
	defer background.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	background.Go(func() { s.Stalls.Run(ctx) })
	background.Go(func() { s.Publisher.WatchLoad(ctx) })
	if s.local.Config.Clustered() {
		background.Go(func() { s.Replication.SendSnapshots(ctx) })
		background.Go(func() { s.Publisher.WatchStreams(ctx) })
	}

	tick := time.NewTicker(lanes.TickInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.local.ServerLog.Failed:
			return fmt.Errorf("NATS server failed: %s", s.local.ServerLog.Fatal)
		case <-s.local.ServerLog.Damaged:
			return fmt.Errorf("%w: %s", embedded.ErrDamaged, s.local.ServerLog.Damage)
		case now := <-tick.C:
			s.Publisher.Tick(now)
			for _, inbox := range s.local.Inboxes() {
				inbox.Expire(now)
			}
		}
	}
}

// Timing of the stall detector.
const (
	stallCheckInterval = 5 * time.Second
	stallTimeout       = 20 * time.Second // without progress although the leader has more, or with a gap
)

// Stop closes the connections and stops the server. Pending publishes and requests
// fail first.
func (s *Server) Stop() {
	if s.userConsumers != nil {
		s.userConsumers.close()
	}
	s.local.Close()
	s.Publisher.Close()
	s.local.Shutdown()
}

// Lanes returns the number of lanes.
func (s *Server) Lanes() int { return s.local.Lanes() }

// Members returns all members' names, in the order of their lanes.
func (s *Server) Members() []string { return s.local.Members() }

// ClientURL returns the URL for clients.
func (s *Server) ClientURL() string { return s.local.NATS.ClientURL() }

// SetPeers replaces the list of members. New members open routes to this node;
// this node opens routes to them after its next restart.
func (s *Server) SetPeers(peers []embedded.Peer) { s.local.SetPeers(peers) }

// Routed returns the sorted identities of the servers that this node has a route
// to, including its own.
func (s *Server) Routed() []string {
	identities := []string{s.local.Config.Identity}
	if !s.local.Config.Clustered() {
		return identities
	}
	routes, err := s.local.NATS.Routez(nil)
	if err != nil {
		return identities
	}
	for _, route := range routes.Routes {
		identities = append(identities, route.RemoteName)
	}
	slices.Sort(identities)
	return slices.Compact(identities) // there are several routes to each server
}

// ReachableMembers returns the sorted names of the members that this node has a
// route to, including itself.
func (s *Server) ReachableMembers() []string {
	nodes := s.Routed()
	for i := range nodes {
		nodes[i] = subjects.NodeOf(nodes[i])
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// Health returns nil if JetStream is enabled, knows its meta leader, is current
// and can write. It asks no other server.
func (s *Server) Health() error {
	// A server that runs alone has no meta group. For it the full check compares the
	// loaded streams with those on disk. A stream that is being created is on disk
	// before it is loaded, so only streams that failed to load at start count.
	errs := healthErrors(s.local.NATS, s.local.Config.Clustered())
	for i := range errs {
		if e := &errs[i]; !isUnrecovered(e) || s.unrecovered[e.Stream] {
			return fmt.Errorf("JetStream is not healthy: %s", e.Error)
		}
	}
	return nil
}

// maxUnapplied is how many committed entries of a stream's Raft group a member may still have
// to apply and yet take over from a leader that could stay. A new leader answers nothing
// until it has applied them.
const maxUnapplied = 500

// Behind reports whether this node is far behind in the Raft group of a stream: it is still
// catching up, as after a restart, or has many committed entries to apply.
func (s *Server) Behind() bool { return anyBehind(s.groups()) }

// anyBehind reports whether this node is far behind in any of groups. A paused group does not
// count what it receives as committed.
func anyBehind(groups map[string]server.RaftzGroup) bool {
	for _, group := range groups {
		if group.CatchingUp || group.Paused || group.Committed > group.Applied+maxUnapplied {
			return true
		}
	}
	return false
}

// groups returns the state of this node's Raft groups of streams; none if it runs alone.
func (s *Server) groups() map[string]server.RaftzGroup {
	status := s.local.NATS.Raftz(&server.RaftzOptions{AccountFilter: embedded.AccountYard})
	if status == nil {
		return nil
	}
	groups := (*status)[embedded.AccountYard]
	maps.DeleteFunc(groups, func(name string, _ server.RaftzGroup) bool { return strings.HasPrefix(name, "C-") }) // of consumers
	return groups
}

// WriteFailure returns why this node's JetStream has stopped writing until the
// node restarts, "" if it writes. A full disk causes that: the server disables
// JetStream, or a stream refuses everything after the failed write.
func (s *Server) WriteFailure() string {
	if !s.local.NATS.JetStreamEnabled() {
		return "JetStream has stopped, as it does when its disk is full or fails"
	}
	for _, e := range healthErrors(s.local.NATS, false) {
		if strings.Contains(e.Error, "write error") {
			return e.Error
		}
	}
	return ""
}

// healthErrors returns what the server's health check finds, of streams only if metaOnly is
// false. The check begins with the server's listeners, for which it takes a millisecond: on
// a busy machine it may see none of them in that time, and then checks nothing else. The
// server has listened since it was started, so the check is repeated.
func healthErrors(srv *server.Server, metaOnly bool) (errs []server.HealthzError) {
	for range 10 {
		errs = srv.Healthz(&server.HealthzOptions{JSMetaOnly: metaOnly, Details: true}).Errors
		if len(errs) == 0 || errs[0].Type != server.HealthzErrorConn {
			break
		}
	}
	return errs
}

// unrecoveredStreams returns the names of the streams that the server found on
// disk and could not recover. It has tried all of them when it accepts
// connections.
func unrecoveredStreams(srv *server.Server) map[string]bool {
	lost := map[string]bool{}
	for _, e := range healthErrors(srv, false) {
		if isUnrecovered(&e) {
			lost[e.Stream] = true
		}
	}
	return lost
}

// isUnrecovered reports whether e is about a stream that could not be recovered.
// It checks the text, because the server has no code for this.
func isUnrecovered(e *server.HealthzError) bool {
	return e.Type == server.HealthzErrorStream && strings.HasSuffix(e.Error, "could not be recovered")
}
