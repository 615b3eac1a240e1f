package edge

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// jid returns a job's id as used in Overhop, "<queue>:<uuid>".
func jid(queue string, id job.ID) string {
	b := make([]byte, 0, len(queue)+37)
	b = append(append(b, queue...), ':')
	return string(id.Append(b))
}

// errBadJID refuses a text that is not of the form "<queue>:<uuid>".
var errBadJID = &codeError{overhop.CodeInvalidJobID, "jid must be <queue>:<uuid>", nil}

// parseJID splits a jid. It accepts the UUID in canonical form only, and
// refuses system queues.
func parseJID(text []byte) (queue []byte, id job.ID, err error) {
	queue, tail, found := bytes.Cut(text, []byte(":"))
	if !found || len(queue) == 0 {
		return nil, id, errBadJID
	}
	if queue[0] == '_' {
		return nil, id, job.ErrSystemQueue
	}
	if id, err = job.ParseID(string(tail)); err != nil {
		return nil, id, errBadJID
	}
	return queue, id, nil
}

// viewFunc is [Jobs].Job or [Jobs].Peek.
type viewFunc func(ctx context.Context, id job.ID) (job.View, bool, error)

// find returns the job with the given jid. A job that does not exist is not an
// error.
func (q queries) find(ctx context.Context, name string, view viewFunc) (v job.View, found bool, err error) {
	queue, id, err := parseJID([]byte(name))
	if err != nil {
		return v, false, err
	}
	v, found, err = view(ctx, id)
	if err != nil || !found || v.Queue != string(queue) || jid(v.Queue, v.ID) != name {
		return v, false, err
	}
	return v, true, nil
}

// require is find for requests that need the job: it returns job.ErrJobNotFound
// if there is none.
func (q queries) require(ctx context.Context, name string, view viewFunc) (job.View, error) {
	v, found, err := q.find(ctx, name, view)
	if err == nil && !found {
		err = job.ErrJobNotFound
	}
	return v, err
}

// startEnqueue submits a job. The answer is written when the yard has accepted
// or refused the job.
func (c *conn) startEnqueue(e overhop.Envelope) error {
	m, err := overhop.ParseEnqueue(e.P, c.delivery())
	if err != nil {
		return err
	}
	slot, release := c.out.reserve(), c.detachFrame()
	answer := func(id job.ID, err error) {
		release()
		c.out.fill(slot, func(b []byte) []byte {
			if err != nil {
				return appendError(b, e.RID, err)
			}
			b, mark := overhop.Begin(b)
			b = overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(b, 1), "jid"), jid(m.Queue, id))
			b, _ = overhop.End(b, mark, overhop.TOK, e.RID)
			return b
		})
	}
	spec, err := specOf(&m)
	if limit := c.s.cfg.Wire.MaxEnvelope - questOverhead; err == nil && len(e.P) > limit {
		err = &codeError{overhop.CodeResultTooLarge, "the job would not fit into a QUEST", overhop.Fields{"limit": limit}}
	}
	if err == nil && m.Notify {
		err = c.beginAwait()
	}
	if err != nil {
		answer(job.ID{}, err)
		return nil
	}
	done := answer
	if m.Notify {
		done = func(id job.ID, err error) {
			answer(id, err)
			c.awaitEnqueued(m.Queue, id, err)
		}
	}
	c.cluster.Enqueue(c.ctx, m.Queue, spec, m.Key, done)
	return nil
}

// questOverhead is an upper limit, in bytes, of what a QUEST, or a record of a
// job that has not run, adds to the payload of an ENQUEUE.
const questOverhead = 1 << 10

// specOf converts an ENQUEUE to a job spec. A payload that is a map without
// binary values becomes JSON params; any other stays MessagePack.
func specOf(m *overhop.Enqueue) (job.Spec, error) {
	if m.Key != "" && len(m.Key) > job.MaxKeyLen {
		return job.Spec{}, job.ErrKeyTooLong
	}
	spec := job.Spec{
		Function: m.Function, Priority: m.Priority, Trace: m.Trace,
		UniqueKey: m.UniqueKey, UniqueTTLMS: m.UniqueTTL, RateLimitKey: m.RateLimitKey, RateLimitMS: m.RateLimit,
		DebounceKey: m.DebounceKey, DebounceMS: m.Debounce,
	}
	switch params, err := mapParams(m.Payload); {
	case err == nil && params != nil && len(params) <= job.MaxBody/2: // larger ones grow too much as JSON
		spec.Params = params
	case !m.Payload.IsNil():
		spec.Payload = slices.Clone(m.Payload)
	case m.Function == "":
		spec.Payload = overhop.Nil
	}
	if !m.At.IsZero() {
		spec.RunAt = &m.At
	}
	for _, f := range [...]struct {
		from int64
		to   **int64
	}{{m.MaxAttempts, &spec.MaxAttempts}, {m.RetryInterval, &spec.RetryInterval}, {m.Timeout, &spec.TimeoutMS}} {
		if f.from > 0 {
			*f.to = &f.from
		}
	}
	// The protocol accepts an interval or a timeout longer than a record can
	// hold: it is stored as the longest possible.
	maxMS := job.MaxDuration.Milliseconds()
	for _, ms := range []*int64{spec.RetryInterval, spec.TimeoutMS} {
		if ms != nil {
			*ms = min(*ms, maxMS)
		}
	}
	return spec, spec.Validate()
}

// mapParams returns a payload as JSON if it is a map, nil if it is another
// value, and an error if JSON cannot represent it.
func mapParams(payload overhop.Raw) ([]byte, error) {
	if payload.Kind() != overhop.KindMap {
		return nil, nil
	}
	defer acquireConversion(payload)()
	return overhop.AppendJSON(nil, payload)
}

// largeValueSize is the size in bytes from which only a few values at a time
// are converted to JSON: during the conversion a malicious value can take many
// times its size.
const largeValueSize = 256 << 10

var conversions = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// acquireConversion waits until r may be converted to JSON. release must be
// called afterwards.
func acquireConversion(r overhop.Raw) (release func()) {
	if len(r) < largeValueSize {
		return func() {}
	}
	conversions <- struct{}{}
	return func() { <-conversions }
}

func (q queries) handleJob(ctx context.Context, name string) (overhop.Raw, error) {
	v, found, err := q.find(ctx, name, q.cluster.Job)
	if err != nil || !found {
		return nil, err
	}
	return q.jobFields(&v).Raw(), nil
}

func (q queries) handleRmJob(ctx context.Context, name string) (overhop.Raw, error) {
	v, err := q.require(ctx, name, q.cluster.Peek)
	if err != nil {
		return nil, err
	}
	return nil, q.cluster.RemoveJob(ctx, v.ID)
}

func (q queries) handleLsJob(ctx context.Context, m overhop.ListJobs) (overhop.Raw, error) {
	if _, found, err := q.cluster.Queue(ctx, m.Queue); err != nil || !found {
		if err == nil {
			err = job.ErrQueueNotFound
		}
		return nil, err
	}
	state, ok := job.ParseState(m.Status)
	if !ok {
		return nil, badStatus(m.Status)
	}
	pages := q.cfg.Pagination
	size := pages.PageSize
	if m.PageSize > 0 {
		size = int(min(m.PageSize, int64(pages.largestPage())))
	}
	views, err := q.cluster.List(ctx, m.Queue, state, int(m.Page), size)
	if errors.Is(err, job.ErrTooLarge) {
		return nil, &codeError{overhop.CodeResponseTooLarge, err.Error(), overhop.Fields{"limit": q.cfg.Wire.MaxEnvelope}}
	}
	if err != nil {
		return nil, err
	}
	records := make([]any, len(views))
	for i := range views {
		records[i] = q.jobFields(&views[i])
	}
	return overhop.Fields{
		"q": m.Queue, "status": m.Status, "page": m.Page, "page_size": size, "jobs": records,
	}.Raw(), nil
}

func badStatus(name string) error {
	return &codeError{overhop.CodeInvalidStatusFilter, "status " + truncate(name, 40) + " is not one of new, waiting, delayed, active, completed, failed", nil}
}

func (q queries) handleCancel(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	name, reason, err := overhop.ParseCancel(p)
	if err != nil {
		return nil, err
	}
	v, err := q.require(ctx, name, q.cluster.Peek)
	if err != nil {
		return nil, err
	}
	state, err := q.cluster.Cancel(ctx, v.ID, reason)
	if errors.Is(err, job.ErrJobEnded) {
		if v, found, _ := q.find(ctx, name, q.cluster.Peek); found && v.State.Ended() {
			err = &codeError{overhop.CodeAlreadyTerminal, err.Error(), overhop.Fields{"status": v.State.String()}}
		}
	}
	return textField("status", state.String()), err
}

func (q queries) handleRetryJob(ctx context.Context, name string) (overhop.Raw, error) {
	v, err := q.require(ctx, name, q.cluster.Peek)
	if err != nil {
		return nil, err
	}
	state, err := q.cluster.Retry(ctx, v.ID)
	return textField("status", state.String()), err
}

// clearable are the states that CLRQUEUE removes if the request lists none.
// Active jobs are never removed.
var clearable = []job.State{job.New, job.Waiting, job.Delayed, job.Completed, job.Failed}

func (q queries) handleClrQueue(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	queue, statuses, err := overhop.ParseClrQueue(p)
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
		if !ok || state == job.Active {
			return nil, badStatus(name)
		}
		states = append(states, state)
	}
	removed, err := q.cluster.Clear(ctx, queue, states)
	return removedField(removed), err
}

func (q queries) handleObliterate(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	queue, force, err := overhop.ParseObliterate(p)
	if err != nil {
		return nil, err
	}
	if err := q.checkUserQueue(ctx, queue); err != nil {
		return nil, err
	}
	removed, err := q.cluster.Obliterate(ctx, queue, force)
	return removedField(removed), err
}

func removedField(n int) overhop.Raw { return overhop.Fields{"removed": n}.Raw() }
