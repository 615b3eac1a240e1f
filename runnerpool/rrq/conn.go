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

	"yardmaster/internal/frame"
)

// The ways a connection to a runner fails besides the network's own errors and
// [ErrMalformed]. After any of them the connection is of no more use.
var (
	ErrClosed   = errors.New("runner closed the connection")
	ErrMismatch = errors.New("runner outcome mismatch")
)

// Conn is the yard's end of a connection to a runner. One request is on it at
// a time; one goroutine sends and waits, any may call [Conn.Interrupt].
type Conn struct {
	// Stray, if set, is told of frames that answer nothing: late or repeated
	// answers, and messages that only the yard may send. Set it before Send.
	Stray func(requestID string)

	nc     net.Conn
	frames *frame.Reader
	out    []byte // reused between requests

	request, job string // what is being waited for; "": nothing
}

// Dial connects to a runner's address, "host:port".
func Dial(ctx context.Context, addr string) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return NewConn(nc), nil
}

// NewConn speaks over nc, which it owns from now on.
func NewConn(nc net.Conn) *Conn {
	return &Conn{nc: nc, frames: frame.NewReader(nc, MaxFrame)}
}

// Do sends r and waits for its outcome, or until ctx ends; then the answer is
// still due and the connection must be closed.
func (c *Conn) Do(ctx context.Context, r *Request) (Outcome, error) {
	if err := c.Send(r); err != nil {
		return Outcome{}, err
	}
	stop := context.AfterFunc(ctx, func() { c.Interrupt(time.Now()) })
	o, err := c.Wait()
	if !stop() && errors.Is(err, os.ErrDeadlineExceeded) {
		return o, ctx.Err()
	}
	return o, err
}

// Send writes r. A [*TooLargeError] or an [ErrMalformed] tells that r itself
// cannot be sent: nothing was written and the connection is as it was.
func (c *Conn) Send(r *Request) error {
	b, err := appendRequest(c.out[:0], r)
	if err != nil {
		return err
	}
	if cap(b) <= 64<<10 {
		c.out = b
	}
	if _, err := c.nc.Write(b); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	c.request, c.job = r.RequestID, r.JobID
	return nil
}

// Wait returns the outcome of the request sent last. An interrupted wait
// returns [os.ErrDeadlineExceeded] and may be taken up again: what has arrived
// so far is kept.
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
			c.stray(m.envelope)
			continue
		}
		o := *m.outcome
		// The ids are judged in the protocol's order: an outcome without
		// request id can only mean the one request that is open.
		if !m.hasID {
			return Outcome{}, fmt.Errorf("%w: no request_id", ErrMismatch)
		}
		if o.RequestID != c.request {
			c.stray(o.RequestID)
			continue
		}
		if o.JobID != c.job {
			return Outcome{}, fmt.Errorf("%w: job_id is %.60q, not %q", ErrMismatch, o.JobID, c.job)
		}
		c.request, c.job = "", ""
		return o, nil
	}
}

func (c *Conn) stray(id string) {
	if c.Stray != nil {
		c.Stray(id)
	}
}

func readError(err error) error {
	if err == io.EOF {
		return ErrClosed
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return os.ErrDeadlineExceeded
	}
	return fmt.Errorf("read response: %w", err)
}

// Interrupt ends a Send or a Wait, the present or the next one, at t. The zero
// time takes it back. An interrupted Send makes the connection useless.
func (c *Conn) Interrupt(t time.Time) {
	_ = c.nc.SetDeadline(t) // fails on a closed connection only, whose wait has ended
}

// Idle tells that the connection, on which no answer is due, can take the next
// request: a runner may close it between two requests, or have said something
// that nobody asked for, which must not be taken for the next answer.
func (c *Conn) Idle() bool {
	if c.frames.Buffered() > 0 {
		return false
	}
	tcp, ok := c.nc.(*net.TCPConn)
	if !ok {
		return true
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	idle := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		idle = errors.Is(err, syscall.EAGAIN)
	})
	return err == nil && idle
}

// HalfClose ends our side of the connection. A runner takes that as the end of
// the requests it has from there, and can still answer.
func (c *Conn) HalfClose() {
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the connection is given up either way
	}
}

// Close half-closes first and reads away what has already come in: a reset
// would keep some runtimes from noticing the end.
func (c *Conn) Close() error {
	c.HalfClose()
	if tcp, ok := c.nc.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = raw.Control(drain)
		}
	}
	return c.nc.Close()
}

// drain empties the receive buffer without waiting, within a bound.
func drain(fd uintptr) {
	var b [4096]byte
	for range 64 {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_DONTWAIT)
		if n <= 0 || err != nil {
			return
		}
	}
}

// SendCancel delivers a cancel on a connection of its own and does not wait
// for its effect: the answer to the request comes where the request went.
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
		_ = c.nc.SetWriteDeadline(until) // the write below tells if the connection is gone
	}
	_, err = c.nc.Write(b)
	return errors.Join(err, c.Close())
}
