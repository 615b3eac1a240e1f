package edge

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"yardmaster/internal/frame"
)

// lingering bounds what is still read from a client that is being refused, so
// that the refusal reaches it before the connection is reset.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 1 << 20
)

// socket is the connection below TLS, or the connection itself.
func (c *conn) socket() net.Conn {
	if t, ok := c.nc.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c.nc
}

// cut ends the connection at once. Closing it by TLS would have to wait for a
// client that may not read.
func (c *conn) cut() { c.socket().Close() }

// secure brings TLS up if the edge speaks it. It takes as long as the client
// does, until the purge ends a connection that has not said HELLO.
func (c *conn) secure() error {
	t, ok := c.nc.(*tls.Conn)
	if !ok {
		return nil
	}
	err := t.Handshake()
	if err == nil {
		return nil
	}
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &plain):
		c.misfit("it does not speak TLS, and this port speaks nothing else; see [server.tls]")
	case !hungUp(err):
		c.misfit(err.Error())
	}
	return fmt.Errorf("%w: %w", errRefused, err)
}

// foreign tells in the log of a client that speaks TLS to a port that does not.
// It would read like a frame of an absurd length.
func (c *conn) foreign(err error) {
	const handshake, version = 22, 3 // the begin of a TLS record, for all versions in use
	var size *frame.TooLargeError
	if errors.As(err, &size) && size.Size>>16 == handshake<<8|version {
		c.misfit("it speaks TLS, and this port does not; see [server.tls]")
	}
}

// dawdled tells in the log of a client that did not finish what it had begun.
func (c *conn) dawdled(err error) {
	if !c.hurried || !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	if n, say := c.s.dawdlers.Again(time.Now()); say {
		c.s.log.Info("edge ends a client that does not finish a frame", "from", c.host, "times", n)
	}
}

func (c *conn) misfit(reason string) {
	if n, say := c.s.foreigners.Again(time.Now()); say {
		c.s.log.Warn("edge and a client do not understand each other", "from", c.host, "reason", reason, "times", n)
	}
}

// hungUp tells that a connection was closed, by whom or how ever.
func hungUp(err error) bool {
	for _, end := range [...]error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// linger lets a refused client read why: closing a socket with unread bytes
// would reset it, and the refusal with it.
func (c *conn) linger(err error) {
	if !errors.Is(err, errRefused) {
		return
	}
	if t, ok := c.nc.(*tls.Conn); ok {
		t.CloseWrite() // its end of the stream; fails if TLS never came up
	}
	socket := c.socket()
	half, ok := socket.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	socket.SetReadDeadline(time.Now().Add(lingerTime))
	io.Copy(io.Discard, io.LimitReader(socket, lingerBytes))
}
