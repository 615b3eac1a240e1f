package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/internal/logthrottle"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Server is the Overhop server of one node.
type Server struct {
	cfg         Config
	cluster     Cluster
	executor    Executor
	log         *slog.Logger
	started     time.Time
	tokens      tokens
	offers      offerQueue
	timers      timers
	frameBudget budget
	lifetimes   overhop.Lifetimes
	certs       *certs.Store // nil if the edge does not use TLS
	tls         *tls.Config  // nil if the edge does not use TLS

	mu            sync.Mutex
	conns         map[*conn]struct{}
	connsByHost   map[string]int               // connections by remote host
	anonymous     map[*conn]struct{}           // connections that have not registered
	workers       map[string]*conn             // registered connections, by worker id
	dispatches    map[job.DispatchID]*dispatch // until their outcome is committed
	draining      bool                         // nothing is offered any more
	closing       bool                         // no connections are accepted any more
	drainDeadline time.Time                    // announced in DRAIN
	connLoops     sync.WaitGroup               // one per connection

	// These throttle log lines that clients can cause at will.
	overLimitLog, refusedLog, protocolMismatchLog, acceptErrorLog, slowFrameLog logthrottle.Throttle
}

// New returns a server. The error names the key of cfg, with defaults applied,
// that is out of range, or the certificate file that cannot be used.
func New(cfg Config, cluster Cluster, executor Executor, log *slog.Logger) (*Server, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, cluster: cluster, executor: executor, log: log, started: time.Now(),
		conns: make(map[*conn]struct{}), connsByHost: make(map[string]int), anonymous: make(map[*conn]struct{}),
		workers: make(map[string]*conn), dispatches: make(map[job.DispatchID]*dispatch),
		lifetimes: defaultLifetimes,
	}
	s.frameBudget.available = cfg.Limits.FrameMemory
	s.tokens.secret = cluster.Secret
	s.timers.wake = make(chan struct{}, 1)
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

// Serve accepts connections from ln until ctx ends. It then sends BYE on every
// connection, closes them all, reports dispatches that hold no lease as
// interrupted, and returns nil. It closes ln. It must be called at most once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	connCtx, cancelConns := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelConns()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var background sync.WaitGroup
	background.Go(func() { s.runTimers(connCtx) })
	background.Go(func() { s.runPurge(connCtx) })
	s.log.Info("edge is listening", "addr", ln.Addr().String(), "tls", s.tls != nil, "token", s.cfg.Server.Token != "")
	err := s.accept(ctx, connCtx, ln)
	ln.Close()
	s.closeConns()
	s.connLoops.Wait()
	s.reportInterrupted()
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

// registerWorker adds the connection to the registered workers under wid.
func (s *Server) registerWorker(c *conn, wid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.anonymous, c)
	c.wid = wid
	s.workers[wid] = c
}

// removeConn removes a closed connection. Its dispatches that were not
// acknowledged end as never started; running ones stay until their lease
// expires.
func (s *Server) removeConn(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	delete(s.anonymous, c)
	delete(s.workers, c.wid)
	if s.connsByHost[c.host]--; s.connsByHost[c.host] <= 0 {
		delete(s.connsByHost, c.host)
	}
	c.closed = true
	for _, sub := range c.subs {
		s.closeSubscription(sub)
	}
	var reports []report
	for d := range c.jobs {
		if d.state == reserved {
			reports = append(reports, s.endLocked(d, lostOutcome(d, "connection lost before ACK")))
		}
		d.setConnLocked(nil)
	}
	c.jobs = nil
	s.mu.Unlock()
	s.reportOutcomes(reports...)
	s.flushOffers()
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
		s.mu.Lock()
		anonymous := make([]*conn, 0, len(s.anonymous))
		for c := range s.anonymous {
			anonymous = append(anonymous, c)
		}
		s.mu.Unlock()
		now := time.Now()
		for _, c := range anonymous {
			c.tick(now)
		}
	}
}

// Drain withdraws all offers and sends the reason to the workers with DRAIN.
// Running jobs go on. Further calls have no effect until [Server.Resume].
func (s *Server) Drain(reason string) {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return
	}
	s.draining = true
	s.drainDeadline = time.Now().Add(s.cfg.Delivery.DrainGrace)
	var workers []*conn
	for _, c := range s.workers {
		workers = append(workers, c)
		for _, sub := range c.subs {
			s.offers.markDirty(sub)
		}
	}
	s.mu.Unlock()
	s.flushOffers()
	edges := slices.Clone(s.cluster.Edges())
	for _, c := range workers {
		drain := overhop.Fields{"reason": reason, "close_at": s.drainDeadline}
		if len(edges) > 0 {
			edges = append(edges[1:], edges[0]) // spread the workers over the other nodes
			drain["reconnect"] = edges
		}
		c.pushFields(overhop.TDrain, drain)
	}
}

// Resume ends a drain: the capacity of connected workers is offered again.
func (s *Server) Resume() {
	s.mu.Lock()
	s.draining = false
	for _, c := range s.workers {
		for _, sub := range c.subs {
			s.offers.markDirty(sub)
		}
	}
	s.mu.Unlock()
	s.flushOffers()
}

// DrainReasonStop is the reason sent with DRAIN and BYE when the node stops.
const DrainReasonStop = "node stops"

// closeConns drains the edge and sends BYE on all connections.
func (s *Server) closeConns() {
	s.Drain(DrainReasonStop)
	s.mu.Lock()
	s.closing = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.bye("SHUTDOWN", DrainReasonStop)
	}
}

// reportInterrupted ends, when the node stops, the dispatches that were not
// acknowledged and those whose lease has expired. A worker with a valid lease
// may still be running its job, or be reconnecting to another node: such a
// dispatch is left to the authority, which ends it when the lease expires.
func (s *Server) reportInterrupted() {
	now := time.Now()
	s.mu.Lock()
	var reports []report
	for _, d := range s.dispatches {
		if d.state == reserved || (d.state == running || d.state == recalling) && !d.leaseUntil.After(now) {
			reports = append(reports, s.endLocked(d, job.Outcome{Status: job.Interrupted, Started: d.state != reserved}))
		}
	}
	s.mu.Unlock()
	s.reportOutcomes(reports...)
}

// Cluster is what the edge needs of its node.
type Cluster interface {
	// Session returns a session for one connection. Its reads reflect its
	// earlier writes.
	Session() Session
	// Secret returns the yard's key for lease tokens, the same on every node.
	// It is empty until the node has it, then constant; no jobs are delivered
	// before. It does not block.
	Secret() []byte
	// Resume moves dispatch n of the job to a worker of this node. It returns
	// [job.ErrLeaseLost] if n is not the job's current dispatch.
	Resume(ctx context.Context, id job.ID, n uint32, worker string) (job.Assignment, error)
	// Edges returns the addresses, host:port, to which clients of this node may
	// reconnect when it stops. It does not block.
	Edges() []string
	// Status returns what STATUS shows in addition to the edge's own figures.
	Status(ctx context.Context) (Status, error)
}

// Session is the set of yard operations that one connection uses. Errors are
// those of package job, possibly wrapped; any other error is reported to the
// client as an internal failure. A session is not used concurrently, except for
// ObserveIndex.
type Session interface {
	Queues
	Jobs
	Admin

	// ObserveIndex makes later reads reflect the log up to index. It does not
	// block and may be called concurrently.
	ObserveIndex(index uint64)
}

// Queues reads and changes queues.
type Queues interface {
	Queue(ctx context.Context, name string) (job.Queue, bool, error)
	Queues(ctx context.Context) ([]job.Queue, error) // in any order
	AddQueue(ctx context.Context, name string, cfg job.QueueConfig) (job.ID, error)
	RemoveQueue(ctx context.Context, name string) error
	// PauseQueue pauses or resumes a queue. It returns job.ErrQueuePaused or
	// job.ErrQueueNotPaused if there is nothing to change.
	PauseQueue(ctx context.Context, name string, paused bool) error
}

// Jobs accepts and reads jobs.
type Jobs interface {
	// Enqueue accepts a job and calls done once, from any goroutine, when the
	// job is accepted or refused. Jobs are accepted in the order of the calls.
	// It refuses a queue that does not exist, then a system queue. With an
	// empty key the yard generates the id.
	Enqueue(ctx context.Context, queue string, spec job.Spec, key string, done func(job.ID, error))
	// Job returns a job with its body and its result, which may have to be read
	// from disk. Peek returns it without them, from memory.
	Job(ctx context.Context, id job.ID) (job.View, bool, error)
	Peek(ctx context.Context, id job.ID) (job.View, bool, error)
	// Await blocks until the job has ended or ctx is done. The view has a
	// result and no body.
	Await(ctx context.Context, id job.ID) (job.View, error)
	// List returns a page (from 1) of a queue's jobs in a state, oldest first.
	List(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error)
	// Stats returns the number of a queue's jobs by state.
	Stats(ctx context.Context, queue string) (counts [job.Failed + 1]uint64, err error)
}

// Admin changes jobs and queues that have been accepted.
type Admin interface {
	RemoveJob(ctx context.Context, id job.ID) error
	Cancel(ctx context.Context, id job.ID, reason string) (job.State, error)
	Retry(ctx context.Context, id job.ID) (job.State, error)
	// Clear removes a queue's jobs in the given states.
	Clear(ctx context.Context, queue string, states []job.State) (removed int, err error)
	// Obliterate removes a queue and all its jobs. It refuses if jobs are
	// active, unless force is set.
	Obliterate(ctx context.Context, queue string, force bool) (removed int, err error)
}

// Executor is the node's agent as the edge sees it: it receives offers,
// outcomes, log lines and the health of workers. Its methods do not block and
// do not call back into the edge before they return. Adopt, WorkerLease,
// Stalled and Recovered are called with the edge's locks held.
type Executor interface {
	// Adopt takes over a running dispatch whose worker came from another node;
	// from then on it is stopped and reported as if Start had accepted it. It
	// returns false if the node may not run it.
	Adopt(a job.Assignment) bool
	// WorkerLease returns the end of a lease that a worker asks for until the
	// given time: that time, or the end of the node's own lease if that is
	// earlier.
	WorkerLease(until time.Time) time.Time
	// Offer announces how many jobs one worker takes from one queue, as an
	// absolute number. Free 0 withdraws the offer.
	Offer(o job.Offer)
	// Report reports how a dispatch ended: once for every dispatch that Start
	// or Adopt accepted, and also for a dispatch of another node whose worker
	// sends the end to this one. If done is not nil it is called once, from
	// another goroutine, when the outcome is committed or known to be stale.
	Report(o job.Outcome, done func(job.Settled))
	// Log records a line of a dispatch's log. It never blocks.
	Log(l job.LogLine)
	// Stalled reports that a worker, named by its channel, takes jobs and does
	// not work on them. Recovered reports that it works again or has come back
	// over another connection.
	Stalled(worker, reason string)
	Recovered(worker, recovery string)
}

// Status is the node's part of the answer to STATUS.
type Status struct {
	DataPath     string
	PathExists   bool
	DataSize     int64 // bytes
	Bootstrapped bool  // the yard's queues are known on this node
	Queues       int
	PausedQueues int
	Cluster      map[string]string // shown as "cluster"
}
