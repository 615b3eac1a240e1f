package edge

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// handler describes how messages of one type are handled. Exactly one of
// respond and start is set.
type handler struct {
	respond respondFunc

	// clusterWide marks requests that the yard answers rather than this node.
	// They wait until all earlier requests of the connection are answered, so
	// that they reflect their effects.
	clusterWide bool

	// changesOffers marks requests that change what a worker is offered. Pushes
	// are held back until the answer is written: a QUEST must not name a
	// subscription that the client does not know yet.
	changesOffers bool

	// start begins a request that is answered later, and reserves its place in
	// the outbox.
	start func(c *conn, e overhop.Envelope) error
}

// respondFunc returns the payload of the OK; nil stands for the empty map. The
// payload may be backed by worker.scratch.
type respondFunc func(c *conn, ctx context.Context, p overhop.Raw) (overhop.Raw, error)

// handlers holds the handlers of a registered client's messages, by message
// type.
var handlers = [overhop.TObliterate + 1]handler{
	overhop.TPing:        {start: (*conn).startPing},
	overhop.TQueue:       {respond: parsed(toCluster, overhop.ParseQueueName, queries.handleQueue), clusterWide: true},
	overhop.TLsQueue:     {respond: parsed(toCluster, unparsed, queries.handleLsQueue), clusterWide: true},
	overhop.TSubscribe:   {respond: parsed(toWorker, overhop.ParseSubscribe, (*worker).handleSubscribe), clusterWide: true, changesOffers: true},
	overhop.TUnsubscribe: {respond: parsed(toWorker, overhop.ParseUnsubscribe, (*worker).handleUnsubscribe), changesOffers: true},
	overhop.TCredit:      {respond: parsed(toWorker, overhop.ParseCredit, (*worker).handleCredit), changesOffers: true},
	overhop.TAddQueue:    {respond: parsed(toCluster, overhop.ParseAddQueue, queries.handleAddQueue), clusterWide: true},
	overhop.TStatus:      {respond: (*conn).handleStatus, clusterWide: true},
	overhop.TRmQueue:     {respond: onUserQueue(queries.handleRmQueue), clusterWide: true},
	overhop.TPause:       {respond: onUserQueue(queries.handlePause), clusterWide: true},
	overhop.TResume:      {respond: onUserQueue(queries.handleResume), clusterWide: true},
	overhop.TEnqueue:     {start: (*conn).startEnqueue},
	overhop.TJob:         {respond: parsed(toCluster, overhop.ParseJobRef, queries.handleJob), clusterWide: true},
	overhop.TRmJob:       {respond: parsed(toCluster, overhop.ParseJobRef, queries.handleRmJob), clusterWide: true},
	overhop.TLsJob:       {respond: parsed(toCluster, overhop.ParseListJobs, queries.handleLsJob), clusterWide: true},
	overhop.TQStats:      {respond: onUserQueue(queries.handleQStats), clusterWide: true},
	overhop.TAck:         {respond: parsed(toWorker, overhop.ParseLeaseRef, (*worker).handleAck)},
	overhop.TNack:        {start: (*conn).startNack},
	overhop.TBeat:        {respond: parsed(toWorker, overhop.ParseBeat, (*worker).handleBeat)},
	overhop.TProgress:    {respond: parsed(toWorker, overhop.ParseProgress, (*worker).handleProgress)},
	overhop.TLog:         {respond: parsed(toWorker, overhop.ParseLog, (*worker).handleLog)},
	overhop.TDone:        {start: (*conn).startDone},
	overhop.TFail:        {start: (*conn).startFail},
	overhop.TAwait:       {respond: (*conn).handleAwait, clusterWide: true},
	overhop.TGoodbye:     {respond: parsed(toWorker, overhop.ParseGoodbye, (*worker).handleGoodbye)},
	overhop.TCancel:      {respond: parsed(toCluster, unparsed, queries.handleCancel), clusterWide: true},
	overhop.TRetryJob:    {respond: parsed(toCluster, overhop.ParseJobRef, queries.handleRetryJob), clusterWide: true},
	overhop.TClrQueue:    {respond: parsed(toCluster, unparsed, queries.handleClrQueue), clusterWide: true},
	overhop.TObliterate:  {respond: parsed(toCluster, unparsed, queries.handleObliterate), clusterWide: true},
}

// parsed returns a respond function that parses the payload first. to returns
// the part of the connection that responds.
func parsed[P, T any](to func(*conn) P, parse func(overhop.Raw) (T, error), respond func(P, context.Context, T) (overhop.Raw, error)) respondFunc {
	return func(c *conn, ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
		m, err := parse(p)
		if err != nil {
			return nil, err
		}
		return respond(to(c), ctx, m)
	}
}

func toWorker(c *conn) *worker                    { return &c.worker }
func toCluster(c *conn) queries                   { return queries{c.cluster, &c.s.cfg, &c.s.deliveries} }
func unparsed(p overhop.Raw) (overhop.Raw, error) { return p, nil }

// onUserQueue returns a respond function for a request that names a queue. It
// checks that users may change the queue. A queue that does not exist is
// reported before a system queue.
func onUserQueue(respond func(q queries, ctx context.Context, queue string) (overhop.Raw, error)) respondFunc {
	return parsed(toCluster, overhop.ParseQueueName, func(q queries, ctx context.Context, queue string) (overhop.Raw, error) {
		if err := q.checkUserQueue(ctx, queue); err != nil {
			return nil, err
		}
		return respond(q, ctx, queue)
	})
}

// handle handles a message of a registered client. An error ends the
// connection.
func (c *conn) handle(e overhop.Envelope) error {
	h := &handlers[e.T]
	var violation *overhop.Violation
	if h.start != nil {
		err := h.start(c, e)
		if errors.As(err, &violation) {
			return c.refuse(e.RID, overhop.CodeProtocolViolation, violation.Reason)
		}
		return err
	}
	ctx := c.ctx
	if h.clusterWide {
		if !c.out.waitPending(0) {
			return net.ErrClosed
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.s.cfg.Limits.RequestTimeout)
		defer cancel()
	}
	if h.changesOffers {
		c.out.holdPushes()
	}
	ok, err := h.respond(c, ctx, e.P)
	switch {
	case errors.As(err, &violation):
		return c.refuse(e.RID, overhop.CodeProtocolViolation, violation.Reason)
	case err != nil:
		c.answerErr(e, err)
	default:
		c.answerOK(e.RID, ok)
	}
	if h.changesOffers {
		c.out.releasePushes()
		c.s.deliveries.flushOffers()
	}
	if e.T == overhop.TGoodbye {
		if c.worker.closeAfterReply {
			c.bye("GOODBYE", "as asked")
		}
		c.worker.closeIfDrained()
	}
	return nil
}

func (c *conn) answerOK(rid string, ok overhop.Raw) {
	if len(ok) == 0 {
		ok = overhop.EmptyMap
	}
	c.out.reply(func(b []byte) []byte {
		start := len(b)
		b = overhop.AppendOK(b, rid, ok)
		if limit := c.s.cfg.Wire.MaxEnvelope; len(b)-start-4 > limit {
			return overhop.AppendErr(b[:start], rid, overhop.CodeResponseTooLarge, "the answer is too large for a frame", overhop.Fields{"limit": limit})
		}
		return b
	})
}

func (c *conn) answerErr(e overhop.Envelope, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		err = &job.UnavailableError{Reason: "the yard did not answer in time", RetryAfter: time.Second}
	}
	sent := wireError(err)
	switch {
	case sent.code == overhop.CodeResultTooLarge && e.T == overhop.TLsJob: // the bodies on the page
		sent.code = overhop.CodeResponseTooLarge
	case sent.code == overhop.CodeJobPersistence:
		c.s.log.Warn("client request failed", "type", e.T, "err", err)
		switch {
		case e.T == overhop.TStatus:
			sent.code = overhop.CodeDiagnostics
		case e.T >= overhop.TQueue && e.T <= overhop.TResume:
			sent.code = overhop.CodeQueuePersistence
		}
	}
	c.out.reply(func(b []byte) []byte { return appendError(b, e.RID, &sent) })
}

// startPing answers once all earlier requests are answered. No later request is
// read and no push is written in between.
func (c *conn) startPing(e overhop.Envelope) error {
	if err := overhop.ParseEmpty(e.P); err != nil {
		return err
	}
	c.out.holdPushes()
	if !c.out.waitPending(0) {
		return net.ErrClosed
	}
	c.out.reply(func(b []byte) []byte { return overhop.AppendPong(b, e.RID, time.Now()) })
	c.out.releasePushes()
	return nil
}
