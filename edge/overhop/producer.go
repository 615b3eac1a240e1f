package overhop

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

// Producer submits jobs to a yard and waits for them to end. It connects when
// it is first used, and connects to another node whenever its node is lost or
// cannot serve; pending requests are then repeated. Its methods may be called
// concurrently: calls share one connection and do not wait for each other. Its
// fields must not be changed after first use.
//
// Calls retry until their context ends, so the context should have a deadline.
type Producer struct {
	Nodes []string     // addresses, host:port; the first is chosen at random, then they are tried in turn
	Name  string       // name of this producer, for display
	Token string       // token that the nodes require; empty: none
	TLS   *tls.Config  // nil: plain TCP
	Log   *slog.Logger // nil: slog.Default

	// Dial opens a connection, below TLS if TLS is set. nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	running sync.WaitGroup // connection attempts and clients

	mu      sync.Mutex
	dialer  *nodeDialer        // used by the one goroutine that connects; nil until first use
	ctx     context.Context    // context of all connections
	cancel  context.CancelFunc // cancels ctx
	client  *Client            // used for new requests; nil: none
	dialing *dialAttempt       // nil: no attempt is in progress
	waiters map[string][]chan JobEnd
	closed  bool
}

// dialAttempt is one attempt to connect, shared by all calls that wait for it.
type dialAttempt struct {
	done chan struct{}
	err  error // valid once done is closed
}

// DuplicateJobError is returned when a job was not created because another job
// holds the same unique key.
type DuplicateJobError struct {
	JID   string // id of the other job
	cause error
}

func (e *DuplicateJobError) Error() string { return "job " + e.JID + " holds the same unique key" }

// Unwrap returns the node's [*RemoteError].
func (e *DuplicateJobError) Unwrap() error { return e.cause }

// RateLimitedError is returned when a job was not created because its rate
// limit key is held.
type RateLimitedError struct {
	RetryAfter time.Duration
	cause      error
}

func (e *RateLimitedError) Error() string {
	return fmt.Sprintf("%v; try again after %s", e.cause, e.RetryAfter)
}

// Unwrap returns the node's [*RemoteError].
func (e *RateLimitedError) Unwrap() error { return e.cause }

// Enqueue submits a job and returns its id once the job is accepted, that is,
// stored durably by the yard.
//
// Enqueue retries until ctx ends. If e.Key is empty it generates a key, so that
// retries cannot create a second job. If ctx ends first, it is not known
// whether the job was accepted; calling Enqueue again with the same Key is
// safe.
//
// The error may be a [*DuplicateJobError], a [*RateLimitedError] or another
// [*RemoteError]. It is [ErrNotSendable] if the job cannot be encoded.
func (p *Producer) Enqueue(ctx context.Context, e Enqueue) (jid string, err error) {
	if e.Key == "" {
		e.Key = "auto-" + rand.Text() // not a UUID, which would be taken as the job's id and looked up first
	}
	ok, err := p.callRetrying(ctx, TEnqueue, e.append(nil))
	if err != nil {
		return "", typedError(err)
	}
	jid, _ = ok.Get("jid").Str()
	return jid, nil
}

// typedError converts refusals that callers act on to their own types.
func typedError(err error) error {
	remote, ok := errors.AsType[*RemoteError](err)
	if !ok {
		return err
	}
	switch remote.Code {
	case CodeDuplicateJob:
		jid, _ := remote.Details.Get("jid").Str()
		return &DuplicateJobError{jid, err}
	case CodeRateLimited:
		ms, _ := remote.Details.Get("retry_after_ms").Int()
		return &RateLimitedError{milliseconds(ms), err}
	}
	return err
}

// maxTries is how often a node may answer UNAVAILABLE before another is tried.
const maxTries = 3

// callRetrying sends an idempotent request until a node has answered it or ctx
// ends.
func (p *Producer) callRetrying(ctx context.Context, t int64, payload Raw) (Raw, error) {
	var last *RemoteError
	for try := 1; ; try++ {
		c, err := p.Client(ctx)
		if err != nil {
			return nil, unavailable(err, last)
		}
		ok, err := c.Call(ctx, t, payload)
		remote, refused := errors.AsType[*RemoteError](err)
		switch {
		case ctx.Err() != nil && err != nil:
			return nil, unavailable(ctx.Err(), last)
		case errors.Is(err, ErrClosed):
			p.retire(c)
		case refused && remote.Code == CodeUnavailable:
			if try%maxTries == 0 {
				p.retire(c)
				c.Close() // calls that wait for this node try another one too
			}
			last = remote
			backoff.Sleep(ctx, last.RetryAfter()) // if ctx has ended, the next iteration returns
		default:
			return ok, err
		}
	}
}

// unavailable adds the yard's last refusal, if any, to err.
func unavailable(err error, last *RemoteError) error {
	if last == nil {
		return err
	}
	return fmt.Errorf("%w; last answer: %w", err, last)
}

// Client returns the current connection, for requests that Producer has no
// method for. It blocks until there is one. It returns an error if ctx ends,
// the producer is closed, or a node refuses the producer permanently.
func (p *Producer) Client(ctx context.Context) (*Client, error) {
	var last error
	for {
		c, d, err := p.clientOrAttempt()
		if c != nil || err != nil {
			return c, err
		}
		select {
		case <-d.done:
			if last = d.err; slices.Contains(permanentCodes, ErrorCode(last)) {
				return nil, last
			}
		case <-ctx.Done():
			if last != nil {
				return nil, fmt.Errorf("%w; no node could be reached: %w", ctx.Err(), last)
			}
			return nil, ctx.Err()
		}
	}
}

// clientOrAttempt returns the connection, or the attempt to get one, which it
// starts if necessary.
func (p *Producer) clientOrAttempt() (*Client, *dialAttempt, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, nil, ErrClosed
	case p.client != nil:
		return p.client, nil, nil
	case len(p.Nodes) == 0:
		return nil, nil, errors.New("producer has no Nodes: set the address of at least one")
	}
	if p.dialer == nil {
		p.dialer = newNodeDialer(p.Nodes, p.Dial, p.TLS)
		p.ctx, p.cancel = context.WithCancel(context.Background())
		p.waiters = make(map[string][]chan JobEnd)
		if p.Log == nil {
			p.Log = slog.Default()
		}
	}
	if p.dialing == nil {
		d := &dialAttempt{done: make(chan struct{})}
		p.dialing = d
		p.running.Go(func() { p.connect(d) })
	}
	return nil, p.dialing, nil
}

// connect connects to one node, after a pause if another one was tried before.
func (p *Producer) connect(d *dialAttempt) {
	var c *Client
	backoff.Sleep(p.ctx, p.dialer.retryDelay()) // interrupted by Close only
	addr := p.dialer.next()
	c, d.err = p.dialer.connect(p.ctx, addr, Options{
		Name: p.Name, Token: p.Token,
		OnPush: func(t int64, payload Raw) { p.handlePush(c, t, payload) },
	})
	if d.err != nil {
		d.err = fmt.Errorf("node %s: %w", addr, d.err)
	}
	p.mu.Lock()
	p.dialing = nil
	if d.err == nil {
		p.client = c
		p.running.Go(func() {
			if err := c.Run(p.ctx); err != nil {
				p.Log.Warn("producer disconnected", "addr", addr, "err", err)
			}
			p.retire(c)
		})
	}
	p.mu.Unlock()
	close(d.done)
}

// retire makes new requests use another connection than c. Pending requests may
// still be answered over c.
func (p *Producer) retire(c *Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client == c {
		p.client = nil
	}
}

func (p *Producer) handlePush(c *Client, t int64, payload Raw) {
	switch t {
	case TDrain, TBye:
		p.retire(c)
	case TJobEnd:
		end := parseJobEnd(payload)
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, waiter := range p.waiters[end.JID] {
			select {
			case waiter <- end:
			default: // it already has one
			}
		}
	}
}

// Close closes all connections. Pending calls end with [ErrClosed].
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	if p.cancel != nil {
		p.cancel()
	}
	p.mu.Unlock()
	p.running.Wait()
	return nil
}
