package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// Attempt is one attempt at a job, as its handler sees it.
type Attempt struct {
	ID          string // of the job
	Queue       string
	Function    string
	Number      int               // 1 for the first attempt
	MaxAttempts int               // 0: the cluster's default
	Fence       int64             // grows with every attempt of every job
	Redelivered bool              // an earlier attempt may have had side effects
	Accepted    time.Time         // when the job was enqueued
	Deadline    time.Time         // when the attempt is ended; zero: never
	Trace       map[string]string // as enqueued

	quest *overhop.Quest
}

// Decode stores the job's params in v, a non-nil pointer; json tags name the
// fields.
func (a *Attempt) Decode(v any) error { return decode(a.quest.Payload, v) }

// Progress reports the progress of the attempt in percent, with optional data. It
// also renews the attempt's lease. An error means that the attempt must stop.
func (a *Attempt) Progress(ctx context.Context, percent int, data any) error {
	return a.quest.Progress(ctx, percent, data)
}

// Log adds lines to the job's log. An error means that the attempt must stop.
func (a *Attempt) Log(ctx context.Context, lines ...string) error {
	return a.quest.Log(ctx, lines...)
}

// Handler runs one attempt. Its result is encoded as [Job.Params] are. An error
// fails the attempt, and the job is tried again according to its retry policy,
// unless the error is [Permanent]. The context ends when the job is cancelled or
// times out, its lease is lost, or the worker stops.
type Handler func(ctx context.Context, a *Attempt) (result any, err error)

// Permanent wraps an error so that the job fails without another attempt.
func Permanent(err error) error { return &failure{err: err, final: true} }

// RetryAfter wraps an error so that the next attempt starts after d.
func RetryAfter(err error, d time.Duration) error { return &failure{err: err, retryAfter: &d} }

// Coded wraps an error so that the job's error has a code and details for programs. The
// details are encoded like a result; nil means none. It may be combined with [Permanent]
// or [RetryAfter].
func Coded(err error, code string, details any) error {
	return &failure{err: err, code: code, details: details}
}

// failure is a handler's error, what is to happen to the job, and what describes the error
// to programs.
type failure struct {
	err        error
	final      bool           // no further attempt
	retryAfter *time.Duration // nil: the retry policy decides
	code       string
	details    any
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Worker runs the jobs of the queues whose handlers it has. Create one with
// [Client.Worker], register handlers, then call Run.
type Worker struct {
	// Concurrency is how many jobs of each queue run at once; 0 means 10.
	Concurrency int
	// ShutdownGrace is how long running jobs may take to finish after the context
	// of Run has ended; 0 means 10 s.
	ShutdownGrace time.Duration
	// CreateQueues makes Run create queues that do not exist, instead of failing.
	CreateQueues bool

	opts   Options
	queues map[string]map[string]Handler // by queue and function
}

// Worker returns a worker that connects to the client's nodes over connections of
// its own.
func (c *Client) Worker() *Worker {
	return &Worker{opts: c.opts, queues: map[string]map[string]Handler{}}
}

// Handle registers the handler of a queue's function. The function "" is for jobs
// that name none. A worker receives every job of its queues, so register all
// functions that are enqueued there: a job with another function fails, and the
// error names the known ones. Handle panics if the function has a handler already.
func (w *Worker) Handle(queue, function string, h Handler) {
	functions := w.queues[queue]
	if functions == nil {
		functions = map[string]Handler{}
		w.queues[queue] = functions
	}
	if functions[function] != nil {
		panic(fmt.Sprintf("client: function %q of queue %q has a handler already", function, queue))
	}
	functions[function] = h
}

// Run runs jobs until ctx ends, then waits for the running ones, at most for
// ShutdownGrace. Jobs that have not ended by then go back to the cluster and start
// elsewhere without losing an attempt. Run reconnects by itself. It returns nil
// after ctx has ended, and an error if no handlers are registered, a queue does not
// exist, or a node refuses the worker permanently.
func (w *Worker) Run(ctx context.Context) error {
	if len(w.queues) == 0 {
		return errors.New("worker has no handlers: call Handle before Run")
	}
	worker := overhop.Worker{
		Nodes: w.opts.Nodes, Name: w.opts.Name, Token: w.opts.Token, TLS: w.opts.TLS, Log: w.opts.Log, Dial: w.opts.Dial,
		ShutdownGrace: w.ShutdownGrace, CreateQueues: w.CreateQueues,
	}
	concurrency := w.Concurrency
	if concurrency <= 0 {
		concurrency = 10
	}
	for queue, functions := range w.queues {
		worker.Handle(queue, uint32(concurrency), queueHandler(queue, functions))
	}
	return worker.Run(ctx)
}

// queueHandler returns the handler of a queue. It calls the one of functions that a
// job names and encodes its result. A job whose function has no handler, or whose
// result cannot be encoded, fails without another attempt.
func queueHandler(queue string, functions map[string]Handler) overhop.Handler {
	return func(ctx context.Context, quest *overhop.Quest) (overhop.Raw, error) {
		handler := functions[quest.Function]
		if handler == nil {
			return nil, &overhop.FailError{Type: "handler_not_found", Final: true, Message: fmt.Sprintf(
				"this worker has no handler for function %q of queue %q; it has %s", quest.Function, queue, quotedNames(functions))}
		}
		result, err := handler(ctx, newAttempt(quest))
		if err != nil {
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

// quotedNames returns the names of functions, sorted, for a message.
func quotedNames(functions map[string]Handler) string {
	names := slices.Sorted(maps.Keys(functions))
	for i, name := range names {
		names[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(names, ", ")
}

func newAttempt(q *overhop.Quest) *Attempt {
	return &Attempt{
		ID: q.JID, Queue: q.Queue, Function: q.Function, Number: int(q.Attempt), MaxAttempts: int(q.MaxAttempts), Fence: q.Fence,
		Redelivered: q.Redelivered, Accepted: q.Created, Deadline: q.Deadline, Trace: q.Trace, quest: q,
	}
}

// protocolError converts an error from [Permanent], [RetryAfter] and [Coded], of which the
// outermost counts, to the protocol's, and returns any other error unchanged. Details that
// cannot be encoded are replaced by the reason.
func protocolError(err error) error {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	sent := &overhop.FailError{Message: err.Error()}
	for ; ok; f, ok = errors.AsType[*failure](f.err) {
		sent.Final = sent.Final || f.final
		sent.Code = cmp.Or(sent.Code, f.code)
		if sent.RetryAfter == nil {
			sent.RetryAfter = f.retryAfter
		}
		if f.details == nil || sent.Details != nil {
			continue
		}
		details, err := overhop.Marshal(f.details)
		if err != nil {
			details, _ = overhop.Marshal("details cannot be encoded: " + err.Error())
		}
		sent.Details = details
	}
	return sent
}
