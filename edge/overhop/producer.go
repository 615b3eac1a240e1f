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
	"github.com/yardmaster-dev/yardmaster/internal/usercode"
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
	refused int                // attempts that failed by [isMisconfigured] since another one; -1: one has succeeded
	waiters map[string][]chan JobEnd
	closed  bool
}

// dialAttempt is one attempt to connect, shared by all calls that wait for it.
type dialAttempt struct {
	done  chan struct{}
	err   error // valid once done is closed
	final bool  // another attempt would fail, too
}

// Enqueue submits a job and returns its id once the job is accepted, that is,
// stored durably by the yard.
//
// Enqueue retries until ctx ends. If e.Key is empty it generates a key, so that
// retries cannot create a second job. If ctx ends first, it is not known
// whether the job was accepted; calling Enqueue again with the same Key is
// safe.
//
// The error is a [*RemoteError] if a node refuses the job: with
// [CodeDuplicateJob] or [CodeRateLimited] if a guard's key is held. It is
// [ErrNotSendable] if the job cannot be encoded.
func (p *Producer) Enqueue(ctx context.Context, e Enqueue) (jid string, err error) {
	if e.Key == "" {
		e.Key = "auto-" + rand.Text() // not a UUID, which would be taken as the job's id and looked up first
	}
	err = p.retrying(ctx, func(c *Client) (err error) {
		jid, err = c.enqueue(ctx, &e)
		return err
	})
	return jid, err
}

// maxTries is how often a node may answer UNAVAILABLE before another is tried.
const maxTries = 3

// retrying sends an idempotent request, which send does over a client, until a node has
// answered it or ctx ends. Any other error of send is final.
func (p *Producer) retrying(ctx context.Context, send func(*Client) error) error {
	var lastRefusal *RemoteError // UNAVAILABLE; nil: none yet
	for try := 1; ; try++ {
		client, err := p.Client(ctx)
		if err != nil {
			return addRefusal(err, lastRefusal)
		}
		if err = send(client); err == nil {
			return nil
		}
		refusal, refused := errors.AsType[*RemoteError](err)
		switch {
		case ctx.Err() != nil:
			return addRefusal(ctx.Err(), lastRefusal)
		case errors.Is(err, ErrClosed):
			p.retire(client)
		case refused && refusal.Code == CodeUnavailable:
			if try%maxTries == 0 {
				p.retire(client)
				client.Close() // calls that wait for this node try another one too
			}
			lastRefusal = refusal
			backoff.Sleep(ctx, refusal.RetryAfter()) // if ctx has ended, the next iteration returns
		default:
			return err
		}
	}
}

// addRefusal adds the last refusal of a node, if it is not nil, to err.
func addRefusal(err error, refusal *RemoteError) error {
	if refusal == nil {
		return err
	}
	return fmt.Errorf("%w; last answer: %w", err, refusal)
}

// Content reads the whole result of a job that has ended, or its payload if value is
// [ContentPayload], whatever its size.
func (p *Producer) Content(ctx context.Context, jid, value string) (Raw, error) {
	return ReadContent(jid, value, func(request Raw) (answer Raw, err error) {
		err = p.retrying(ctx, func(c *Client) (err error) {
			if !c.givesContent {
				return ErrNoContent
			}
			answer, err = c.Call(ctx, TContent, request)
			return err
		})
		return answer, err
	})
}

// ErrNoAPI is returned if the node, of an older release, does not have [CapAPI].
var ErrNoAPI = errors.New("the node does not serve the API to Overhop clients; update it, or use NATS or HTTP")

// API carries out an operation of the yard's API and returns the reply, which is JSON. It
// tries other nodes until one has answered or ctx ends; op must therefore be safe to repeat.
// The error is a [*RemoteError] if a node refuses the request.
func (p *Producer) API(ctx context.Context, op string, request []byte) ([]byte, error) {
	message := Fields{"op": op}
	if len(request) > 0 {
		message["request"+JSONSuffix] = request
	}
	var ok Raw
	err := p.retrying(ctx, func(c *Client) (err error) {
		if !c.servesAPI {
			return ErrNoAPI
		}
		ok, err = c.Call(ctx, TAPI, message.Raw())
		return err
	})
	if err != nil {
		return nil, err
	}
	reply, _ := ok.Get("reply" + JSONSuffix).Bin()
	return reply, nil
}

// Client returns the current connection, for requests that Producer has no
// method for. It blocks until there is one. It returns an error if ctx ends,
// the producer is closed, a node refuses the producer permanently, or all nodes refuse its TLS
// configuration and none has ever accepted it.
func (p *Producer) Client(ctx context.Context) (*Client, error) {
	var lastErr error // of the last attempt to connect
	for {
		client, attempt, err := p.clientOrAttempt()
		if client != nil || err != nil {
			return client, err
		}
		select {
		case <-attempt.done:
			lastErr = attempt.err
			if attempt.final {
				return nil, lastErr
			}
		case <-ctx.Done():
			if lastErr != nil {
				return nil, fmt.Errorf("%w; no node could be reached: %w", ctx.Err(), lastErr)
			}
			return nil, ctx.Err()
		}
	}
}

// clientOrAttempt returns the connection, or if there is none, the attempt to
// get one, which it starts unless one is in progress. The error is final: the
// producer is closed or has no nodes.
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
		p.initLocked()
	}
	if p.dialing == nil {
		attempt := &dialAttempt{done: make(chan struct{})}
		p.dialing = attempt
		p.running.Go(func() { p.connect(attempt) })
	}
	return nil, p.dialing, nil
}

// initLocked prepares the producer for its first connection. mu is held.
func (p *Producer) initLocked() {
	p.dialer = newNodeDialer(p.Nodes, p.Dial, p.TLS)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.waiters = make(map[string][]chan JobEnd)
	p.Log = usercode.Logger(p.Log)
}

// connect makes one attempt to connect to a node, after a pause if it is not
// the first attempt. If it succeeds, the connection is used until it ends.
func (p *Producer) connect(attempt *dialAttempt) {
	backoff.Sleep(p.ctx, p.dialer.retryDelay()) // interrupted by Close only
	addr := p.dialer.next()
	var client *Client
	client, err := p.dialer.connect(p.ctx, addr, Options{
		Name: p.Name, Token: p.Token,
		OnPush: func(t int64, payload Raw) { p.handlePush(client, t, payload) },
	})
	p.mu.Lock()
	p.dialing = nil
	if err == nil {
		p.client, p.refused = client, -1
		p.running.Go(func() {
			if err := client.Run(p.ctx); err != nil {
				p.Log.Warn("producer disconnected", "addr", addr, "err", err)
			}
			p.retire(client)
		})
	} else {
		attempt.err = fmt.Errorf("node %s: %w", addr, err)
		attempt.final = isPermanent(err) || p.countRefusedLocked(err)
	}
	p.mu.Unlock()
	if err != nil && p.ctx.Err() == nil {
		p.Log.Warn("producer cannot connect", "addr", addr, "err", err)
	}
	close(attempt.done)
}

// countRefusedLocked counts an attempt that failed with err, and reports whether every node
// refuses this configuration. A producer that was connected before goes on: certificates may be
// being replaced. mu is held.
func (p *Producer) countRefusedLocked(err error) bool {
	switch {
	case p.refused < 0:
	case isMisconfigured(err):
		p.refused++
	default:
		p.refused = 0
	}
	return p.refused >= len(p.Nodes)
}

// retire makes new requests use another connection than client. Pending
// requests may still be answered over it.
func (p *Producer) retire(client *Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client == client {
		p.client = nil
	}
}

// handlePush handles a push of message type t that client received. After a
// DRAIN or BYE new requests use another connection. A JOBEND is passed to the
// calls of Wait for its job.
func (p *Producer) handlePush(client *Client, t int64, payload Raw) {
	switch t {
	case TDrain, TBye:
		p.retire(client)
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

// JobEnd describes how a job ended.
type JobEnd struct {
	JID      string // "<queue>:<uuid>"
	Result   Raw    // what the handler returned; empty: nothing
	Fault    *Fault // why the job failed; nil: it completed
	Attempts int64  // attempts made
	Omitted  bool   // true if the job completed, but its result is too large for a frame: see [Producer.Content]
	Gone     string // why the result is no longer stored, such as "result_evicted"; "": it is, or there was none
}

// Fault describes why a job failed.
type Fault struct {
	Message, Type, Code string // as in [FailError]; Type and Code may be empty
	Details             Raw    // empty: none
	Reason              string // for which the job was cancelled; "": none was given, or it was not cancelled
}

// parseJobEnd parses a JOBEND, or the record of a job that has ended. It ignores
// fields that have another type.
func parseJobEnd(payload Raw) JobEnd {
	r := newFieldReader(payload, "jid", "status", "result", "result_json", "error", "attempts", "runtime", "omitted", "result_gone")
	end := JobEnd{JID: r.str("jid"), Result: r.userValue("result"), Gone: r.optStr("result_gone")}
	end.Attempts, _ = r.raw("attempts").Int()
	if r.isAbsent("attempts") {
		end.Attempts, _ = r.raw("runtime").Get("attempts_so_far").Int()
	}
	for key := range r.raw("omitted").Items() {
		name, _ := key.Text()
		end.Omitted = end.Omitted || string(name) == "result"
	}
	if r.str("status") != "completed" {
		fault := newFieldReader(r.raw("error"), "message", "type", "code", "details", "details_json", "reason")
		end.Fault = &Fault{
			Message: fault.str("message"), Type: fault.str("type"), Code: fault.str("code"),
			Details: fault.userValue("details"), Reason: fault.optStr("reason"),
		}
	}
	return end
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
	pushed := make(chan JobEnd, 1)
	defer p.removeWaiter(jid, pushed)
	var unknownSince time.Time // zero: the job is not unknown
	for {
		client, err := p.Client(ctx)
		if err != nil {
			return JobEnd{}, err
		}
		p.addWaiter(jid, pushed)
		record, ended, err := client.Await(ctx, jid, awaitTimeout)
		code := ErrorCode(err)
		switch {
		case ended:
			return parseJobEnd(record), nil
		case ctx.Err() != nil:
			return JobEnd{}, ctx.Err()
		case err == nil:
			unknownSince = time.Time{}
			end, ok, err := awaitPush(ctx, client, pushed)
			if ok || err != nil {
				return end, err
			}
			continue
		case errors.Is(err, ErrClosed):
			p.retire(client)
		case code == CodeJobNotFound && unknownSince.IsZero():
			unknownSince = time.Now()
		case code == CodeJobNotFound && time.Since(unknownSince) >= unknownGrace:
			return JobEnd{}, err
		case code != CodeJobNotFound && code != CodeUnavailable && code != CodeRateLimited: // not worth a retry
			return JobEnd{}, err
		}
		if backoff.Sleep(ctx, awaitRetry) != nil {
			return JobEnd{}, ctx.Err()
		}
	}
}

// awaitPush waits for the JOBEND of a job for which client has sent an AWAIT, and
// receives it from pushed. ok is false if awaitTimeout has passed or client's
// connection has ended: the caller must then repeat the AWAIT, which the server has
// forgotten. The error is that of ctx, if ctx ends first.
func awaitPush(ctx context.Context, client *Client, pushed <-chan JobEnd) (end JobEnd, ok bool, err error) {
	timeout := time.NewTimer(awaitTimeout)
	defer timeout.Stop()
	select {
	case end = <-pushed:
		return end, true, nil
	case <-client.Closed():
	case <-timeout.C:
	case <-ctx.Done():
		return JobEnd{}, false, ctx.Err()
	}
	return JobEnd{}, false, nil
}

// addWaiter makes the producer send the JOBENDs of a job to pushed.
func (p *Producer) addWaiter(jid string, pushed chan JobEnd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.waiters[jid], pushed) {
		p.waiters[jid] = append(p.waiters[jid], pushed)
	}
}

// removeWaiter undoes addWaiter: the producer sends no more JOBENDs of the job to pushed.
func (p *Producer) removeWaiter(jid string, pushed chan JobEnd) {
	p.mu.Lock()
	defer p.mu.Unlock()
	remaining := slices.DeleteFunc(p.waiters[jid], func(waiter chan JobEnd) bool { return waiter == pushed })
	if len(remaining) == 0 {
		delete(p.waiters, jid)
		return
	}
	p.waiters[jid] = remaining
}
