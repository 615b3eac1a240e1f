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

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/internal/logthrottle"
	"github.com/yardmaster-dev/yardmaster/job"
	"golang.org/x/sync/semaphore"
)

// Server is the Overhop server of one node. It accepts connections; what it
// does with jobs is in deliveries.
type Server struct {
	cfg        Config
	cluster    Cluster
	log        *slog.Logger
	started    time.Time
	links      linkLimits
	lifetimes  overhop.Lifetimes
	certs      *certs.Store // nil if the edge does not use TLS
	tls        *tls.Config  // nil if the edge does not use TLS
	deliveries deliveries
	connLoops  sync.WaitGroup // one per connection

	mu          sync.Mutex // guards the fields below; may be held while deliveries.mu is locked
	conns       map[*conn]struct{}
	connsByHost map[string]int     // connections by remote host
	anonymous   map[*conn]struct{} // connections that have not registered
	closing     bool               // no connections are accepted any more

	// These throttle log lines that clients can cause at will.
	overLimitLog, refusedLog, acceptErrorLog logthrottle.Throttle
}

// New returns a server. The error names the key of cfg, with defaults applied,
// that is out of range, or the certificate file that cannot be used.
func New(cfg Config, cluster Cluster, executor Executor, log *slog.Logger) (*Server, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, cluster: cluster, log: log, started: time.Now(), lifetimes: defaultLifetimes,
		conns: make(map[*conn]struct{}), connsByHost: make(map[string]int), anonymous: make(map[*conn]struct{}),
	}
	s.links.log, s.links.limits, s.links.frames = log, cfg.Limits, semaphore.NewWeighted(int64(cfg.Limits.FrameMemory))
	s.deliveries.init(&s.cfg, cluster, executor, log)
	if cfg.Server.tlsEnabled() {
		store, err := certs.Open(cfg.Server.TLS.certFiles(), log)
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

// Start sends a job to the worker that the assignment names and takes one of
// its credits. It returns false, without effect, if the worker is not
// connected, has no credit left, or has too much unread output. It returns true
// for a dispatch that is already here. Executor.Offer may be called before it
// returns.
func (s *Server) Start(a job.Assignment, spec job.Spec) bool { return s.deliveries.start(a, spec) }

// Stop recalls a dispatch. One that was not acknowledged ends at once. A
// running one ends when its worker reports the end or the grace is over, which
// revokes the lease; if the worker has not received the recall, the dispatch
// ends only with its lease, because the job may still be running. A superseded
// dispatch has moved to another node, which reports its outcome: it is removed
// here without one, unless a later move has brought it back.
func (s *Server) Stop(r job.Recall) { s.deliveries.stop(r) }

// Running returns the lease and progress of a dispatch that runs at a worker of
// this node. ok is false if the dispatch is not here or not acknowledged.
func (s *Server) Running(id job.ID, n uint32) (r job.Progress, ok bool) {
	return s.deliveries.running(id, n)
}

// Serve accepts connections from ln until ctx ends. It then sends BYE on every
// connection, closes them all, reports dispatches that hold no lease as
// interrupted, and returns nil. It closes ln. It must be called at most once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	connCtx, cancelConns := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelConns()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var background sync.WaitGroup
	background.Go(func() { s.deliveries.runTimers(connCtx) })
	background.Go(func() { s.runPurge(connCtx) })
	s.log.Info("edge is listening", "addr", ln.Addr().String(), "tls", s.tls != nil, "token", s.cfg.Server.Token != "")
	err := s.accept(ctx, connCtx, ln)
	ln.Close()
	s.closeConns()
	s.connLoops.Wait()
	s.deliveries.reportInterrupted()
	cancelConns()
	background.Wait()
	return err
}

// accept accepts connections until ctx ends. After a temporary error, such as a
// lack of file descriptors, it pauses and tries again.
func (s *Server) accept(ctx, connCtx context.Context, ln net.Listener) error {
	wait := backoff.Backoff{Base: 5 * time.Millisecond, Max: time.Second}
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			wait.Reset()
			s.startConn(connCtx, nc)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept connections: %w", err)
		default:
			delay := wait.Next()
			if n, ok := s.acceptErrorLog.Allow(time.Now()); ok {
				s.log.Warn("edge cannot accept connections, retrying", "err", err, "retry_in", delay, "count", n)
			}
			if backoff.Sleep(ctx, delay) != nil {
				return nil
			}
		}
	}
}

// startConn starts a connection's goroutines, or closes the connection if a
// limit is reached.
func (s *Server) startConn(ctx context.Context, nc net.Conn) {
	if s.tls != nil {
		nc = tls.Server(nc, s.tls) // the handshake runs in the connection's own goroutine
	}
	c := s.newConn(ctx, nc)
	s.mu.Lock()
	overLimit := s.closing || len(s.conns) >= s.cfg.Limits.Connections || s.connsByHost[c.host] >= s.cfg.Limits.PerAddress
	if !overLimit {
		s.conns[c] = struct{}{}
		s.anonymous[c] = struct{}{}
		s.connsByHost[c.host]++
		s.connLoops.Add(1)
	}
	s.mu.Unlock()
	if overLimit {
		if n, ok := s.overLimitLog.Allow(time.Now()); ok {
			s.log.Warn("connection refused, limit reached", "peer", c.host, "count", n)
		}
		c.abort()
		return
	}
	go func() {
		defer s.connLoops.Done()
		c.run()
	}()
}

// removeConn removes a closed connection and its worker.
func (s *Server) removeConn(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	delete(s.anonymous, c)
	if s.connsByHost[c.host]--; s.connsByHost[c.host] <= 0 {
		delete(s.connsByHost, c.host)
	}
	s.mu.Unlock()
	s.deliveries.removeWorker(&c.worker)
}

// runPurge closes connections that do not register in time. It returns when ctx
// ends.
func (s *Server) runPurge(ctx context.Context) {
	tick := time.NewTicker(s.lifetimes.TickInterval())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
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

// Drain withdraws all offers and sends the reason to the workers with DRAIN.
// Running jobs go on. Further calls have no effect until [Server.Resume].
func (s *Server) Drain(reason string) {
	workers := s.deliveries.setDraining(true)
	deadline := time.Now().Add(s.cfg.Delivery.DrainGrace)
	edges := slices.Clone(s.cluster.Edges())
	for _, w := range workers {
		drain := overhop.Fields{"reason": reason, "close_at": deadline}
		if len(edges) > 0 {
			edges = append(edges[1:], edges[0]) // spread the workers over the other nodes
			drain["reconnect"] = edges
		}
		w.conn.pushFields(overhop.TDrain, drain)
	}
}

// Resume ends a drain: the capacity of connected workers is offered again.
func (s *Server) Resume() { s.deliveries.setDraining(false) }

// DrainReasonStop is the reason sent with DRAIN and BYE when the node stops.
const DrainReasonStop = "node stops"

// closeConns drains the edge and sends BYE on all connections.
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
