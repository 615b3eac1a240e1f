package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// minSendRate is the lowest rate, in bytes per second, at which a client may
// send a large frame: 2 Mbit/s. The read timeout comes on top.
const minSendRate = 256 << 10

// These bound what is read from a client that is refused, so that the refusal
// reaches it before the connection is reset.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 1 << 20
)

// link is the byte stream of one connection: its socket, and the deadline and
// memory of the frame that is being read. Only the read loop uses it, except
// for socket and abort.
type link struct {
	server      *Server
	netConn     net.Conn        // may be a *tls.Conn
	host        string          // the client's address without its port
	ctx         context.Context // done when nothing can be written any more
	cancel      context.CancelFunc
	busy        stopwatch           // runs while a request is handled and nothing is read
	frames      *semaphore.Weighted // the memory that a large frame needs: of Server, for clients with or without REGISTER
	frameMemory int                 // bytes of frames that the current frame takes
	frameBegun  bool                // the current frame is incomplete and has a read deadline
}

// socket returns the connection below TLS, or the connection itself.
func (l *link) socket() net.Conn {
	if t, ok := l.netConn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return l.netConn
}

// abort closes the connection at once. A close by TLS would wait for a client
// that may not read.
func (l *link) abort() { l.socket().Close() }

// handshake performs the TLS handshake if the edge uses TLS. Its time is
// limited because a connection that does not send HELLO in time is closed. A
// failure is logged, unless the client has disconnected, and returned as
// errRefused.
func (l *link) handshake() error {
	tlsConn, ok := l.netConn.(*tls.Conn)
	if !ok {
		return nil
	}
	err := tlsConn.Handshake()
	if err == nil {
		return nil
	}
	if _, plain := errors.AsType[tls.RecordHeaderError](err); plain {
		l.logProtocolMismatch("it does not speak TLS, and this port speaks nothing else; see [server.tls]")
	} else if !isDisconnect(err) {
		l.logProtocolMismatch(err.Error())
	}
	return fmt.Errorf("%w: %w", errRefused, err)
}

// logReadError logs a client that could not be read because it did not finish a
// frame in time, or because it uses TLS on a port that does not. The first bytes
// of TLS look like a frame of an implausible length.
func (l *link) logReadError(err error) {
	const tlsHandshake, tlsMajorVersion = 22, 3 // the first bytes of a TLS record, for all versions in use
	tooLarge, ok := errors.AsType[*frame.TooLargeError](err)
	if ok && tooLarge.Size>>16 == tlsHandshake<<8|tlsMajorVersion {
		l.logProtocolMismatch("it speaks TLS, and this port does not; see [server.tls]")
	}
	if ok && isHTTP(tooLarge) {
		l.logProtocolMismatch("it speaks HTTP, and this port is that of workers; see [http]")
	}
	if !l.frameBegun || !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	if n, ok := l.server.slowFrameLog.Allow(time.Now()); ok {
		l.server.log.Info("client cut off, frame not completed in time", "peer", l.host, "count", n)
	}
}

// isHTTP reports whether the first bytes from a client begin an HTTP request.
func isHTTP(err *frame.TooLargeError) bool {
	switch err.Prefix() {
	case "GET ", "HEAD", "POST", "PUT ", "DELE", "OPTI", "PATC":
		return true
	}
	return false
}

// httpAnswer is the answer to a client that speaks HTTP.
const httpAnswer = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" +
	"this is the port of workers, server.port; HTTP is at http.listen, 4280 by default\n"

func (l *link) logProtocolMismatch(reason string) {
	if n, ok := l.server.protocolMismatchLog.Allow(time.Now()); ok {
		l.server.log.Warn("client protocol mismatch", "peer", l.host, "reason", reason, "count", n)
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

// linger waits until a client that was refused with errRefused has read the
// reason: closing a socket with unread input resets the connection, and the
// reason may be lost.
func (l *link) linger(err error) {
	if !errors.Is(err, errRefused) {
		return
	}
	if tlsConn, ok := l.netConn.(*tls.Conn); ok {
		tlsConn.CloseWrite() // TLS's own end of stream; fails if the handshake did
	}
	socket := l.socket()
	half, ok := socket.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	socket.SetReadDeadline(time.Now().Add(lingerTime))
	io.Copy(io.Discard, io.LimitReader(socket, lingerBytes))
}

// Started implements [frame.Gate]: it sets the read deadline for the rest of a
// frame of size bytes that has begun, so that the frame cannot keep its memory
// for ever.
func (l *link) Started(size int) {
	l.frameBegun = true
	sendTime := time.Duration(size) * time.Second / minSendRate
	l.netConn.SetReadDeadline(time.Now().Add(l.server.cfg.Limits.ReadTimeout + sendTime))
}

// Reserve implements [frame.Gate]: it waits until there is memory for a large
// frame of size bytes. The wait does not count as the client's silence. The error
// means that the connection is ending.
func (l *link) Reserve(size int) error {
	l.busy.start()
	err := l.frames.Acquire(l.ctx, int64(size))
	l.busy.stop()
	if err != nil {
		return net.ErrClosed
	}
	l.frameMemory = size
	l.Started(size)
	return nil
}

// setIdleDeadline sets the read deadline for the time between two frames: the
// idle timeout for a registered client if one is configured, else none.
func (l *link) setIdleDeadline(registered bool) {
	switch idle := l.server.cfg.Limits.IdleTimeout; {
	case idle > 0 && registered:
		l.netConn.SetReadDeadline(time.Now().Add(idle))
	case l.frameBegun:
		l.netConn.SetReadDeadline(time.Time{})
	}
	l.frameBegun = false
}

// releaseFrame returns the current frame's memory to the budget, unless
// detachFrame was called for it.
func (l *link) releaseFrame() {
	if l.frameMemory > 0 {
		l.frames.Release(int64(l.frameMemory))
		l.frameMemory = 0
	}
}

// detachFrame keeps the current frame's memory reserved after its handling,
// until its answer is formed. release may be called more than once.
func (l *link) detachFrame() (release func()) {
	size := l.frameMemory
	if size == 0 {
		return func() {}
	}
	l.frameMemory = 0
	return sync.OnceFunc(func() { l.frames.Release(int64(size)) })
}
