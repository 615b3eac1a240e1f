package edge

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// handler is how one message is handled.
type handler struct {
	// answer gives the OK's payload; nil is the empty map. It may lie in
	// conn.scratch.
	answer func(c *conn, ctx context.Context, p overhop.Raw) (overhop.Raw, error)

	// yard marks what the whole yard answers: it waits for the answers of all
	// earlier requests, so that it sees what they did.
	yard bool

	// offers marks what changes a worker's room. Pushes wait for its answer: a
	// QUEST must not name a subscription that the client does not know yet.
	offers bool

	// start begins what ends later and reserves its own place for the answer.
	start func(c *conn, e overhop.Envelope) error
}

// handlers are all messages of a registered client, by t.
var handlers = [overhop.TObliterate + 1]handler{
	overhop.TPing:        {start: (*conn).startPing},
	overhop.TQueue:       {answer: (*conn).handleQueue, yard: true},
	overhop.TLsQueue:     {answer: (*conn).handleLsQueue, yard: true},
	overhop.TSubscribe:   {answer: (*conn).handleSubscribe, yard: true, offers: true},
	overhop.TUnsubscribe: {answer: (*conn).handleUnsubscribe, offers: true},
	overhop.TCredit:      {answer: (*conn).handleCredit, offers: true},
	overhop.TAddQueue:    {answer: (*conn).handleAddQueue, yard: true},
	overhop.TStatus:      {answer: (*conn).handleStatus, yard: true},
	overhop.TRmQueue:     {answer: (*conn).handleRmQueue, yard: true},
	overhop.TPause:       {answer: (*conn).handlePause, yard: true},
	overhop.TResume:      {answer: (*conn).handleResume, yard: true},
	overhop.TEnqueue:     {start: (*conn).startEnqueue},
	overhop.TJob:         {answer: (*conn).handleJob, yard: true},
	overhop.TRmJob:       {answer: (*conn).handleRmJob, yard: true},
	overhop.TLsJob:       {answer: (*conn).handleLsJob, yard: true},
	overhop.TQStats:      {answer: (*conn).handleQStats, yard: true},
	overhop.TAck:         {answer: (*conn).handleAck},
	overhop.TNack:        {start: (*conn).startNack},
	overhop.TBeat:        {answer: (*conn).handleBeat},
	overhop.TProgress:    {answer: (*conn).handleProgress},
	overhop.TLog:         {answer: (*conn).handleLog},
	overhop.TDone:        {start: (*conn).startDone},
	overhop.TFail:        {start: (*conn).startFail},
	overhop.TAwait:       {answer: (*conn).handleAwait, yard: true},
	overhop.TGoodbye:     {answer: (*conn).handleGoodbye},
	overhop.TCancel:      {answer: (*conn).handleCancel, yard: true},
	overhop.TRetryJob:    {answer: (*conn).handleRetryJob, yard: true},
	overhop.TClrQueue:    {answer: (*conn).handleClrQueue, yard: true},
	overhop.TObliterate:  {answer: (*conn).handleObliterate, yard: true},
}

// handle answers a request of a registered client. An error ends the
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
	if h.yard {
		if !c.out.await(0) {
			return net.ErrClosed
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.s.cfg.Limits.RequestTimeout)
		defer cancel()
	}
	if h.offers {
		c.out.hold()
	}
	ok, err := h.answer(c, ctx, e.P)
	switch {
	case errors.As(err, &violation):
		return c.refuse(e.RID, overhop.CodeProtocolViolation, violation.Reason)
	case err != nil:
		c.answerErr(e, err)
	default:
		c.answerOK(e.RID, ok)
	}
	if h.offers {
		c.out.release()
		c.s.flushOffers()
	}
	if e.T == overhop.TGoodbye {
		if c.parting {
			c.bye("GOODBYE", "as asked")
		}
		c.s.partIfDone(c)
	}
	return nil
}

func (c *conn) answerOK(rid string, ok overhop.Raw) {
	if len(ok) == 0 {
		ok = overhop.EmptyMap
	}
	c.out.answer(func(b []byte) []byte {
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
	code, message, details := refusal(err)
	if e.T == overhop.TLsJob && code == overhop.CodeResultTooLarge { // a page's bodies
		code = overhop.CodeResponseTooLarge
	}
	if unforeseen(err) {
		c.s.log.Warn("edge could not do what a client asked", "t", e.T, "error", err)
		switch {
		case e.T == overhop.TStatus:
			code = overhop.CodeDiagnostics
		case e.T >= overhop.TQueue && e.T <= overhop.TResume:
			code = overhop.CodeQueuePersistence
		}
	}
	c.out.answer(func(b []byte) []byte { return overhop.AppendErr(b, e.RID, code, message, details) })
}

// startPing answers before anything else happens on this connection: no later
// request is read, and no push is written in between.
func (c *conn) startPing(e overhop.Envelope) error {
	if err := overhop.ParseEmpty(e.P); err != nil {
		return err
	}
	c.out.hold()
	if !c.out.await(0) {
		return net.ErrClosed
	}
	c.out.answer(func(b []byte) []byte { return overhop.AppendPong(b, e.RID, time.Now()) })
	c.out.release()
	return nil
}

func (c *conn) handleQueue(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	m, err := overhop.ParseQueueName(p)
	if err != nil {
		return nil, err
	}
	q, found, err := c.yard.Queue(ctx, m.Queue)
	if err != nil || !found {
		return nil, err
	}
	return overhop.AppendValue(nil, queueFields(q)), nil
}

func (c *conn) handleLsQueue(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	if err := overhop.ParseEmpty(p); err != nil {
		return nil, err
	}
	queues, err := c.yard.Queues(ctx)
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
	id, err := c.yard.AddQueue(ctx, m.Name, job.QueueConfig{Limit: m.Limit, AllowOverrides: m.AllowOverrides})
	if err != nil {
		return nil, err
	}
	return textField("qid", id.String()), nil
}

// userQueue reads the queue a request names and checks that users may change
// it. Existence comes first.
func (c *conn) userQueue(ctx context.Context, p overhop.Raw) (string, error) {
	m, err := overhop.ParseQueueName(p)
	if err != nil {
		return "", err
	}
	return m.Queue, c.checkUserQueue(ctx, m.Queue)
}

func (c *conn) checkUserQueue(ctx context.Context, name string) error {
	_, found, err := c.yard.Queue(ctx, name)
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
	return nil, c.yard.RemoveQueue(ctx, queue)
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
	return nil, c.yard.PauseQueue(ctx, queue, paused)
}

func (c *conn) handleQStats(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	queue, err := c.userQueue(ctx, p)
	if err != nil {
		return nil, err
	}
	counts, err := c.yard.Stats(ctx, queue)
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
	_, found, err := c.yard.Queue(ctx, m.Queue)
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

// refusals are the codes of the errors that the rooms share.
var refusals = [...]struct {
	err  error
	code overhop.Code
}{
	{job.ErrQueueNotFound, overhop.CodeQueueNotFound},
	{job.ErrQueueExists, overhop.CodeDuplicateQueue},
	{job.ErrTooManyQueues, overhop.CodeQueuePool},
	{job.ErrQueueNotEmpty, overhop.CodeQueueNotEmpty},
	{job.ErrQueuePaused, overhop.CodeQueuePaused},
	{job.ErrQueueRunning, overhop.CodeQueueRunning},
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

// refusal is an error in the wire's words. One that nobody foresaw is the
// yard's own failure, JOB_PERSISTENCE_ERROR.
func refusal(err error) (code overhop.Code, message string, details overhop.Fields) {
	var more *detailedError
	if errors.As(err, &more) {
		code, message, _ = refusal(more.error)
		return code, message, more.details
	}
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.code, err.Error(), nil
		}
	}
	var coded *codeError
	var away *job.UnavailableError
	var invalid *job.InvalidError
	var other *job.DuplicateError
	var limited *job.LimitedError
	switch {
	case errors.As(err, &coded):
		return coded.code, coded.message, nil
	case errors.As(err, &away):
		return overhop.CodeUnavailable, err.Error(), overhop.Fields{"retry_after_ms": max(away.RetryAfter.Milliseconds(), 100)}
	case errors.As(err, &other):
		return overhop.CodeDuplicateJob, err.Error(), overhop.Fields{"jid": jid(other.Queue, other.ID)}
	case errors.As(err, &limited):
		return overhop.CodeRateLimited, err.Error(), overhop.Fields{"retry_after_ms": max(limited.RetryAfter.Milliseconds(), 1)}
	case errors.As(err, &invalid):
		return overhop.CodeInvalidJobPayload, inWireWords(err.Error()), nil
	}
	return overhop.CodeJobPersistence, err.Error(), nil
}

// inWireWords names the one field of a job that this wire calls otherwise than
// the yard's JSON.
func inWireWords(text string) string { return strings.ReplaceAll(text, "run_at", "scheduled_at") }

// unforeseen tells an error that is the yard's own failure, not the client's.
func unforeseen(err error) bool {
	code, _, _ := refusal(err)
	return code == overhop.CodeJobPersistence
}

// codeError refuses with a code that belongs to no error of package job.
type codeError struct {
	code    overhop.Code
	message string
}

func (e *codeError) Error() string { return e.message }

// detailedError adds to a refusal what a program may want to know.
type detailedError struct {
	error
	details overhop.Fields
}

func (e *detailedError) Unwrap() error { return e.error }
