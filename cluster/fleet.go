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
	"github.com/yardmaster-dev/yardmaster/internal/crash"
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

// AssignAsync sends a batch of assignments to a node and does not wait for the reply.
// done is called once, from another goroutine or before AssignAsync returns, with the
// node's answers, one per assignment and in the same order, or with an error, such as
// [ErrNodeUnreachable] or [ErrNoAnswer]. done must not block.
func (f *Fleet) AssignAsync(node string, b job.AssignmentBatch, done func([]job.Answer, error)) {
	parse := func(data []byte) ([]job.Answer, error) {
		answers, err := wire.Decode[[]job.Answer](data)
		if err == nil && len(answers) != len(b.Assignments) {
			return nil, fmt.Errorf("node %s answered %d of %d assignments", node, len(answers), len(b.Assignments))
		}
		return answers, err
	}
	call(f, nodeRequest{node, verbAssign, wire.Encode(&b), assignTimeout}, parse, done)
}

// Report sends a report to the authority's node and returns its answer.
func (f *Fleet) Report(ctx context.Context, node string, r job.Report) (job.ReportAck, error) {
	return callAndWait(ctx, f, nodeRequest{node, verbReport, wire.Encode(&r), reportTimeout}, wire.Decode[job.ReportAck])
}

// Heartbeat sends a heartbeat to the authority's node and returns its answer.
func (f *Fleet) Heartbeat(ctx context.Context, node string, b job.Heartbeat) (job.HeartbeatAck, error) {
	return callAndWait(ctx, f, nodeRequest{node, verbHeartbeat, wire.Encode(&b), heartbeatTimeout}, wire.Decode[job.HeartbeatAck])
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
	unchanged := func(data []byte) ([]byte, error) { return data, nil }
	return callAndWait(ctx, f, nodeRequest{node, verb, payload, wait}, unchanged)
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

// nodeRequest is a request to a node, which must reply within timeout.
type nodeRequest struct {
	node, verb string
	payload    []byte
	timeout    time.Duration
}

// call sends a request. It calls done once with the reply, decoded by parse, or an
// error, possibly before call returns; done must not block.
func call[T any](f *Fleet, r nodeRequest, parse func([]byte) (T, error), done func(T, error)) {
	var none T
	if len(r.payload) > embedded.MaxMessage {
		done(none, fmt.Errorf("message of %d bytes to node %s: %w", len(r.payload), r.node, job.ErrTooLarge))
		return
	}
	inbox := f.local.Fleet
	reply, token := inbox.Expect(&nodeCall[T]{r.node, parse, done}, time.Now().Add(r.timeout), false)
	err := inbox.Conn.PublishRequest(subjects.NodeSubject(r.node, r.verb), reply, r.payload)
	if err != nil && inbox.Cancel(token) { // otherwise the handler has called done
		done(none, fmt.Errorf("%s to node %s: %w", r.verb, r.node, err))
	}
}

// callAndWait sends a request and blocks until the reply has arrived, which it decodes
// with parse, or ctx ends.
func callAndWait[T any](ctx context.Context, f *Fleet, r nodeRequest, parse func([]byte) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	call(f, r, parse, func(value T, err error) { done <- result{value, err} })
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// nodeCall handles the reply to a request to a node.
type nodeCall[T any] struct {
	node  string
	parse func([]byte) (T, error)
	done  func(T, error)
}

// Receive implements [embedded.ReplyHandler].
func (c *nodeCall[T]) Receive(m *nats.Msg) bool {
	c.done(c.decode(m))
	return true
}

// decode returns the node's answer, or the error that it answered with. m is nil if
// there was no answer in time.
func (c *nodeCall[T]) decode(m *nats.Msg) (answer T, err error) {
	switch {
	case m == nil:
		return answer, fmt.Errorf("node %s: %w", c.node, ErrNoAnswer)
	case embedded.IsNoResponders(m):
		return answer, fmt.Errorf("node %s: %w", c.node, ErrNodeUnreachable)
	}
	if apiErr := parseErrorReply(m); apiErr != nil {
		return answer, apiErr
	}
	return c.parse(m.Data)
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
	var work errgroup.Group
	work.SetLimit(maxNodeRequests)
	handlers := f.typedHandlers(h)
	for verb, handle := range h.Request {
		handlers = append(handlers, verbHandler{verb, func(m *nats.Msg) {
			work.Go(func() error { f.handleRequest(ctx, m, handle); return nil })
		}})
	}
	subs, err := f.subscribe(handlers)
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, embedded.EndSubscriptions((*nats.Subscription).Unsubscribe, subs...), work.Wait())
}

// verbHandler handles the messages with one verb.
type verbHandler struct {
	verb   string
	handle nats.MsgHandler
}

// subscribe subscribes to verbs of this node. With an error it also returns the
// subscriptions that it has made.
func (f *Fleet) subscribe(handlers []verbHandler) (subs []*nats.Subscription, err error) {
	for _, h := range handlers {
		if slices.Contains(subjects.NodeVerbs, h.verb) {
			return subs, fmt.Errorf("verb %s is reserved for requests of clients: use another one between nodes", h.verb)
		}
		sub, err := f.local.Fleet.Conn.Subscribe(subjects.NodeSubject(f.local.Config.Node, h.verb), func(m *nats.Msg) {
			defer crash.Contain(f.local.Log, crash.Member, func(err error) { f.respondError(m, err) })
			h.handle(m)
		})
		if err != nil {
			return subs, fmt.Errorf("subscribe to %s of other nodes: %w", h.verb, err)
		}
		subs = append(subs, sub)
	}
	return subs, nil
}

// typedHandlers returns the handlers of h for messages that package wire encodes.
func (f *Fleet) typedHandlers(h Handlers) (handlers []verbHandler) {
	if h.Assign != nil {
		handlers = append(handlers, verbHandler{verbAssign, replyHandler(f, h.Assign)})
	}
	if h.Report != nil {
		handlers = append(handlers, verbHandler{verbReport, replyHandler(f, h.Report)})
	}
	if h.Heartbeat != nil {
		handlers = append(handlers, verbHandler{verbHeartbeat, replyHandler(f, h.Heartbeat)})
	}
	if h.Recall != nil {
		handlers = append(handlers, verbHandler{verbRecall, decodeHandler(f, func(r job.Recall, _ *nats.Msg) { h.Recall(r) })})
	}
	if h.Notice != nil {
		handlers = append(handlers, verbHandler{verbNotice, decodeHandler(f, func(records []job.Record, _ *nats.Msg) { h.Notice(records) })})
	}
	return handlers
}

// replyHandler returns a message handler that decodes a message and calls handle, whose
// reply it encodes and sends.
func replyHandler[Q, R wire.Message](f *Fleet, handle func(message Q, reply func(R))) nats.MsgHandler {
	return decodeHandler(f, func(message Q, m *nats.Msg) {
		handle(message, func(answer R) { f.respond(m, wire.Encode(&answer)) })
	})
}

// decodeHandler returns a message handler that decodes a message and calls handle with
// it. A malformed message is logged, and answered with an error.
func decodeHandler[T wire.Message](f *Fleet, handle func(T, *nats.Msg)) nats.MsgHandler {
	return func(m *nats.Msg) {
		message, err := wire.Decode[T](m.Data)
		if err == nil {
			handle(message, m)
			return
		}
		f.local.Log.Warn("malformed message from another node", "subject", m.Subject, "bytes", len(m.Data), "err", err)
		f.respondError(m, &api.Error{Code: api.CodeInvalid, Text: err.Error()})
	}
}

// handleRequest runs a request handler and sends its reply.
func (f *Fleet) handleRequest(ctx context.Context, m *nats.Msg, handle func(context.Context, []byte) ([]byte, error)) {
	defer crash.Contain(f.local.Log, crash.Member, func(err error) { f.respondError(m, err) })
	data, err := handle(ctx, m.Data)
	if err != nil {
		f.respondError(m, err)
		return
	}
	f.respond(m, data)
}

// respondError replies to m with err, if m asks for a reply.
func (f *Fleet) respondError(m *nats.Msg, err error) {
	if m.Reply != "" {
		f.send(errorReply(m.Reply, f.local.Config.Node, AsAPIError(err)))
	}
}

// respond replies to m with data.
func (f *Fleet) respond(m *nats.Msg, data []byte) { f.send(&nats.Msg{Subject: m.Reply, Data: data}) }

// send publishes a reply. If that fails, the requester times out and retries.
func (f *Fleet) send(m *nats.Msg) {
	if err := f.local.Fleet.Conn.PublishMsg(m); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		f.local.Log.Warn("reply to another node not sent", "bytes", len(m.Data), "err", err)
	}
}
