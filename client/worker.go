package client

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/usercode"
)

// JobInfo describes one attempt at a job, as its handler sees it.
type JobInfo struct {
	ID          string
	Queue       string
	Function    string
	Attempt     int               // 1 for the first
	MaxAttempts int               // 0: the cluster's default
	Fence       int64             // grows with every attempt of every job
	Redelivered bool              // an earlier attempt may have had side effects
	Accepted    time.Time         // when the job was enqueued
	Deadline    time.Time         // when the attempt is ended; zero: never
	Trace       map[string]string // as enqueued, likewise Tags and Meta
	Tags        []string
	Meta        map[string]string

	quest *overhop.Quest
}

// Decode stores the job's params in v, a non-nil pointer; json tags name the
// fields.
func (j *JobInfo) Decode(v any) error { return decode(j.quest.Payload, v) }

// Progress reports the progress of the attempt in percent, 0 to 100, with optional data. It
// also renews the attempt's lease. An error means that the attempt must stop, or that the
// report is invalid and was not sent.
func (j *JobInfo) Progress(ctx context.Context, percent int, data any) error {
	if percent < 0 || percent > 100 {
		return fmt.Errorf("the progress is %d percent; it is 0 to 100", percent)
	}
	return j.quest.Progress(ctx, percent, data)
}

// Log adds lines to the job's log. An error means that the attempt must stop. See also
// [JobInfo.Logger].
func (j *JobInfo) Log(ctx context.Context, lines ...string) error {
	return j.quest.Log(ctx, lines...)
}

// Job is one attempt at a job whose params have the type A.
type Job[A any] struct {
	*JobInfo
	Args A
}

// HandlerFunc runs one attempt of a job with any params. [Handle] registers handlers of
// jobs whose params have a type of their own.
//
// The result is encoded as [Spec.Params] are, and has the same maximum size: the job fails if
// it is larger. An error or a panic fails the attempt, and the job is tried again according to
// its retry policy, unless the error is or wraps one of [Permanent], [RetryAfter] and [Snooze].
// The context ends when the job is cancelled or times out, its lease is lost, or the worker
// stops: [StopReason] returns why. The handler should return soon after.
type HandlerFunc func(ctx context.Context, job *JobInfo) (result any, err error)

// Middleware returns a handler that does something before and after next.
type Middleware func(next HandlerFunc) HandlerFunc

// Worker runs the jobs of the queues whose handlers it has. Create one with
// [Client.Worker], register handlers with [Handle], then call Run. The fields must not be
// changed after that.
type Worker struct {
	// Concurrency is how many jobs of each queue run at once; 0 means 10.
	Concurrency int
	// Queues overrides Concurrency for some queues.
	Queues map[string]int
	// Functions limits how many jobs of some functions run at once, in all queues of the
	// worker. A job beyond the limit goes back to the cluster, which counts no attempt, for 1 s
	// at first and later for a quarter of the time since it was accepted, at most 30 s. Each
	// time costs the cluster as much as a short job: for a function with many jobs, a queue of
	// its own with an entry in Queues is better.
	Functions map[string]int
	// ShutdownGrace is how long running jobs may take to finish after the context
	// of Run has ended; 0 means 10 s.
	ShutdownGrace time.Duration
	// UnknownFunction handles the jobs of the worker's queues whose function has no handler.
	// nil gives them back, which counts no attempt, so that a worker of a newer release gets
	// them: for 5 s at first, later for half of the time since the job was accepted, at most
	// 10 minutes. A day after it was accepted, the job's attempts fail.
	UnknownFunction HandlerFunc

	client     *Client
	handlers   map[string]map[string]HandlerFunc // by queue and function
	middleware []Middleware
	running    map[string]chan struct{} // one element per running job, by functions with a limit

	mu      sync.Mutex
	stop    context.CancelFunc // of Run; nil before it
	ended   bool               // Stop was called
	stopped chan struct{}      // closed when Run has returned
}

// Worker returns a worker that connects to the client's nodes over connections of
// its own. It may run longer than the client.
func (c *Client) Worker() *Worker {
	return &Worker{client: c, handlers: make(map[string]map[string]HandlerFunc), stopped: make(chan struct{})}
}

// Handle registers the handler of the jobs that [Enqueue] makes of an A: those with its
// function in its queue. Of the options, only [Queue] counts. A job whose params do not
// fit into an A fails without another attempt. Handle panics if the function has a handler already,
// or A names another type of results than R: see [ArgsOf].
func Handle[A Args, R any](w *Worker, h func(ctx context.Context, job *Job[A]) (R, error), options ...Option) {
	s := NewSpec(zeroArgs[A](), options...)
	if err := checkReturns(reflect.TypeFor[A](), reflect.TypeFor[R]()); err != nil {
		panic(fmt.Sprintf("client: the handler of function %q of queue %q: %v", s.Function, s.Queue, err))
	}
	w.Handle(s.Queue, s.Function, func(ctx context.Context, info *JobInfo) (any, error) {
		j := &Job[A]{JobInfo: info}
		if err := info.Decode(&j.Args); err != nil {
			return nil, &overhop.FailError{Type: "invalid", Final: true, Message: fmt.Sprintf("the params do not fit into a %T: %v", j.Args, err)}
		}
		return h(ctx, j)
	})
}

// Handle registers the handler of a queue's function. The function "" is for jobs
// that name none. A worker receives every job of its queues, so register all
// functions that are enqueued there: see [Worker.UnknownFunction]. Handle panics if the function has a handler already, h is nil,
// or Run was called.
func (w *Worker) Handle(queue, function string, h HandlerFunc) {
	w.mustNotRun("Handle")
	if h == nil {
		panic(fmt.Sprintf("client: the handler of function %q of queue %q is nil", function, queue))
	}
	functions := w.handlers[queue]
	if functions == nil {
		functions = make(map[string]HandlerFunc)
		w.handlers[queue] = functions
	}
	if functions[function] != nil {
		panic(fmt.Sprintf("client: function %q of queue %q has a handler already", function, queue))
	}
	functions[function] = h
}

// Use adds middleware around all handlers. The first one added is the outermost. Use panics if
// Run was called.
func (w *Worker) Use(m ...Middleware) {
	w.mustNotRun("Use")
	w.middleware = append(w.middleware, m...)
}

// mustNotRun panics if Run was called.
func (w *Worker) mustNotRun(method string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		panic("client: " + method + " is called after Run")
	}
}

// Run runs jobs until ctx ends or Stop is called, then waits for the running ones, at most
// for ShutdownGrace. Then it ends their contexts, and 2 s later the jobs that have not ended go
// back to the cluster and start elsewhere without losing an attempt. Run still waits for
// handlers that ignore their contexts. It reconnects by itself. It returns nil when it was
// stopped, and an error if no handlers are registered, a setting is out of range or names a queue
// or a function without a handler, a queue does not exist and is not created, or a node refuses
// the worker permanently. A worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	if w.stop != nil {
		w.mu.Unlock()
		return errors.New("worker has run already: create another one with Client.Worker")
	}
	w.stop = cancel
	if w.ended {
		cancel()
	}
	w.mu.Unlock()
	defer close(w.stopped)
	if ctx.Err() != nil {
		return nil
	}
	nodes, err := w.client.workerNodes(ctx)
	if err != nil {
		return fmt.Errorf("find the worker ports of the nodes: %w", refusalOf(err))
	}
	opts := w.client.opts
	worker := overhop.Worker{
		Nodes: nodes, Name: opts.Name, Token: opts.Token, TLS: opts.TLS, Log: opts.Log, Dial: opts.Dial,
		ShutdownGrace: w.ShutdownGrace, CreateQueues: !opts.RequireQueues,
	}
	w.running = make(map[string]chan struct{}, len(w.Functions))
	for function, limit := range w.Functions {
		w.running[function] = make(chan struct{}, limit)
	}
	for queue, functions := range w.handlers {
		worker.Handle(queue, w.concurrency(queue), w.handlerOf(queue, functions))
	}
	if err := worker.Run(ctx); err != nil {
		return fmt.Errorf("run a worker: %w", refusalOf(err))
	}
	return nil
}

// Stop makes Run return as if its context had ended, and waits until it has, or until ctx
// ends. A later Run returns at once.
func (w *Worker) Stop(ctx context.Context) error {
	w.mu.Lock()
	stop := w.stop
	w.ended = true
	w.mu.Unlock()
	if stop == nil {
		return nil
	}
	stop()
	select {
	case <-w.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the worker has not stopped: %w", ctx.Err())
	}
}

// handlerOf returns the handler of a queue. It calls the one of functions that a
// job names and encodes its result. A job whose result cannot be encoded fails without
// another attempt.
func (w *Worker) handlerOf(queue string, functions map[string]HandlerFunc) overhop.Handler {
	wrapped := make(map[string]HandlerFunc, len(functions))
	for function, handler := range functions {
		wrapped[function] = w.limited(function, w.wrap(handler))
	}
	unknown := unknownFunction(queue, functions)
	if w.UnknownFunction != nil {
		unknown = w.wrap(w.UnknownFunction)
	}
	log := usercode.Logger(w.client.opts.Log)
	return func(ctx context.Context, quest *overhop.Quest) (overhop.Raw, error) {
		handler := wrapped[quest.Function]
		if handler == nil {
			handler = unknown
		}
		result, err := handler(ctx, infoOf(quest))
		if err != nil {
			if !usercode.Is(err, errAtLimit) {
				log.Warn("attempt failed", "job", quest.JID, "function", quest.Function, "attempt", quest.Attempt, "err", err)
			}
			return nil, protocolError(err)
		}
		if result == nil {
			return nil, nil
		}
		encoded, err := overhop.Marshal(result)
		if err != nil {
			return nil, &overhop.FailError{Type: "invalid_result", Final: true, Message: "result cannot be encoded: " + err.Error()}
		}
		return encoded, nil
	}
}

// wrap returns the handler within the middleware.
func (w *Worker) wrap(handler HandlerFunc) HandlerFunc {
	for _, m := range slices.Backward(w.middleware) {
		handler = m(handler)
	}
	return handler
}

func infoOf(q *overhop.Quest) *JobInfo {
	return &JobInfo{
		ID: q.JID, Queue: q.Queue, Function: q.Function, Attempt: int(q.Attempt), MaxAttempts: int(q.MaxAttempts), Fence: q.Fence,
		Redelivered: q.Redelivered, Accepted: q.Created, Deadline: q.Deadline, Trace: q.Trace, Tags: q.Tags, Meta: q.Meta, quest: q,
	}
}
