package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/singleflight"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// DefaultNode is the address at which a node of a single-node cluster serves
// workers and producers.
const DefaultNode = "127.0.0.1:9876"

// Options configure a [Client]. The zero value connects to [DefaultNode].
type Options struct {
	// Nodes are host:port addresses of nodes. The client connects to one of them,
	// and to another one when that fails. List all nodes of the cluster.
	Nodes []string
	// NATS is a connection to the cluster's NATS servers, to use instead of Nodes. The
	// client does not close it. Its user needs the role producer, and the role operator to
	// change queues or jobs. Workers connect to the worker ports that the nodes announce.
	// Reads may miss what the client has enqueued a moment ago.
	NATS *nats.Conn

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

	// RequireQueues makes jobs of queues that do not exist an error. Otherwise
	// [Client.Enqueue] and [Worker.Run] create them.
	RequireQueues bool
}

// Client enqueues jobs, waits for their results, and shows and changes what the cluster
// has. Its methods may be called from any number of goroutines; they share one connection.
type Client struct {
	opts Options
	transport
	creating singleflight.Group // of queues that jobs need
}

// transport is the way to the cluster.
type transport interface {
	// enqueue sends a job until it is accepted or refused, or ctx ends.
	enqueue(ctx context.Context, s *Spec) (id string, err error)
	// wait waits until a job has ended.
	wait(ctx context.Context, id string) (overhop.JobEnd, error)
	// content reads the whole result or payload of a job, as value says.
	content(ctx context.Context, id, value string) (overhop.Raw, error)
	// operate carries out an operation of the API, such as "queue.list". Request and reply
	// are JSON.
	operate(ctx context.Context, op string, request []byte) (reply []byte, err error)
	// workerNodes returns the addresses of the worker ports.
	workerNodes(ctx context.Context) ([]string, error)
	// Close ends calls in progress, which return an error.
	Close() error
}

// Connect returns a client that is connected to one of the nodes with these addresses, by
// default [DefaultNode]. It is [Open] with only addresses.
func Connect(ctx context.Context, nodes ...string) (*Client, error) {
	return Open(ctx, Options{Nodes: nodes})
}

// Open returns a client that is connected to one of the nodes. It tries them in turn until
// ctx ends, a node refuses the token, or all nodes refuse the TLS configuration, or the client
// their certificates. The error names the addresses, the last failure, and what to check.
func Open(ctx context.Context, opts Options) (*Client, error) {
	if opts.NATS != nil {
		return openNATS(ctx, opts)
	}
	if len(opts.Nodes) == 0 {
		opts.Nodes = []string{DefaultNode}
	}
	for _, node := range opts.Nodes {
		if host, port, err := net.SplitHostPort(node); err != nil || host == "" || port == "" || strings.Contains(host, "/") {
			return nil, fmt.Errorf("node %q: it is host:port, the worker port of a node, such as %s, with an IPv6 address in brackets, such as [::1]:9876; for NATS set Options.NATS", node, DefaultNode)
		}
	}
	t := &edgeTransport{overhop.Producer{
		Nodes: opts.Nodes, Name: opts.Name, Token: opts.Token, TLS: opts.TLS, Log: opts.Log, Dial: opts.Dial,
	}}
	if _, err := t.Client(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %v: %w", opts.Nodes, refusalOf(err)), t.Close())
	}
	return &Client{opts: opts, transport: t}, nil
}

// Close closes the client's connection. Calls in progress, and later ones, return an error that
// is [ErrClosed]. Workers of the client and a connection in Options.NATS go on.
func (c *Client) Close() error { return c.transport.Close() }

// ErrClosed is wrapped by the errors of calls of a client that was closed.
var ErrClosed = overhop.ErrClosed

// edgeTransport reaches the cluster over the worker port of a node.
type edgeTransport struct{ overhop.Producer }

func (t *edgeTransport) enqueue(ctx context.Context, s *Spec) (id string, err error) {
	request, err := s.message()
	if err != nil {
		return "", err
	}
	return t.Enqueue(ctx, request)
}

func (t *edgeTransport) wait(ctx context.Context, id string) (overhop.JobEnd, error) {
	return t.Wait(ctx, id)
}

func (t *edgeTransport) content(ctx context.Context, id, value string) (overhop.Raw, error) {
	return t.Content(ctx, id, value)
}

func (t *edgeTransport) operate(ctx context.Context, op string, request []byte) ([]byte, error) {
	return t.API(ctx, op, request)
}

func (t *edgeTransport) workerNodes(context.Context) ([]string, error) { return t.Nodes, nil }

// Enqueue enqueues a job and returns its id once the job is accepted, that is, once a
// quorum of the cluster has it on disk. It repeats the request at other nodes, under one
// key, until ctx ends; then the job may or may not have been accepted, and with
// [Spec.Key] it is safe to enqueue it again.
//
// The error is an [*Error] if the cluster refuses the job: it is [ErrConflict] if another
// job holds the unique key. It wraps [ErrInvalidJob] and names the field if a field of the
// job is invalid.
func (c *Client) Enqueue(ctx context.Context, s Spec) (id string, err error) {
	return c.enqueueSpec(ctx, &s)
}

// enqueueSpec is Enqueue without a copy of the job.
func (c *Client) enqueueSpec(ctx context.Context, s *Spec) (id string, err error) {
	if err := s.validate(); err != nil {
		return "", err
	}
	id, err = c.enqueue(ctx, s)
	if err == nil {
		return id, nil
	}
	if err = refusalOf(err); errors.Is(err, ErrNotFound) && !c.opts.RequireQueues {
		if err = c.createQueue(ctx, s.Queue); err == nil {
			id, err = c.enqueue(ctx, s)
			err = refusalOf(err)
		}
	}
	if refused, ok := errors.AsType[*Error](err); ok && s.ExistingOnConflict && refused.Code == string(overhop.CodeDuplicateJob) {
		return refused.JobID, nil
	}
	if err != nil {
		return "", fmt.Errorf("enqueue into %s: %w", s.Queue, err)
	}
	return id, nil
}

// createQueue creates a queue, once for all jobs that wait for it.
func (c *Client) createQueue(ctx context.Context, name string) error {
	created := c.creating.DoChan(name, func() (any, error) { return nil, c.Queues().Create(ctx, name) })
	select {
	case r := <-created:
		if errors.Is(r.Err, context.Canceled) && ctx.Err() == nil { // that of the job that began it
			return c.createQueue(ctx, name)
		}
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// jid returns the id of a job in the form of the protocol, "<queue>:<UUID>". It asks the cluster
// if the job is named in another way.
func (c *Client) jid(ctx context.Context, id string) (string, error) {
	if strings.TrimSpace(id) == "" {
		return "", errors.New("the id is blank: give what Enqueue has returned, or <queue>:<key>")
	}
	if _, rest, ok := strings.Cut(id, ":"); ok {
		if _, err := job.ParseID(rest); err == nil {
			return id, nil
		}
	}
	j, err := c.Jobs().Get(ctx, id)
	return j.JID, err
}

// Result is the result of a job that succeeded.
type Result struct {
	// Attempts is the number of attempts that were made.
	Attempts int
	// Gone is why the result is no longer stored: "result_evicted" by newer ones,
	// "result_expired", or "result_dropped" if it could not be stored. It is "" if the
	// result is stored, or if there was none.
	Gone string

	raw overhop.Raw
}

// ErrNoResult is wrapped by the error of [Result.Decode] if the job had a result that the
// cluster no longer has.
var ErrNoResult = errors.New("the result of the job is no longer stored")

// Decode stores the handler's result in v, a non-nil pointer; json tags name the
// fields. Without a result it stores nothing.
func (r *Result) Decode(v any) error {
	if r.Gone != "" {
		return fmt.Errorf("%w: %s", ErrNoResult, r.Gone)
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
// the wait. It is an [*Error] if the cluster does not know the job, or no longer: it keeps
// ended jobs for a limited time. If ctx ends first, the job keeps running. The job is named as
// for [Jobs].
func (c *Client) Wait(ctx context.Context, id string) (Result, error) {
	jid, err := c.jid(ctx, id)
	var end overhop.JobEnd
	if err == nil {
		end, err = c.wait(ctx, jid)
	}
	if err != nil {
		return Result{}, fmt.Errorf("wait for job %q: %w", id, refusalOf(err))
	}
	result := Result{Attempts: int(end.Attempts), Gone: end.Gone, raw: end.Result}
	if fault := end.Fault; fault != nil {
		return result, &JobError{
			ID: jid, Type: fault.Type, Code: fault.Code, Message: fault.Message, Attempts: result.Attempts, Reason: fault.Reason, details: fault.Details,
		}
	}
	if end.Omitted {
		if result.raw, err = c.content(ctx, jid, overhop.ContentResult); err != nil {
			return result, fmt.Errorf("read the result of job %q: %w", id, refusalOf(err))
		}
	}
	return result, nil
}

// Params stores the params of a job in v, a non-nil pointer, whatever their size; json tags
// name the fields. The error is [ErrNotFound] if the job has none, and [ErrGone] if they
// are no longer stored: large ones are kept until the job has completed.
func (c *Client) Params(ctx context.Context, id string, v any) error {
	jid, err := c.jid(ctx, id)
	var raw overhop.Raw
	if err == nil {
		raw, err = c.content(ctx, jid, overhop.ContentPayload)
	}
	if err != nil {
		return fmt.Errorf("read the params of job %q: %w", id, refusalOf(err))
	}
	return decode(raw, v)
}

// JobError describes why a job failed.
type JobError struct {
	ID       string
	Type     string // for example "timeout", "cancelled", or the handler's own
	Code     string // the handler's own, if it gave one
	Message  string
	Attempts int
	// Reason is why the job was cancelled, as given to [Jobs.Cancel]; "" if none was.
	Reason string

	details overhop.Raw
}

// DecodeDetails stores the handler's details of the error in v, a non-nil pointer. Without
// details it does nothing. If they were too long to be stored, their texts lack the middle.
func (e *JobError) DecodeDetails(v any) error { return decode(e.details, v) }

// Is reports whether the job ended for the reason target, [ErrCancelled] or [ErrDeadline].
func (e *JobError) Is(target error) bool {
	return target == ErrCancelled && e.Type == job.FaultCancelled || target == ErrDeadline && e.Type == job.FaultTimeout
}

func (e *JobError) Error() string {
	if errors.Is(e, ErrCancelled) {
		return fmt.Sprintf("job %s was cancelled after %d attempts: %s", e.ID, e.Attempts, cmp.Or(e.Reason, e.Message, e.Type))
	}
	return fmt.Sprintf("job %s failed after %d attempts: %s", e.ID, e.Attempts, cmp.Or(e.Message, e.Type))
}
