package edge

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// jid returns a job's id as used in Overhop, "<queue>:<uuid>".
func jid(queue string, id job.ID) string {
	var b [128]byte
	return string(appendJID(b[:0], queue, id))
}

// appendJID appends [jid] to b.
func appendJID(b []byte, queue string, id job.ID) []byte {
	return id.Append(append(append(b, queue...), ':'))
}

// errBadJID refuses a text that is not of the form "<queue>:<uuid>".
var errBadJID = &codeError{overhop.CodeInvalidJobID, "jid must be <queue>:<uuid>", nil}

// parseJID splits a jid, and then refuses system queues. The UUID may have any usual form; in
// another than the canonical one, it names no job.
func parseJID(text []byte) (queue []byte, id job.ID, err error) {
	queue, text, found := bytes.Cut(text, []byte(":"))
	if !found || len(queue) == 0 {
		return nil, id, errBadJID
	}
	parsed, err := uuid.ParseBytes(text)
	switch {
	case err != nil:
		return nil, id, errBadJID
	case queue[0] == '_':
		return nil, id, job.ErrSystemQueue
	}
	return queue, job.ID(parsed), nil
}

// viewFunc is [Session].Job or [Session].Peek.
type viewFunc func(ctx context.Context, id job.ID) (job.View, bool, error)

// find looks up the job with the given jid. found is false, without an error, if
// the job does not exist or is in another queue than the jid says.
func (q queries) find(ctx context.Context, name string, lookUp viewFunc) (view job.View, found bool, err error) {
	queue, id, err := parseJID([]byte(name))
	if err != nil {
		return job.View{}, false, err
	}
	view, found, err = lookUp(ctx, id)
	return view, found && view.Queue == string(queue) && jid(view.Queue, view.ID) == name, err
}

// require is find for requests that need the job: it returns job.ErrJobNotFound
// if the job does not exist.
func (q queries) require(ctx context.Context, name string, lookUp viewFunc) (job.View, error) {
	view, found, err := q.find(ctx, name, lookUp)
	if err == nil && !found {
		err = job.ErrJobNotFound
	}
	return view, err
}

// questOverhead is an upper limit, in bytes, of what a QUEST, or a record of a
// job that has not run, adds to the payload of an ENQUEUE.
const questOverhead = 1 << 10

// startEnqueue submits a job. The answer is written when the cluster has
// accepted or refused the job. If the client asked to be notified, a JOBEND
// follows once the job has ended.
func (c *conn) startEnqueue(request overhop.Envelope) error {
	message, err := overhop.ParseEnqueue(request.P, c.delivery())
	if err != nil {
		return err
	}
	// The functions below keep these, and neither message nor request.
	rid, queue, notify := request.RID, message.Queue, message.Notify
	reply, releaseFrame := c.out.reserve(), c.detachFrame()
	handedOver, awaited := false, false
	defer func() {
		if handedOver {
			return
		}
		releaseFrame() // it was answered, or this panics
		if awaited {
			c.endAwait()
		}
	}()
	answer := func(id job.ID, err error) {
		releaseFrame()
		c.out.fill(reply, func(b []byte) []byte {
			if err != nil {
				return appendError(b, rid, err)
			}
			var text [128]byte
			b, mark := overhop.Begin(b)
			b = overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(b, 1), "jid"), appendJID(text[:0], queue, id))
			b, _ = overhop.End(b, mark, overhop.TOK, rid)
			return b
		})
	}

	spec, err := specOf(&message)
	if limit := c.server.cfg.Wire.MaxEnvelope - questOverhead; err == nil && len(request.P) > limit {
		err = tooLarge(overhop.CodeResultTooLarge, "the job would not fit into a QUEST", limit)
	}
	if err == nil && notify {
		err = c.beginAwait()
		awaited = err == nil
	}
	if err != nil {
		answer(job.ID{}, err)
		return nil
	}

	c.cluster.Enqueue(c.ctx, queue, spec, message.Key, func(id job.ID, err error) {
		answer(id, err)
		if !notify {
			return
		}
		if err != nil {
			c.endAwait()
			return
		}
		go c.pushJobEnd(c.ctx, queue, id)
	})
	handedOver = true
	return nil
}

// specOf converts an ENQUEUE to a job spec. A payload that is a map without
// binary values becomes JSON params, unless it is so large that it could exceed
// the limit as JSON; any other payload stays MessagePack. A time longer than a record can hold, which the protocol accepts, becomes the
// longest possible.
func specOf(request *overhop.Enqueue) (job.Spec, error) {
	if len(request.Key) > job.MaxKeyLen {
		return job.Spec{}, job.ErrKeyTooLong
	}
	longest := job.MaxDuration.Milliseconds()
	spec := job.Spec{
		Function: request.Function, Priority: request.Priority, Trace: request.Trace,
		UniqueKey: request.UniqueKey, UniqueTTLMS: request.UniqueTTL, UniqueUntil: request.UniqueUntil,
		RateLimitKey: request.RateLimitKey, RateLimitMS: request.RateLimit,
		DebounceKey: request.DebounceKey, DebounceMS: request.Debounce,
		LimitKey: request.LimitKey, Limits: request.Limits, Tags: request.Tags, Meta: request.Meta, ExpiresInMS: request.ExpiresIn,
		MaxAttempts:    nilIfZero(request.MaxAttempts),
		RetryInterval:  nilIfZero(min(request.RetryInterval, longest)),
		TimeoutMS:      nilIfZero(min(request.Timeout, longest)),
		RetryOnTimeout: request.RetryOnTimeout,
		ResultTTLMS:    nilIfZero(min(request.ResultTTL, longest)),
	}
	switch {
	case request.Delay != nil:
		spec.DelayMS = new(min(*request.Delay, longest))
	case !request.At.IsZero():
		spec.RunAt = new(request.At)
	}
	if !request.ExpiresAt.IsZero() {
		spec.ExpiresAt = new(request.ExpiresAt)
	}
	if request.PayloadJSON != nil {
		spec.Params = slices.Clone(request.PayloadJSON)
		return spec, spec.Validate()
	}
	switch params := mapParams(request.Payload); {
	case params != nil && len(params) <= job.MaxBody/2:
		spec.Params = params
	case !request.Payload.IsNil():
		spec.Payload = slices.Clone(request.Payload)
	case request.Function == "":
		spec.Payload = overhop.Nil
	}
	return spec, spec.Validate()
}

func nilIfZero(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// mapParams returns a payload as JSON if it is a map without binary values, and
// otherwise nil.
func mapParams(payload overhop.Raw) []byte {
	if payload.Kind() != overhop.KindMap {
		return nil
	}
	defer acquireConversion(payload)()
	params, _ := overhop.AppendJSON(nil, payload) // fails only for binary values, and returns nil then
	return params
}

// JSONOf returns the MessagePack of a payload as JSON. It fails if the protocol does not allow
// the payload, or JSON cannot represent it.
func JSONOf(payload []byte) ([]byte, error) {
	if err := overhop.CheckDepth(payload, overhop.MaxDepth); err != nil {
		return nil, err
	}
	defer acquireConversion(payload)()
	return overhop.AppendJSON(nil, payload)
}

// CheckPayload returns why no worker can be given the MessagePack of a payload, or nil.
func CheckPayload(payload []byte) error {
	return overhop.CheckDepth(payload, job.MaxDepth)
}

// largeValueSize is the size in bytes from which only a few values at a time
// are converted to JSON: during the conversion a malicious value can take many
// times its size.
const largeValueSize = 256 << 10

var conversions = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// acquireConversion waits until value may be converted to JSON. release must be
// called after the conversion.
func acquireConversion(value overhop.Raw) (release func()) {
	if len(value) < largeValueSize {
		return func() {}
	}
	conversions <- struct{}{}
	return func() { <-conversions }
}

func (q queries) handleJob(ctx context.Context, name string) (overhop.Raw, error) {
	view, found, err := q.find(ctx, name, q.cluster.Job)
	if err != nil || !found {
		return nil, err
	}
	return q.jobFields(&view).Raw(), nil
}

func (q queries) handleRmJob(ctx context.Context, name string) (overhop.Raw, error) {
	view, err := q.require(ctx, name, q.cluster.Peek)
	if err != nil {
		return nil, err
	}
	return nil, q.cluster.RemoveJob(ctx, view.ID)
}

// handleLsJob answers with one page of those jobs of a queue whose state is the one
// that the request calls its status. A request for more jobs than a page may have gets
// the largest possible page, a request without a page size the configured one.
func (q queries) handleLsJob(ctx context.Context, request overhop.ListJobs) (overhop.Raw, error) {
	if err := q.requireQueue(ctx, request.Queue); err != nil {
		return nil, err
	}
	state, ok := job.ParseState(request.Status)
	if !ok || state != state.Overhop() {
		return nil, badStatus(request.Status)
	}
	pages := q.server.cfg.Pagination
	size := pages.PageSize
	if request.PageSize > 0 {
		size = int(min(request.PageSize, int64(pages.largestPage())))
	}

	views, err := q.cluster.List(ctx, request.Queue, state, int(request.Page), size)
	if errors.Is(err, job.ErrTooLarge) {
		return nil, tooLarge(overhop.CodeResponseTooLarge, err.Error(), q.server.cfg.Wire.MaxEnvelope)
	}
	if err != nil {
		return nil, err
	}
	records := make([]any, len(views))
	for i := range views {
		records[i] = q.jobFields(&views[i])
	}
	return overhop.Fields{
		"q": request.Queue, "status": request.Status, "page": request.Page, "page_size": size, "jobs": records,
	}.Raw(), nil
}

// badStatus returns the error of a request that names a state which does not exist.
func badStatus(name string) error {
	return &codeError{overhop.CodeInvalidStatusFilter, "status " + truncate(name, 40) + " is not one of new, waiting, delayed, active, completed, failed", nil}
}

// handleCancel cancels a job and answers with its state afterwards. If the job
// has ended before, the error contains the state in which it ended.
func (q queries) handleCancel(ctx context.Context, payload overhop.Raw) (overhop.Raw, error) {
	name, reason, err := overhop.ParseCancel(payload)
	if err != nil {
		return nil, err
	}
	view, err := q.require(ctx, name, q.cluster.Peek)
	if err != nil {
		return nil, err
	}
	state, err := q.cluster.Cancel(ctx, view.ID, reason)
	if errors.Is(err, job.ErrJobEnded) {
		if view, found, _ := q.find(ctx, name, q.cluster.Peek); found && view.State.Ended() {
			err = &codeError{overhop.CodeAlreadyTerminal, err.Error(), overhop.Fields{"status": view.State.String()}}
		}
	}
	return textField("status", state.String()), err
}

func (q queries) handleRetryJob(ctx context.Context, name string) (overhop.Raw, error) {
	view, err := q.require(ctx, name, q.cluster.Peek)
	if err != nil {
		return nil, err
	}
	state, err := q.cluster.Retry(ctx, view.ID)
	return textField("status", state.String()), err
}

// handleSetJob changes a job that has not started, and answers with its state.
func (q queries) handleSetJob(ctx context.Context, s overhop.SetJob) (overhop.Raw, error) {
	if s.Priority == nil && s.At == nil && s.Delay == nil || s.At != nil && s.Delay != nil {
		return nil, &job.InvalidError{Reason: "give priority, and scheduled_at or delay_ms, or one of them"}
	}
	asSpec := job.Spec{Function: "any", RunAt: s.At}
	if err := asSpec.Validate(); err != nil {
		return nil, err
	}
	view, err := q.require(ctx, s.JID, q.cluster.Peek)
	if err != nil {
		return nil, err
	}
	var priority *uint8
	if s.Priority != nil {
		priority = new(uint8(*s.Priority))
	}
	var start Start
	switch {
	case s.At != nil:
		start.At = *s.At
	case s.Delay == nil:
	case *s.Delay == 0:
		start.At = time.Unix(0, 0) // now, whatever the clocks show
	default:
		start.Delay = min(*s.Delay, job.MaxDuration)
	}
	state, err := q.cluster.ChangeJob(ctx, view.ID, priority, start)
	return textField("status", state.String()), err
}

// clearable are the states that CLRQUEUE removes if the request lists none.
// Active jobs are never removed.
var clearable = []job.State{job.New, job.Waiting, job.Delayed, job.Completed, job.Failed}

// handleClrQueue removes a queue's jobs in the states that the request lists,
// and answers with their number. An empty list removes none, no list removes
// jobs in all clearable states.
func (q queries) handleClrQueue(ctx context.Context, payload overhop.Raw) (overhop.Raw, error) {
	queue, statuses, err := overhop.ParseClrQueue(payload)
	if err != nil {
		return nil, err
	}
	if err := q.checkUserQueue(ctx, queue); err != nil {
		return nil, err
	}
	states := clearable
	if statuses != nil {
		states = nil
	}
	for _, name := range statuses {
		state, ok := job.ParseState(name)
		if !ok || state == job.Active || state != state.Overhop() {
			return nil, badStatus(name)
		}
		states = append(states, state)
	}
	removed, err := q.cluster.Clear(ctx, queue, states)
	return overhop.Fields{"removed": removed}.Raw(), err
}

// handleObliterate removes a queue with all its jobs and answers with their
// number.
func (q queries) handleObliterate(ctx context.Context, payload overhop.Raw) (overhop.Raw, error) {
	queue, force, err := overhop.ParseObliterate(payload)
	if err != nil {
		return nil, err
	}
	if err := q.checkUserQueue(ctx, queue); err != nil {
		return nil, err
	}
	removed, err := q.cluster.Obliterate(ctx, queue, force)
	return overhop.Fields{"removed": removed}.Raw(), err
}
