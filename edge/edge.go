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

	"yardmaster/edge/overhop"
	"yardmaster/internal/backoff"
	"yardmaster/internal/certs"
	"yardmaster/internal/seldom"
	"yardmaster/job"
)

// Server is the Overhop server of one node.
type Server struct {
	cfg     Config
	yard    Yard
	hands   Hands
	log     *slog.Logger
	started time.Time
	tokens  tokens
	offers  offerDesk
	timers  timers
	frames  budget
	certs   *certs.Store // nil: no TLS is spoken
	tls     *tls.Config  // nil: none is spoken

	mu         sync.Mutex
	conns      map[*conn]struct{}
	addresses  map[string]int     // connections by remote host
	anonymous  map[*conn]struct{} // those of conns that are not registered
	workers    map[string]*conn   // the others, by worker id
	dispatches map[ref]*dispatch  // until their outcome is settled
	draining   bool               // no more offers
	closing    bool               // no more connections
	drainedBy  time.Time          // as DRAIN announced it
	loops      sync.WaitGroup     // one per connection

	// What a flood would fill the log with.
	surplus, refusals, foreigners, shortages, dawdlers seldom.Counter
}

// New makes a server. The error says which key of cfg, whose defaults are filled
// in, is out of range, or which of its files is no good.
func New(cfg Config, yard Yard, hands Hands, log *slog.Logger) (*Server, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, yard: yard, hands: hands, log: log, started: time.Now(),
		conns: make(map[*conn]struct{}), addresses: make(map[string]int), anonymous: make(map[*conn]struct{}),
		workers: make(map[string]*conn), dispatches: make(map[ref]*dispatch),
	}
	s.frames.free = cfg.Limits.FrameMemory
	s.tokens.secret = yard.Secret
	s.timers.wake = make(chan struct{}, 1)
	if cfg.Server.secured() {
		store, err := certs.Open(cfg.Server.TLS.files(), log)
		if err != nil {
			return nil, err
		}
		s.certs, s.tls = store, store.Server()
	}
	return s, nil
}

// Certificates are what the edge shows; nil if it speaks no TLS.
func (s *Server) Certificates() *certs.Store { return s.certs }

// Kind tells the agent what the edge's offers are for.
func (s *Server) Kind() job.Kind { return job.Overhop }

// Serve takes connections from ln until ctx ends; then it says BYE, closes
// them all, reports what still ran as interrupted, and returns nil. It closes
// ln. It can be called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	inside, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var clocks sync.WaitGroup
	clocks.Go(func() { s.runTimers(inside) })
	clocks.Go(func() { s.runPurge(inside) })
	s.log.Info("edge is listening", "address", ln.Addr().String(), "tls", s.tls != nil, "token", s.cfg.Server.Token != "")
	err := s.accept(ctx, inside, ln)
	ln.Close()
	s.farewell()
	s.loops.Wait()
	s.interruptAll()
	leave()
	clocks.Wait()
	return err
}

// accept takes connections until ctx ends. Errors that pass, such as a lack of
// descriptors, slow it down and do not end it.
func (s *Server) accept(ctx, inside context.Context, ln net.Listener) error {
	wait := backoff.Backoff{Base: 5 * time.Millisecond, Max: time.Second}
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			wait.Reset()
			s.admit(inside, nc)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept connections: %w", err)
		default:
			pause := wait.Next()
			if n, say := s.shortages.Again(time.Now()); say {
				s.log.Warn("edge cannot accept connections for now", "error", err, "pause", pause, "times", n)
			}
			if backoff.Sleep(ctx, pause) != nil {
				return nil
			}
		}
	}
}

// admit begins a connection, or refuses it within the limits.
func (s *Server) admit(ctx context.Context, nc net.Conn) {
	if s.tls != nil {
		nc = tls.Server(nc, s.tls) // the handshake is the connection's own business
	}
	c := s.newConn(ctx, nc)
	s.mu.Lock()
	full := s.closing || len(s.conns) >= s.cfg.Limits.Connections || s.addresses[c.host] >= s.cfg.Limits.PerAddress
	if !full {
		s.conns[c] = struct{}{}
		s.anonymous[c] = struct{}{}
		s.addresses[c.host]++
		s.loops.Add(1)
	}
	s.mu.Unlock()
	if full {
		if n, say := s.surplus.Again(time.Now()); say {
			s.log.Warn("edge refuses a connection over its limits", "from", c.host, "times", n)
		}
		c.cut()
		return
	}
	go func() {
		defer s.loops.Done()
		c.run()
	}()
}

// enlist makes a connection's client a worker.
func (s *Server) enlist(c *conn, wid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.anonymous, c)
	c.wid = wid
	s.workers[wid] = c
}

// remove forgets a connection. What it had not acknowledged never started;
// what it had stays until its lease is over.
func (s *Server) remove(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	delete(s.anonymous, c)
	delete(s.workers, c.wid)
	if s.addresses[c.host]--; s.addresses[c.host] <= 0 {
		delete(s.addresses, c.host)
	}
	c.gone = true
	for _, sub := range c.subs {
		s.dropSubscription(sub)
	}
	var told []report
	for d := range c.jobs {
		if d.state == reserved {
			told = append(told, s.endLocked(d, lost(d, "connection lost before ACK")))
		}
		d.moveLocked(nil)
	}
	c.jobs = nil
	s.mu.Unlock()
	s.tell(told...)
	s.flushOffers()
}

// runPurge ends connections that do not register in time.
func (s *Server) runPurge(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Wire.Session.lifetimes().Cadence())
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

// Drain withdraws all offers and tells workers why no more jobs follow. Jobs in
// hand go on. It may be called more than once.
func (s *Server) Drain(why string) {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return
	}
	s.draining = true
	s.drainedBy = time.Now().Add(s.cfg.Delivery.DrainGrace)
	var workers []*conn
	for _, c := range s.workers {
		workers = append(workers, c)
		for _, sub := range c.subs {
			s.offers.mark(sub)
		}
	}
	s.mu.Unlock()
	s.flushOffers()
	edges := slices.Clone(s.yard.Edges())
	for _, c := range workers {
		drain := overhop.Fields{"reason": why, "close_at": s.drainedBy}
		if len(edges) > 0 {
			edges = append(edges[1:], edges[0]) // whoever takes the first is not alone there
			drain["reconnect"] = edges
		}
		c.pushFields(overhop.TDrain, drain)
	}
}

// Resume ends a drain: workers that are still here, or come, are offered again.
func (s *Server) Resume() {
	s.mu.Lock()
	s.draining = false
	for _, c := range s.workers {
		for _, sub := range c.subs {
			s.offers.mark(sub)
		}
	}
	s.mu.Unlock()
	s.flushOffers()
}

// Stops is why a node that stops drains.
const Stops = "node stops"

// farewell ends all connections in order.
func (s *Server) farewell() {
	s.Drain(Stops)
	s.mu.Lock()
	s.closing = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.bye("SHUTDOWN", Stops)
	}
}

// interruptAll gives back what still runs when the node stops.
func (s *Server) interruptAll() {
	s.mu.Lock()
	var told []report
	for _, d := range s.dispatches {
		if d.state != ended && d.state != tooLate {
			told = append(told, s.endLocked(d, job.Outcome{Status: job.Interrupted, Started: d.state != reserved}))
		}
	}
	s.mu.Unlock()
	s.tell(told...)
}

// Yard is what the edge needs of the node behind it.
type Yard interface {
	// Session begins the memory of one connection: what its calls read covers
	// what its calls wrote.
	Session() Session
	// Secret is the yard's key for lease tokens, the same on every node. It is
	// empty until it is known, then constant; no jobs are given out before. It
	// answers from memory.
	Secret() []byte
	// Resume moves the job's dispatch n to a worker of this node. It gives
	// [job.ErrLeaseLost] if n is not the job's current dispatch.
	Resume(ctx context.Context, id job.ID, n uint32, worker string) (job.Assignment, error)
	// Edges are the addresses, host:port, at which clients of this node may go on
	// when it stops. It answers from memory.
	Edges() []string
	// Status is what STATUS tells beside the edge's own numbers.
	Status(ctx context.Context) (Status, error)
}

// Session is what one connection may ask of the yard. Errors are those of
// package job, wrapped or not; any other is shown as a failure of the yard.
// Calls are made one after another.
type Session interface {
	Queues
	Jobs
	Interventions

	// Saw lets what is read from now on cover the log up to index. It returns
	// at once and may be called at any time.
	Saw(index uint64)
}

// Queues reads and changes queues.
type Queues interface {
	Queue(ctx context.Context, name string) (job.Queue, bool, error)
	Queues(ctx context.Context) ([]job.Queue, error) // in any order
	AddQueue(ctx context.Context, name string, cfg job.QueueConfig) (job.ID, error)
	RemoveQueue(ctx context.Context, name string) error
	// PauseQueue pauses or resumes; it gives job.ErrQueuePaused or
	// job.ErrQueueRunning if there is nothing to change.
	PauseQueue(ctx context.Context, name string, paused bool) error
}

// Jobs takes jobs in and looks at them.
type Jobs interface {
	// Enqueue accepts a job and calls then once, from any goroutine, when it
	// is accepted or refused; jobs are accepted in the order of the calls. It
	// refuses a queue that does not exist and then one of the yard's own. An
	// empty key means that the yard mints one.
	Enqueue(ctx context.Context, queue string, spec job.Spec, key string, then func(job.ID, error))
	// Job shows a job with its body and its result, which may have to be read
	// from disks; Look without them, from memory.
	Job(ctx context.Context, id job.ID) (job.View, bool, error)
	Look(ctx context.Context, id job.ID) (job.View, bool, error)
	// Await waits until the job has ended, or ctx has. What it shows has a
	// result and no body.
	Await(ctx context.Context, id job.ID) (job.View, error)
	// List gives page (from 1) of a queue's jobs in a state, oldest first.
	List(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error)
	// Stats counts a queue's jobs by state.
	Stats(ctx context.Context, queue string) (counts [job.Failed + 1]uint64, err error)
}

// Interventions change what has been accepted.
type Interventions interface {
	RemoveJob(ctx context.Context, id job.ID) error
	Cancel(ctx context.Context, id job.ID, reason string) (job.State, error)
	Retry(ctx context.Context, id job.ID) (job.State, error)
	// Clear removes a queue's jobs in the given states.
	Clear(ctx context.Context, queue string, states []job.State) (removed int, err error)
	// Obliterate removes a queue and all its jobs; active ones only by force.
	Obliterate(ctx context.Context, queue string, force bool) (removed int, err error)
}

// Hands takes what the edge has to say about its workers. All calls return at
// once and never call back into the edge before they return. Adopt, Stalled and
// Recovered are called with the edge's locks held.
type Hands interface {
	// Adopt takes note of a running dispatch that its worker has brought from
	// another node: it is stopped and reported from now on as if Start had taken
	// it. It is false if the node may not run it.
	Adopt(a job.Assignment) bool
	// Offer announces the absolute room of one worker for one queue; Free 0
	// withdraws it.
	Offer(o job.Offer)
	// Report hands over how a dispatch ended: once for every dispatch that
	// Start or Adopt has taken, and also for one that never was here, when its
	// worker tells the end here. then, if not nil, is called once from another
	// goroutine, when the outcome is committed or known to be stale.
	Report(o job.Outcome, then func(job.Settled))
	// Log hands over a line of a dispatch's log. It never waits.
	Log(l job.LogLine)
	// Stalled says that a worker, by its channel, took jobs and does not work;
	// Recovered that it works again, or has come back over another connection.
	Stalled(worker, reason string)
	Recovered(worker, recovery string)
}

// Status is the node's part of STATUS.
type Status struct {
	DataPath     string
	PathExists   bool
	DataSize     int64 // bytes
	Bootstrapped bool  // the yard's queues are known here
	Queues       int
	PausedQueues int
	Cluster      map[string]string // shown as "cluster"
}
