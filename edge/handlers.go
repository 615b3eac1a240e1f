package edge

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/job"
)

// handler describes how messages of one type are handled. Exactly one of
// respond and start is set.
type handler struct {
	respond respondFunc

	// clusterWide marks requests that the cluster answers rather than this
	// node. They wait until all earlier requests of the connection are answered,
	// so that they reflect their effects.
	clusterWide bool

	// changesOffers marks requests that change what a worker is offered. Pushes
	// are held back until the answer is written: a QUEST must not name a
	// subscription that the client does not know yet.
	changesOffers bool

	// start handles a request and answers it, or reserves the place of an answer
	// that follows later. Its error ends the connection.
	start func(c *conn, request overhop.Envelope) error
}

// respondFunc returns the payload of the OK; nil stands for the empty map.
type respondFunc func(c *conn, ctx context.Context, payload overhop.Raw) (overhop.Raw, error)

// handlers holds the handlers of a registered client's messages, by message
// type.
var handlers = [overhop.TAPI + 1]handler{
	overhop.TPing:        {start: (*conn).startPing},
	overhop.TQueue:       {respond: parsed(queriesOf, overhop.ParseQueueName, queries.handleQueue), clusterWide: true},
	overhop.TLsQueue:     {respond: parsed(queriesOf, unparsed, queries.handleLsQueue), clusterWide: true},
	overhop.TSubscribe:   {respond: parsed(workerOf, overhop.ParseSubscribe, (*worker).handleSubscribe), clusterWide: true, changesOffers: true},
	overhop.TUnsubscribe: {respond: parsed(workerOf, overhop.ParseUnsubscribe, (*worker).handleUnsubscribe), changesOffers: true},
	overhop.TCredit:      {respond: parsed(workerOf, overhop.ParseCredit, (*worker).handleCredit), changesOffers: true},
	overhop.TAddQueue:    {respond: parsed(queriesOf, overhop.ParseAddQueue, queries.handleAddQueue), clusterWide: true},
	overhop.TStatus:      {respond: (*conn).handleStatus, clusterWide: true},
	overhop.TRmQueue:     {respond: onUserQueue(queries.handleRmQueue), clusterWide: true},
	overhop.TPause:       {respond: onUserQueue(queries.handlePause), clusterWide: true},
	overhop.TResume:      {respond: onUserQueue(queries.handleResume), clusterWide: true},
	overhop.TEnqueue:     {start: (*conn).startEnqueue},
	overhop.TJob:         {respond: parsed(queriesOf, overhop.ParseJobRef, queries.handleJob), clusterWide: true},
	overhop.TRmJob:       {respond: parsed(queriesOf, overhop.ParseJobRef, queries.handleRmJob), clusterWide: true},
	overhop.TLsJob:       {respond: parsed(queriesOf, overhop.ParseListJobs, queries.handleLsJob), clusterWide: true},
	overhop.TQStats:      {respond: onUserQueue(queries.handleQStats), clusterWide: true},
	overhop.TAck:         {respond: parsed(workerOf, overhop.ParseLeaseRef, (*worker).handleAck)},
	overhop.TNack:        {start: (*conn).startNack},
	overhop.TBeat:        {respond: parsed(workerOf, overhop.ParseBeat, (*worker).handleBeat)},
	overhop.TProgress:    {respond: parsed(workerOf, overhop.ParseProgress, (*worker).handleProgress)},
	overhop.TLog:         {respond: parsed(workerOf, overhop.ParseLog, (*worker).handleLog)},
	overhop.TDone:        {start: (*conn).startDone},
	overhop.TFail:        {start: (*conn).startFail},
	overhop.TAwait:       {respond: (*conn).handleAwait, clusterWide: true},
	overhop.TGoodbye:     {start: (*conn).startGoodbye},
	overhop.TCancel:      {respond: parsed(queriesOf, unparsed, queries.handleCancel), clusterWide: true},
	overhop.TRetryJob:    {respond: parsed(queriesOf, overhop.ParseJobRef, queries.handleRetryJob), clusterWide: true},
	overhop.TClrQueue:    {respond: parsed(queriesOf, unparsed, queries.handleClrQueue), clusterWide: true},
	overhop.TObliterate:  {respond: parsed(queriesOf, unparsed, queries.handleObliterate), clusterWide: true},
	overhop.TSetQueue:    {respond: parsed(queriesOf, overhop.ParseSetQueue, queries.handleSetQueue), clusterWide: true},
	overhop.TSetJob:      {respond: parsed(queriesOf, overhop.ParseSetJob, queries.handleSetJob), clusterWide: true},
	overhop.TContent:     {respond: parsed(queriesOf, overhop.ParseContent, queries.handleContent), clusterWide: true},
	overhop.TAPI:         {respond: parsed(queriesOf, overhop.ParseAPI, queries.handleAPI), clusterWide: true},
}

// parsed returns a respond function that parses the payload and passes the
// result to respond, a method of the part of the connection that partOf returns.
func parsed[Part, Message any](
	partOf func(*conn) Part,
	parse func(overhop.Raw) (Message, error),
	respond func(Part, context.Context, Message) (overhop.Raw, error),
) respondFunc {
	return func(c *conn, ctx context.Context, payload overhop.Raw) (overhop.Raw, error) {
		message, err := parse(payload)
		if err != nil {
			return nil, err
		}
		return respond(partOf(c), ctx, message)
	}
}

func workerOf(c *conn) *worker                          { return &c.worker }
func queriesOf(c *conn) queries                         { return queries{c.cluster, c.server, c.session.Hello.JSON} }
func unparsed(payload overhop.Raw) (overhop.Raw, error) { return payload, nil }

// onUserQueue returns a respond function for a request that names a queue. It
// answers with an error if users may not change the queue.
func onUserQueue(respond func(q queries, ctx context.Context, queue string) (overhop.Raw, error)) respondFunc {
	return parsed(queriesOf, overhop.ParseQueueName, func(q queries, ctx context.Context, queue string) (overhop.Raw, error) {
		if err := q.checkUserQueue(ctx, queue); err != nil {
			return nil, err
		}
		return respond(q, ctx, queue)
	})
}

// handle handles a message of a registered client, and writes the answer or reserves
// its place among the answers. A request that the cluster has to answer waits until all
// earlier ones are answered. An error ends the connection; the caller sends a
// *overhop.Violation to the client first.
func (c *conn) handle(request overhop.Envelope) error {
	h := &handlers[request.T]
	if h.start != nil {
		return h.start(c, request)
	}

	ctx := c.ctx
	if h.clusterWide {
		if !c.out.waitPending(0) {
			return net.ErrClosed
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.server.cfg.Limits.RequestTimeout)
		defer cancel()
	}
	if h.changesOffers {
		c.out.holdPushes() // so that no job is sent before the answer
	}

	answer, err := h.respond(c, ctx, request.P)
	if _, violated := errors.AsType[*overhop.Violation](err); violated {
		return err
	}
	if err != nil {
		c.answerErr(request, err)
	} else {
		c.answerOK(request.RID, answer)
	}

	if h.changesOffers {
		c.out.releasePushes()
	}
	return nil
}

// answerOK answers a request with OK, or with ERR if the payload does not fit
// into a frame. An empty payload is sent as the empty map.
func (c *conn) answerOK(rid string, payload overhop.Raw) {
	if len(payload) == 0 {
		payload = overhop.EmptyMap
	}
	c.out.reply(func(b []byte) []byte {
		start := len(b)
		b = overhop.AppendOK(b, rid, payload)
		if limit := c.server.cfg.Wire.MaxEnvelope; len(b)-start-frame.HeaderLen > limit {
			return appendError(b[:start], rid, tooLarge(overhop.CodeResponseTooLarge, "the answer is too large for a frame", limit))
		}
		return b
	})
}

// answerErr answers a request with ERR.
func (c *conn) answerErr(request overhop.Envelope, err error) {
	answer := c.requestError(request.T, err)
	c.out.reply(func(b []byte) []byte { return appendError(b, request.RID, answer) })
}

// requestError returns what to send for an error of a request of message type t.
// A cluster that did not answer in time is reported as unavailable. An internal
// failure is logged.
func (c *conn) requestError(t int64, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = &job.UnavailableError{Reason: "the yard did not answer in time", RetryAfter: time.Second}
	}
	sent := wireError(err)
	if sent.code == overhop.CodeJobPersistence {
		c.server.log.Warn("client request failed", "type", t, "err", err)
		sent.code = internalErrorCode(t)
	}
	return &sent
}

// internalErrorCode returns the code that reports an internal failure to a
// client whose request has message type t.
func internalErrorCode(t int64) overhop.Code {
	switch t {
	case overhop.TStatus:
		return overhop.CodeDiagnostics
	case overhop.TQueue, overhop.TLsQueue, overhop.TSubscribe, overhop.TUnsubscribe, overhop.TCredit,
		overhop.TAddQueue, overhop.TRmQueue, overhop.TPause, overhop.TResume:
		return overhop.CodeQueuePersistence
	}
	return overhop.CodeJobPersistence
}

// startPing answers once all earlier requests are answered. No later request is
// read and no push is written in between.
func (c *conn) startPing(request overhop.Envelope) error {
	if err := overhop.ParseEmpty(request.P); err != nil {
		return err
	}
	c.out.holdPushes()
	if !c.out.waitPending(0) {
		return net.ErrClosed
	}
	c.out.reply(func(b []byte) []byte { return overhop.AppendPong(b, request.RID, time.Now()) })
	c.out.releasePushes()
	return nil
}
