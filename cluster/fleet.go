package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/cluster/wire"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// The verbs of yard.node.<node>.<verb> with typed messages. Others are sent by
// [Fleet.Request].
const (
	verbAssign    = "assign"
	verbReport    = "report"
	verbHeartbeat = "beat"
	verbRecall    = "recall"
	verbNotice    = "notice"
)

// Timeouts of replies. A report is answered after a commit.
const (
	assignTimeout    = 2 * time.Second
	reportTimeout    = 5 * time.Second
	heartbeatTimeout = time.Second
	requestTimeout   = 30 * time.Second // of Fleet.Request if the context has no deadline
	maxNodeRequests  = 64
)

// Errors of a message to a node.
var (
	// ErrNodeUnreachable means that the message was not delivered: nothing on that
	// node subscribes to it. It is returned at once.
	ErrNodeUnreachable = errors.New("node is not reachable")
	// ErrNoAnswer means that no reply came in time. The message may have been
	// delivered.
	ErrNoAnswer = errors.New("node did not answer in time")
)

// CodeNotAuthority is the code of an [api.Error] of a node that was asked for what only
// the authority does, and does not hold it.
const CodeNotAuthority = "421"

// Fleet sends messages between nodes. Messages with the same verb to the same node
// arrive in order as long as the connections between them persist.
type Fleet struct {
	local *embedded.Server
}

// AssignAsync sends a batch of assignments. done gets one answer per assignment,
// in order, or [ErrNodeUnreachable] or [ErrNoAnswer]. It must not block.
func (f *Fleet) AssignAsync(node string, b job.AssignmentBatch, done func([]job.Answer, error)) {
	call(f, node, verbAssign, wire.Encode(&b), assignTimeout, func(data []byte) ([]job.Answer, error) {
		answers, err := wire.Decode[[]job.Answer](data)
		if err == nil && len(answers) != len(b.Assignments) {
			return nil, fmt.Errorf("node %s answered %d of %d assignments", node, len(answers), len(b.Assignments))
		}
		return answers, err
	}, done)
}

// Assign is the blocking form of [Fleet.AssignAsync].
func (f *Fleet) Assign(ctx context.Context, node string, b job.AssignmentBatch) ([]job.Answer, error) {
	return await(ctx, func(done func([]job.Answer, error)) { f.AssignAsync(node, b, done) })
}

// ReportAsync sends a report to the authority's node.
func (f *Fleet) ReportAsync(node string, r job.Report, done func(job.ReportAck, error)) {
	call(f, node, verbReport, wire.Encode(&r), reportTimeout, wire.Decode, done)
}

// Report is the blocking form of [Fleet.ReportAsync].
func (f *Fleet) Report(ctx context.Context, node string, r job.Report) (job.ReportAck, error) {
	return await(ctx, func(done func(job.ReportAck, error)) { f.ReportAsync(node, r, done) })
}

// Heartbeat sends a heartbeat to the authority's node and returns its answer.
func (f *Fleet) Heartbeat(ctx context.Context, node string, b job.Heartbeat) (job.HeartbeatAck, error) {
	return await(ctx, func(done func(job.HeartbeatAck, error)) {
		call(f, node, verbHeartbeat, wire.Encode(&b), heartbeatTimeout, wire.Decode, done)
	})
}

// Recall asks a node to stop a dispatch. There is no reply; the dispatch's outcome
// is reported as usual.
func (f *Fleet) Recall(node string, r job.Recall) error {
	return f.local.Fleet.Conn.Publish(subjects.NodeSubject(node, verbRecall), wire.Encode(&r))
}

// Notify sends records that were just stored to the authority's node. The message
// may get lost; the authority then reads the records from their lanes.
func (f *Fleet) Notify(node string, records []job.Record) error {
	return f.local.Fleet.Conn.Publish(subjects.NodeSubject(node, verbNotice), wire.Encode(&records))
}

// Request sends a request with any other verb and returns the reply. An error that
// the handler returned is an [*api.Error].
func (f *Fleet) Request(ctx context.Context, node, verb string, payload []byte) ([]byte, error) {
	wait := requestTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait = time.Until(deadline)
	}
	return await(ctx, func(done func([]byte, error)) {
		call(f, node, verb, payload, wait, func(data []byte) ([]byte, error) { return data, nil }, done)
	})
}

// RequestJSON is [Fleet.Request] with a request and a reply in JSON.
func (f *Fleet) RequestJSON(ctx context.Context, node, verb string, request, reply any) error {
	payload, err := json.Marshal(request)
	if err != nil {
		return err
	}
	text, err := f.Request(ctx, node, verb, payload)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, reply)
}

// call sends one request. It calls done once with the parsed reply or an error,
// possibly before it returns; done must not block.
func call[T any](f *Fleet, node, verb string, payload []byte, wait time.Duration, parse func([]byte) (T, error), done func(T, error)) {
	var none T
	if len(payload) > embedded.MaxMessage {
		done(none, fmt.Errorf("message of %d bytes to node %s: %w", len(payload), node, job.ErrTooLarge))
		return
	}
	box := f.local.Fleet
	reply, token := box.Expect(&nodeCall[T]{node, parse, done}, time.Now().Add(wait), false)
	if err := box.Conn.PublishRequest(subjects.NodeSubject(node, verb), reply, payload); err != nil && box.Cancel(token) {
		done(none, fmt.Errorf("%s to node %s: %w", verb, node, err))
	}
}

// nodeCall handles the reply to a request to a node.
type nodeCall[T any] struct {
	node  string
	parse func([]byte) (T, error)
	done  func(T, error)
}

func (c *nodeCall[T]) Receive(m *nats.Msg) bool {
	v, err := c.decode(m)
	c.done(v, err)
	return true
}

func (c *nodeCall[T]) decode(m *nats.Msg) (v T, err error) {
	switch {
	case m == nil:
		return v, fmt.Errorf("node %s: %w", c.node, ErrNoAnswer)
	case embedded.IsNoResponders(m):
		return v, fmt.Errorf("node %s: %w", c.node, ErrNodeUnreachable)
	}
	if apiErr := parseErrorReply(m); apiErr != nil {
		return v, apiErr
	}
	return c.parse(m.Data)
}

// await calls start and blocks until start's done is called or ctx ends.
func await[T any](ctx context.Context, start func(done func(T, error))) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	start(func(v T, err error) { done <- result{v, err} })
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// Handlers handle messages from other nodes. Each verb has its own goroutine, on
// which its handler is called in order of arrival; handlers must not block for
// long. A reply may be sent later, from any goroutine, once. Without a handler the
// node does not subscribe, and callers get [ErrNodeUnreachable].
type Handlers struct {
	Assign    func(b job.AssignmentBatch, reply func([]job.Answer))
	Report    func(r job.Report, reply func(job.ReportAck))
	Heartbeat func(b job.Heartbeat, reply func(job.HeartbeatAck))
	Recall    func(r job.Recall)
	Notice    func(records []job.Record)
	// Request holds the handlers of [Fleet.Request], by verb. They run
	// concurrently, at most 64 at a time.
	Request map[string]func(ctx context.Context, payload []byte) ([]byte, error)
}

// Serve handles messages until ctx ends and all handlers have returned.
func (f *Fleet) Serve(ctx context.Context, h Handlers) error {
	var subs []*nats.Subscription
	var work errgroup.Group
	work.SetLimit(maxNodeRequests)
	subscribe := func(verb string, handle nats.MsgHandler) error {
		if slices.Contains(subjects.NodeVerbs, verb) {
			return fmt.Errorf("verb %s is reserved for requests of clients: use another one between nodes", verb)
		}
		sub, err := f.local.Fleet.Conn.Subscribe(subjects.NodeSubject(f.local.Config.Node, verb), handle)
		if err != nil {
			return fmt.Errorf("subscribe to %s of other nodes: %w", verb, err)
		}
		subs = append(subs, sub)
		return nil
	}
	err := f.subscribeAll(h, subscribe)
	for verb, handle := range h.Request {
		if err == nil {
			err = subscribe(verb, func(m *nats.Msg) {
				work.Go(func() error { f.handleRequest(ctx, m, handle); return nil })
			})
		}
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, embedded.EndSubscriptions((*nats.Subscription).Unsubscribe, subs...), work.Wait())
}

// subscribeAll subscribes to the typed verbs that have a handler.
func (f *Fleet) subscribeAll(h Handlers, subscribe func(string, nats.MsgHandler) error) error {
	var errs []error
	if h.Assign != nil {
		errs = append(errs, subscribe(verbAssign, decodeHandler(f, func(b job.AssignmentBatch, m *nats.Msg) {
			h.Assign(b, func(a []job.Answer) { f.respond(m, wire.Encode(&a)) })
		})))
	}
	if h.Report != nil {
		errs = append(errs, subscribe(verbReport, decodeHandler(f, func(r job.Report, m *nats.Msg) {
			h.Report(r, func(a job.ReportAck) { f.respond(m, wire.Encode(&a)) })
		})))
	}
	if h.Heartbeat != nil {
		errs = append(errs, subscribe(verbHeartbeat, decodeHandler(f, func(b job.Heartbeat, m *nats.Msg) {
			h.Heartbeat(b, func(a job.HeartbeatAck) { f.respond(m, wire.Encode(&a)) })
		})))
	}
	if h.Recall != nil {
		errs = append(errs, subscribe(verbRecall, decodeHandler(f, func(r job.Recall, _ *nats.Msg) { h.Recall(r) })))
	}
	if h.Notice != nil {
		errs = append(errs, subscribe(verbNotice, decodeHandler(f, func(r []job.Record, _ *nats.Msg) { h.Notice(r) })))
	}
	return errors.Join(errs...)
}

// decodeHandler returns a message handler that parses the message and calls
// handle. A malformed message is logged, and answered with an error.
func decodeHandler[T wire.Message](f *Fleet, handle func(T, *nats.Msg)) nats.MsgHandler {
	return func(m *nats.Msg) {
		v, err := wire.Decode[T](m.Data)
		if err != nil {
			f.local.Log.Warn("malformed message from another node", "subject", m.Subject, "bytes", len(m.Data), "err", err)
			if m.Reply != "" {
				f.send(errorReply(m.Reply, f.local.Config.Node, &api.Error{Code: api.CodeInvalid, Text: err.Error()}))
			}
			return
		}
		handle(v, m)
	}
}

// handleRequest runs a request handler and sends its reply.
func (f *Fleet) handleRequest(ctx context.Context, m *nats.Msg, handle func(context.Context, []byte) ([]byte, error)) {
	data, err := handle(ctx, m.Data)
	if err != nil {
		f.send(errorReply(m.Reply, f.local.Config.Node, AsAPIError(err)))
		return
	}
	f.respond(m, data)
}

func (f *Fleet) respond(m *nats.Msg, data []byte) { f.send(&nats.Msg{Subject: m.Reply, Data: data}) }

// send publishes a reply. If that fails, the requester times out and retries.
func (f *Fleet) send(m *nats.Msg) {
	if err := f.local.Fleet.Conn.PublishMsg(m); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		f.local.Log.Warn("reply to another node not sent", "bytes", len(m.Data), "err", err)
	}
}
