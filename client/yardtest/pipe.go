package yardtest

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// conn is one end of a connection in memory. Like a socket it has a buffer, here of any
// size, so that a write never blocks. A read waits for a condition, which in a bubble lets
// virtual time pass.
type conn struct {
	in, out       *stream
	local, remote address
}

// newPipe returns the two ends of a connection.
func newPipe(client, server address) (atClient, atServer *conn) {
	up, down := newStream(), newStream()
	return &conn{in: down, out: up, local: client, remote: server}, &conn{in: up, out: down, local: server, remote: client}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) { return c.in.read(p) }

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close implements net.Conn. The peer can read what was written before.
func (c *conn) Close() error {
	c.in.close(net.ErrClosed)
	c.out.close(io.EOF)
	return nil
}

// cut ends the connection at once, for both ends, as if its network had failed.
func (c *conn) cut() {
	c.in.drop()
	c.out.drop()
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { c.in.setDeadline(t); return nil }

// SetWriteDeadline implements net.Conn. Writes need no time.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// address is an address in memory, host:port.
type address string

// Network implements net.Addr.
func (a address) Network() string { return "memory" }

// String implements net.Addr.
func (a address) String() string { return string(a) }

// stream is one direction of a connection.
type stream struct {
	mu       sync.Mutex
	changed  sync.Cond // data or err was set, or the deadline was reached
	data     []byte    // written and not read
	err      error     // what a read returns after data; nil: the stream is open
	deadline time.Time // of reads; zero: none
	timer    *time.Timer
}

func newStream() *stream {
	s := new(stream)
	s.changed.L = &s.mu
	return s
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err == net.ErrClosed:
			return 0, s.err
		case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(s.data) > 0:
			n := copy(p, s.data)
			if s.data = s.data[n:]; len(s.data) == 0 {
				s.data = nil
			}
			return n, nil
		case s.err != nil:
			return 0, s.err
		}
		s.changed.Wait()
	}
}

func (s *stream) write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, io.ErrClosedPipe
	}
	s.data = append(s.data, p...)
	s.changed.Broadcast()
	return len(p), nil
}

// close ends the stream. Its reader gets err, after the data unless it is net.ErrClosed.
func (s *stream) close(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || err == net.ErrClosed {
		s.err = err
	}
	s.stopTimerLocked()
	s.changed.Broadcast()
}

// drop is close without the data that was not read.
func (s *stream) drop() {
	s.mu.Lock()
	s.data = nil
	s.mu.Unlock()
	s.close(io.EOF)
}

func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopTimerLocked()
	s.deadline = t
	if !t.IsZero() && s.err == nil {
		s.timer = time.AfterFunc(time.Until(t), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	}
}

// stopTimerLocked stops the timer of the deadline. mu is held.
func (s *stream) stopTimerLocked() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

// listener accepts the connections of a member.
type listener struct {
	addr  address
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// maxBacklog is how many connections may wait to be accepted.
const maxBacklog = 1024

func newListener(addr address) *listener {
	return &listener{addr: addr, conns: make(chan net.Conn, maxBacklog), done: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error { l.once.Do(func() { close(l.done) }); return nil }

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.addr }
