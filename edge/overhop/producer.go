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

	"yardmaster/internal/backoff"
)

// Producer hands jobs to a yard and waits for their ends. It connects when it
// is first used, to one of its nodes, and to another whenever that one is gone
// or cannot serve; what was under way is asked again there. It may be used by
// any number of goroutines at once, whose requests share one connection and do
// not wait for each other. Its fields do not change once it is used.
//
// A call goes on trying until its context ends: give it a deadline.
type Producer struct {
	Nodes []string     // addresses; one is chosen at random, then the next
	Name  string       // for people
	Token string       // what the nodes ask of their clients; empty: nothing
	TLS   *tls.Config  // nil: plain TCP
	Log   *slog.Logger // nil: slog.Default

	// Dial opens a connection, under TLS if that is given; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	running sync.WaitGroup // dials and clients

	mu      sync.Mutex
	doors   *doors             // nil until first used; of the one goroutine that dials
	life    context.Context    // of all connections
	stop    context.CancelFunc // ends life
	client  *Client            // takes new requests; nil: none
	dialing *dialing           // nil: nobody dials
	ends    map[string][]chan JobEnd
	closed  bool
}

// dialing is one try to get connected, for all who wait for it.
type dialing struct {
	done chan struct{}
	err  error // valid once done
}

// DuplicateJobError says that a job was not made because one with the same
// unique key exists.
type DuplicateJobError struct {
	JID   string // of the job that exists
	cause error
}

func (e *DuplicateJobError) Error() string { return "job " + e.JID + " has the same unique key" }
func (e *DuplicateJobError) Unwrap() error { return e.cause }

// RateLimitedError says that a job was not made because there are too many.
type RateLimitedError struct {
	RetryAfter time.Duration
	cause      error
}

func (e *RateLimitedError) Error() string {
	return fmt.Sprintf("%v; try again after %s", e.cause, e.RetryAfter)
}
func (e *RateLimitedError) Unwrap() error { return e.cause }

// Enqueue hands over a job and returns its id once it is accepted: from then on
// the yard will not lose it. Without a Key the call makes one up, so that a job
// whose answer got lost is still one job when it is handed over again. The
// error may be a [*DuplicateJobError], a [*RateLimitedError] or another
// [*RemoteError]; what cannot be sent is [ErrNotSendable]. When ctx ends first
// it is not known whether the job was accepted; handing it over again with the
// same Key is safe.
func (p *Producer) Enqueue(ctx context.Context, e Enqueue) (jid string, err error) {
	if e.Key == "" {
		e.Key = "auto-" + rand.Text() // no UUID: that would be the job's id itself, which a node has to look up first
	}
	ok, err := p.ask(ctx, TEnqueue, e.append(nil))
	if err != nil {
		return "", typed(err)
	}
	jid, _ = ok.Get("jid").Str()
	return jid, nil
}

// typed gives refusals that callers act on a type of their own.
func typed(err error) error {
	var remote *RemoteError
	if !errors.As(err, &remote) {
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

// mostTries is how often a node may say that it cannot serve before another is
// asked.
const mostTries = 3

// ask sends a request that may be repeated until some node has answered it.
func (p *Producer) ask(ctx context.Context, t int64, payload Raw) (Raw, error) {
	var last *RemoteError
	for try := 1; ; try++ {
		c, err := p.Client(ctx)
		if err != nil {
			return nil, unavailable(err, last)
		}
		ok, err := c.Call(ctx, t, payload)
		var remote *RemoteError
		switch {
		case ctx.Err() != nil && err != nil:
			return nil, unavailable(ctx.Err(), last)
		case errors.Is(err, ErrClosed):
			p.retire(c)
		case errors.As(err, &remote) && remote.Code == CodeUnavailable:
			if try%mostTries == 0 {
				p.retire(c)
				c.Close() // others ask again elsewhere too
			}
			last = remote
			backoff.Sleep(ctx, last.RetryAfter()) // the next try sees that ctx has ended
		default:
			return ok, err
		}
	}
}

// unavailable adds to err why the yard could not serve, if it ever said so.
func unavailable(err error, last *RemoteError) error {
	if last == nil {
		return err
	}
	return fmt.Errorf("%w; the yard's last word: %w", err, last)
}

// Client is the connection that requests go over at present, for all that a
// Producer has no method for. It waits until there is one. An error means that
// ctx has ended, the producer is closed, or a node refuses it for good.
func (p *Producer) Client(ctx context.Context) (*Client, error) {
	var last error
	for {
		c, d, err := p.connected()
		if c != nil || err != nil {
			return c, err
		}
		select {
		case <-d.done:
			if last = d.err; slices.Contains(hardPlaces, ErrorCode(last)) {
				return nil, last
			}
		case <-ctx.Done():
			if last != nil {
				return nil, fmt.Errorf("%w; no node to be reached: %w", ctx.Err(), last)
			}
			return nil, ctx.Err()
		}
	}
}

// connected gives the connection, or the try to get one.
func (p *Producer) connected() (*Client, *dialing, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, nil, ErrClosed
	case p.client != nil:
		return p.client, nil, nil
	case len(p.Nodes) == 0:
		return nil, nil, errors.New("producer has no Nodes: give the address of one at least")
	}
	if p.doors == nil {
		p.doors = newDoors(p.Nodes, p.Dial, p.TLS)
		p.life, p.stop = context.WithCancel(context.Background())
		p.ends = make(map[string][]chan JobEnd)
		if p.Log == nil {
			p.Log = slog.Default()
		}
	}
	if p.dialing == nil {
		d := &dialing{done: make(chan struct{})}
		p.dialing = d
		p.running.Go(func() { p.connect(d) })
	}
	return nil, p.dialing, nil
}

// connect tries one node. Before it tries another it lets some time pass: the
// one before could not be reached, or has left us.
func (p *Producer) connect(d *dialing) {
	var c *Client
	backoff.Sleep(p.life, p.doors.pause()) // ends early only with the producer
	addr := p.doors.next()
	c, d.err = p.doors.open(p.life, addr, Options{
		Name: p.Name, Token: p.Token,
		Pushes: func(t int64, payload Raw) { p.pushed(c, t, payload) },
	})
	if d.err != nil {
		d.err = fmt.Errorf("node %s: %w", addr, d.err)
	}
	p.mu.Lock()
	p.dialing = nil
	if d.err == nil {
		p.client = c
		p.running.Go(func() {
			if err := c.Run(p.life); err != nil {
				p.Log.Warn("producer lost its node", "node", addr, "error", err)
			}
			p.retire(c)
		})
	}
	p.mu.Unlock()
	close(d.done)
}

// retire gives new requests another connection. What is under way over this
// one may still be answered.
func (p *Producer) retire(c *Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client == c {
		p.client = nil
	}
}

func (p *Producer) pushed(c *Client, t int64, payload Raw) {
	switch t {
	case TDrain, TBye:
		p.retire(c)
	case TJobEnd:
		end := parseJobEnd(payload)
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, waiter := range p.ends[end.JID] {
			select {
			case waiter <- end:
			default: // it has one already
			}
		}
	}
}

// Close ends all connections. Calls under way end with [ErrClosed].
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	if p.stop != nil {
		p.stop()
	}
	p.mu.Unlock()
	p.running.Wait()
	return nil
}
