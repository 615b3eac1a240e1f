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

// acceptTLS determines whether the caller uses TLS, which it must if this
// member has certificates and must not otherwise. It returns the caller's
// certificate, nil without TLS. A caller that does not match gets a readable
// reason.
func (l *PeerListener) acceptTLS(conn net.Conn) (net.Conn, *x509.Certificate, error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(conn, first); err != nil {
		return nil, nil, fmt.Errorf("read hello: %w", err)
	}
	conn = &prefixConn{Conn: conn, rest: io.MultiReader(bytes.NewReader(first), conn)}
	secured := first[0] == tlsHandshakeRecord
	switch {
	case !secured && l.certs == nil:
		return conn, nil, nil
	case !secured:
		theirs, _ := readHello(conn) // its name, if it gives one
		return nil, nil, l.reject(conn, theirs, reasonTLSRequired)
	case l.certs == nil:
		discardTLSRecord(conn)
		return nil, nil, l.reject(conn, hello{}, reasonNoTLS)
	}
	secure := tls.Server(conn, l.certs.Server())
	if err := secure.Handshake(); err != nil {
		return nil, nil, handshakeError(remoteHost(conn), err)
	}
	return secure, secure.ConnectionState().PeerCertificates[0], nil // the TLS configuration requires one
}

// reject sends a reason, with nothing of this member except its cluster, name
// and build, and returns it as an error.
func (l *PeerListener) reject(conn net.Conn, theirs hello, reason string) error {
	refused := &RefusedError{Peer: theirs.Node, Reason: reason}
	if refused.Peer == "" {
		refused.Peer = remoteHost(conn)
	}
	if theirs.Node != "" {
		l.recordContact(&theirs, false, reason)
	}
	self := l.hello()
	return errors.Join(refused, writeHello(conn, hello{Yard: self.Yard, Node: self.Node, Build: self.Build, Refused: reason}))
}

// discardTLSRecord reads the first record of a TLS client: if the connection
// were closed with unread data, the client would not receive the answer.
func discardTLSRecord(conn net.Conn) {
	var head [5]byte
	if _, err := io.ReadFull(conn, head[:]); err == nil {
		_, _ = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(head[3:])))
	}
}

// startTLS starts TLS on a connection to addr if this member has certificates.
// The name in the other side's certificate is compared with its hello later.
func (l *PeerListener) startTLS(conn net.Conn, addr string) (net.Conn, *x509.Certificate, error) {
	if l.certs == nil {
		return conn, nil, nil
	}
	secure := tls.Client(conn, l.certs.Client(nil))
	err := secure.Handshake()
	plain, isPlain := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case err == nil:
		return secure, secure.ConnectionState().PeerCertificates[0], nil
	case isPlain && string(plain.RecordHeader[:len(magic)]) == magic:
		return nil, nil, &RefusedError{Peer: l.nameAt(addr), Reason: reasonNoTLS}
	}
	return nil, nil, handshakeError(l.nameAt(addr), err)
}

// certRefused returns a [*RefusedError] if err means that the member at addr
// refused our certificate, else err. In TLS 1.3 that is only known after our
// side of the handshake.
func (l *PeerListener) certRefused(addr string, err error) error {
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return &RefusedError{Peer: l.nameAt(addr), Reason: "refuses this member's certificate: " + alert.Err.Error()}
	}
	return err
}

// handshakeError returns a [*RefusedError] for a failed TLS handshake, but a
// plain error if the peer was only unreachable.
func handshakeError(peer string, err error) error {
	if waited, ok := errors.AsType[net.Error](err); ok && waited.Timeout() || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return &RefusedError{Peer: peer, Reason: "TLS handshake: " + err.Error()}
}

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

// prefixConn is a connection whose first bytes have already been read.
type prefixConn struct {
	net.Conn
	rest io.Reader
}

func (b *prefixConn) Read(p []byte) (int, error) { return b.rest.Read(p) }
