package edge

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

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
// payload may be backed by conn.scratch.
type respondFunc func(c *conn, ctx context.Context, p overhop.Raw) (overhop.Raw, error)

// handlers holds the handlers of a registered client's messages, by message
// type.
var handlers = [overhop.TObliterate + 1]handler{
	overhop.TPing:        {start: (*conn).startPing},
	overhop.TQueue:       {respond: parsed(overhop.ParseQueueName, (*conn).handleQueue), clusterWide: true},
	overhop.TLsQueue:     {respond: (*conn).handleLsQueue, clusterWide: true},
	overhop.TSubscribe:   {respond: parsed(overhop.ParseSubscribe, (*conn).handleSubscribe), clusterWide: true, changesOffers: true},
	overhop.TUnsubscribe: {respond: parsed(overhop.ParseUnsubscribe, (*conn).handleUnsubscribe), changesOffers: true},
	overhop.TCredit:      {respond: parsed(overhop.ParseCredit, (*conn).handleCredit), changesOffers: true},
	overhop.TAddQueue:    {respond: parsed(overhop.ParseAddQueue, (*conn).handleAddQueue), clusterWide: true},
	overhop.TStatus:      {respond: (*conn).handleStatus, clusterWide: true},
	overhop.TRmQueue:     {respond: onUserQueue((*conn).handleRmQueue), clusterWide: true},
	overhop.TPause:       {respond: onUserQueue((*conn).handlePause), clusterWide: true},
	overhop.TResume:      {respond: onUserQueue((*conn).handleResume), clusterWide: true},
	overhop.TEnqueue:     {start: (*conn).startEnqueue},
	overhop.TJob:         {respond: parsed(overhop.ParseJobRef, (*conn).handleJob), clusterWide: true},
	overhop.TRmJob:       {respond: parsed(overhop.ParseJobRef, (*conn).handleRmJob), clusterWide: true},
	overhop.TLsJob:       {respond: parsed(overhop.ParseListJobs, (*conn).handleLsJob), clusterWide: true},
	overhop.TQStats:      {respond: onUserQueue((*conn).handleQStats), clusterWide: true},
	overhop.TAck:         {respond: parsed(overhop.ParseLeaseRef, (*conn).handleAck)},
	overhop.TNack:        {start: (*conn).startNack},
	overhop.TBeat:        {respond: parsed(overhop.ParseBeat, (*conn).handleBeat)},
	overhop.TProgress:    {respond: parsed(overhop.ParseProgress, (*conn).handleProgress)},
	overhop.TLog:         {respond: parsed(overhop.ParseLog, (*conn).handleLog)},
	overhop.TDone:        {start: (*conn).startDone},
	overhop.TFail:        {start: (*conn).startFail},
	overhop.TAwait:       {respond: (*conn).handleAwait, clusterWide: true},
	overhop.TGoodbye:     {respond: parsed(overhop.ParseGoodbye, (*conn).handleGoodbye)},
	overhop.TCancel:      {respond: (*conn).handleCancel, clusterWide: true},
	overhop.TRetryJob:    {respond: parsed(overhop.ParseJobRef, (*conn).handleRetryJob), clusterWide: true},
	overhop.TClrQueue:    {respond: (*conn).handleClrQueue, clusterWide: true},
	overhop.TObliterate:  {respond: (*conn).handleObliterate, clusterWide: true},
}

// parsed returns a respond function that parses the payload first.
func parsed[T any](parse func(overhop.Raw) (T, error), respond func(*conn, context.Context, T) (overhop.Raw, error)) respondFunc {
	return func(c *conn, ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
		m, err := parse(p)
		if err != nil {
			return nil, err
		}
		return respond(c, ctx, m)
	}
}

// onUserQueue returns a respond function for a request that names a queue. It
// checks that users may change the queue. A queue that does not exist is
// reported before a system queue.
func onUserQueue(respond func(c *conn, ctx context.Context, queue string) (overhop.Raw, error)) respondFunc {
	return parsed(overhop.ParseQueueName, func(c *conn, ctx context.Context, queue string) (overhop.Raw, error) {
		if err := c.checkUserQueue(ctx, queue); err != nil {
			return nil, err
		}
		return respond(c, ctx, queue)
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
		c.s.flushOffers()
	}
	if e.T == overhop.TGoodbye {
		if c.closeAfterReply {
			c.bye("GOODBYE", "as asked")
		}
		c.s.closeIfDrained(c)
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
	code, message, details := wireError(err)
	if e.T == overhop.TLsJob && code == overhop.CodeResultTooLarge { // the bodies on the page
		code = overhop.CodeResponseTooLarge
	}
	if isInternal(err) {
		c.s.log.Warn("client request failed", "type", e.T, "err", err)
		switch {
		case e.T == overhop.TStatus:
			code = overhop.CodeDiagnostics
		case e.T >= overhop.TQueue && e.T <= overhop.TResume:
			code = overhop.CodeQueuePersistence
		}
	}
	c.out.reply(func(b []byte) []byte { return overhop.AppendErr(b, e.RID, code, message, details) })
}

func appendError(b []byte, rid string, err error) []byte {
	code, message, details := wireError(err)
	return overhop.AppendErr(b, rid, code, message, details)
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

func (c *conn) handleQueue(ctx context.Context, name string) (overhop.Raw, error) {
	q, found, err := c.cluster.Queue(ctx, name)
	if err != nil || !found {
		return nil, err
	}
	return queueFields(q).Raw(), nil
}

func (c *conn) handleLsQueue(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	if err := overhop.ParseEmpty(p); err != nil {
		return nil, err
	}
	queues, err := c.cluster.Queues(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(queues, func(a, b job.Queue) int { return strings.Compare(a.Name, b.Name) })
	list := make([]any, len(queues))
	for i, q := range queues {
		list[i] = queueFields(q)
	}
	return overhop.Fields{"queues": list}.Raw(), nil
}

func queueFields(q job.Queue) overhop.Fields {
	state := "running"
	if q.Paused {
		state = "paused"
	}
	var limit any
	if q.Config.Limit > 0 {
		limit = q.Config.Limit
	}
	return overhop.Fields{
		"id": q.ID.String(), "name": q.Name, "state": state,
		"config": overhop.Fields{"concurrency_limit": limit, "allow_job_overrides": q.Config.AllowOverrides},
	}
}

func (c *conn) handleAddQueue(ctx context.Context, m overhop.AddQueue) (overhop.Raw, error) {
	if err := job.ValidQueue(m.Name); err != nil {
		return nil, &codeError{overhop.CodeInvalidQueueName, err.Error()}
	}
	id, err := c.cluster.AddQueue(ctx, m.Name, job.QueueConfig{Limit: m.Limit, AllowOverrides: m.AllowOverrides})
	if err != nil {
		return nil, err
	}
	return textField("qid", id.String()), nil
}

func (c *conn) checkUserQueue(ctx context.Context, name string) error {
	_, found, err := c.cluster.Queue(ctx, name)
	switch {
	case err != nil:
		return err
	case !found:
		return job.ErrQueueNotFound
	case strings.HasPrefix(name, "_"):
		return job.ErrSystemQueue
	}
	return nil
}

func (c *conn) handleRmQueue(ctx context.Context, queue string) (overhop.Raw, error) {
	return nil, c.cluster.RemoveQueue(ctx, queue)
}

func (c *conn) handlePause(ctx context.Context, queue string) (overhop.Raw, error) {
	return nil, c.cluster.PauseQueue(ctx, queue, true)
}

func (c *conn) handleResume(ctx context.Context, queue string) (overhop.Raw, error) {
	return nil, c.cluster.PauseQueue(ctx, queue, false)
}

func (c *conn) handleQStats(ctx context.Context, queue string) (overhop.Raw, error) {
	counts, err := c.cluster.Stats(ctx, queue)
	if err != nil {
		return nil, err
	}
	stats := overhop.Fields{}
	for state, n := range counts {
		stats[job.State(state).String()] = int64(n)
	}
	return overhop.Fields{"q": queue, "stats": stats}.Raw(), nil
}

func (c *conn) handleSubscribe(ctx context.Context, m overhop.Subscribe) (overhop.Raw, error) {
	_, found, err := c.cluster.Queue(ctx, m.Queue)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, job.ErrQueueNotFound
	}
	sid := uuid.NewString()
	if err := c.s.subscribe(c, sid, m.Queue, m.Credits); err != nil {
		return nil, err
	}
	return textField("sid", sid), nil
}

func (c *conn) handleUnsubscribe(_ context.Context, sid string) (overhop.Raw, error) {
	return nil, c.s.unsubscribe(c, sid)
}

func (c *conn) handleCredit(_ context.Context, m overhop.Credit) (overhop.Raw, error) {
	return nil, c.s.credit(c, m.SID, m.Credits)
}

// errorCodes maps the errors of package job to codes of the protocol.
var errorCodes = [...]struct {
	err  error
	code overhop.Code
}{
	{job.ErrQueueNotFound, overhop.CodeQueueNotFound},
	{job.ErrQueueExists, overhop.CodeDuplicateQueue},
	{job.ErrTooManyQueues, overhop.CodeQueuePool},
	{job.ErrQueueNotEmpty, overhop.CodeQueueNotEmpty},
	{job.ErrQueuePaused, overhop.CodeQueuePaused},
	{job.ErrQueueNotPaused, overhop.CodeQueueRunning},
	{job.ErrSystemQueue, overhop.CodeSystemQueue},
	{job.ErrBadQueueName, overhop.CodeInvalidQueueName},
	{job.ErrJobNotFound, overhop.CodeJobNotFound},
	{job.ErrNotRemovable, overhop.CodeJobNotRemovable},
	{job.ErrNotActive, overhop.CodeJobNotActive},
	{job.ErrNotFailed, overhop.CodeJobNotActive},
	{job.ErrMalformed, overhop.CodeInvalidJobPayload},
	{job.ErrJobEnded, overhop.CodeAlreadyTerminal},
	{job.ErrLeaseLost, overhop.CodeLeaseLost},
	{job.ErrTooLarge, overhop.CodeResultTooLarge},
	{job.ErrKeyTooLong, overhop.CodeInvalidJobPayload},
}

// wireError returns the code, message and details to send for an error. An
// unknown error is an internal failure, JOB_PERSISTENCE_ERROR.
func wireError(err error) (code overhop.Code, message string, details overhop.Fields) {
	var detailed *detailedError
	if errors.As(err, &detailed) {
		code, message, _ = wireError(detailed.error)
		return code, message, detailed.details
	}
	for _, r := range errorCodes {
		if errors.Is(err, r.err) {
			return r.code, err.Error(), nil
		}
	}
	var coded *codeError
	var unavailable *job.UnavailableError
	var invalid *job.InvalidError
	var duplicate *job.DuplicateError
	var limited *job.RateLimitedError
	switch {
	case errors.As(err, &coded):
		return coded.code, coded.message, nil
	case errors.As(err, &unavailable):
		return overhop.CodeUnavailable, err.Error(), overhop.Fields{"retry_after_ms": max(unavailable.RetryAfter.Milliseconds(), 100)}
	case errors.As(err, &duplicate):
		return overhop.CodeDuplicateJob, err.Error(), overhop.Fields{"jid": jid(duplicate.Queue, duplicate.ID)}
	case errors.As(err, &limited):
		return overhop.CodeRateLimited, err.Error(), overhop.Fields{"retry_after_ms": max(limited.RetryAfter.Milliseconds(), 1)}
	case errors.As(err, &invalid):
		return overhop.CodeInvalidJobPayload, toWireNames(err.Error()), nil
	}
	return overhop.CodeJobPersistence, err.Error(), nil
}

// toWireNames replaces the name of the one job field that differs between the
// yard's JSON and Overhop.
func toWireNames(text string) string { return strings.ReplaceAll(text, "run_at", "scheduled_at") }

// isInternal reports whether an error is an internal failure rather than the
// client's.
func isInternal(err error) bool {
	code, _, _ := wireError(err)
	return code == overhop.CodeJobPersistence
}

// codeError is an error with a code that no error of package job maps to.
type codeError struct {
	code    overhop.Code
	message string
}

func (e *codeError) Error() string { return e.message }

// detailedError adds machine-readable details to an error.
type detailedError struct {
	error
	details overhop.Fields
}

func (e *detailedError) Unwrap() error { return e.error }
