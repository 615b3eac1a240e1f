package edge

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// This file handles what producers ask about jobs.

// jid is a job's name on this wire.
func jid(queue string, id job.ID) string {
	b := make([]byte, 0, len(queue)+37)
	b = append(append(b, queue...), ':')
	return string(id.Append(b))
}

// errBadJID refuses a text that is not "<queue>:<uuid>".
var errBadJID = &codeError{overhop.CodeInvalidJobID, "jid must be <queue>:<uuid>"}

// parseJID splits a job's name. Only the canonical spelling of the UUID names
// a job.
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

// showing is [Jobs].Job or [Jobs].Look.
type showing func(ctx context.Context, id job.ID) (job.View, bool, error)

// find shows the job that a jid names; not found is not an error.
func (c *conn) find(ctx context.Context, name string, show showing) (v job.View, found bool, err error) {
	queue, id, err := parseJID([]byte(name))
	if err != nil {
		return v, false, err
	}
	v, found, err = show(ctx, id)
	if err != nil || !found || v.Queue != string(queue) || jid(v.Queue, v.ID) != name {
		return v, false, err
	}
	return v, true, nil
}

// must is find for requests that need the job.
func (c *conn) must(ctx context.Context, name string, show showing) (job.View, error) {
	v, found, err := c.find(ctx, name, show)
	if err == nil && !found {
		err = job.ErrJobNotFound
	}
	return v, err
}

func (c *conn) startEnqueue(e overhop.Envelope) error {
	m, err := overhop.ParseEnqueue(e.P, c.delivery())
	if err != nil {
		return err
	}
	slot, drop := c.out.reserve(), c.carry()
	answer := func(id job.ID, err error) {
		drop()
		c.out.fill(slot, func(b []byte) []byte {
			if err != nil {
				code, message, details := refusal(err)
				return overhop.AppendErr(b, e.RID, code, message, details)
			}
			b, mark := overhop.Begin(b)
			b = overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(b, 1), "jid"), jid(m.Queue, id))
			b, _ = overhop.End(b, mark, overhop.TOK, e.RID)
			return b
		})
	}
	spec, err := specOf(&m)
	if room := c.s.cfg.Wire.MaxEnvelope - questRoom; err == nil && len(e.P) > room {
		err = &detailedError{&codeError{overhop.CodeResultTooLarge, "the job would not fit into a QUEST"}, overhop.Fields{"limit": room}}
	}
	if err == nil && m.Notify {
		err = c.mayAwait()
	}
	if err != nil {
		answer(job.ID{}, err)
		return nil
	}
	then := answer
	if m.Notify {
		then = func(id job.ID, err error) {
			answer(id, err)
			c.awaitEnqueued(m.Queue, id, err)
		}
	}
	c.yard.Enqueue(c.ctx, m.Queue, spec, m.Key, then)
	return nil
}

// questRoom is more than a QUEST, or a record of a job that has not run, takes
// around what an ENQUEUE brought, in bytes.
const questRoom = 1 << 10

// specOf turns an ENQUEUE into what the yard keeps. A payload that is a map
// without binary becomes params; any other stays MessagePack.
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
	case err == nil && params != nil && len(params) <= job.MaxBody/2: // else JSON inflates it
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
	// An interval or a timeout beyond what a record takes means as long as can
	// be: the wire allows it.
	most := job.MaxDuration.Milliseconds()
	for _, ms := range []*int64{spec.RetryInterval, spec.TimeoutMS} {
		if ms != nil {
			*ms = min(*ms, most)
		}
	}
	return spec, spec.Validate()
}

func mapParams(payload overhop.Raw) ([]byte, error) {
	if payload.Kind() != overhop.KindMap {
		return nil, nil
	}
	defer takeTurn(payload)()
	return overhop.AppendJSON(nil, payload)
}

// Values from largeValue bytes on become JSON few at a time: a hostile one
// takes many times its size while that goes on.
const largeValue = 256 << 10

var largeValues = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// takeTurn waits until r may become JSON; done lets the next one.
func takeTurn(r overhop.Raw) (done func()) {
	if len(r) < largeValue {
		return func() {}
	}
	largeValues <- struct{}{}
	return func() { <-largeValues }
}

func (c *conn) handleJob(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	name, err := overhop.ParseJobRef(p)
	if err != nil {
		return nil, err
	}
	v, found, err := c.find(ctx, name, c.yard.Job)
	if err != nil || !found {
		return nil, err
	}
	return overhop.AppendValue(nil, c.s.record(&v)), nil
}

// named looks at the job that a request names and nothing else.
func (c *conn) named(ctx context.Context, p overhop.Raw) (job.View, error) {
	name, err := overhop.ParseJobRef(p)
	if err != nil {
		return job.View{}, err
	}
	return c.must(ctx, name, c.yard.Look)
}

func (c *conn) handleRmJob(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	v, err := c.named(ctx, p)
	if err != nil {
		return nil, err
	}
	return nil, c.yard.RemoveJob(ctx, v.ID)
}

func (c *conn) handleLsJob(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	m, err := overhop.ParseListJobs(p)
	if err != nil {
		return nil, err
	}
	if _, found, err := c.yard.Queue(ctx, m.Queue); err != nil || !found {
		if err == nil {
			err = job.ErrQueueNotFound
		}
		return nil, err
	}
	state, ok := job.ParseState(m.Status)
	if !ok {
		return nil, badStatus(m.Status)
	}
	pages := c.s.cfg.Pagination
	size := pages.PageSize
	if m.PageSize > 0 {
		size = int(min(m.PageSize, int64(pages.MaxPageSize)))
	}
	views, err := c.yard.List(ctx, m.Queue, state, int(m.Page), size)
	if errors.Is(err, job.ErrTooLarge) {
		return nil, &detailedError{&codeError{overhop.CodeResponseTooLarge, err.Error()}, overhop.Fields{"limit": c.s.cfg.Wire.MaxEnvelope}}
	}
	if err != nil {
		return nil, err
	}
	records := make([]any, len(views))
	for i := range views {
		records[i] = c.s.record(&views[i])
	}
	return overhop.AppendValue(nil, overhop.Fields{
		"q": m.Queue, "status": m.Status, "page": m.Page, "page_size": size, "jobs": records,
	}), nil
}

func badStatus(name string) error {
	return &codeError{overhop.CodeInvalidStatusFilter, "status " + clip(name, 40) + " is not one of new, waiting, delayed, active, completed, failed"}
}

func (c *conn) handleCancel(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	name, reason, err := overhop.ParseCancel(p)
	if err != nil {
		return nil, err
	}
	v, err := c.must(ctx, name, c.yard.Look)
	if err != nil {
		return nil, err
	}
	state, err := c.yard.Cancel(ctx, v.ID, reason)
	if errors.Is(err, job.ErrJobEnded) {
		if v, found, _ := c.find(ctx, name, c.yard.Look); found && v.State.Ended() {
			err = &detailedError{err, overhop.Fields{"status": v.State.String()}}
		}
	}
	return textField("status", state.String()), err
}

func (c *conn) handleRetryJob(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	v, err := c.named(ctx, p)
	if err != nil {
		return nil, err
	}
	state, err := c.yard.Retry(ctx, v.ID)
	return textField("status", state.String()), err
}

// clearable are the states CLRQUEUE removes if it has no list of them: active
// jobs are never cleared.
var clearable = []job.State{job.New, job.Waiting, job.Delayed, job.Completed, job.Failed}

func (c *conn) handleClrQueue(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	queue, statuses, err := overhop.ParseClrQueue(p)
	if err != nil {
		return nil, err
	}
	if err := c.checkUserQueue(ctx, queue); err != nil {
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
	removed, err := c.yard.Clear(ctx, queue, states)
	return removedField(removed), err
}

func (c *conn) handleObliterate(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	queue, force, err := overhop.ParseObliterate(p)
	if err != nil {
		return nil, err
	}
	if err := c.checkUserQueue(ctx, queue); err != nil {
		return nil, err
	}
	removed, err := c.yard.Obliterate(ctx, queue, force)
	return removedField(removed), err
}

func removedField(n int) overhop.Raw { return overhop.AppendValue(nil, overhop.Fields{"removed": n}) }
