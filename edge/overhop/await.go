package overhop

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// JobEnd describes how a job ended.
type JobEnd struct {
	JID      string // "<queue>:<uuid>"
	Result   Raw    // what the handler returned; empty: nothing
	Fault    *Fault // why the job failed; nil: it completed
	Attempts int64  // attempts made
	Omitted  bool   // true if the job completed, but its result is too large for a frame
}

// Fault describes why a job failed. It implements error.
type Fault struct {
	Message, Type, Code string // as in [FailError]; Type and Code may be empty
	Details             Raw    // empty: none
}

func (f *Fault) Error() string {
	if f.Type == "" {
		return "job failed: " + f.Message
	}
	return "job failed: " + f.Type + ": " + f.Message
}

// Decode stores the job's result in the value that v points to, as [Unmarshal]
// does. If the job failed, the error is its [*Fault]; if its result was too
// large for a frame, a [*RemoteError] with [CodeResponseTooLarge].
func (e *JobEnd) Decode(v any) error {
	if e.Fault != nil {
		return e.Fault
	}
	if e.Omitted {
		return &RemoteError{Code: CodeResponseTooLarge, Message: "the job completed, but its result is too large for a frame"}
	}
	return Unmarshal(e.Result, v)
}

// parseJobEnd parses a JOBEND, or the record of a job that has ended.
func parseJobEnd(p Raw) JobEnd {
	r := newFieldReader(p, "jid", "status", "result", "error", "attempts", "runtime", "omitted")
	e := JobEnd{JID: r.str("jid"), Result: slices.Clone(r.optional("result"))}
	e.Attempts, _ = r.raw("attempts").Int()
	if r.isAbsent("attempts") {
		e.Attempts, _ = r.raw("runtime").Get("attempts_so_far").Int()
	}
	for key := range r.raw("omitted").Items() {
		name, _ := key.Text()
		e.Omitted = e.Omitted || string(name) == "result"
	}
	if r.str("status") != "completed" {
		reason := newFieldReader(r.raw("error"), "message", "type", "code", "details")
		e.Fault = &Fault{
			Message: reason.str("message"), Type: reason.str("type"), Code: reason.str("code"),
			Details: slices.Clone(reason.optional("details")),
		}
	}
	return e
}

const (
	// awaitTimeout is the timeout of one AWAIT. A node continues to wait for a
	// client that has disconnected, so it is short.
	awaitTimeout = 20 * time.Second

	// unknownGrace is how long a job may be unknown before Wait gives up: a
	// node may not have learned yet of a job that another has accepted.
	unknownGrace = 3 * time.Second

	awaitRetry = 250 * time.Millisecond // pause before a failed AWAIT is repeated
)

// Wait blocks until a job has ended, and reconnects as often as necessary. It
// returns ctx's error if ctx ends first, and a [*RemoteError] with
// [CodeJobNotFound] if the job remains unknown for three seconds.
func (p *Producer) Wait(ctx context.Context, jid string) (JobEnd, error) {
	ended := make(chan JobEnd, 1)
	unknownSince := time.Time{}
	defer p.removeWaiter(jid, ended)
	for {
		c, err := p.Client(ctx)
		if err != nil {
			return JobEnd{}, err
		}
		p.addWaiter(jid, ended)
		record, done, err := c.Await(ctx, jid, awaitTimeout)
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
		case code == CodeJobNotFound && time.Since(unknownSince) < unknownGrace || code == CodeRateLimited:
		default:
			return JobEnd{}, err
		}
		if backoff.Sleep(ctx, awaitRetry) != nil {
			return JobEnd{}, ctx.Err()
		}
	}
}

// awaitPush waits for the JOBEND of an AWAIT that was sent over c. ok is false
// if awaitTimeout has passed or c is closed.
func (p *Producer) awaitPush(ctx context.Context, c *Client, ended chan JobEnd) (end JobEnd, ok bool, err error) {
	timeout := time.NewTimer(awaitTimeout)
	defer timeout.Stop()
	select {
	case end = <-ended:
		return end, true, nil
	case <-c.Closed():
	case <-timeout.C:
	case <-ctx.Done():
		return JobEnd{}, false, ctx.Err()
	}
	return JobEnd{}, false, nil
}

// addWaiter registers ended for the JOBENDs of a job.
func (p *Producer) addWaiter(jid string, ended chan JobEnd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.waiters[jid], ended) {
		p.waiters[jid] = append(p.waiters[jid], ended)
	}
}

func (p *Producer) removeWaiter(jid string, ended chan JobEnd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := slices.DeleteFunc(p.waiters[jid], func(c chan JobEnd) bool { return c == ended })
	if len(left) == 0 {
		delete(p.waiters, jid)
		return
	}
	p.waiters[jid] = left
}
