package overhop

import (
	"context"
	"time"
)

// Ping asks the node for its time.
func (c *Client) Ping(ctx context.Context) (time.Time, error) {
	pong, err := c.Call(ctx, TPing, EmptyMap)
	if err != nil {
		return time.Time{}, err
	}
	var r reading
	now := r.optTime("server_time", pong.Get("server_time"))
	return now, r.result()
}

// Subscribe asks for a queue's jobs and gives the subscription's id.
func (c *Client) Subscribe(ctx context.Context, queue string, credits uint32) (sid string, err error) {
	ok, err := c.Call(ctx, TSubscribe, AppendValue(nil, Fields{"q": queue, "credits": credits}))
	if err != nil {
		return "", err
	}
	sid, _ = ok.Get("sid").Str()
	return sid, nil
}

// Unsubscribe ends a subscription. Jobs in hand stay in hand.
func (c *Client) Unsubscribe(ctx context.Context, sid string) error {
	_, err := c.Call(ctx, TUnsubscribe, AppendValue(nil, Fields{"sid": sid}))
	return err
}

// Credit gives a subscription more credits; n ≥ 1.
func (c *Client) Credit(ctx context.Context, sid string, n uint32) error {
	_, err := c.Call(ctx, TCredit, AppendValue(nil, Fields{"sid": sid, "credits": n}))
	return err
}

// AddQueue creates a queue and gives its id.
func (c *Client) AddQueue(ctx context.Context, q AddQueue) (qid string, err error) {
	config := Fields{"allow_job_overrides": q.AllowOverrides, "concurrency_limit": nil}
	if q.Limit > 0 {
		config["concurrency_limit"] = q.Limit
	}
	ok, err := c.Call(ctx, TAddQueue, AppendValue(nil, Fields{"name": q.Name, "config": config}))
	if err != nil {
		return "", err
	}
	qid, _ = ok.Get("qid").Str()
	return qid, nil
}

// Enqueue hands over a job and waits until it is accepted.
func (c *Client) Enqueue(ctx context.Context, e Enqueue) (jid string, err error) {
	ok, err := c.Call(ctx, TEnqueue, e.append(nil))
	if err != nil {
		return "", err
	}
	jid, _ = ok.Get("jid").Str()
	return jid, nil
}

// GoEnqueue hands over a job and returns; then is called as [Client.Go] says.
// Jobs of one client are accepted in the order of its calls.
func (c *Client) GoEnqueue(e Enqueue, then func(jid string, err error)) {
	c.Go(TEnqueue, e.append, func(ok Raw, err error) {
		jid, _ := ok.Get("jid").Str()
		then(jid, err)
	})
}

func (e *Enqueue) append(b []byte) []byte {
	if e.plain() { // the common case, without a map
		b = AppendMap(b, 2)
		b = append(AppendStr(b, "job_payload"), e.payload()...)
		return AppendStr(AppendStr(b, "q"), e.Queue)
	}
	p := Fields{"q": e.Queue, "job_payload": e.payload()}
	set := func(key string, given bool, value any) {
		if given {
			p[key] = value
		}
	}
	set("scheduled_at", !e.At.IsZero(), e.At)
	set("max_attempts", e.MaxAttempts > 0, e.MaxAttempts)
	set("retry_interval_ms", e.RetryInterval > 0, e.RetryInterval)
	set("fn", e.Function != "", e.Function)
	set("key", e.Key != "", e.Key)
	set("timeout_ms", e.Timeout > 0, e.Timeout)
	set("trace", len(e.Trace) > 0, e.Trace)
	set("notify", e.Notify, true)
	setGiven(p, "priority", e.Priority)
	setGiven(p, "unique_key", e.UniqueKey)
	setGiven(p, "unique_ttl_ms", e.UniqueTTL)
	setGiven(p, "rate_limit_key", e.RateLimitKey)
	setGiven(p, "rate_limit_ms", e.RateLimit)
	setGiven(p, "debounce_key", e.DebounceKey)
	setGiven(p, "debounce_ms", e.Debounce)
	return AppendValue(b, p)
}

func setGiven[T any](p Fields, key string, value *T) {
	if value != nil {
		p[key] = *value
	}
}

func (e *Enqueue) plain() bool {
	return e.At.IsZero() && e.MaxAttempts == 0 && e.RetryInterval == 0 && e.Function == "" && e.Key == "" &&
		e.Timeout == 0 && e.Priority == nil && len(e.Trace) == 0 && !e.Notify &&
		e.UniqueKey == nil && e.UniqueTTL == nil && e.RateLimitKey == nil && e.RateLimit == nil && e.DebounceKey == nil && e.Debounce == nil
}

func (e *Enqueue) payload() Raw {
	if len(e.Payload) == 0 {
		return Nil
	}
	return e.Payload
}

// Job reads a job's record; it is an empty map if the yard does not know it.
func (c *Client) Job(ctx context.Context, jid string) (Raw, error) {
	return c.Call(ctx, TJob, AppendValue(nil, Fields{"jid": jid}))
}

// Await gives a job's record once it has ended; ended is false if it has not
// within wait, which is taken for 0 to [MaxAwait].
func (c *Client) Await(ctx context.Context, jid string, wait time.Duration) (record Raw, ended bool, err error) {
	record, err = c.Call(ctx, TAwait, AppendValue(nil, Fields{"jid": jid, "timeout_ms": min(wireDelay(wait), MaxAwait.Milliseconds())}))
	pending, _ := record.Get("pending").Bool()
	return record, err == nil && !pending, err
}

// Ack accepts a QUEST. then may be nil.
func (c *Client) Ack(q *Quest, then func(Raw, error)) { c.Go(TAck, q.held, then) }

// held appends what names q's dispatch.
func (q *Quest) held(b []byte) []byte {
	b = AppendStr(AppendStr(AppendMap(b, 2), "jid"), q.JID)
	return AppendBin(AppendStr(b, "tok"), q.Token[:])
}

// Done ends a dispatch well. result may be nil; credits are given with it.
// then is called once the end is committed, with an error if it is not.
func (c *Client) Done(q *Quest, result Raw, credits uint32, then func(Raw, error)) {
	if len(result) == 0 {
		result = Nil
	}
	c.Go(TDone, func(b []byte) []byte {
		b = AppendMap(b, 3+given(credits))
		b = appendCredits(b, credits)
		b = AppendStr(AppendStr(b, "jid"), q.JID)
		b = append(AppendStr(b, "result"), result...)
		return AppendBin(AppendStr(b, "tok"), q.Token[:])
	}, then)
}

func given(credits uint32) int { return min(int(credits), 1) }

func appendCredits(b []byte, credits uint32) []byte {
	if credits == 0 {
		return b
	}
	return AppendInt(AppendStr(b, "credits"), int64(credits))
}

// Fail ends a dispatch badly, as f says; its Held is q's.
func (c *Client) Fail(q *Quest, f Fail, then func(Raw, error)) {
	reason := Fields{"message": f.Message}
	if f.Type != "" {
		reason["type"] = f.Type
	}
	if f.Code != "" {
		reason["code"] = f.Code
	}
	if len(f.Details) > 0 {
		reason["details"] = f.Details
	}
	p := Fields{"jid": q.JID, "tok": q.Token[:], "error": reason, "retry": f.Retry}
	if f.RetryAfter != nil {
		p["retry_after_ms"] = wireDelay(*f.RetryAfter)
	}
	if f.Credits > 0 {
		p["credits"] = f.Credits
	}
	c.Go(TFail, func(b []byte) []byte { return AppendValue(b, p) }, then)
}

// wireDelay is a delay in milliseconds, as the wire takes it: one that is over
// already is none. The node would hang up on a negative one.
func wireDelay(d time.Duration) int64 { return max(d.Milliseconds(), 0) }

// Nack declines a QUEST before its ACK.
func (c *Client) Nack(q *Quest, n Nack, then func(Raw, error)) {
	p := Fields{"jid": q.JID, "tok": q.Token[:], "reason": n.Reason, "delay_ms": wireDelay(n.Delay)}
	if n.Credits > 0 {
		p["credits"] = n.Credits
	}
	c.Go(TNack, func(b []byte) []byte { return AppendValue(b, p) }, then)
}

// Beat extends the leases of quests. then gets one answer per job, as
// [BeatAnswers] reads them.
func (c *Client) Beat(quests []*Quest, then func(Raw, error)) {
	c.Go(TBeat, func(b []byte) []byte {
		b = AppendStr(AppendMap(b, 1), "jobs")
		b = AppendArray(b, len(quests))
		for _, q := range quests {
			b = q.held(b)
		}
		return b
	}, then)
}

// BeatAnswers calls lost for every job whose lease a BEAT could not extend.
func BeatAnswers(ok Raw, lost func(jid string, code Code)) {
	for answer := range ok.Get("jobs").Items() {
		if alive, _ := answer.Get("ok").Bool(); !alive {
			jid, _ := answer.Get("jid").Str()
			code, _ := answer.Get("code").Str()
			lost(jid, Code(code))
		}
	}
}

// Goodbye announces that this worker leaves; with drain it finishes what it
// has in hand first.
func (c *Client) Goodbye(ctx context.Context, reason string, drain bool) error {
	_, err := c.Call(ctx, TGoodbye, AppendValue(nil, Fields{"reason": reason, "drain": drain}))
	return err
}
