package overhop

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

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Handler runs one job and returns its result, encoded by [Marshal] or empty
// for none.
//
// ctx ends when the job is recalled, its lease is lost, its deadline has
// passed, or the worker stops; [context.Cause] then returns a [*StopError]. The
// handler should return soon after.
//
// An error fails the attempt. If it is or wraps a [*FailError], that determines
// the details and whether another attempt may follow; otherwise the yard
// retries the job according to its policy. There is one exception: when the
// worker stops and the handler returns the error or the cause of ctx, possibly
// wrapped, the job is released to another worker, and the attempt does not
// count.
type Handler func(ctx context.Context, q *Quest) (result Raw, err error)

// FailError is an error with details for the yard.
type FailError struct {
	Message, Type, Code string         // Type and Code are for programs and may be empty
	Details             Raw            // encoded by [Marshal]; empty: none
	Final               bool           // no further attempt
	RetryAfter          *time.Duration // nil: the yard decides
}

func (e *FailError) Error() string { return e.Message }

// StopError is the cause of a handler's context that ended early. Reason is the
// reason of a RECALL, or one of the constants below.
type StopError struct{ Reason string }

func (e *StopError) Error() string { return "job must stop: " + e.Reason }

// Reasons of a [StopError], in addition to those of a RECALL.
const (
	StopDeadline  = "DEADLINE"   // the job's deadline has passed
	StopLeaseLost = "LEASE_LOST" // the job may already be running elsewhere
	StopWorker    = "WORKER"     // the worker stops and ShutdownGrace is over
)

// Worker runs the jobs of the queues given to [Worker.Handle]. It connects to
// one of several nodes, and to another when it loses that one. Running jobs
// continue meanwhile: a job's lease belongs to its token, not to the
// connection.
//
// Its fields must not be changed after Run was called. A Worker must not be
// copied.
type Worker struct {
	Nodes         []string      // addresses, host:port; the first is chosen at random, then they are tried in turn
	Name          string        // name of this worker, for display
	Token         string        // token that the nodes require; empty: none
	TLS           *tls.Config   // nil: plain TCP
	ShutdownGrace time.Duration // time for running jobs to end after Run's context has ended; 0: 10 s
	Log           *slog.Logger  // nil: slog.Default

	// CreateQueues creates queues that do not exist. Otherwise a missing queue
	// ends Run with an error.
	CreateQueues bool

	// Dial opens a connection, below TLS if TLS is set. nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	queues   []*queueHandler
	dialer   *nodeDialer
	jobsCtx  context.Context // parent context of all handlers
	handlers sync.WaitGroup  // running handlers
	loops    sync.WaitGroup  // goroutines of connections

	mu       sync.Mutex
	conn     *workerConn                   // the connection in use; nil: none
	running  map[[TokenLen]byte]*activeJob // by token; two dispatches of one job may be present, of which one has lost its lease
	stopping bool
	released bool            // no more outcomes are sent
	idle     context.Context // done when the worker is stopping and all outcomes are answered
	setIdle  context.CancelFunc
}

// queueHandler is a queue that the worker serves.
type queueHandler struct {
	name    string
	credits uint32
	handler Handler
}

// stopTimeout is the time for handlers to return and have their outcomes
// answered after they were cancelled; and then the time for the node to answer
// the final GOODBYE.
const stopTimeout = 2 * time.Second

// Handle registers h as the handler of a queue's jobs, of which at most credits
// (at least 1) run at once. It must be called before Run, once for every queue.
func (w *Worker) Handle(queue string, credits uint32, h Handler) {
	w.queues = append(w.queues, &queueHandler{name: queue, credits: credits, handler: h})
}

func (w *Worker) handlerOf(name string) *queueHandler {
	for _, q := range w.queues {
		if q.name == name {
			return q
		}
	}
	return nil
}

// Run connects and runs jobs until ctx ends. Then it takes no more jobs, waits
// for running ones to end, and returns nil.
//
// After [Worker.ShutdownGrace], Run cancels the contexts of the handlers that
// still run. They have 2 s to return. A result, or an error of their own, is
// reported as usual. A job whose handler returns the context's error, or does
// not return, is released: another worker gets it at once and the attempt does
// not count. If the worker is not connected then, that happens when the job's
// lease expires. Run still waits for handlers that ignore their context; what
// they return is discarded.
//
// Run returns an error if the worker cannot work as configured: a queue does
// not exist or has an invalid name, or a node refuses the worker permanently.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.prepare(); err != nil {
		return err
	}
	var stopJobs context.CancelCauseFunc
	w.jobsCtx, stopJobs = context.WithCancelCause(context.WithoutCancel(ctx))
	// The worker stays connected after ctx has ended, for the jobs that still
	// run.
	connCtx, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	w.loops.Go(func() { ended <- w.keepConnected(connCtx) })
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	w.shutdown(stopJobs)
	disconnect()
	stopJobs(&StopError{StopWorker})
	w.loops.Wait()
	w.handlers.Wait()
	return err
}

func (w *Worker) prepare() error {
	switch {
	case len(w.Nodes) == 0:
		return errors.New("worker has no Nodes: set the address of at least one")
	case len(w.queues) == 0:
		return errors.New("worker serves no queue: call Handle before Run")
	}
	for i, q := range w.queues {
		switch {
		case q.handler == nil || q.credits == 0:
			return fmt.Errorf("worker cannot serve %q with %d credits and handler %t: pass a handler and at least one credit",
				q.name, q.credits, q.handler != nil)
		case w.handlerOf(q.name) != w.queues[i]:
			return fmt.Errorf("worker serves %q twice: call Handle once for every queue", q.name)
		}
	}
	if w.ShutdownGrace == 0 {
		w.ShutdownGrace = 10 * time.Second
	}
	if w.Log == nil {
		w.Log = slog.Default()
	}
	w.dialer = newNodeDialer(w.Nodes, w.Dial, w.TLS)
	w.running = make(map[[TokenLen]byte]*activeJob)
	w.idle, w.setIdle = context.WithCancel(context.Background())
	w.stopping, w.released = false, false
	return nil
}

// keepConnected keeps the worker connected until ctx ends, when it returns nil.
// A connection to a node that drains is used until another one is ready.
func (w *Worker) keepConnected(ctx context.Context) error {
	for {
		wc, err := w.connect(ctx, w.dialer.next())
		if err == nil {
			err = w.activate(wc)
		}
		if err == nil {
			err = wc.wait(ctx)
		} else if wc != nil && !slices.Contains(permanentCodes, ErrorCode(err)) {
			wc.cancel(err)
		}
		drain, draining := errors.AsType[*drainError](err)
		switch {
		case ctx.Err() != nil || w.isDone():
			return nil
		case slices.Contains(permanentCodes, ErrorCode(err)):
			return err
		case draining:
			w.Log.Info("node is draining, worker switches to another", "addr", wc.addr, "reconnect", drain.addrs)
			w.dialer.prefer(drain.addrs)
			continue
		}
		w.Log.Warn("worker disconnected", "err", err)
		if backoff.Sleep(ctx, w.dialer.retryDelay()) != nil {
			return nil
		}
	}
}

// activate makes a new connection the one in use, and subscribes to the queues.
// If another connection is in use, that one keeps the jobs until the
// subscriptions succeed.
func (w *Worker) activate(wc *workerConn) error {
	w.mu.Lock()
	alone, stopping := w.conn == nil, w.stopping
	w.mu.Unlock()
	if alone || stopping {
		w.switchTo(wc)
	}
	if stopping {
		return nil
	}
	sids, err := wc.subscribe()
	if err != nil {
		return err
	}
	w.switchTo(wc)
	for i, q := range w.queues {
		w.mu.Lock()
		wc.sids[q.name] = sids[i]
		available := w.availableLocked(q)
		if w.stopping {
			available = 0
		}
		w.mu.Unlock()
		if available == 0 {
			continue
		}
		if err := wc.client.Credit(wc.ctx, sids[i], available); err != nil {
			return fmt.Errorf("credit subscription to %q: %w", q.name, err)
		}
	}
	w.Log.Info("worker is subscribed", "node", wc.client.Node(), "worker", wc.client.WID(), "queues", len(w.queues))
	return nil
}

// switchTo makes wc the connection in use: leases are renewed over it, and
// outcomes that were not answered are sent again.
func (w *Worker) switchTo(wc *workerConn) {
	w.mu.Lock()
	old := w.conn
	if old == wc || wc.ctx.Err() != nil {
		w.mu.Unlock()
		return
	}
	w.conn = wc
	var finished []*activeJob
	for _, j := range w.running {
		if j.send != nil {
			finished = append(finished, j)
		}
	}
	w.mu.Unlock()
	wc.beat()
	for _, j := range finished {
		wc.sendOutcome(j)
	}
	if old != nil {
		old.cancel(errors.New("worker switched to another node"))
	}
}

// availableLocked returns how many more jobs of a queue may run. Worker.mu is
// held.
func (w *Worker) availableLocked(q *queueHandler) uint32 {
	available := q.credits
	for _, j := range w.running {
		if j.quest.Queue == q.name && available > 0 {
			available--
		}
	}
	return available
}

// shutdown takes no more jobs, waits for running ones during the grace, and
// releases those that have not ended.
func (w *Worker) shutdown(stopJobs context.CancelCauseFunc) {
	w.mu.Lock()
	w.stopping = true
	wc := w.conn
	w.checkIdleLocked()
	w.mu.Unlock()
	if wc != nil {
		wc.client.Go(TGoodbye, Fields{"reason": "worker stops", "drain": true}.append, nil)
	}
	grace := time.NewTimer(w.ShutdownGrace)
	defer grace.Stop()
	select {
	case <-w.idle.Done():
	case <-grace.C:
		stopJobs(&StopError{StopWorker})
		grace.Reset(stopTimeout)
		select {
		case <-w.idle.Done():
		case <-grace.C:
		}
	}
	w.release()
}

// release returns the jobs that have not ended to the node, which sends them to
// other workers at once. Without a connection their leases expire.
func (w *Worker) release() {
	w.mu.Lock()
	w.released = true
	wc, left := w.conn, 0
	for _, j := range w.running {
		if j.renewable() {
			left++
		}
	}
	w.mu.Unlock()
	if left == 0 {
		return
	}
	err := ErrClosed
	if wc != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(wc.ctx), stopTimeout) // the node closes the connection right after its answer
		defer cancel()
		err = wc.client.Goodbye(ctx, "worker stops", false)
	}
	if err != nil {
		w.Log.Warn("running jobs not released, their leases will expire", "count", left, "err", err)
		return
	}
	w.Log.Info("running jobs released", "count", left)
}

// isDone reports whether the worker needs no connection any more.
func (w *Worker) isDone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.released || w.idle.Err() != nil
}

// checkIdleLocked ends idle if the worker is stopping and no job needs an
// outcome any more. Worker.mu is held.
func (w *Worker) checkIdleLocked() {
	for _, j := range w.running {
		if !j.interrupted {
			return
		}
	}
	if w.stopping {
		w.setIdle()
	}
}
