package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Server is this node's embedded NATS server. Its fields are what can be done
// through it; [Start] sets them, and they do not change. All methods may be called
// concurrently.
type Server struct {
	Publisher   *Publisher
	Reader      *Reader
	Writer      *Writer
	Admin       *Admin
	Replication *Replication
	Stalls      *StallDetector
	Boards      *BoardStore
	Fleet       *Fleet

	local         *local
	userConsumers *userConsumers  // nil if there are no users
	unrecovered   map[string]bool // streams on disk that could not be recovered at start; only of a node that runs alone
}

// Start starts the embedded server and connects to it. JetStream may still be
// electing its leader when Start returns; see [Server.Health]. Publishes and
// requests only complete or time out while [Server.Run] runs.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Server, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l, err := startLocal(cfg, log)
	if err != nil {
		return nil, err
	}
	s := newServer(l)
	if !l.cfg.clustered() {
		s.unrecovered = unrecoveredStreams(l.srv)
	}
	if err := s.subscribe(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// newServer returns a server whose parts share l.
func newServer(l *local) *Server {
	s := &Server{
		Publisher: newPublisher(l), Reader: newReader(l), Writer: newWriter(l), Admin: newAdmin(l), Fleet: &Fleet{l},
		local: l,
	}
	s.Replication = newReplication(l, s.Publisher)
	s.Stalls = NewStallDetector(l, stallCheckInterval, stallTimeout)
	s.Boards = newBoardStore(l, s.Replication.moveLeaderAway)
	return s
}

// subscribe subscribes to the subjects that the server answers itself.
func (s *Server) subscribe() (err error) {
	if err := s.mapLocalSubjects(); err != nil {
		return fmt.Errorf("map the node's local subjects: %w", err)
	}
	if err := s.Publisher.open(); err != nil {
		return err
	}
	if len(s.local.cfg.Users) > 0 {
		if s.userConsumers, err = startUserConsumers(s.local); err != nil {
			return fmt.Errorf("serve consumer requests of users: %w", err)
		}
	}
	return nil
}

// Run routes publishes to lanes that answer and fails requests that have timed
// out. It returns nil when ctx ends, [ErrDamaged] if the server found damage that
// it cannot repair, and another error if the server failed.
func (s *Server) Run(ctx context.Context) error {
	var helper sync.WaitGroup
	helping, stop := context.WithCancel(ctx)
	defer helper.Wait()
	defer stop()
	helper.Go(func() { s.Stalls.Run(helping) })
	if s.local.cfg.clustered() {
		helper.Go(func() { s.Replication.SendSnapshots(helping) })
		helper.Go(func() { s.Publisher.watchStreams(helping) })
	}
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.local.serverLog.failed:
			return fmt.Errorf("NATS server failed: %s", s.local.serverLog.fatal)
		case <-s.local.serverLog.damaged:
			return fmt.Errorf("%w: %s", ErrDamaged, s.local.serverLog.damage)
		case now := <-tick.C:
			s.Publisher.tick(now)
			for _, box := range s.local.inboxes() {
				box.expire(now)
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
	s.local.close()
	s.Publisher.close()
	s.local.stopServer()
}

// Lanes returns the number of lanes.
func (s *Server) Lanes() int { return s.local.laneCount() }

// Members returns all members' names, in the order of their lanes.
func (s *Server) Members() []string { return s.local.memberNames() }

// ClientURL returns the URL for clients.
func (s *Server) ClientURL() string { return s.local.srv.ClientURL() }

// SetPeers replaces the list of members. New members open routes to this node;
// this node opens routes to them after its next restart.
func (s *Server) SetPeers(peers []Peer) {
	s.local.setPeers(peers)
}

// Routed returns the sorted identities of the servers that this node has a route
// to, including its own.
func (s *Server) Routed() []string {
	identities := []string{s.local.cfg.Identity}
	if !s.local.cfg.clustered() {
		return identities
	}
	routes, err := s.local.srv.Routez(nil)
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
		nodes[i] = NodeOf(nodes[i])
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}
