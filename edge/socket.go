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

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// These bound what is read from a client that is refused, so that the refusal
// reaches it before the connection is reset.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 1 << 20
)

// socket returns the connection below TLS, or the connection itself.
func (c *conn) socket() net.Conn {
	if t, ok := c.nc.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c.nc
}

// abort closes the connection at once. A close by TLS would wait for a client
// that may not read.
func (c *conn) abort() { c.socket().Close() }

// handshake performs the TLS handshake if the edge uses TLS. Its time is
// limited by the purge of connections that have not sent HELLO.
func (c *conn) handshake() error {
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
		c.logProtocolMismatch("it does not speak TLS, and this port speaks nothing else; see [server.tls]")
	case !isDisconnect(err):
		c.logProtocolMismatch(err.Error())
	}
	return fmt.Errorf("%w: %w", errRefused, err)
}

// logUnexpectedTLS logs a client that uses TLS on a port that does not. Its
// first bytes look like a frame of an implausible length.
func (c *conn) logUnexpectedTLS(err error) {
	const handshake, version = 22, 3 // the first bytes of a TLS record, for all versions in use
	var size *frame.TooLargeError
	if errors.As(err, &size) && size.Size>>16 == handshake<<8|version {
		c.logProtocolMismatch("it speaks TLS, and this port does not; see [server.tls]")
	}
}

// logSlowFrame logs a client that was cut off because it did not finish a frame
// in time.
func (c *conn) logSlowFrame(err error) {
	if !c.frameBegun || !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	if n, ok := c.s.slowFrameLog.Allow(time.Now()); ok {
		c.s.log.Info("client cut off, frame not completed in time", "peer", c.host, "count", n)
	}
}

func (c *conn) logProtocolMismatch(reason string) {
	if n, ok := c.s.protocolMismatchLog.Allow(time.Now()); ok {
		c.s.log.Warn("client protocol mismatch", "peer", c.host, "reason", reason, "count", n)
	}
}

// isDisconnect reports whether err means that the connection was closed by
// either side.
func isDisconnect(err error) bool {
	for _, end := range [...]error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// linger waits until a refused client has read the reason: closing a socket
// with unread input resets the connection, and the reason may be lost.
func (c *conn) linger(err error) {
	if !errors.Is(err, errRefused) {
		return
	}
	if t, ok := c.nc.(*tls.Conn); ok {
		t.CloseWrite() // TLS's own end of stream; fails if the handshake did
	}
	socket := c.socket()
	half, ok := socket.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	socket.SetReadDeadline(time.Now().Add(lingerTime))
	io.Copy(io.Discard, io.LimitReader(socket, lingerBytes))
}
