package overhop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// ErrClosed is the error of requests whose connection was closed before they
// were answered. It is not known whether they took effect.
var ErrClosed = errors.New("connection to the node is closed")

// Options configures a [Client]. The zero value offers the delivery extension
// and ignores QUESTs.
type Options struct {
	Name         string        // name of this client, for display
	Token        string        // token that the node requires; empty: none
	TLS          *tls.Config   // for [Dial]; nil: plain TCP
	NoDelivery   bool          // do not offer the delivery extension
	MaxFrame     int           // largest frame sent or accepted, in bytes; 0: the node's limit, or DefaultFrameLimit if it announces none
	WriteTimeout time.Duration // the connection ends if 256 KiB cannot be written in this time; 0: 10 s

	// ResponseTimeout is how long a node may send nothing at all while it owes
	// an answer before the connection is closed. 0 means 65 s, which is more
	// than the longest time a node can be configured to wait for the yard; a
	// negative value means no limit.
	ResponseTimeout time.Duration

	// probe reports whether the node is alive, over a separate connection; nil:
	// not available. Answers come in order, so on this connection a slow answer
	// cannot be told from a dead node.
	probe func(context.Context) bool

	OnQuest func(Quest) // called by Run for every QUEST; must not block

	// OnPush is called by Run for every other push. p is valid during the call
	// only. It must not block.
	OnPush func(t int64, p Raw)
}

// Client is one registered connection to a node. Its methods may be called
// concurrently; requests are pipelined. [Client.Run] must be running for
// requests to be sent and answered. Every request is answered, or ends with an
// error that is [ErrClosed].
type Client struct {
	nc   net.Conn
	in   *frame.Reader
	opts Options
	wid  string
	node string

	requests pipeline
	running  atomic.Bool // Run is active and will end the pending requests
}

// Dial connects to a node and registers. ctx limits the time for that, not the
// life of the connection.
func Dial(ctx context.Context, addr string, opts Options) (*Client, error) {
	nd := nodeDialer{dial: dialTCP, tls: opts.TLS}
	return nd.open(ctx, addr, opts)
}

// Connect registers over an existing connection. On error nc is left open.
func Connect(ctx context.Context, nc net.Conn, opts Options) (*Client, error) {
	if opts.WriteTimeout == 0 {
		opts.WriteTimeout = 10 * time.Second
	}
	if opts.ResponseTimeout == 0 {
		opts.ResponseTimeout = defaultResponseTimeout
	}
	c := &Client{
		nc: nc, in: frame.NewReader(nc, MaxFrameLimit), opts: opts,
		requests: pipeline{wake: make(chan struct{}, 1), closed: make(chan struct{}), pending: make(map[string]func(Raw, error))},
	}
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	err := c.handshake()
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("register at node: %w", err)
	}
	return c, nil
}

func (c *Client) handshake() error {
	hello := Fields{"client": "yardmaster"}
	setUnlessZero(hello, "name", c.opts.Name)
	setUnlessZero(hello, "token", c.opts.Token)
	if !c.opts.NoDelivery {
		hello["ext"] = []string{Delivery}
	}
	hi, err := c.roundTrip(THello, hello.Raw(), THi)
	if err != nil {
		return err
	}
	c.node, _ = hi.Get("node").Str()
	if c.opts.MaxFrame == 0 {
		c.opts.MaxFrame = DefaultFrameLimit
		if limit, ok := hi.Get("max_envelope_size_bytes").Int(); ok && limit >= MinFrameLimit && limit <= MaxFrameLimit {
			c.opts.MaxFrame = int(limit)
		}
	}
	c.requests.maxFrame = c.opts.MaxFrame
	c.in.SetLimit(c.opts.MaxFrame)
	ok, err := c.roundTrip(TRegister, EmptyMap, TOK)
	if err != nil {
		return err
	}
	c.wid, _ = ok.Get("wid").Str()
	return nil
}

// roundTrip sends one request and returns the payload of its answer. It skips
// an IDENT, which REGISTER answers.
func (c *Client) roundTrip(t int64, p Raw, want int64) (Raw, error) {
	c.requests.lastRID++
	rid := strconv.FormatUint(c.requests.lastRID, 10)
	if _, err := c.nc.Write(AppendMessage(nil, t, rid, p)); err != nil {
		return nil, err
	}
	for {
		payload, err := c.in.Next()
		if err != nil {
			return nil, err
		}
		e, err := ParseEnvelope(payload)
		switch {
		case err != nil:
			return nil, err
		case e.T == TErr:
			return nil, parseErr(e.P)
		case e.T == TIdent && e.RID == PushRID:
			continue
		case e.T != want || e.RID != rid:
			return nil, fmt.Errorf("node answered t=%d to t=%d", e.T, t)
		}
		return e.P, nil
	}
}

// WID returns the id that the node gave this worker.
func (c *Client) WID() string { return c.wid }

// Node returns the name of the node; empty if it sent none.
func (c *Client) Node() string { return c.node }

// Closed returns a channel that is closed when the connection has ended. Requests
// that are pending then end with [ErrClosed].
func (c *Client) Closed() <-chan struct{} { return c.requests.closed }

// Run sends requests, receives messages and calls callbacks until the
// connection fails, or until ctx ends, when it returns nil. It then closes the
// connection and fails all pending requests. It must be called at most once.
func (c *Client) Run(ctx context.Context) error {
	c.running.Store(true)
	stop := context.AfterFunc(ctx, func() { c.nc.Close() })
	defer stop()
	loops, stopLoops := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { c.writeLoop(loops) })
	var silenceErr error
	background.Go(func() { silenceErr = c.watchSilence(loops) })
	err := c.readLoop()
	stopLoops()
	c.nc.Close()
	background.Wait()
	if silenceErr != nil {
		err = silenceErr
	}
	c.requests.fail(fmt.Errorf("%w: %v", ErrClosed, err))
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Close closes the connection, which ends Run. Pending requests end with
// [ErrClosed].
func (c *Client) Close() error {
	err := c.nc.Close()
	if !c.running.Load() {
		c.requests.fail(ErrClosed)
	}
	return err
}

func (c *Client) readLoop() error {
	for {
		payload, err := c.in.Next()
		if err != nil {
			return fmt.Errorf("read from node: %w", err)
		}
		t, rid, p, err := parseEnvelope(payload)
		if err != nil {
			return fmt.Errorf("read from node: %w", err)
		}
		if string(rid) == PushRID {
			err = c.handlePush(t, p)
		} else {
			err = c.requests.answer(t, rid, p)
		}
		if err != nil {
			return err
		}
	}
}

func (c *Client) handlePush(t int64, p Raw) error {
	c.requests.received()
	switch {
	case t == TErr:
		return parseErr(p)
	case t == TIdent:
	case t < TQuest || t > TJobEnd || c.opts.NoDelivery:
		return fmt.Errorf("node pushed t=%d, which this client does not know", t)
	case t == TQuest && c.opts.OnQuest != nil:
		q, err := ParseQuest(p)
		if err != nil {
			return fmt.Errorf("node sent a bad QUEST: %w", err)
		}
		c.opts.OnQuest(q)
	case c.opts.OnPush != nil:
		c.opts.OnPush(t, p)
	}
	return nil
}

// maxWrite is the largest single write, in bytes, that must finish within
// [Options.WriteTimeout].
const maxWrite = 256 << 10

// writeLoop writes everything that waits, and meanwhile lets more accumulate.
func (c *Client) writeLoop(ctx context.Context) {
	var batch []byte
	for {
		select {
		case <-c.requests.wake:
		case <-ctx.Done():
			return
		}
		batch = c.requests.take(batch)
		for part := range slices.Chunk(batch, maxWrite) {
			c.nc.SetWriteDeadline(time.Now().Add(c.opts.WriteTimeout))
			if _, err := c.nc.Write(part); err != nil {
				c.nc.Close() // ends readLoop
				return
			}
		}
		if cap(batch) > 1<<20 {
			batch = nil
		}
	}
}

// Go sends a request of message type t without waiting for its answer. payload
// must append the payload map to its argument.
//
// done is called once, if it is not nil, and must not block. Run calls it with
// the payload of the OK, which is valid during the call only, or with a
// [*RemoteError]; if the connection ends first, the error is [ErrClosed]. A
// request that cannot be encoded is not sent, and done is called at once with
// an error that is [ErrNotSendable] or a [*frame.TooLargeError].
//
// Go does not limit the number of requests that wait to be sent; [Client.Call]
// does.
func (c *Client) Go(t int64, payload func([]byte) []byte, done func(ok Raw, err error)) {
	c.requests.mu.Lock()
	err := c.requests.addLocked(t, payload, done)
	c.requests.mu.Unlock()
	if err != nil && done != nil {
		done(nil, err)
	}
}

// Call sends a request of message type t with payload p and returns a copy of
// the answer's payload. It waits while too much output is unsent. If ctx ends
// first, the request may still take effect.
func (c *Client) Call(ctx context.Context, t int64, p Raw) (Raw, error) {
	type answer struct {
		ok  Raw
		err error
	}
	if err := c.requests.lockWritable(ctx); err != nil {
		return nil, err
	}
	got := make(chan answer, 1)
	err := c.requests.addLocked(t, p.append, func(ok Raw, err error) {
		got <- answer{slices.Clone(ok), err}
	})
	c.requests.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case a := <-got:
		return a.ok, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
