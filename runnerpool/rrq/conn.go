package rrq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// Failures of a connection to a runner, in addition to network errors and
// [ErrMalformed]. After any of them the connection must be closed.
var (
	ErrClosed   = errors.New("runner closed the connection")
	ErrMismatch = errors.New("runner outcome mismatch")
)

// Conn is the node's end of a connection to a runner. It carries one request at
// a time. One goroutine sends and waits; any goroutine may call
// [Conn.SetDeadline].
type Conn struct {
	// OnUnmatched, if set, is called for frames that are not an answer to the
	// request: late or repeated answers, and messages that only a node may
	// send. It must be set before Send.
	OnUnmatched func(requestID string)

	nc     net.Conn
	frames *frame.Reader
	out    []byte // reused between requests

	requestID, jobID string // of the request that is awaited; "": none
}

// Dial connects to a runner at addr, "host:port".
func Dial(ctx context.Context, addr string) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return NewConn(nc), nil
}

// NewConn returns a connection over nc and takes ownership of it.
func NewConn(nc net.Conn) *Conn {
	return &Conn{nc: nc, frames: frame.NewReader(nc, MaxFrame)}
}

// Do sends r and waits for its outcome or for ctx to end. In the latter case
// the answer is still pending and the connection must be closed.
func (c *Conn) Do(ctx context.Context, r *Request) (Outcome, error) {
	if err := c.Send(r); err != nil {
		return Outcome{}, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	o, err := c.Wait()
	if !stop() && errors.Is(err, os.ErrDeadlineExceeded) {
		return o, ctx.Err()
	}
	return o, err
}

// Send writes r. If the error is a [*TooLargeError] or [ErrMalformed], r cannot
// be encoded: nothing was written and the connection can still be used.
func (c *Conn) Send(r *Request) error {
	b, err := appendRequest(c.out[:0], r)
	if err != nil {
		return err
	}
	if cap(b) <= maxKeptBuffer {
		c.out = b
	}
	if _, err := c.nc.Write(b); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	c.requestID, c.jobID = r.RequestID, r.JobID
	return nil
}

// Wait returns the outcome of the last request, and passes other messages that
// arrive before it to OnUnmatched. If the deadline interrupts it,
// it returns [os.ErrDeadlineExceeded] and may be called again: the part of the
// answer that has arrived is kept.
func (c *Conn) Wait() (Outcome, error) {
	for {
		payload, err := c.frames.Next()
		if err != nil {
			return Outcome{}, readError(err)
		}
		m, err := decode(payload)
		if err != nil {
			return Outcome{}, err
		}
		if m.outcome == nil {
			c.unmatched(m.envelope)
			continue
		}
		o := *m.outcome
		// The ids are checked in the protocol's order: an outcome without a
		// request id can only refer to the pending request.
		if o.RequestID == "" {
			return Outcome{}, fmt.Errorf("%w: no request_id", ErrMismatch)
		}
		if o.RequestID != c.requestID {
			c.unmatched(o.RequestID)
			continue
		}
		if o.JobID != c.jobID {
			return Outcome{}, fmt.Errorf("%w: job_id is %.60q, not %q", ErrMismatch, o.JobID, c.jobID)
		}
		c.requestID, c.jobID = "", ""
		return o, nil
	}
}

func (c *Conn) unmatched(id string) {
	if c.OnUnmatched != nil {
		c.OnUnmatched(id)
	}
}

// readError converts an error of reading a frame to one that Wait returns.
func readError(err error) error {
	if err == io.EOF {
		return ErrClosed
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return os.ErrDeadlineExceeded
	}
	return fmt.Errorf("read response: %w", err)
}

// SetDeadline ends the current or the next Send or Wait at t. The zero time
// removes the deadline. An interrupted Send makes the connection unusable.
func (c *Conn) SetDeadline(t time.Time) {
	_ = c.nc.SetDeadline(t) // fails only on a closed connection
}

// Idle reports whether the connection, on which no answer is pending, can carry
// the next request. A runner may have closed it since the last request, or have
// sent something that must not be taken for the next answer.
func (c *Conn) Idle() bool {
	if c.frames.Buffered() > 0 {
		return false
	}
	_, err := peek(c.nc)
	return errors.Is(err, errNotTCP) || errors.Is(err, syscall.EAGAIN)
}

// errNotTCP is returned by peek.
var errNotTCP = errors.New("not a TCP connection")

// peek returns how many bytes can be read from a TCP connection without blocking, at most one. It is 0
// without an error if the peer has closed its side, and syscall.EAGAIN is the error if there is
// nothing to read yet.
func peek(nc net.Conn) (n int, err error) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return 0, errNotTCP
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, err
	}
	var b [1]byte
	var received error
	err = raw.Control(func(fd uintptr) {
		n, _, received = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return n, errors.Join(err, received)
}

// HalfClose closes the sending side of the connection. A runner treats that as
// a cancel of its request, and can still answer.
func (c *Conn) HalfClose() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the connection is given up either way
	}
}

// Close closes the connection: first the sending side, then, with the input
// read, the rest. A reset would keep some runtimes from noticing the end.
func (c *Conn) Close() error {
	c.HalfClose()
	if tcp, ok := c.nc.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = raw.Control(drainBuffer)
		}
	}
	return c.nc.Close()
}

// drainBuffer reads what is in the socket's receive buffer without blocking, up
// to 256 KiB.
func drainBuffer(fd uintptr) {
	var b [4096]byte
	for range 64 {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_DONTWAIT)
		if n <= 0 || err != nil {
			return
		}
	}
}

// SendCancel sends a cancel over a new connection to addr, "host:port", and does
// not wait for its effect: the request is answered on its own connection.
func SendCancel(ctx context.Context, addr string, cancel *Cancel) error {
	b, err := appendCancel(nil, cancel)
	if err != nil {
		return err
	}
	c, err := Dial(ctx, addr)
	if err != nil {
		return fmt.Errorf("send cancel: %w", err)
	}
	if until, ok := ctx.Deadline(); ok {
		_ = c.nc.SetWriteDeadline(until) // if this fails, so does the write
	}
	_, err = c.nc.Write(b)
	return errors.Join(err, c.Close())
}
