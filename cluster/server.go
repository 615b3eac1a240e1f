package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

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
	unrecovered   map[string]bool // streams on disk that could not be recovered at start; only of a node that runs alone
}

// Start starts the embedded server and connects to it. JetStream may still be
// electing its leader when Start returns; see [Server.Health]. Publishes and
// requests only complete or time out while [Server.Run] runs.
func Start(ctx context.Context, cfg embedded.Config, log *slog.Logger) (*Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l, err := embedded.Start(cfg, log)
	if err != nil {
		return nil, err
	}
	s := newServer(l)
	if !l.Config.Clustered() {
		s.unrecovered = unrecoveredStreams(l.NATS)
	}
	if err := s.subscribe(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// newServer returns a server whose parts share l.
func newServer(l *embedded.Server) *Server {
	s := &Server{
		Publisher: lanes.New(l), Reader: streams.NewReader(l), Writer: streams.NewWriter(l), Admin: streams.NewAdmin(l), Fleet: &Fleet{l},
		local: l,
	}
	s.Replication = replication.New(l, s.Publisher)
	s.Stalls = replication.NewStallDetector(l, stallCheckInterval, stallTimeout)
	s.Boards = streams.NewBoardStore(l, s.Replication.MoveLeaderAway)
	return s
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
	}
	return nil
}

// Run routes publishes to lanes that answer and fails requests that have timed
// out. It returns nil when ctx ends, [embedded.ErrDamaged] if the server found damage that
// it cannot repair, and another error if the server failed.
func (s *Server) Run(ctx context.Context) error {
	var helper sync.WaitGroup
	helping, stop := context.WithCancel(ctx)
	defer helper.Wait()
	defer stop()
	helper.Go(func() { s.Stalls.Run(helping) })
	if s.local.Config.Clustered() {
		helper.Go(func() { s.Replication.SendSnapshots(helping) })
		helper.Go(func() { s.Publisher.WatchStreams(helping) })
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
			for _, box := range s.local.Inboxes() {
				box.Expire(now)
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
func (s *Server) SetPeers(peers []embedded.Peer) {
	s.local.SetPeers(peers)
}

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
	for _, r := range routes.Routes {
		if !slices.Contains(identities, r.RemoteName) {
			identities = append(identities, r.RemoteName)
		}
	}
	slices.Sort(identities)
	return identities
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
