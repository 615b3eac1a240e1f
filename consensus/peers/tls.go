package peers

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"

	"github.com/yardmaster-dev/yardmaster/internal/certs"
)

// Reasons that a member with TLS and one without send to each other, in clear
// text, because they have no other protocol in common.
const (
	reasonTLSRequired = "requires TLS, and the caller does not use it: configure [cluster.tls] on both members or on neither"
	reasonNoTLS       = "does not use TLS, and the caller requires it: configure [cluster.tls] on both members or on neither"
)

// tlsHandshakeRecord is the first byte that a TLS client sends.
const tlsHandshakeRecord = 0x16

// acceptTLS finds out from the caller's first byte whether the caller uses TLS, and
// completes the TLS handshake if so. A caller must use TLS if and only if this member
// has certificates; any other caller is sent the reason why it is refused. acceptTLS
// returns the connection to use from now on and the caller's certificate, nil without
// TLS. It does not close conn.
func (l *PeerListener) acceptTLS(conn net.Conn) (net.Conn, *x509.Certificate, error) {
	firstByte := make([]byte, 1)
	if _, err := io.ReadFull(conn, firstByte); err != nil {
		return nil, nil, fmt.Errorf("read hello: %w", err)
	}
	conn = &prefixConn{Conn: conn, rest: io.MultiReader(bytes.NewReader(firstByte), conn)}
	callerUsesTLS := firstByte[0] == tlsHandshakeRecord
	switch {
	case !callerUsesTLS && l.certs == nil:
		return conn, nil, nil
	case !callerUsesTLS:
		caller, _ := readHello(conn) // only for its name, which is "" if there is no hello
		return nil, nil, l.reject(conn, caller, reasonTLSRequired)
	case l.certs == nil:
		discardTLSRecord(conn)
		return nil, nil, l.reject(conn, hello{}, reasonNoTLS)
	}
	tlsConn := tls.Server(conn, l.certs.Server())
	if err := tlsConn.Handshake(); err != nil {
		return nil, nil, handshakeError(remoteHost(conn), err)
	}
	return tlsConn, tlsConn.ConnectionState().PeerCertificates[0], nil // the TLS configuration requires one
}

// reject sends a hello with the reason why the caller is refused, and returns the
// reason as a [*RefusedError]. Because the connection is not encrypted, the hello
// contains only the cluster, name and build of this member. caller is the caller's own
// hello, zero if it sent none. The caller of reject must close conn.
func (l *PeerListener) reject(conn net.Conn, caller hello, reason string) error {
	peer := remoteHost(conn)
	if caller.Node != "" {
		peer = caller.Node
		l.recordContact(&caller, false, reason) // false: without TLS
	}
	self := l.hello()
	answer := hello{Yard: self.Yard, Node: self.Node, Build: self.Build, Refused: reason}
	return errors.Join(&RefusedError{Peer: peer, Reason: reason}, writeHello(conn, answer))
}

// discardTLSRecord reads the first record of a TLS client: if the connection
// were closed with unread data, the client would not receive the answer.
func discardTLSRecord(conn net.Conn) {
	var head [5]byte
	if _, err := io.ReadFull(conn, head[:]); err == nil {
		_, _ = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(head[3:])))
	}
}

// startTLS completes a TLS handshake on a connection to the member at addr if this
// member has certificates. It returns the connection to use from now on and the other
// side's certificate, nil without TLS; the caller must compare the name in that
// certificate with the other side's hello. The error is a [*RefusedError] if the other
// side does not use TLS or fails the handshake.
func (l *PeerListener) startTLS(conn net.Conn, addr string) (net.Conn, *x509.Certificate, error) {
	if l.certs == nil {
		return conn, nil, nil
	}
	tlsConn := tls.Client(conn, l.certs.Client(nil))
	err := tlsConn.Handshake()
	if err == nil {
		return tlsConn, tlsConn.ConnectionState().PeerCertificates[0], nil
	}
	notTLS, ok := errors.AsType[tls.RecordHeaderError](err)
	if ok && string(notTLS.RecordHeader[:len(magic)]) == magic { // the answer was a hello in clear text
		return nil, nil, &RefusedError{Peer: l.nameAt(addr), Reason: reasonNoTLS}
	}
	return nil, nil, handshakeError(l.nameAt(addr), err)
}

// certRefused returns a [*RefusedError] if err means that the member at addr
// refused this member's certificate, else err. In TLS 1.3 the refusal arrives
// only with the first read after the handshake.
func (l *PeerListener) certRefused(addr string, err error) error {
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" { // how package tls marks an alert
		return &RefusedError{Peer: l.nameAt(addr), Reason: "refuses this member's certificate: " + alert.Err.Error()}
	}
	return err
}

// handshakeError returns the error of a failed TLS handshake with a peer: a
// [*RefusedError], or a plain error if only the connection failed, so that the
// handshake may succeed when it is repeated.
func handshakeError(peer string, err error) error {
	netErr, ok := errors.AsType[net.Error](err)
	timedOut := ok && netErr.Timeout()
	isCause := func(cause error) bool { return errors.Is(err, cause) }
	if timedOut || slices.ContainsFunc(connectionErrors, isCause) {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return &RefusedError{Peer: peer, Reason: "TLS handshake: " + err.Error()}
}

// connectionErrors are the errors, besides a timeout, of a connection that was lost.
var connectionErrors = []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE}

// nameMismatch returns a reason if certificate c is not valid for name, or "".
// c is nil without TLS.
func nameMismatch(c *x509.Certificate, name string) string {
	if c == nil || certs.HasName(c, name) {
		return ""
	}
	return fmt.Sprintf("is called by %q with the certificate of %s, which is not valid for that name; create one with 'yardmaster cert node %s'",
		name, certs.SubjectOf(c), name)
}

func remoteHost(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return conn.RemoteAddr().String()
	}
	return host
}

// prefixConn is a connection whose first bytes have already been read from Conn; rest
// returns these bytes again and then the following ones.
type prefixConn struct {
	net.Conn
	rest io.Reader
}

func (c *prefixConn) Read(p []byte) (int, error) { return c.rest.Read(p) }
