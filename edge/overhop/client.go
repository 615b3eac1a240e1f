package overhop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// ErrClosed is the error of requests whose connection was closed before they
// were answered. It is not known whether they took effect.
var ErrClosed = errors.New("connection to the node is closed")

// Options configures a [Client]. The zero value ignores QUESTs.
type Options struct {
	Name  string      // name of this client, for display
	Token string      // token that the node requires; empty: none
	TLS   *tls.Config // for [Dial]; nil: plain TCP
	Plain bool        // name no capabilities: values are in the protocol's own form only

	OnQuest func(Quest) // called by Run for every QUEST; must not block

	// OnPush is called by Run for every other push of message type t. payload
	// is valid during the call only. It must not block.
	OnPush func(t int64, payload Raw)

	// probe reports whether the node is alive, over a separate connection; nil:
	// not available. Answers come in order, so on this connection a slow answer
	// cannot be told from a dead node.
	probe func(context.Context) bool
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

	takesJSON    bool // the node has [CapJSON]
	givesContent bool // the node has [CapContent]
	servesAPI    bool // the node has [CapAPI]
	takesSnooze  bool // the node has [CapSnooze]

	requests pipeline
	calls    sync.Pool // of *call, none of which is in use

	lastQuest Quest // texts of the last one; used by Run

	running atomic.Bool // Run is active and will end the pending requests
}

// Dial connects to a node and registers. ctx limits the time for that, not the
// life of the connection.
func Dial(ctx context.Context, addr string, opts Options) (*Client, error) {
	nd := nodeDialer{dial: dialTCP, tls: opts.TLS}
	return nd.open(ctx, addr, opts)
}

// Connect registers over an existing connection. ctx limits the time for that.
// On error nc is left open.
func Connect(ctx context.Context, nc net.Conn, opts Options) (*Client, error) {
	c := &Client{
		nc: nc, in: frame.NewReader(nc, MaxFrameLimit), opts: opts,
		requests: pipeline{wake: make(chan struct{}, 1), closed: make(chan struct{}), pending: make(map[uint64]func(Raw, error))},
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

// handshake sends HELLO and REGISTER, and waits for both answers. It stores the
// node's name, the worker's id and the frame limit.
func (c *Client) handshake() error {
	hello := Fields{"client": "yardmaster", "ext": []string{Delivery}, "caps": []string{CapJSON, CapContent, CapAPI, CapSnooze, capHTTP}}
	if c.opts.Plain {
		delete(hello, "caps")
	}
	setUnlessZero(hello, "name", c.opts.Name)
	setUnlessZero(hello, "token", c.opts.Token)
	hi, err := c.roundTrip(THello, hello.Raw(), THi)
	if err != nil {
		return err
	}
	c.node = hi.getText("node")
	for capability := range hi.Get("caps").Items() {
		name, _ := capability.Str()
		c.takesJSON = c.takesJSON || name == CapJSON
		c.givesContent = c.givesContent || name == CapContent
		c.servesAPI = c.servesAPI || name == CapAPI
		c.takesSnooze = c.takesSnooze || name == CapSnooze
	}
	c.requests.maxFrame = frameLimit(hi)
	ok, err := c.roundTrip(TRegister, EmptyMap, TOK)
	if err != nil {
		return err
	}
	c.wid = ok.getText("wid")
	return nil
}

// frameLimit returns the largest frame payload that a node accepts, in bytes,
// by its answer to HELLO: the default if the answer names no valid one.
func frameLimit(hi Raw) int {
	limit, ok := hi.Get("max_envelope_size_bytes").Int()
	if !ok || limit < MinFrameLimit || limit > MaxFrameLimit {
		return DefaultFrameLimit
	}
	return int(limit)
}

// roundTrip sends one request of message type t and returns the payload of its
// answer, which must have the type answerType. It is only used before Run. It
// skips an IDENT, which asks for the REGISTER that is sent anyway.
func (c *Client) roundTrip(t int64, payload Raw, answerType int64) (Raw, error) {
	c.requests.lastRID++
	rid := strconv.FormatUint(c.requests.lastRID, 10)
	if _, err := c.nc.Write(AppendMessage(nil, t, rid, payload)); err != nil {
		return nil, err
	}
	for {
		received, err := c.in.Next()
		if err != nil {
			return nil, err
		}
		message, err := ParseEnvelope(received)
		switch {
		case err != nil:
			return nil, err
		case message.T == TErr:
			return nil, parseErr(message.P)
		case message.T == TIdent && message.RID == PushRID:
			continue
		case message.T != answerType || message.RID != rid:
			return nil, fmt.Errorf("node answered t=%d to t=%d", message.T, t)
		}
		return message.P, nil
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
	loopCtx, stopLoops := context.WithCancel(ctx)
	var loops sync.WaitGroup
	var silenceErr error // why watchSilence closed the connection
	loops.Go(func() { c.writeLoop(loopCtx) })
	loops.Go(func() { silenceErr = c.watchSilence(loopCtx) })
	err := c.readLoop()

	stopLoops()
	c.nc.Close()
	loops.Wait()
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

// readLoop passes every message from the node to the request that it answers,
// or to the callback for pushes. It returns the error that ends the connection,
// never nil.
func (c *Client) readLoop() error {
	for {
		isBuffered := c.in.Ready()
		received, err := c.in.Next()
		if err != nil {
			return fmt.Errorf("read from node: %w", err)
		}
		if !isBuffered {
			c.requests.received()
		}
		t, rid, payload, err := parseEnvelope(received)
		if err != nil {
			return fmt.Errorf("read from node: %w", err)
		}
		if string(rid) == PushRID {
			err = c.handlePush(t, payload)
		} else {
			err = c.requests.answer(t, rid, payload)
		}
		if err != nil {
			return err
		}
	}
}

// handlePush passes a push of message type t to OnQuest or OnPush. An error
// ends the connection: the push is an ERR, a QUEST that cannot be parsed, or of
// a type that this client does not know. An IDENT needs no reply, because the
// client has registered.
func (c *Client) handlePush(t int64, payload Raw) error {
	switch {
	case t == TErr:
		return parseErr(payload)
	case t == TIdent:
	case t < TQuest || t > TJobEnd:
		return fmt.Errorf("node pushed t=%d, which this client does not know", t)
	case t == TQuest && c.opts.OnQuest != nil:
		quest, err := parseQuest(payload, &c.lastQuest)
		if err != nil {
			return fmt.Errorf("node sent a bad QUEST: %w", err)
		}
		c.lastQuest.Queue, c.lastQuest.Function, c.lastQuest.SID = quest.Queue, quest.Function, quest.SID
		c.opts.OnQuest(quest)
	case c.opts.OnPush != nil:
		c.opts.OnPush(t, payload)
	}
	return nil
}

const (
	maxWrite     = 256 << 10        // largest single write, in bytes
	writeTimeout = 10 * time.Second // time within which a write must finish
)

// writeLoop writes all output that waits, again and again, until ctx ends or a
// write fails, when it closes the connection. More output accumulates during a
// write, so that a busy client needs few writes.
func (c *Client) writeLoop(ctx context.Context) {
	var batch []byte
	for {
		select {
		case <-c.requests.wake:
		case <-ctx.Done():
			return
		}
		runtime.Gosched() // other goroutines may add requests, such as the outcomes of jobs that were acknowledged together
		batch = c.requests.take(batch)
		for part := range slices.Chunk(batch, maxWrite) {
			c.nc.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := c.nc.Write(part); err != nil {
				c.nc.Close() // ends readLoop
				return
			}
		}
		if cap(batch) > maxUnsent { // do not keep the memory of an exceptional batch
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

// Call sends a request of message type t and returns a copy of the answer's
// payload. It waits while too much output is unsent. If ctx ends first, the
// request may still take effect.
func (c *Client) Call(ctx context.Context, t int64, payload Raw) (Raw, error) {
	answer, err := c.call(ctx, t, payload.append, "")
	return answer.whole, err
}

// call is a request whose caller waits for the answer.
type call struct {
	field string                  // the field of the answer that the caller needs; "": the whole
	done  func(ok Raw, err error) // receives the answer
	given chan struct{}           // capacity 1: answer and err are set
	answer
	err error
}

// answer is the answer to a call: the whole payload of the OK, or the text of one field.
type answer struct {
	whole Raw
	text  string
}

// newCall returns a call that is not in use.
func newCall() *call {
	call := &call{given: make(chan struct{}, 1)}
	call.done = func(ok Raw, err error) {
		switch {
		case err != nil:
			call.err = err
		case call.field != "":
			call.text = ok.getText(call.field)
		default:
			call.whole = slices.Clone(ok)
		}
		call.given <- struct{}{}
	}
	return call
}

// call sends a request of message type t, whose payload map payload appends to its argument,
// and waits for the answer, of which it returns the text of a field, or the whole if field is "".
func (c *Client) call(ctx context.Context, t int64, payload func([]byte) []byte, field string) (answer, error) {
	if err := c.requests.lockWritable(ctx); err != nil {
		return answer{}, err
	}
	call, _ := c.calls.Get().(*call)
	if call == nil {
		call = newCall()
	}
	call.field = field
	err := c.requests.addLocked(t, payload, call.done)
	c.requests.mu.Unlock()
	if err != nil {
		return answer{}, err
	}
	select {
	case <-call.given:
		given, err := call.answer, call.err
		call.answer, call.err = answer{}, nil
		c.calls.Put(call)
		return given, err
	case <-ctx.Done(): // the answer may still come
		return answer{}, ctx.Err()
	}
}

const (
	// responseTimeout is how long a node may send nothing at all while it owes
	// an answer. It is longer than the longest time for which a node can be
	// configured to delay an answer, one minute.
	responseTimeout = 65 * time.Second

	// probeAfter is the silence after which a node that owes an answer is
	// probed. With probeTimeout it is shorter than a lease, so that a worker can
	// continue its jobs at another node.
	probeAfter = 2500 * time.Millisecond

	watchInterval = 500 * time.Millisecond
)

// watchSilence closes the connection and returns an error if the node owes
// answers and has sent nothing for responseTimeout, or for probeAfter if a
// probe finds it dead. It returns nil if ctx ends first.
func (c *Client) watchSilence(ctx context.Context) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	var lastAlive time.Time // when the last successful probe ended
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		since, waiting := c.requests.unansweredSince()
		if !waiting {
			continue
		}
		silence := time.Since(since)
		if silence <= responseTimeout {
			probeDue := c.opts.probe != nil && min(silence, time.Since(lastAlive)) > probeAfter
			if !probeDue {
				continue
			}
			if c.opts.probe(ctx) {
				lastAlive = time.Now()
				continue
			}
			latest, waiting := c.requests.unansweredSince()
			if !waiting || latest.After(since) {
				continue // the node has answered during the probe
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		c.nc.Close()
		return fmt.Errorf("node has sent nothing for %s", duration.Format(time.Since(since).Round(watchInterval)))
	}
}
