package overhop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"yardmaster/internal/backoff"
	"yardmaster/internal/frame"
)

// Handler does one job. Its context ends when the job is recalled, its lease
// is lost or its deadline has passed; it should then return soon. An error
// fails the attempt, as a [*FailError] says or with another attempt to follow.
type Handler func(ctx context.Context, q *Quest) (result Raw, err error)

// FailError fails an attempt with more than a message.
type FailError struct {
	Message, Type, Code string
	Final               bool           // no further attempt
	RetryAfter          *time.Duration // nil: the yard decides
}

func (e *FailError) Error() string { return e.Message }

// Worker runs a queue's jobs: it connects to one of several nodes, stays
// connected, and goes on with what it has in hand when it must change over.
type Worker struct {
	Nodes  []string // addresses; one is chosen at random, then the next
	Queues []string
	// Create adds a queue that does not exist yet. Without it, a missing
	// queue ends Run with an error.
	Create  bool
	Credits uint32 // jobs in hand at once, per queue; 0: 1
	Handler Handler
	Name    string        // for people
	Grace   time.Duration // for jobs in hand once Run's context has ended; 0: 10 s
	Log     *slog.Logger  // nil: slog.Default

	// Dial opens a connection; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	mu      sync.Mutex
	client  *Client           // nil while not connected
	sids    map[string]string // queue → subscription on client
	running map[string]*held  // by jid
	idle    chan struct{}     // closed when nothing is running and the worker leaves
	leaving bool
}

// lastWord is how long a handler that was cancelled at the end of the grace
// has to return and have its end told.
const lastWord = 2 * time.Second

// laterPause lies between two tries to tell an end to a yard that cannot take
// it at the moment.
const laterPause = 250 * time.Millisecond

// held is a job in hand, until its end is known to the yard.
type held struct {
	quest  Quest
	cancel context.CancelFunc
	end    func(*Client) // tells the end; nil while the handler runs
}

// permanent are the refusals that no other node and no later time would take
// back: the worker is set up wrongly.
var permanent = []Code{
	CodeProtocolViolation, CodeQueueNotFound, CodeInvalidQueueName, CodeSystemQueue, CodeDuplicateSub, CodeNotImplemented,
}

// Run works until ctx ends, then finishes what it has in hand and returns nil.
// An error means that the worker cannot work as it is set up: a queue does not
// exist, has an impossible name or is named twice, or a node refuses it.
func (w *Worker) Run(ctx context.Context) error {
	w.setUp()
	jobs, stopJobs := context.WithCancel(context.WithoutCancel(ctx))
	defer stopJobs()
	var hands sync.WaitGroup
	defer hands.Wait()
	defer stopJobs()
	wait := backoff.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second}
	for turn := rand.IntN(len(w.Nodes)); ; turn++ {
		begin := time.Now()
		err := w.serve(ctx, jobs, &hands, w.Nodes[turn%len(w.Nodes)])
		if ctx.Err() != nil {
			return nil
		}
		if slices.Contains(permanent, ErrorCode(err)) {
			return err
		}
		if time.Since(begin) > wait.Max {
			wait.Reset()
		}
		w.Log.Warn("worker lost its node", "node", w.Nodes[turn%len(w.Nodes)], "error", err)
		if backoff.Sleep(ctx, wait.Next()) != nil {
			return nil
		}
	}
}

func (w *Worker) setUp() {
	if len(w.Nodes) == 0 || w.Handler == nil {
		panic("overhop: a Worker needs Nodes and a Handler")
	}
	w.Credits = max(w.Credits, 1)
	if w.Grace == 0 {
		w.Grace = 10 * time.Second
	}
	if w.Log == nil {
		w.Log = slog.Default()
	}
	if w.Dial == nil {
		w.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			d := net.Dialer{Timeout: 5 * time.Second}
			return d.DialContext(ctx, "tcp", addr)
		}
	}
	w.running = make(map[string]*held)
	w.idle = make(chan struct{})
}

// serve is one connection's life.
func (w *Worker) serve(ctx, jobs context.Context, hands *sync.WaitGroup, addr string) error {
	nc, err := w.Dial(ctx, addr)
	if err != nil {
		return fmt.Errorf("connect to node: %w", err)
	}
	hello, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := Connect(hello, nc, Options{
		Name:   w.Name,
		Quests: func(q Quest) { w.take(jobs, hands, q) },
		Pushes: w.pushed,
	})
	if err != nil {
		nc.Close()
		return err
	}
	// The connection outlives ctx by the grace that jobs in hand have.
	conn, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	var ended error
	var loops sync.WaitGroup
	loops.Go(func() { ended = c.Run(conn); hangUp() })
	err = w.subscribe(conn, c)
	if err == nil {
		w.attend(ctx, conn, c)
	}
	hangUp()
	loops.Wait()
	w.disconnect()
	return errors.Join(err, ended)
}

// subscribe takes jobs over a fresh connection: as many as the worker has room
// for beside those in hand, whose ends it tells again.
func (w *Worker) subscribe(ctx context.Context, c *Client) error {
	w.mu.Lock()
	w.client, w.sids = c, make(map[string]string)
	room := make(map[string]uint32)
	for _, queue := range w.Queues {
		room[queue] = w.Credits
	}
	for _, h := range w.running {
		room[h.quest.Queue] = max(room[h.quest.Queue], 1) - 1
		if h.end != nil {
			h.end(c)
		}
	}
	w.mu.Unlock()
	for _, queue := range w.Queues {
		sid, err := c.Subscribe(ctx, queue, 0)
		if w.Create && ErrorCode(err) == CodeQueueNotFound {
			sid, err = createAndSubscribe(ctx, c, queue)
		}
		if err != nil {
			return fmt.Errorf("subscribe to %q: %w", queue, err)
		}
		w.mu.Lock()
		w.sids[queue] = sid
		w.mu.Unlock()
		if room[queue] == 0 {
			continue
		}
		if err := c.Credit(ctx, sid, room[queue]); err != nil {
			return fmt.Errorf("give credits to %q: %w", queue, err)
		}
	}
	w.Log.Info("worker is subscribed", "node", c.Node(), "worker", c.WID(), "queues", w.Queues)
	return nil
}

// createAndSubscribe adds a queue, unless somebody else just has.
func createAndSubscribe(ctx context.Context, c *Client, queue string) (sid string, err error) {
	_, err = c.AddQueue(ctx, AddQueue{Name: queue, AllowOverrides: true})
	if err != nil && ErrorCode(err) != CodeDuplicateQueue {
		return "", err
	}
	return c.Subscribe(ctx, queue, 0)
}

// attend keeps the leases of jobs in hand alive until the connection ends, or
// until ctx has ended and nothing is in hand any more.
func (w *Worker) attend(ctx, conn context.Context, c *Client) {
	beat := time.NewTicker(2 * time.Second)
	defer beat.Stop()
	leave := ctx.Done()
	var tooLate <-chan time.Time
	cancelled := false
	for {
		select {
		case <-conn.Done():
			return
		case <-beat.C:
			w.beat(c)
		case <-leave:
			leave = nil
			w.leave(c)
			tooLate = time.After(w.Grace)
		case <-w.idle:
			return
		case <-tooLate:
			if cancelled {
				return
			}
			cancelled = true
			w.cancelAll()
			tooLate = time.After(lastWord)
		}
	}
}

func (w *Worker) leave(c *Client) {
	c.Go(TGoodbye, func(b []byte) []byte {
		return AppendValue(b, Fields{"reason": "worker stops", "drain": true})
	}, nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaving = true
	w.closeIdle()
}

func (w *Worker) cancelAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.running {
		h.cancel()
	}
}

func (w *Worker) closeIdle() {
	if w.leaving && len(w.running) == 0 {
		select {
		case <-w.idle:
		default:
			close(w.idle)
		}
	}
}

func (w *Worker) disconnect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.client, w.sids = nil, nil
}

func (w *Worker) beat(c *Client) {
	w.mu.Lock()
	quests := make([]*Quest, 0, len(w.running))
	for _, h := range w.running {
		if h.end == nil {
			quests = append(quests, &h.quest)
		}
	}
	w.mu.Unlock()
	if len(quests) == 0 {
		return
	}
	c.Beat(quests, func(ok Raw, err error) {
		BeatAnswers(ok, func(jid string, code Code) {
			w.Log.Warn("worker lost a lease", "job", jid, "code", string(code))
			w.stop(jid, nil)
		})
	})
}

// take begins a job.
func (w *Worker) take(jobs context.Context, hands *sync.WaitGroup, q Quest) {
	ctx, cancel := context.WithCancel(jobs)
	if !q.Deadline.IsZero() {
		cancel()
		ctx, cancel = context.WithDeadlineCause(jobs, q.Deadline, errOverdue)
	}
	h := &held{quest: q, cancel: cancel}
	w.mu.Lock()
	if old := w.running[q.JID]; old != nil {
		old.cancel() // a later dispatch: the yard has given up on the former
	}
	w.running[q.JID] = h
	c := w.client
	w.mu.Unlock()
	if c != nil {
		c.Ack(&h.quest, func(_ Raw, err error) {
			if code := ErrorCode(err); code != "" {
				w.stop(q.JID, h)
			}
		})
	}
	hands.Go(func() {
		defer cancel()
		result, err := w.call(ctx, &h.quest)
		if err != nil && context.Cause(ctx) == errOverdue {
			err = &FailError{Message: err.Error(), Type: "timeout", Final: true}
		}
		w.finish(h, result, err)
	})
}

// errOverdue ends a handler at its job's deadline. The yard lets no attempt
// follow a timeout, so neither does the worker, whoever of the two is first.
var errOverdue = errors.New("job is past its deadline")

// call runs the handler and takes its panic for a failure.
func (w *Worker) call(ctx context.Context, q *Quest) (result Raw, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &FailError{Message: fmt.Sprint("handler panicked: ", p), Type: "panic"}
		}
	}()
	return w.Handler(ctx, q)
}

// finish tells a job's end until the yard has answered, over as many
// connections as that takes.
func (w *Worker) finish(h *held, result Raw, err error) {
	end := func(c *Client) { c.Done(&h.quest, result, 1, func(_ Raw, err error) { w.told(h, c, err) }) }
	if err != nil {
		fail := Fail{Message: err.Error(), Retry: true, Credits: 1}
		var detailed *FailError
		if errors.As(err, &detailed) {
			fail.Type, fail.Code = detailed.Type, detailed.Code
			fail.Retry, fail.RetryAfter = !detailed.Final, detailed.RetryAfter
		}
		end = func(c *Client) { c.Fail(&h.quest, fail, func(_ Raw, err error) { w.told(h, c, err) }) }
	}
	w.mu.Lock()
	h.end = end
	c := w.client
	w.mu.Unlock()
	if c != nil {
		end(c)
	}
}

// told hears what became of an end. Without an answer it stays in hand, and
// subscribe tells it again.
func (w *Worker) told(h *held, c *Client, err error) {
	var remote *RemoteError
	var large *frame.TooLargeError
	if errors.As(err, &large) {
		w.finish(h, nil, &FailError{Message: "result: " + large.Error(), Type: "result_too_large", Final: true})
		return
	}
	if err != nil && !errors.As(err, &remote) {
		return
	}
	if remote != nil && remote.Code == CodeUnavailable {
		time.AfterFunc(laterPause, func() { h.end(c) })
		return
	}
	if remote != nil {
		w.Log.Warn("worker's outcome was refused", "job", h.quest.JID, "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[h.quest.JID] == h {
		delete(w.running, h.quest.JID)
	}
	w.closeIdle()
}

// stop ends a job's context; its handler returns and its end is told, if only
// to hear that it came too late. Unless only is nil, it must be that job.
func (w *Worker) stop(jid string, only *held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.running[jid]; h != nil && (only == nil || h == only) {
		h.cancel()
	}
}

// pushed hears what the node says beside QUESTs.
func (w *Worker) pushed(t int64, p Raw) {
	switch t {
	case TRecall:
		jid, _ := p.Get("jid").Str()
		w.stop(jid, nil)
	case TCredits:
		if reason, _ := p.Get("reason").Str(); reason == CreditsStalled {
			sid, _ := p.Get("sid").Str()
			w.revive(sid)
		}
	}
}

// revive gives a stalled subscription its credits back.
func (w *Worker) revive(sid string) {
	w.mu.Lock()
	room, c := w.Credits, w.client
	for _, h := range w.running {
		if w.sids[h.quest.Queue] == sid && room > 0 {
			room--
		}
	}
	w.mu.Unlock()
	if c != nil && room > 0 {
		c.Go(TCredit, func(b []byte) []byte { return AppendValue(b, Fields{"sid": sid, "credits": room}) }, nil)
	}
}
