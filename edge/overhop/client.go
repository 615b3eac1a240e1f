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
	"time"

	"yardmaster/internal/frame"
)

// ErrClosed ends requests whose connection is gone: what became of them is not
// known.
var ErrClosed = errors.New("connection to the node is closed")

// Options of a [Client]. The zero value is a client that offers the delivery
// extension and takes no QUESTs.
type Options struct {
	Name  string        // of this client, for people
	Token string        // what the node asks of its clients; empty: nothing
	TLS   *tls.Config   // for [Dial]; nil: plain TCP
	Plain bool          // do not offer the delivery extension
	Limit int           // largest frame sent or taken, in bytes; 0: the node's own, or DefaultFrameLimit if it does not say
	Stuck time.Duration // a write that makes no way for so long ends the connection; 0: 10 s

	// Silence is how long a node may say nothing at all while it owes an
	// answer before it is given up; 0: 65 s, which is more than any node may
	// be set to wait for its yard; negative: for ever.
	Silence time.Duration

	// alive asks the node for a sign of life beside this connection; nil: it
	// cannot be asked. The answers of one connection come in order, so over
	// this one a slow answer and a dead node look the same.
	alive func(context.Context) bool

	Quests func(Quest) // called by Run for every QUEST; must not block

	// Pushes is called by Run for every other push; p lies in the frame. It
	// must not block.
	Pushes func(t int64, p Raw)
}

// Client is one registered connection to a node. Its requests may be used by
// any number of goroutines at once and are pipelined: many may be under way.
// [Client.Run] must be running for them to be sent and answered. Every request
// is answered or ends with an error that is [ErrClosed]; none is forgotten.
type Client struct {
	nc   net.Conn
	in   *frame.Reader
	o    Options
	wid  string
	node string

	wake chan struct{} // capacity 1: out has something
	gone chan struct{} // closed when the connection is no more

	mu      sync.Mutex
	out     []byte        // framed, not yet given to the socket
	room    chan struct{} // closed when out is short again; nil: nobody waits
	last    uint64        // rid of the newest request
	pending map[uint64]func(Raw, error)
	since   time.Time // of the last frame, or when the first of pending was asked
	running bool      // Run delivers what becomes of pending
	err     error     // why the connection is gone
}

// Dial connects to a node and registers there.
func Dial(ctx context.Context, addr string, o Options) (*Client, error) {
	nc, err := dialTCP(ctx, addr)
	if err != nil {
		return nil, err
	}
	if nc, err = secure(ctx, nc, addr, o.TLS); err != nil {
		return nil, err
	}
	c, err := Connect(ctx, nc, o)
	if err != nil {
		nc.Close()
	}
	return c, err
}

// Connect registers over a connection at hand. It is left open on error.
func Connect(ctx context.Context, nc net.Conn, o Options) (*Client, error) {
	if o.Stuck == 0 {
		o.Stuck = 10 * time.Second
	}
	if o.Silence == 0 {
		o.Silence = patience
	}
	c := &Client{
		nc: nc, in: frame.NewReader(nc, MaxFrameLimit), o: o,
		wake: make(chan struct{}, 1), gone: make(chan struct{}), pending: make(map[uint64]func(Raw, error)),
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
	if c.o.Token != "" {
		hello["token"] = c.o.Token
	}
	if !c.o.Plain {
		hello["ext"] = []string{Delivery}
	}
	hi, err := c.lockstep(THello, AppendValue(nil, hello), THi)
	if err != nil {
		return err
	}
	c.node, _ = hi.Get("node").Str()
	if c.o.Limit == 0 {
		c.o.Limit = DefaultFrameLimit
		if limit, ok := hi.Get("max_envelope_size_bytes").Int(); ok && limit >= MinFrameLimit && limit <= MaxFrameLimit {
			c.o.Limit = int(limit)
		}
	}
	c.in.SetLimit(c.o.Limit)
	ok, err := c.lockstep(TRegister, EmptyMap, TOK)
	if err != nil {
		return err
	}
	c.wid, _ = ok.Get("wid").Str()
	return nil
}

// lockstep sends one request and takes the next frame for its answer, but for
// a node's question who we are: REGISTER answers that.
func (c *Client) lockstep(t int64, p Raw, want int64) (Raw, error) {
	c.last++
	rid := strconv.FormatUint(c.last, 10)
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

// WID is the id the node gave this worker.
func (c *Client) WID() string { return c.wid }

// Node is the name of the node; empty if it did not say.
func (c *Client) Node() string { return c.node }

// Gone is closed when the connection is gone: every request ends by then.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Run sends, receives and calls back until ctx ends, which gives nil, or the
// connection does. It closes the connection and ends all requests under way.
// It is called once.
func (c *Client) Run(ctx context.Context) error {
	c.mu.Lock()
	c.running = true
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { c.nc.Close() })
	defer stop()
	loops, stopLoops := context.WithCancel(ctx)
	var others sync.WaitGroup
	others.Go(func() { c.writeLoop(loops) })
	var silent error
	others.Go(func() { silent = c.watch(loops) })
	err := c.readLoop()
	stopLoops()
	c.nc.Close()
	others.Wait()
	if silent != nil {
		err = silent
	}
	c.abandon(fmt.Errorf("%w: %v", ErrClosed, err))
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Close ends the connection, and with it Run. Requests under way end with
// [ErrClosed].
func (c *Client) Close() error {
	err := c.nc.Close()
	c.mu.Lock()
	running := c.running
	c.mu.Unlock()
	if !running {
		c.abandon(ErrClosed)
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
			err = c.push(t, p)
		} else {
			err = c.answer(t, rid, p)
		}
		if err != nil {
			return err
		}
	}
}

// answer hands an answer to who waits for it. One that nobody asked for means
// that the two sides have lost each other.
func (c *Client) answer(t int64, rid []byte, p Raw) error {
	n, _ := parseInt(rid)
	c.mu.Lock()
	then, asked := c.pending[uint64(n)]
	if !asked || t != TOK && t != TErr && t != TPong {
		c.mu.Unlock()
		return fmt.Errorf("node sent t=%d to request %q, which is no answer to it", t, rid)
	}
	delete(c.pending, uint64(n))
	c.since = time.Now()
	c.mu.Unlock()
	switch {
	case then == nil:
	case t == TErr:
		then(nil, parseErr(p))
	default:
		then(p, nil)
	}
	return nil
}

func (c *Client) push(t int64, p Raw) error {
	c.mu.Lock()
	c.since = time.Now()
	c.mu.Unlock()
	switch {
	case t == TErr:
		return parseErr(p)
	case t == TIdent:
	case t < TQuest || t > TJobEnd || c.o.Plain:
		return fmt.Errorf("node pushed t=%d, which this client does not know", t)
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

// chunk is how much is written at once: a write that takes [Options.Stuck] has
// moved less than that.
const chunk = 256 << 10

// writeLoop gives the socket all that waits in one go, and so gathers what
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
		c.letIn()
		c.mu.Unlock()
		for part := range slices.Chunk(batch, chunk) {
			c.nc.SetWriteDeadline(time.Now().Add(c.o.Stuck))
			if _, err := c.nc.Write(part); err != nil {
				c.nc.Close() // readLoop ends with it
				return
			}
		}
		if cap(batch) > 1<<20 {
			batch = nil
		}
	}
}

// abandon ends all requests, those to come included.
func (c *Client) abandon(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
		close(c.gone)
	}
	pending := c.pending
	c.pending = nil
	c.letIn()
	c.mu.Unlock()
	for _, then := range pending {
		if then != nil {
			then(nil, err)
		}
	}
}

// Go sends a request and returns. payload appends the payload map to the bytes
// it is given. then is called once: by Run with the OK's payload, which lies
// in the frame, or a [*RemoteError]; or with an error that is [ErrClosed]. What
// the wire cannot carry is not sent and gives an error that is
// [ErrNotSendable] or a [*frame.TooLargeError], at once. then must not block;
// nil means that the answer does not matter. Who calls Go faster than the node
// answers has to bound that; [Client.Call] does.
func (c *Client) Go(t int64, payload func([]byte) []byte, then func(ok Raw, err error)) {
	c.mu.Lock()
	err := c.send(t, payload, then)
	c.mu.Unlock()
	if err != nil && then != nil {
		then(nil, err)
	}
}

// send puts a request to those that wait for the socket; Client.mu is held.
func (c *Client) send(t int64, payload func([]byte) []byte, then func(Raw, error)) error {
	if c.err != nil {
		return c.err
	}
	rid := strconv.AppendUint(make([]byte, 0, 20), c.last+1, 10)
	out, mark := Begin(c.out)
	out, size := End(payload(out), mark, t, rid)
	c.out = out[:mark]
	if size > c.o.Limit {
		return &frame.TooLargeError{Size: size, Limit: c.o.Limit}
	}
	// The node would hang up on bytes it does not take, and with them on all
	// that is under way here.
	if err := Check(out[mark+frame.HeaderLen:]); err != nil {
		return fmt.Errorf("%w: %v", ErrNotSendable, err)
	}
	c.out = out
	c.last++
	if len(c.pending) == 0 {
		c.since = time.Now()
	}
	c.pending[c.last] = then
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// Call sends a request and waits for its answer, which is the caller's. It
// waits with sending while too much waits for the socket.
func (c *Client) Call(ctx context.Context, t int64, p Raw) (Raw, error) {
	type answer struct {
		ok  Raw
		err error
	}
	if err := c.lockWithRoom(ctx); err != nil {
		return nil, err
	}
	got := make(chan answer, 1)
	err := c.send(t, func(b []byte) []byte { return append(b, p...) }, func(ok Raw, err error) {
		got <- answer{slices.Clone(ok), err}
	})
	c.mu.Unlock()
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

// mostWaiting is how many bytes may wait for the socket before calls wait too.
const mostWaiting = 1 << 20

// lockWithRoom locks Client.mu once a call may be sent; on error it is free.
func (c *Client) lockWithRoom(ctx context.Context) error {
	for {
		c.mu.Lock()
		if len(c.out) < mostWaiting || c.err != nil {
			return nil
		}
		if c.room == nil {
			c.room = make(chan struct{})
		}
		room := c.room
		c.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// letIn wakes the calls that wait for room; Client.mu is held.
func (c *Client) letIn() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}
