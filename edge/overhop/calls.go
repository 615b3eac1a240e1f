package overhop

import (
	"context"
	"time"
)

// callForText sends a request, whose payload map p appends to its argument, and returns one
// text of its answer.
func (c *Client) callForText(ctx context.Context, t int64, p func([]byte) []byte, name string) (string, error) {
	answer, err := c.call(ctx, t, p, name)
	return answer.text, err
}

// Subscribe subscribes to a queue with the given credits and returns the
// subscription's id.
func (c *Client) Subscribe(ctx context.Context, queue string, credits uint32) (sid string, err error) {
	return c.callForText(ctx, TSubscribe, Fields{"q": queue, "credits": credits}.append, "sid")
}

// Credit adds n credits to a subscription; n must be at least 1.
func (c *Client) Credit(ctx context.Context, sid string, n uint32) error {
	_, err := c.Call(ctx, TCredit, Fields{"sid": sid, "credits": n}.Raw())
	return err
}

// AddQueue creates a queue and returns its id.
func (c *Client) AddQueue(ctx context.Context, q AddQueue) (qid string, err error) {
	config := Fields{"allow_job_overrides": q.AllowOverrides, "concurrency_limit": nil}
	if q.Limit > 0 {
		config["concurrency_limit"] = q.Limit
	}
	return c.callForText(ctx, TAddQueue, Fields{"name": q.Name, "config": config}.append, "qid")
}

// Enqueue submits a job and returns its id once the job is accepted.
func (c *Client) Enqueue(ctx context.Context, e Enqueue) (jid string, err error) {
	return c.enqueue(ctx, &e)
}

// enqueue is Enqueue without a copy of the job.
func (c *Client) enqueue(ctx context.Context, e *Enqueue) (jid string, err error) {
	return c.callForText(ctx, TEnqueue, func(b []byte) []byte { return e.append(b, c) }, "jid")
}

// GoEnqueue submits a job without waiting. done is called as described at
// [Client.Go]. The jobs of one client are accepted in the order of the calls.
func (c *Client) GoEnqueue(e Enqueue, done func(jid string, err error)) {
	c.Go(TEnqueue, func(b []byte) []byte { return e.append(b, c) }, func(ok Raw, err error) { done(ok.getText("jid"), err) })
}

// userValue returns the field in which a value, which may be empty, is sent under the given
// key. A value that has a number is sent as JSON, if the node takes that. Else it cannot be
// sent.
func (c *Client) userValue(key string, value Raw) (field string, sent Raw) {
	if c.takesJSON && value.HasNumber() {
		if text, err := AppendJSON(nil, value); err == nil { // else it contains binary, too
			return key + JSONSuffix, AppendBin(nil, text)
		}
	}
	return key, value.orNil()
}

// setUserValue sets the field of a value in p.
func (c *Client) setUserValue(p Fields, key string, value Raw) {
	field, sent := c.userValue(key, value)
	p[field] = sent
}

// append appends the payload of the ENQUEUE over c to b, without the fields that are
// not set. A negative number counts as not set.
func (e *Enqueue) append(b []byte, c *Client) []byte {
	m := beginMap(b)
	writeIfGiven(&m, "debounce_key", e.DebounceKey, AppendStr)
	writeIfGiven(&m, "debounce_ms", e.Debounce, AppendInt)
	writeIfGiven(&m, "delay_ms", e.Delay, AppendInt)
	if !e.ExpiresAt.IsZero() {
		m.begin("expires_at")
		m.out = AppendTime(m.out, e.ExpiresAt)
	}
	writeIfGiven(&m, "expires_in_ms", e.ExpiresIn, AppendInt)
	writeUnlessZero(&m, "fn", e.Function, AppendStr)
	field, payload := c.userValue("job_payload", e.Payload)
	m.begin(field)
	m.out = append(m.out, payload...)
	writeUnlessZero(&m, "key", e.Key, AppendStr)
	writeIfGiven(&m, "limit_key", e.LimitKey, AppendStr)
	if len(e.Limits) > 0 {
		m.begin("limits")
		m.out = AppendValue(m.out, e.Limits)
	}
	writeUnlessZero(&m, "max_attempts", max(e.MaxAttempts, 0), AppendInt)
	if len(e.Meta) > 0 {
		m.begin("meta")
		m.out = AppendValue(m.out, e.Meta)
	}
	writeUnlessZero(&m, "notify", e.Notify, AppendBool)
	writeIfGiven(&m, "priority", e.Priority, AppendInt)
	m.begin("q")
	m.out = AppendStr(m.out, e.Queue)
	writeIfGiven(&m, "rate_limit_key", e.RateLimitKey, AppendStr)
	writeIfGiven(&m, "rate_limit_ms", e.RateLimit, AppendInt)
	writeUnlessZero(&m, "result_ttl_ms", max(e.ResultTTL, 0), AppendInt)
	writeUnlessZero(&m, "retry_interval_ms", max(e.RetryInterval, 0), AppendInt)
	writeIfGiven(&m, "retry_on_timeout", e.RetryOnTimeout, AppendBool)
	if !e.At.IsZero() {
		m.begin("scheduled_at")
		m.out = AppendTime(m.out, e.At)
	}
	if len(e.Tags) > 0 {
		m.begin("tags")
		m.out = AppendValue(m.out, e.Tags)
	}
	writeUnlessZero(&m, "timeout_ms", max(e.Timeout, 0), AppendInt)
	if len(e.Trace) > 0 {
		m.begin("trace")
		m.out = AppendValue(m.out, e.Trace)
	}
	writeIfGiven(&m, "unique_key", e.UniqueKey, AppendStr)
	writeIfGiven(&m, "unique_ttl_ms", e.UniqueTTL, AppendInt)
	writeIfGiven(&m, "unique_until", e.UniqueUntil, AppendStr)
	return m.end()
}

// Job returns a job's record, or an empty map if the job is unknown.
func (c *Client) Job(ctx context.Context, jid string) (Raw, error) {
	return c.Call(ctx, TJob, Fields{"jid": jid}.Raw())
}

// Await returns a job's record if the job has ended. Otherwise ended is false, and
// the node pushes a JOBEND to [Options].OnPush if the job ends within wait, which
// is limited to 0 to [MaxAwait].
func (c *Client) Await(ctx context.Context, jid string, wait time.Duration) (record Raw, ended bool, err error) {
	record, err = c.Call(ctx, TAwait, Fields{"jid": jid, "timeout_ms": min(wireDelay(wait), MaxAwait.Milliseconds())}.Raw())
	pending, _ := record.Get("pending").Bool()
	return record, err == nil && !pending, err
}

// Ack accepts a QUEST. done may be nil; it is called as described at
// [Client.Go].
func (c *Client) Ack(q *Quest, done func(Raw, error)) { c.Go(TAck, q.appendLeaseRef, done) }

// appendLeaseRef appends a map with the job's id and q's token.
func (q *Quest) appendLeaseRef(b []byte) []byte {
	b = AppendStr(AppendStr(AppendMap(b, 2), "jid"), q.JID)
	return AppendBin(AppendStr(b, "tok"), q.Token[:])
}

// Done ends a dispatch successfully. result may be empty. credits are added to
// the queue's subscription. done may be nil; it is called with the answer once
// the outcome is committed, or with an error, as described at [Client.Go].
func (c *Client) Done(q *Quest, result Raw, credits uint32, done func(Raw, error)) {
	c.Go(TDone, func(b []byte) []byte {
		if credits > 0 {
			b = AppendInt(AppendStr(AppendMap(b, 4), "credits"), int64(credits))
		} else {
			b = AppendMap(b, 3)
		}
		b = AppendStr(AppendStr(b, "jid"), q.JID)
		field, sent := c.userValue("result", result)
		b = append(AppendStr(b, field), sent...)
		return AppendBin(AppendStr(b, "tok"), q.Token[:])
	}, done)
}

// Fail ends a dispatch with a failure. It ignores the [LeaseRef] of f and sends
// that of q. done is called as by [Client.Done].
func (c *Client) Fail(q *Quest, f Fail, done func(Raw, error)) {
	reason := Fields{"message": f.Message}
	setUnlessZero(reason, "type", f.Type)
	setUnlessZero(reason, "code", f.Code)
	if len(f.Details) > 0 {
		c.setUserValue(reason, "details", f.Details)
	}
	p := Fields{"jid": q.JID, "tok": q.Token[:], "error": reason, "retry": f.Retry}
	switch {
	case f.Snooze != nil && c.takesSnooze:
		p["snooze_ms"] = wireDelay(*f.Snooze)
	case f.Snooze != nil:
		p["retry_after_ms"] = wireDelay(*f.Snooze)
	case f.RetryAfter != nil:
		p["retry_after_ms"] = wireDelay(*f.RetryAfter)
	}
	setUnlessZero(p, "credits", f.Credits)
	c.Go(TFail, p.append, done)
}

// wireDelay returns a delay in milliseconds. A negative delay becomes 0,
// because the node would close the connection.
func wireDelay(d time.Duration) int64 { return max(d.Milliseconds(), 0) }

// Nack declines a QUEST that was not acknowledged.
func (c *Client) Nack(q *Quest, n Nack, done func(Raw, error)) {
	p := Fields{"jid": q.JID, "tok": q.Token[:], "reason": n.Reason, "delay_ms": wireDelay(n.Delay)}
	setUnlessZero(p, "credits", n.Credits)
	c.Go(TNack, p.append, done)
}

// Beat extends the leases of quests. When the node has answered, Beat calls done for every
// job with its entry in the answer. code is the node's reason if the lease could not be
// extended, otherwise "".
func (c *Client) Beat(quests []*Quest, done func(jid string, entry Raw, code Code)) {
	appendPayload := func(b []byte) []byte {
		b = AppendStr(AppendMap(b, 1), "jobs")
		b = AppendArray(b, len(quests))
		for _, q := range quests {
			b = q.appendLeaseRef(b)
		}
		return b
	}
	c.Go(TBeat, appendPayload, func(ok Raw, _ error) {
		for answer := range ok.Get("jobs").Items() {
			code := Code(answer.getText("code"))
			if extended, _ := answer.Get("ok").Bool(); extended {
				code = ""
			}
			done(answer.getText("jid"), answer, code)
		}
	})
}

// Goodbye announces that the worker is leaving. With drain, the node sends no
// more jobs and closes the connection when the worker's jobs have ended;
// without, it ends the jobs as interrupted and closes the connection at once.
func (c *Client) Goodbye(ctx context.Context, reason string, drain bool) error {
	_, err := c.Call(ctx, TGoodbye, Fields{"reason": reason, "drain": drain}.Raw())
	return err
}
