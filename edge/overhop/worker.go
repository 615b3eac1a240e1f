package overhop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/usercode"
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
	// Snooze gives the attempt back, which does not count, and starts another one after
	// this time; nil: the attempt has failed. Final and RetryAfter are ignored. At a node of an
	// older release it is a failed attempt that is retried after this time.
	Snooze *time.Duration
}

func (e *FailError) Error() string { return e.Message }

// StopError is the cause of a handler's context that ended early. Reason is the
// reason of a RECALL, or one of the constants below.
type StopError struct{ Reason string }

func (e *StopError) Error() string { return "job must stop: " + e.Reason }

// Is reports whether target is the kind of the reason: [ErrJobCancelled], [ErrJobDeadline],
// [ErrJobLeaseLost] or [ErrJobStopping].
func (e *StopError) Is(target error) bool { return target == e.kind() }

func (e *StopError) kind() error {
	switch e.Reason {
	case StopDeadline:
		return ErrJobDeadline
	case StopWorker, "SHUTDOWN":
		return ErrJobStopping
	case "CANCELLED", "QUEUE_REMOVED":
		return ErrJobCancelled
	}
	return ErrJobLeaseLost
}

// The kinds of a [StopError], for errors.Is.
var (
	ErrJobCancelled = errors.New("the job was cancelled")
	ErrJobDeadline  = errors.New("the deadline of the attempt has passed")
	ErrJobLeaseLost = errors.New("the lease is lost: the job may run elsewhere, and the outcome no longer counts")
	ErrJobStopping  = errors.New("the worker stops")
)

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

	queues    []*queueHandler
	dialer    *nodeDialer
	wakeLease chan struct{} // capacity 1: there is a job with a lease

	failures      int             // attempts to connect since the worker was last subscribed
	failureLogged time.Time       // when the last of them was logged; zero: none was
	jobsCtx       context.Context // parent context of all handlers
	handlers      runners         // of the handlers
	loops         sync.WaitGroup  // goroutines of connections

	mu       sync.Mutex
	conn     *workerConn                   // the connection in use; nil: none
	lostAt   time.Time                     // when the last one was lost
	running  map[[TokenLen]byte]*activeJob // by token; two dispatches of one job may be present, of which one has lost its lease
	stopping bool
	released bool            // no more outcomes are sent
	unleased bool            // watchLeases waits for a job with a lease
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

// handlerOf returns the handler of the queue called name, or nil if the worker
// does not serve it.
func (w *Worker) handlerOf(name string) *queueHandler {
	for _, queue := range w.queues {
		if queue.name == name {
			return queue
		}
	}
	return nil
}

// selectLocked returns the worker's jobs for which match returns true.
// Worker.mu is held.
func (w *Worker) selectLocked(match func(*activeJob) bool) (jobs []*activeJob) {
	for _, job := range w.running {
		if match(job) {
			jobs = append(jobs, job)
		}
	}
	return jobs
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
	// The worker stays connected after ctx has ended, for the jobs that still
	// run.
	var stopJobs context.CancelCauseFunc
	w.jobsCtx, stopJobs = context.WithCancelCause(context.WithoutCancel(ctx))
	connCtx, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	connErr := make(chan error, 1)
	w.loops.Go(func() { connErr <- w.keepConnected(connCtx) })
	w.loops.Go(func() { w.watchLeases(connCtx) })
	var err error
	select {
	case <-ctx.Done():
	case err = <-connErr:
	}

	w.shutdown(stopJobs)
	disconnect()
	stopJobs(&StopError{StopWorker})
	w.loops.Wait()
	w.handlers.wait()
	return err
}

// prepare checks the worker's configuration, sets the defaults of fields that
// are not set, and resets the state of an earlier Run.
func (w *Worker) prepare() error {
	switch {
	case len(w.Nodes) == 0:
		return errors.New("worker has no Nodes: set the address of at least one")
	case len(w.queues) == 0:
		return errors.New("worker serves no queue: call Handle before Run")
	}
	for _, queue := range w.queues {
		switch {
		case queue.handler == nil || queue.credits == 0:
			return fmt.Errorf("worker cannot serve %q with %d credits and handler %t: pass a handler and at least one credit",
				queue.name, queue.credits, queue.handler != nil)
		case w.handlerOf(queue.name) != queue:
			return fmt.Errorf("worker serves %q twice: call Handle once for every queue", queue.name)
		}
	}
	if w.ShutdownGrace == 0 {
		w.ShutdownGrace = 10 * time.Second
	}
	w.Log = usercode.Logger(w.Log)
	w.dialer = newNodeDialer(w.Nodes, w.Dial, w.TLS)
	w.running = make(map[[TokenLen]byte]*activeJob)
	w.idle, w.setIdle = context.WithCancel(context.Background())
	w.stopping, w.released, w.unleased = false, false, false
	w.handlers.closing = false
	w.wakeLease = make(chan struct{}, 1)
	w.failures, w.failureLogged = 0, time.Time{}
	return nil
}

// keepConnected keeps the worker connected until ctx ends or the worker needs
// no connection any more, when it returns nil. It returns an error if a node
// refuses the worker permanently. A connection to a node that drains is used
// until another one is ready.
func (w *Worker) keepConnected(ctx context.Context) error {
	for {
		err := w.useNode(ctx, w.dialer.next())
		drain, isDraining := errors.AsType[*drainError](err)
		switch {
		case ctx.Err() != nil || w.isDone():
			return nil
		case isPermanent(err):
			return err
		case isDraining:
			w.Log.Info("node is draining, worker switches to another", "addr", drain.addr, "reconnect", drain.reconnect)
			w.dialer.prefer(drain.reconnect)
			continue
		}
		w.logDisconnected(err)
		if backoff.Sleep(ctx, w.dialer.retryDelay()) != nil {
			return nil
		}
	}
}

// logDisconnected logs why the worker has no connection: at once if it had one, and then at
// most once per reconnectLogInterval, however many nodes it tries.
func (w *Worker) logDisconnected(err error) {
	w.failures++
	if time.Since(w.failureLogged) < reconnectLogInterval {
		return
	}
	w.Log.Warn("worker is not connected, retrying", "err", err, "attempts", w.failures)
	w.failureLogged = time.Now()
}

// reconnectLogInterval is the interval at which a worker that reaches no node says so.
const reconnectLogInterval = 30 * time.Second

// useNode connects to the node at addr and blocks until the connection must not
// be used any more. It returns the reason, never nil. After a permanent refusal
// it leaves the connection open, for the jobs that still run.
func (w *Worker) useNode(ctx context.Context, addr string) error {
	wc, err := w.connect(ctx, addr)
	if err != nil {
		return err
	}
	if err := w.activate(wc); err != nil {
		if !isPermanent(err) {
			wc.cancel(err)
		}
		return err
	}
	return wc.wait(ctx)
}

// activate makes a new connection the one in use, subscribes to the worker's
// queues and sends the credits for them. If another connection is in use, that
// one keeps the jobs until the subscriptions succeed. A worker that is stopping
// does not subscribe.
func (w *Worker) activate(wc *workerConn) error {
	w.mu.Lock()
	isOnly, stopping := w.conn == nil, w.stopping
	w.mu.Unlock()
	if isOnly || stopping {
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

	if err := wc.creditAll(sids); err != nil {
		return err
	}
	w.failures, w.failureLogged = 0, time.Time{}
	w.Log.Info("worker is subscribed", "node", wc.client.Node(), "worker", wc.client.WID(), "queues", len(w.queues))
	return nil
}

// switchTo makes wc the connection in use and closes the previous one. Leases
// are now renewed over wc, and ACKs and outcomes that no node has answered are
// sent over it again. switchTo does nothing if wc has ended or is already in use.
func (w *Worker) switchTo(wc *workerConn) {
	w.mu.Lock()
	previous := w.conn
	if previous == wc || wc.ctx.Err() != nil {
		w.mu.Unlock()
		return
	}
	w.conn = wc
	unacknowledged := w.selectLocked(func(job *activeJob) bool { return !job.started })
	unanswered := w.selectLocked((*activeJob).hasOutcome)
	w.mu.Unlock()

	wc.beat()
	for _, job := range unacknowledged {
		wc.acknowledge(job)
	}
	for _, job := range unanswered {
		wc.sendOutcome(job)
	}
	if previous != nil {
		previous.cancel(errors.New("worker switched to another node"))
	}
}

// availableLocked returns how many more jobs of a queue may run. Worker.mu is
// held.
func (w *Worker) availableLocked(q *queueHandler) uint32 {
	jobs := w.selectLocked(func(job *activeJob) bool { return job.quest.Queue == q.name })
	return q.credits - min(q.credits, uint32(len(jobs)))
}

// shutdown makes the worker take no more jobs and waits for the running ones,
// at most for ShutdownGrace. Then it stops the handlers that still run, waits
// for their outcomes for stopTimeout, and releases the remaining jobs.
func (w *Worker) shutdown(stopJobs context.CancelCauseFunc) {
	w.mu.Lock()
	w.stopping = true
	conn := w.conn
	w.checkIdleLocked()
	w.mu.Unlock()
	if conn != nil {
		conn.client.Go(TGoodbye, Fields{"reason": "worker stops", "drain": true}.append, nil)
	}

	if !w.waitIdle(w.ShutdownGrace) {
		stopJobs(&StopError{StopWorker})
		w.waitIdle(stopTimeout)
	}
	w.release()
}

// waitIdle waits until the worker is idle, and reports whether it was within
// timeout.
func (w *Worker) waitIdle(timeout time.Duration) bool {
	return backoff.Sleep(w.idle, timeout) != nil
}

// release returns the jobs that have not ended to the node, which sends them to
// other workers at once. Without a connection their leases expire.
func (w *Worker) release() {
	w.mu.Lock()
	w.released = true
	conn, count := w.conn, len(w.selectLocked((*activeJob).renewable))
	w.mu.Unlock()
	if count == 0 {
		return
	}
	err := ErrClosed
	if conn != nil {
		// The node closes the connection right after its answer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(conn.ctx), stopTimeout)
		defer cancel()
		err = conn.client.Goodbye(ctx, "worker stops", false)
	}
	if err != nil {
		w.Log.Warn("running jobs not released, their leases will expire", "count", count, "err", err)
		return
	}
	w.Log.Info("running jobs released", "count", count)
}

// isDone reports whether the worker needs no connection any more.
func (w *Worker) isDone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.released || w.idle.Err() != nil
}

// checkIdleLocked ends the context idle if the worker is stopping and waits for
// no more outcomes. Worker.mu is held.
func (w *Worker) checkIdleLocked() {
	for _, job := range w.running {
		if !job.interrupted {
			return
		}
	}
	if w.stopping {
		w.setIdle()
	}
}
