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

	"yardmaster/internal/backoff"
)

// Handler does one job. Its context ends when the job is recalled, its lease
// is lost, its deadline has passed or the worker stops; [context.Cause] is then
// a [*Stopped]. It should return soon. An error fails the attempt, as a
// [*FailError] says or with another attempt to follow; but when the worker
// stops, the context's own error or its cause, wrapped or not, gives the job
// back instead.
type Handler func(ctx context.Context, q *Quest) (result Raw, err error)

// FailError fails an attempt with more than a message.
type FailError struct {
	Message, Type, Code string
	Details             Raw            // empty: none
	Final               bool           // no further attempt
	RetryAfter          *time.Duration // nil: the yard decides
}

func (e *FailError) Error() string { return e.Message }

// Stopped is why a handler's context ended before the handler did. Reason is
// that of a RECALL, or one of the reasons here.
type Stopped struct{ Reason string }

func (e *Stopped) Error() string { return "job is to stop: " + e.Reason }

// Why a worker stops a handler, beside the reasons of a RECALL.
const (
	StoppedDeadline  = "DEADLINE"   // the job's time is over
	StoppedLeaseLost = "LEASE_LOST" // the job is somebody else's by now
	StoppedWorker    = "WORKER"     // the worker itself stops and its grace is over
)

// Worker runs the jobs of the queues it was given by [Worker.Handle]. It
// connects to one of several nodes, stays connected, and goes on with what it
// has in hand when it must change over: the token of a job, not the
// connection, owns its lease.
type Worker struct {
	Nodes []string      // addresses; one is chosen at random, then the next
	Name  string        // for people
	Token string        // what the nodes ask of their clients; empty: nothing
	TLS   *tls.Config   // nil: plain TCP
	Grace time.Duration // for jobs in hand once Run's context has ended; 0: 10 s
	Log   *slog.Logger  // nil: slog.Default

	// Create adds queues that do not exist yet. Without it, a missing queue
	// ends Run with an error.
	Create bool

	// Dial opens a connection, under TLS if that is given; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	queues []*served
	doors  *doors
	jobs   context.Context // of all handlers
	hands  sync.WaitGroup  // the handlers
	loops  sync.WaitGroup  // what the lines run

	mu      sync.Mutex
	line    *line                    // nil while not connected
	running map[[TokenLen]byte]*held // by token: a job may be in hand twice, of which one is void
	leaving bool
	parted  bool          // no end is told any more
	idle    chan struct{} // closed when the worker leaves and has no more ends to tell
}

// served is a queue that a worker runs the jobs of.
type served struct {
	name    string
	credits uint32
	handler Handler
}

// lastWord is how long a handler that was cancelled at the end of the grace
// has to return and have its end told; and then how long the node has to take
// back the rest.
const lastWord = 2 * time.Second

// Handle gives a queue's jobs to h, at most credits (≥ 1) of them at once. It
// is called before Run, once for every queue.
func (w *Worker) Handle(queue string, credits uint32, h Handler) {
	w.queues = append(w.queues, &served{name: queue, credits: credits, handler: h})
}

func (w *Worker) queue(name string) *served {
	for _, q := range w.queues {
		if q.name == name {
			return q
		}
	}
	return nil
}

// Run works until ctx ends, then finishes what it has in hand and returns nil.
//
// After Grace it ends the contexts of the handlers that are not done. They have
// 2 s for a last word: a result, or an error of their own, is told as ever. A
// job whose handler returns the context's error, or does not return, goes back
// to the yard: another worker gets it at once, and the attempt is not counted.
// Without a connection that happens when the job's lease is over. Run still
// waits for handlers that do not heed their context; what they return is told
// to nobody.
//
// An error means that the worker cannot work as it is set up: a queue does not
// exist or has an impossible name, or a node refuses the worker for good.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.setUp(); err != nil {
		return err
	}
	var stopJobs context.CancelCauseFunc
	w.jobs, stopJobs = context.WithCancelCause(context.WithoutCancel(ctx))
	// The worker stays connected beyond ctx for what it has in hand.
	stay, part := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- w.stayConnected(stay) }()
	var err error
	select {
	case <-ctx.Done():
		w.leave(stopJobs)
		part()
		<-ended
	case err = <-ended:
		w.leave(stopJobs)
		part()
	}
	stopJobs(&Stopped{StoppedWorker})
	w.loops.Wait()
	w.hands.Wait()
	return err
}

func (w *Worker) setUp() error {
	switch {
	case len(w.Nodes) == 0:
		return errors.New("worker has no Nodes: give the address of one at least")
	case len(w.queues) == 0:
		return errors.New("worker serves no queue: call Handle before Run")
	}
	for i, q := range w.queues {
		switch {
		case q.handler == nil || q.credits == 0:
			return fmt.Errorf("worker cannot serve %q with %d credits and handler %t: give a handler and one credit at least",
				q.name, q.credits, q.handler != nil)
		case w.queue(q.name) != w.queues[i]:
			return fmt.Errorf("worker serves %q twice: one Handle for every queue", q.name)
		}
	}
	if w.Grace == 0 {
		w.Grace = 10 * time.Second
	}
	if w.Log == nil {
		w.Log = slog.Default()
	}
	w.doors = newDoors(w.Nodes, w.Dial, w.TLS)
	w.running = make(map[[TokenLen]byte]*held)
	w.idle, w.leaving, w.parted = make(chan struct{}), false, false
	return nil
}

// stayConnected keeps a line to some node until ctx ends, which gives nil. A
// line that drains is left for another, and serves until there is one.
func (w *Worker) stayConnected(ctx context.Context) error {
	for {
		l, err := w.connect(ctx, w.doors.next())
		if err == nil {
			err = w.begin(l)
		}
		if err == nil {
			err = l.wait(ctx)
		} else if l != nil && !slices.Contains(hardPlaces, ErrorCode(err)) {
			l.hangUp(err)
		}
		var drain *drainError
		switch {
		case ctx.Err() != nil || w.isOver():
			return nil
		case slices.Contains(hardPlaces, ErrorCode(err)):
			return err
		case errors.As(err, &drain):
			w.Log.Info("worker's node drains", "node", l.addr, "elsewhere", drain.elsewhere)
			w.doors.wish(drain.elsewhere)
			continue
		}
		w.Log.Warn("worker lost its node", "error", err)
		if backoff.Sleep(ctx, w.doors.pause()) != nil {
			return nil
		}
	}
}

// begin puts a fresh line to work. Jobs in hand change over to it at once if
// there is no other, and else when this node turns out to be willing.
func (w *Worker) begin(l *line) error {
	w.mu.Lock()
	alone, leaving := w.line == nil, w.leaving
	w.mu.Unlock()
	if alone {
		w.use(l)
	}
	if leaving {
		w.use(l)
		return nil
	}
	sids, err := l.subscribe()
	if err != nil {
		return err
	}
	w.use(l)
	for i, q := range w.queues {
		w.mu.Lock()
		l.sids[q.name] = sids[i]
		room := w.roomLocked(q)
		if w.leaving {
			room = 0
		}
		w.mu.Unlock()
		if room == 0 {
			continue
		}
		if err := l.c.Credit(l.ctx, sids[i], room); err != nil {
			return fmt.Errorf("give credits to %q: %w", q.name, err)
		}
	}
	w.Log.Info("worker is subscribed", "node", l.c.Node(), "worker", l.c.WID(), "queues", len(w.queues))
	return nil
}

// use makes l the line over which everything in hand goes on: leases are
// renewed there, and ends told again that were not answered elsewhere.
func (w *Worker) use(l *line) {
	w.mu.Lock()
	old := w.line
	if old == l || l.ctx.Err() != nil {
		w.mu.Unlock()
		return
	}
	w.line = l
	var ends []*held
	for _, h := range w.running {
		if h.end != nil {
			ends = append(ends, h)
		}
	}
	w.mu.Unlock()
	l.beat()
	for _, h := range ends {
		l.tell(h)
	}
	if old != nil {
		old.hangUp(errors.New("worker changed over to another node"))
	}
}

// roomLocked is how many more jobs of a queue there is room for.
func (w *Worker) roomLocked(q *served) uint32 {
	room := q.credits
	for _, h := range w.running {
		if h.quest.Queue == q.name && room > 0 {
			room--
		}
	}
	return room
}

// leave takes nothing new, gives what is in hand its grace, and gives back what
// has not ended then.
func (w *Worker) leave(stopJobs context.CancelCauseFunc) {
	w.mu.Lock()
	w.leaving = true
	l := w.line
	w.closeIdleLocked()
	w.mu.Unlock()
	if l != nil {
		l.c.Go(TGoodbye, func(b []byte) []byte {
			return AppendValue(b, Fields{"reason": "worker stops", "drain": true})
		}, nil)
	}
	grace := time.NewTimer(w.Grace)
	defer grace.Stop()
	select {
	case <-w.idle:
	case <-grace.C:
		stopJobs(&Stopped{StoppedWorker})
		grace.Reset(lastWord)
		select {
		case <-w.idle:
		case <-grace.C:
		}
	}
	w.giveBack()
}

// giveBack parts from what has not ended: its node hands it to another worker
// at once. If that cannot be said, the leases run out.
func (w *Worker) giveBack() {
	w.mu.Lock()
	w.parted = true
	l, left := w.line, 0
	for _, h := range w.running {
		if h.alive() {
			left++
		}
	}
	w.mu.Unlock()
	if left == 0 {
		return
	}
	err := ErrClosed
	if l != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), lastWord) // the node hangs up right after its answer
		defer cancel()
		err = l.c.Goodbye(ctx, "worker stops", false)
	}
	if err != nil {
		w.Log.Warn("worker leaves jobs until their leases end", "jobs", left, "error", err)
		return
	}
	w.Log.Info("worker gave jobs back", "jobs", left)
}

// isOver tells that the worker needs no node any more.
func (w *Worker) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.parted || w.idleLocked()
}

func (w *Worker) idleLocked() bool {
	select {
	case <-w.idle:
		return true
	default:
		return false
	}
}

// closeIdleLocked says that the worker leaves and waits for no more ends.
func (w *Worker) closeIdleLocked() {
	for _, h := range w.running {
		if !h.cut {
			return
		}
	}
	if w.leaving && !w.idleLocked() {
		close(w.idle)
	}
}
