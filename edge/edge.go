package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/logthrottle"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Server is the Overhop server of one node. It accepts connections; what it
// does with jobs is in deliveries.
type Server struct {
	cfg        Config
	cluster    Cluster
	log        *slog.Logger
	started    time.Time
	certs      *certs.Store // nil if the edge does not use TLS
	tls        *tls.Config  // nil if the edge does not use TLS
	deliveries *deliveries
	connLoops  sync.WaitGroup // one per connection

	// frames is the memory, in bytes, that the large frames of all connections
	// may take, each from its reservation until its answer is formed. A frame
	// gets its whole announced size at once, or waits in order of arrival. So a
	// frame that has begun never waits for another that waits for it; a client
	// that sends its frame too slowly is cut off ([link.Started]).
	frames *semaphore.Weighted

	// anonymousFrames is the same for all clients that have not registered: one frame of
	// the largest size. Strangers do not take the workers' memory. Their frames cannot
	// wait for long, because a client must register in time.
	anonymousFrames *semaphore.Weighted

	mu          crash.Mutex // guards the fields below; may be held while deliveries.mu is locked
	conns       map[*conn]struct{}
	connsByHost map[string]int     // number of connections by remote host
	anonymous   map[*conn]struct{} // connections that have not registered
	closing     bool               // no connections are accepted any more

	// These throttle log lines that clients can cause at will.
	overLimitLog, refusedLog, acceptErrorLog, protocolMismatchLog, slowFrameLog logthrottle.Throttle
}

// New returns a server. The error names the key of cfg, with defaults applied,
// that is out of range, or the certificate file that cannot be used.
func New(cfg Config, cluster Cluster, executor Executor, log *slog.Logger) (*Server, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, cluster: cluster, log: log, started: time.Now(),
		frames: semaphore.NewWeighted(int64(cfg.Limits.FrameMemory)), anonymousFrames: semaphore.NewWeighted(int64(cfg.Wire.MaxEnvelope)), deliveries: newDeliveries(&cfg, cluster, executor, log),
		conns: make(map[*conn]struct{}), connsByHost: make(map[string]int), anonymous: make(map[*conn]struct{}),
	}
	if cfg.Server.tlsEnabled() {
		files := cfg.Server.TLS
		store, err := certs.Open(certs.Files{
			Listener: "edge", Table: "server.tls", Cert: files.CertFile, Key: files.KeyFile, CA: files.ClientCAFile,
		}, log)
		if err != nil {
			return nil, err
		}
		s.certs, s.tls = store, store.Server()
	}
	return s, nil
}

// Certificates returns the certificates that the edge presents, or nil if it
// does not use TLS.
func (s *Server) Certificates() *certs.Store { return s.certs }

// Kind returns the job kind that the edge's offers are for.
func (s *Server) Kind() job.Kind { return job.Overhop }

// Serve accepts connections from ln until ctx ends. It then sends BYE on every
// connection, closes them all, reports dispatches whose worker holds no lease as
// interrupted, and returns nil. It closes ln. It must be called at most once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	connCtx, cancelConns := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelConns()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var background sync.WaitGroup
	background.Go(func() { s.deliveries.awaitSecret(connCtx) })
	background.Go(func() { s.tickAnonymous(connCtx) })
	s.log.Info("edge is listening", "addr", ln.Addr().String(), "tls", s.tls != nil, "token", s.cfg.Server.Token != "")
	err := s.accept(ctx, connCtx, ln)

	ln.Close()
	s.closeConns()
	s.connLoops.Wait()
	s.deliveries.reportInterrupted()
	s.deliveries.stopTimers()
	cancelConns()
	background.Wait()
	return err
}

// accept accepts connections from ln until ctx ends, and starts them with
// connCtx. After a temporary error, such as a lack of file descriptors, it pauses
// and tries again. It returns an error if ln is closed before ctx ends.
func (s *Server) accept(ctx, connCtx context.Context, ln net.Listener) error {
	pause := backoff.Backoff{Base: 5 * time.Millisecond, Max: time.Second}
	for {
		netConn, err := ln.Accept()
		switch {
		case err == nil:
			pause.Reset()
			s.startConn(connCtx, netConn)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept connections: %w", err)
		default:
			delay := pause.Next()
			if n, ok := s.acceptErrorLog.Allow(time.Now()); ok {
				s.log.Warn("edge cannot accept connections, retrying", "err", err, "retry_in", delay, "count", n)
			}
			if backoff.Sleep(ctx, delay) != nil {
				return nil
			}
		}
	}
}

// startConn starts a goroutine that serves a new connection, or closes the
// connection if a limit is reached.
func (s *Server) startConn(ctx context.Context, netConn net.Conn) {
	if s.tls != nil {
		netConn = tls.Server(netConn, s.tls) // the handshake runs in the connection's own goroutine
	}
	c := s.newConn(ctx, netConn)
	if s.addConn(c) {
		s.connLoops.Go(c.run)
		return
	}
	if n, ok := s.overLimitLog.Allow(time.Now()); ok {
		s.log.Warn("connection refused, limit reached", "peer", c.host, "count", n)
	}
	c.abort()
}

// addConn adds a connection that has not registered. It returns false, without
// effect, if a limit is reached or the server is closing.
func (s *Server) addConn(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || len(s.conns) >= s.cfg.Limits.Connections || s.connsByHost[c.host] >= s.cfg.Limits.PerAddress {
		return false
	}
	s.conns[c] = struct{}{}
	s.anonymous[c] = struct{}{}
	s.connsByHost[c.host]++
	return true
}

// removeConn removes a closed connection and its worker.
func (s *Server) removeConn(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	delete(s.anonymous, c)
	s.connsByHost[c.host]--
	if s.connsByHost[c.host] <= 0 {
		delete(s.connsByHost, c.host)
	}
	s.mu.Unlock()
	s.deliveries.removeWorker(&c.worker)
}

// tickAnonymous applies the protocol's time limits to connections that have not
// registered, until ctx ends.
func (s *Server) tickAnonymous(ctx context.Context) {
	for backoff.Sleep(ctx, s.cfg.Wire.Session.lifetimes().TickInterval()) == nil {
		now := time.Now()
		for _, c := range s.listAnonymous() {
			c.tick(now)
		}
	}
}

// listAnonymous returns the connections that have not registered.
func (s *Server) listAnonymous() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.anonymous))
}

// Drain withdraws all offers and sends DRAIN with the reason to the workers.
// Each worker is sent the addresses of the other nodes in a different order, so
// that the workers spread over those nodes. Running jobs go on. Further calls
// have no effect until [Server.Resume].
func (s *Server) Drain(reason string) {
	workers := s.deliveries.setDraining(true)
	closeAt := time.Now().Add(s.cfg.Delivery.DrainGrace)
	addresses := slices.Clone(s.cluster.Edges())
	for _, w := range workers {
		drain := overhop.Fields{"reason": reason, "close_at": closeAt}
		if len(addresses) > 0 {
			addresses = append(addresses[1:], addresses[0])
			drain["reconnect"] = addresses
		}
		w.conn.pushFields(overhop.TDrain, drain)
	}
}

// Resume ends a drain: the capacity of connected workers is offered again.
func (s *Server) Resume() { s.deliveries.setDraining(false) }

// DrainReasonStop is the reason sent with DRAIN and BYE when the node stops.
const DrainReasonStop = "node stops"

// closeConns drains the edge, sends BYE on all connections, and closes each when
// everything is written. No connection is accepted afterwards.
func (s *Server) closeConns() {
	s.Drain(DrainReasonStop)
	s.mu.Lock()
	s.closing = true
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.bye("SHUTDOWN", DrainReasonStop)
	}
}
