package overhop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"yardmaster/internal/frame"
)

// ErrClosed ends requests whose connection is gone: what became of them is not
// known.
var ErrClosed = errors.New("connection to the node is closed")

// Options of a [Client]. The zero value is a client that offers the delivery
// extension and takes no QUESTs.
type Options struct {
	Name   string        // of this client, for people
	Plain  bool          // do not offer the delivery extension
	Limit  int           // largest frame taken, in bytes; 0: DefaultFrameLimit
	Stuck  time.Duration // a write that takes longer ends the connection; 0: 10 s
	Quests func(Quest)   // called by Run for every QUEST; must not block

	// Pushes is called by Run for every other push; p lies in the frame. It
	// must not block.
	Pushes func(t int64, p Raw)
}

// Client is one registered connection to a node. Its requests may be used by
// any number of goroutines at once and are pipelined: many may be under way.
// [Client.Run] must be running for them to be sent and answered.
type Client struct {
	nc   net.Conn
	in   *frame.Reader
	o    Options
	wid  string
	node string

	wake chan struct{} // capacity 1: out has something

	mu      sync.Mutex
	out     []byte // framed, not yet given to the socket
	last    uint64 // rid of the newest request
	pending map[uint64]func(Raw, error)
	err     error // why the connection is gone
}

// Dial connects to a node and registers there.
func Dial(ctx context.Context, addr string, o Options) (*Client, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to node: %w", err)
	}
	c, err := Connect(ctx, nc, o)
	if err != nil {
		nc.Close()
	}
	return c, err
}

// Connect registers over a connection at hand. It is left open on error.
func Connect(ctx context.Context, nc net.Conn, o Options) (*Client, error) {
	if o.Limit == 0 {
		o.Limit = DefaultFrameLimit
	}
	if o.Stuck == 0 {
		o.Stuck = 10 * time.Second
	}
	c := &Client{
		nc: nc, in: frame.NewReader(nc, o.Limit), o: o,
		wake: make(chan struct{}, 1), pending: make(map[uint64]func(Raw, error)),
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
	if c.o.Name != "" {
		hello["name"] = c.o.Name
	}
	if !c.o.Plain {
		hello["ext"] = []string{Delivery}
	}
	hi, err := c.lockstep(THello, AppendValue(nil, hello), THi)
	if err != nil {
		return err
	}
	c.node, _ = hi.Get("node").Str()
	ok, err := c.lockstep(TRegister, EmptyMap, TOK)
	if err != nil {
		return err
	}
	c.wid, _ = ok.Get("wid").Str()
	return nil
}

// lockstep sends one request and takes the next frame for its answer.
func (c *Client) lockstep(t int64, p Raw, want int64) (Raw, error) {
	c.last++
	rid := strconv.FormatUint(c.last, 10)
	if _, err := c.nc.Write(AppendMessage(nil, t, rid, p)); err != nil {
		return nil, err
	}
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
	case e.T != want || e.RID != rid:
		return nil, fmt.Errorf("node answered t=%d to t=%d", e.T, t)
	}
	return e.P, nil
}

// WID is the id the node gave this worker.
func (c *Client) WID() string { return c.wid }

// Node is the name of the node; empty if it did not say.
func (c *Client) Node() string { return c.node }

// Run sends, receives and calls back until ctx ends, which gives nil, or the
// connection does. It closes the connection and ends all requests under way.
func (c *Client) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.nc.Close() })
	defer stop()
	writing, stopWriting := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() { c.writeLoop(writing) })
	err := c.readLoop()
	stopWriting()
	c.nc.Close()
	writer.Wait()
	c.abandon(fmt.Errorf("%w: %v", ErrClosed, err))
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Close ends the connection, and with it Run.
func (c *Client) Close() error { return c.nc.Close() }

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
		if string(rid) != PushRID {
			c.answer(t, rid, p)
			continue
		}
		if err := c.push(t, p); err != nil {
			return err
		}
	}
}

func (c *Client) answer(t int64, rid []byte, p Raw) {
	n, ok := parseInt(rid)
	if !ok {
		return
	}
	c.mu.Lock()
	then := c.pending[uint64(n)]
	delete(c.pending, uint64(n))
	c.mu.Unlock()
	switch {
	case then == nil:
	case t == TErr:
		then(nil, parseErr(p))
	default:
		then(p, nil)
	}
}

func (c *Client) push(t int64, p Raw) error {
	switch {
	case t == TErr:
		return parseErr(p)
	case t == TQuest && c.o.Quests != nil:
		q, err := ParseQuest(p)
		if err != nil {
			return fmt.Errorf("node sent a bad QUEST: %w", err)
		}
		c.o.Quests(q)
	case c.o.Pushes != nil:
		c.o.Pushes(t, p)
	}
	return nil
}

// writeLoop gives the socket all that waits in one write, and so gathers what
// comes while it writes.
func (c *Client) writeLoop(ctx context.Context) {
	var batch []byte
	for {
		select {
		case <-c.wake:
		case <-ctx.Done():
			return
		}
		c.mu.Lock()
		batch, c.out = c.out, batch[:0]
		c.mu.Unlock()
		c.nc.SetWriteDeadline(time.Now().Add(c.o.Stuck))
		if _, err := c.nc.Write(batch); err != nil {
			c.nc.Close() // readLoop ends with it
			return
		}
		if cap(batch) > 1<<20 {
			batch = nil
		}
	}
}

func (c *Client) abandon(err error) {
	c.mu.Lock()
	c.err = err
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	for _, then := range pending {
		then(nil, err)
	}
}

// Go sends a request and returns. payload appends the payload map to the bytes
// it is given. then is called once: by Run with the OK's payload, which lies
// in the frame, or a [*RemoteError]; or with an error that is [ErrClosed]. It
// must not block. A nil then means that the answer does not matter.
func (c *Client) Go(t int64, payload func([]byte) []byte, then func(ok Raw, err error)) {
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		if then != nil {
			then(nil, err)
		}
		return
	}
	c.last++
	var rid [20]byte
	out, mark := Begin(c.out)
	out, size := End(payload(out), mark, t, strconv.AppendUint(rid[:0], c.last, 10))
	if size > c.o.Limit {
		c.out = out[:mark]
		c.mu.Unlock()
		if then != nil {
			then(nil, &frame.TooLargeError{Size: size, Limit: c.o.Limit})
		}
		return
	}
	c.out = out
	if then != nil {
		c.pending[c.last] = then
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Call sends a request and waits for its answer, which is the caller's.
func (c *Client) Call(ctx context.Context, t int64, p Raw) (Raw, error) {
	type answer struct {
		ok  Raw
		err error
	}
	got := make(chan answer, 1)
	c.Go(t, func(b []byte) []byte { return append(b, p...) }, func(ok Raw, err error) {
		got <- answer{slices.Clone(ok), err}
	})
	select {
	case a := <-got:
		return a.ok, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
