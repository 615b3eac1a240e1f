package overhop

import (
	"context"
	"errors"
	"slices"
	"time"

	"yardmaster/internal/backoff"
)

// JobEnd is how a job ended.
type JobEnd struct {
	JID      string
	Result   Raw    // what its handler returned; empty: nothing
	Fault    *Fault // why it failed; nil: it completed
	Attempts int64
	Omitted  bool // the result is too large for a frame
}

// Fault is why a job failed. It is an error.
type Fault struct {
	Message, Type, Code string
	Details             Raw // empty: none
}

func (f *Fault) Error() string {
	if f.Type == "" {
		return "job failed: " + f.Message
	}
	return "job failed: " + f.Type + ": " + f.Message
}

// Decode reads the result into what v points to, as [Unmarshal] does. The error
// of a job that failed is its [*Fault]; of a result that fits no frame, a
// [*RemoteError] with [CodeResponseTooLarge].
func (e *JobEnd) Decode(v any) error {
	if e.Fault != nil {
		return e.Fault
	}
	if e.Omitted {
		return &RemoteError{Code: CodeResponseTooLarge, Message: "the job completed, its result is too large for a frame"}
	}
	return Unmarshal(e.Result, v)
}

// parseJobEnd reads a JOBEND, or the record of a job that has ended.
func parseJobEnd(p Raw) JobEnd {
	var f [7]Raw
	p.pick(f[:], "jid", "status", "result", "error", "attempts", "runtime", "omitted")
	e := JobEnd{Result: slices.Clone(orAbsent(f[2]))}
	e.JID, _ = f[0].Str()
	e.Attempts, _ = f[4].Int()
	if len(f[4]) == 0 {
		e.Attempts, _ = f[5].Get("attempts_so_far").Int()
	}
	for key := range f[6].Items() {
		name, _ := key.Text()
		e.Omitted = e.Omitted || string(name) == "result"
	}
	if status, _ := f[1].Text(); string(status) != "completed" {
		e.Fault = new(Fault)
		var of [4]Raw
		f[3].pick(of[:], "message", "type", "code", "details")
		e.Fault.Message, _ = of[0].Str()
		e.Fault.Type, _ = of[1].Str()
		e.Fault.Code, _ = of[2].Str()
		e.Fault.Details = slices.Clone(orAbsent(of[3]))
	}
	return e
}

const (
	// awaitRound is how long one AWAIT waits. A node goes on waiting for who
	// has gone, so rounds are short.
	awaitRound = 20 * time.Second

	// strange is how long a job may be unknown before it is: a node may not
	// have heard yet what another has accepted.
	strange = 3 * time.Second

	awaitPause = 250 * time.Millisecond // before the next look at a job that cannot be awaited
)

// Wait waits for a job's end, over as many connections as that takes. The
// error is a [*RemoteError] with [CodeJobNotFound] if the yard has not known
// the job for three seconds, or says that ctx has ended.
func (p *Producer) Wait(ctx context.Context, jid string) (JobEnd, error) {
	ended := make(chan JobEnd, 1)
	unknownSince := time.Time{}
	defer p.forget(jid, ended)
	for {
		c, err := p.Client(ctx)
		if err != nil {
			return JobEnd{}, err
		}
		p.remember(jid, ended)
		record, done, err := c.Await(ctx, jid, awaitRound)
		switch code := ErrorCode(err); {
		case done:
			return parseJobEnd(record), nil
		case ctx.Err() != nil:
			return JobEnd{}, ctx.Err()
		case err == nil:
			unknownSince = time.Time{}
			if end, ok, err := p.awaitPush(ctx, c, ended); ok || err != nil {
				return end, err
			}
			continue
		case errors.Is(err, ErrClosed):
			p.retire(c)
		case code == CodeUnavailable:
		case code == CodeJobNotFound && unknownSince.IsZero():
			unknownSince = time.Now()
		case code == CodeJobNotFound && time.Since(unknownSince) < strange || code == CodeRateLimited:
		default:
			return JobEnd{}, err
		}
		if backoff.Sleep(ctx, awaitPause) != nil {
			return JobEnd{}, ctx.Err()
		}
	}
}

// awaitPush waits for the JOBEND that an AWAIT over c promised. It is not ok if
// the round is over, or c is.
func (p *Producer) awaitPush(ctx context.Context, c *Client, ended chan JobEnd) (end JobEnd, ok bool, err error) {
	round := time.NewTimer(awaitRound)
	defer round.Stop()
	select {
	case end = <-ended:
		return end, true, nil
	case <-c.Gone():
	case <-round.C:
	case <-ctx.Done():
		return JobEnd{}, false, ctx.Err()
	}
	return JobEnd{}, false, nil
}

// remember has JOBENDs of a job given to ended.
func (p *Producer) remember(jid string, ended chan JobEnd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.ends[jid], ended) {
		p.ends[jid] = append(p.ends[jid], ended)
	}
}

func (p *Producer) forget(jid string, ended chan JobEnd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := slices.DeleteFunc(p.ends[jid], func(c chan JobEnd) bool { return c == ended })
	if len(left) == 0 {
		delete(p.ends, jid)
		return
	}
	p.ends[jid] = left
}
