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
	// respond returns the payload of the OK; nil stands for the empty map. The
	// payload may be backed by conn.scratch.
	respond func(c *conn, ctx context.Context, p overhop.Raw) (overhop.Raw, error)

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

// handlers holds the handlers of a registered client's messages, by message
// type.
var handlers = [overhop.TObliterate + 1]handler{
	overhop.TPing:        {start: (*conn).startPing},
	overhop.TQueue:       {respond: (*conn).handleQueue, clusterWide: true},
	overhop.TLsQueue:     {respond: (*conn).handleLsQueue, clusterWide: true},
	overhop.TSubscribe:   {respond: (*conn).handleSubscribe, clusterWide: true, changesOffers: true},
	overhop.TUnsubscribe: {respond: (*conn).handleUnsubscribe, changesOffers: true},
	overhop.TCredit:      {respond: (*conn).handleCredit, changesOffers: true},
	overhop.TAddQueue:    {respond: (*conn).handleAddQueue, clusterWide: true},
	overhop.TStatus:      {respond: (*conn).handleStatus, clusterWide: true},
	overhop.TRmQueue:     {respond: (*conn).handleRmQueue, clusterWide: true},
	overhop.TPause:       {respond: (*conn).handlePause, clusterWide: true},
	overhop.TResume:      {respond: (*conn).handleResume, clusterWide: true},
	overhop.TEnqueue:     {start: (*conn).startEnqueue},
	overhop.TJob:         {respond: (*conn).handleJob, clusterWide: true},
	overhop.TRmJob:       {respond: (*conn).handleRmJob, clusterWide: true},
	overhop.TLsJob:       {respond: (*conn).handleLsJob, clusterWide: true},
	overhop.TQStats:      {respond: (*conn).handleQStats, clusterWide: true},
	overhop.TAck:         {respond: (*conn).handleAck},
	overhop.TNack:        {start: (*conn).startNack},
	overhop.TBeat:        {respond: (*conn).handleBeat},
	overhop.TProgress:    {respond: (*conn).handleProgress},
	overhop.TLog:         {respond: (*conn).handleLog},
	overhop.TDone:        {start: (*conn).startDone},
	overhop.TFail:        {start: (*conn).startFail},
	overhop.TAwait:       {respond: (*conn).handleAwait, clusterWide: true},
	overhop.TGoodbye:     {respond: (*conn).handleGoodbye},
	overhop.TCancel:      {respond: (*conn).handleCancel, clusterWide: true},
	overhop.TRetryJob:    {respond: (*conn).handleRetryJob, clusterWide: true},
	overhop.TClrQueue:    {respond: (*conn).handleClrQueue, clusterWide: true},
	overhop.TObliterate:  {respond: (*conn).handleObliterate, clusterWide: true},
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

func (c *conn) handleQueue(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	m, err := overhop.ParseQueueName(p)
	if err != nil {
		return nil, err
	}
	q, found, err := c.cluster.Queue(ctx, m.Queue)
	if err != nil || !found {
		return nil, err
	}
	return overhop.AppendValue(nil, queueFields(q)), nil
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
	return overhop.AppendValue(nil, overhop.Fields{"queues": list}), nil
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

func (c *conn) handleAddQueue(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	m, err := overhop.ParseAddQueue(p)
	if err != nil {
		return nil, err
	}
	if err := job.ValidQueue(m.Name); err != nil {
		return nil, &codeError{overhop.CodeInvalidQueueName, err.Error()}
	}
	id, err := c.cluster.AddQueue(ctx, m.Name, job.QueueConfig{Limit: m.Limit, AllowOverrides: m.AllowOverrides})
	if err != nil {
		return nil, err
	}
	return textField("qid", id.String()), nil
}

// userQueue parses a request that names a queue and checks that users may
// change that queue. A queue that does not exist is reported before a system
// queue.
func (c *conn) userQueue(ctx context.Context, p overhop.Raw) (string, error) {
	m, err := overhop.ParseQueueName(p)
	if err != nil {
		return "", err
	}
	return m.Queue, c.checkUserQueue(ctx, m.Queue)
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

func (c *conn) handleRmQueue(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	queue, err := c.userQueue(ctx, p)
	if err != nil {
		return nil, err
	}
	return nil, c.cluster.RemoveQueue(ctx, queue)
}

func (c *conn) handlePause(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	return c.pause(ctx, p, true)
}

func (c *conn) handleResume(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	return c.pause(ctx, p, false)
}

func (c *conn) pause(ctx context.Context, p overhop.Raw, paused bool) (overhop.Raw, error) {
	queue, err := c.userQueue(ctx, p)
	if err != nil {
		return nil, err
	}
	return nil, c.cluster.PauseQueue(ctx, queue, paused)
}

func (c *conn) handleQStats(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	queue, err := c.userQueue(ctx, p)
	if err != nil {
		return nil, err
	}
	counts, err := c.cluster.Stats(ctx, queue)
	if err != nil {
		return nil, err
	}
	stats := overhop.Fields{}
	for state, n := range counts {
		stats[job.State(state).String()] = int64(n)
	}
	return overhop.AppendValue(nil, overhop.Fields{"q": queue, "stats": stats}), nil
}

func (c *conn) handleSubscribe(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	m, err := overhop.ParseSubscribe(p)
	if err != nil {
		return nil, err
	}
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

func (c *conn) handleUnsubscribe(_ context.Context, p overhop.Raw) (overhop.Raw, error) {
	sid, err := overhop.ParseUnsubscribe(p)
	if err != nil {
		return nil, err
	}
	return nil, c.s.unsubscribe(c, sid)
}

func (c *conn) handleCredit(_ context.Context, p overhop.Raw) (overhop.Raw, error) {
	m, err := overhop.ParseCredit(p)
	if err != nil {
		return nil, err
	}
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
