package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// DefaultNode is the address at which a node of a single-node cluster serves
// workers and producers.
const DefaultNode = "127.0.0.1:9876"

// Options configure a [Client]. The zero value connects to [DefaultNode].
type Options struct {
	// Nodes are host:port addresses of nodes. The client connects to one of them,
	// and to another one when that fails. List all nodes of the cluster.
	Nodes []string
	// Name appears in the cluster's status and logs.
	Name string
	// Token is the secret that the nodes require of their clients; "" means none.
	Token string
	// TLS enables TLS; nil means plain TCP.
	TLS *tls.Config
	// Log receives the client's log messages; nil means slog.Default().
	Log *slog.Logger
	// Dial opens a connection, under TLS if TLS is set; nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// Client enqueues jobs and waits for their results. Its methods may be called
// from any number of goroutines; they share one connection.
type Client struct {
	opts     Options
	producer *overhop.Producer
}

// Connect returns a client that is connected to one of the nodes. It tries them in
// turn until ctx ends or a node refuses the client permanently. The error names
// the addresses and the last failure.
func Connect(ctx context.Context, opts Options) (*Client, error) {
	if len(opts.Nodes) == 0 {
		opts.Nodes = []string{DefaultNode}
	}
	c := &Client{opts: opts, producer: &overhop.Producer{
		Nodes: opts.Nodes, Name: opts.Name, Token: opts.Token, TLS: opts.TLS, Log: opts.Log, Dial: opts.Dial,
	}}
	if _, err := c.producer.Client(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %v: %w", opts.Nodes, err), c.producer.Close())
	}
	return c, nil
}

// Close closes the client's connections. Calls in progress return an error.
func (c *Client) Close() error { return c.producer.Close() }

// Job is a job to enqueue. Queue is required; every other field may be left zero.
type Job struct {
	// Queue is the queue that workers subscribe to.
	Queue string
	// Function selects the handler: a name of the worker's choice, or
	// "runner#handler" for a handler of an RRQ runner.
	Function string
	// Params are the handler's input. Structs travel as maps, with the names of
	// their json tags; integers are exact and []byte is binary. Params with a fraction,
	// or an integer beyond int64, must be a struct or map and have no []byte.
	Params any
	// Key makes the enqueue idempotent: up to 128 bytes, unique in the queue. For some
	// minutes, that of a job which was removed is refused: DUPLICATE_OF_REMOVED.
	Key string
	// RunAt is the earliest start; the zero time means now.
	RunAt time.Time
	// Priority is 0 to 9, 9 starts first; nil means 5.
	Priority *int
	// MaxAttempts is how often the job may be tried; 0 means the cluster's default.
	MaxAttempts int
	// Timeout ends an attempt that takes longer; 0 means the cluster's default.
	Timeout time.Duration
	// RetryOnTimeout is whether an attempt that exceeds its timeout is retried like one
	// that fails; nil means as the queue has it, which by default is false.
	RetryOnTimeout *bool
	// RetryInterval is the delay after each failed attempt; 0 means one that increases.
	RetryInterval time.Duration

	// UniqueKey makes no job while another one holds this key: DUPLICATE_JOB, and
	// [Error.JobID] is the other's id. The job holds the key for UniqueTTL, 0 for six
	// hours, or until UniqueUntil, its "start" or "end".
	UniqueKey   string
	UniqueTTL   time.Duration
	UniqueUntil string
	// RateLimitKey makes no job while another one holds this key: RATE_LIMITED. The job
	// holds it for the time RateLimit.
	RateLimitKey string
	RateLimit    time.Duration
	// DebounceKey replaces a job with this key that has not started, under that job's id.
	// The job starts after the time Debounce, unless it is replaced.
	DebounceKey string
	Debounce    time.Duration

	// Trace carries a trace context, for example traceparent, to the handler.
	Trace map[string]string
}

// Enqueue enqueues a job and returns its id once the job is accepted, that is,
// once a quorum of the cluster has it on disk. If ctx ends first, the job may or
// may not have been accepted; with a Key it is safe to enqueue it again.
//
// The error is a [*Error] if the cluster refused the job. It wraps
// [ErrInvalidJob] and names the field if a field of the job is invalid.
func (c *Client) Enqueue(ctx context.Context, j Job) (id string, err error) {
	request, err := j.request()
	if err != nil {
		return "", err
	}
	id, err = c.producer.Enqueue(ctx, request)
	return id, wrap("enqueue into "+j.Queue, err)
}

// ErrInvalidJob is wrapped by the errors of jobs that cannot be sent.
var ErrInvalidJob = errors.New("invalid job")

// request returns the job as a request of the protocol. The error wraps
// [ErrInvalidJob].
func (j *Job) request() (overhop.Enqueue, error) {
	invalid := func(format string, args ...any) (overhop.Enqueue, error) {
		return overhop.Enqueue{}, fmt.Errorf("%w: "+format, append([]any{ErrInvalidJob}, args...)...)
	}
	switch {
	case j.Queue == "":
		return invalid("Queue is empty")
	case j.MaxAttempts < 0:
		return invalid("MaxAttempts is %d", j.MaxAttempts)
	case j.UniqueKey == "" && (j.UniqueTTL != 0 || j.UniqueUntil != ""):
		return invalid("UniqueTTL and UniqueUntil need UniqueKey")
	case (j.RateLimitKey == "") != (j.RateLimit == 0):
		return invalid("RateLimitKey and RateLimit need each other")
	case (j.DebounceKey == "") != (j.Debounce == 0):
		return invalid("DebounceKey and Debounce need each other")
	}
	for name, d := range map[string]time.Duration{
		"Timeout": j.Timeout, "RetryInterval": j.RetryInterval, "UniqueTTL": j.UniqueTTL, "RateLimit": j.RateLimit, "Debounce": j.Debounce,
	} {
		if d != 0 && d < time.Millisecond {
			return invalid("%s is %s; it is at least 1ms if it is set", name, d)
		}
	}
	request := overhop.Enqueue{
		Queue: j.Queue, Function: j.Function, Key: j.Key, At: j.RunAt, MaxAttempts: int64(j.MaxAttempts),
		Timeout: j.Timeout.Milliseconds(), RetryOnTimeout: j.RetryOnTimeout, RetryInterval: j.RetryInterval.Milliseconds(), Trace: j.Trace,
		UniqueKey: unlessZero(j.UniqueKey), UniqueTTL: unlessZero(j.UniqueTTL.Milliseconds()), UniqueUntil: unlessZero(j.UniqueUntil),
		RateLimitKey: unlessZero(j.RateLimitKey), RateLimit: unlessZero(j.RateLimit.Milliseconds()),
		DebounceKey: unlessZero(j.DebounceKey), Debounce: unlessZero(j.Debounce.Milliseconds()),
	}
	if j.Priority != nil {
		if *j.Priority < 0 || *j.Priority > 9 {
			return invalid("Priority is %d; it is 0 to 9", *j.Priority)
		}
		request.Priority = new(int64(*j.Priority))
	}
	if j.Params != nil {
		payload, err := overhop.Marshal(j.Params)
		if err != nil {
			return invalid("Params: %w", err)
		}
		if payload.HasNumber() && payload.Kind() != overhop.KindMap {
			return invalid("Params have fractions, or integers beyond int64, outside a struct or map")
		}
		request.Payload = payload
	}
	return request, nil
}

// unlessZero returns a pointer to v, or nil if v is the zero value.
func unlessZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// Result is the result of a job that succeeded.
type Result struct {
	// Attempts is the number of attempts that were made.
	Attempts int
	// Omitted reports that the result is too large for a node of an older release, which
	// can only send it over HTTP.
	Omitted bool
	// Gone is why the result is no longer stored: "result_evicted" by newer ones,
	// "result_expired", or "result_dropped" if it could not be stored. It is "" if the
	// result is stored, or if there was none.
	Gone string

	raw overhop.Raw
}

// ErrNoResult is wrapped by the error of [Result.Decode] if the job had a result that the
// cluster no longer has or cannot send.
var ErrNoResult = errors.New("the result of the job cannot be read")

// Decode stores the handler's result in v, a non-nil pointer; json tags name the
// fields. Without a result it stores nothing.
func (r *Result) Decode(v any) error {
	switch {
	case r.Gone != "":
		return fmt.Errorf("%w: %s", ErrNoResult, r.Gone)
	case r.Omitted:
		return fmt.Errorf("%w: %w", ErrNoResult, overhop.ErrNoContent)
	}
	return decode(r.raw, v)
}

// decode decodes raw into v, or does nothing if raw is empty.
func decode(raw overhop.Raw, v any) error {
	if len(raw) == 0 {
		return nil
	}
	return overhop.Unmarshal(raw, v)
}

// Wait blocks until the job has ended, and returns its result, whatever its size. The
// error is a [*JobError] if the job failed for good, was cancelled, or was removed during
// the wait. It is a [*Error] if the cluster does not know the job, or no longer: it keeps
// ended jobs for a limited time. If ctx ends first, the job keeps running.
func (c *Client) Wait(ctx context.Context, id string) (Result, error) {
	end, err := c.producer.Wait(ctx, id)
	if err != nil {
		return Result{}, wrap("wait for "+id, err)
	}
	result := Result{Attempts: int(end.Attempts), Omitted: end.Omitted, Gone: end.Gone, raw: end.Result}
	if fault := end.Fault; fault != nil {
		return result, &JobError{
			ID: id, Type: fault.Type, Code: fault.Code, Message: fault.Message, Attempts: result.Attempts, details: fault.Details,
		}
	}
	if !end.Omitted {
		return result, nil
	}
	result.raw, err = c.producer.Content(ctx, id, overhop.ContentResult)
	result.Omitted = errors.Is(err, overhop.ErrNoContent)
	if result.Omitted {
		return result, nil
	}
	return result, wrap("read the result of "+id, err)
}

// Params stores the params of a job in v, a non-nil pointer, whatever their size; json tags
// name the fields. The error is a [*Error] with the code CONTENT_NOT_FOUND if the job has
// none, and CONTENT_GONE if they are no longer stored: large ones are kept until the job
// has completed.
func (c *Client) Params(ctx context.Context, id string, v any) error {
	raw, err := c.producer.Content(ctx, id, overhop.ContentPayload)
	if err != nil {
		return wrap("read the params of "+id, err)
	}
	return decode(raw, v)
}

// AddQueue creates a queue. It returns nil if the queue already exists. The error
// is a [*Error] if the cluster refuses the queue.
func (c *Client) AddQueue(ctx context.Context, name string) error {
	connection, err := c.producer.Client(ctx)
	if err == nil {
		_, err = connection.AddQueue(ctx, overhop.AddQueue{Name: name, AllowOverrides: true})
	}
	if overhop.ErrorCode(err) == overhop.CodeDuplicateQueue {
		return nil
	}
	return wrap("add queue "+name, err)
}

// Error is the cluster's refusal of a request.
type Error struct {
	// Code is a stable word, for example QUEUE_NOT_FOUND; docs/reference/overhop.md
	// lists all.
	Code string
	// Message describes the reason for people.
	Message string
	// RetryAfter is how long to wait before the same request may succeed; 0 means
	// that waiting does not help.
	RetryAfter time.Duration
	// JobID is the job that holds the unique key, if Code is DUPLICATE_JOB.
	JobID string

	operation string
	err       error
}

func (e *Error) Error() string { return e.operation + ": " + cmp.Or(e.Message, e.Code) }

// Unwrap returns the error of the protocol.
func (e *Error) Unwrap() error { return e.err }

// wrap adds the name of the operation that failed to err: as an [*Error] if the
// cluster refused it. It returns nil for nil.
func wrap(operation string, err error) error {
	if err == nil {
		return nil
	}
	refusal, ok := errors.AsType[*overhop.RemoteError](err)
	if !ok {
		return fmt.Errorf("%s: %w", operation, err)
	}
	refused := &Error{Code: string(refusal.Code), Message: refusal.Message, operation: operation, err: err}
	switch refusal.Code {
	case overhop.CodeRateLimited:
		ms, _ := refusal.Details.Get("retry_after_ms").Int()
		refused.RetryAfter = time.Duration(ms) * time.Millisecond
	case overhop.CodeUnavailable:
		refused.RetryAfter = refusal.RetryAfter()
	case overhop.CodeDuplicateJob:
		refused.JobID, _ = refusal.Details.Get("jid").Str()
	}
	return refused
}

// JobError describes why a job failed.
type JobError struct {
	ID       string
	Type     string // for example "timeout", "cancelled", or the handler's own
	Code     string // the handler's own, if it gave one
	Message  string
	Attempts int

	details overhop.Raw
}

// DecodeDetails stores the handler's details of the error in v, a non-nil pointer. Without
// details it does nothing. Of details above 512 bytes, only the beginning is here, as text;
// the dead letter has up to 4 KiB.
func (e *JobError) DecodeDetails(v any) error { return decode(e.details, v) }

func (e *JobError) Error() string {
	return fmt.Sprintf("job %s failed after %d attempts: %s", e.ID, e.Attempts, cmp.Or(e.Message, e.Type))
}
