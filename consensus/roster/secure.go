package roster

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

	"yardmaster/internal/certs"
)

// What a member with TLS and one without tell each other, in clear text, since
// they have no other.
const (
	wantsTLS = "takes TLS alone, and the caller speaks none: give [cluster.tls] to both, or to neither"
	lacksTLS = "speaks no TLS, and the caller nothing else: give [cluster.tls] to both, or to neither"
)

// tlsRecord begins whatever a TLS client says first.
const tlsRecord = 0x16

// admit finds out whether the caller speaks TLS, as it has to if this member
// has certificates and must not if it has none. The certificate is the caller's,
// nil without TLS. A caller that does not fit is answered in words.
func (d *Door) admit(conn net.Conn) (net.Conn, *x509.Certificate, error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(conn, first); err != nil {
		return nil, nil, fmt.Errorf("read hello: %w", err)
	}
	conn = &begun{Conn: conn, rest: io.MultiReader(bytes.NewReader(first), conn)}
	secured := first[0] == tlsRecord
	switch {
	case !secured && d.certs == nil:
		return conn, nil, nil
	case !secured:
		theirs, _ := readHello(conn) // its name, if it gives one
		return nil, nil, d.sendAway(conn, theirs, wantsTLS)
	case d.certs == nil:
		readRecord(conn)
		return nil, nil, d.sendAway(conn, hello{}, lacksTLS)
	}
	over := tls.Server(conn, d.certs.Server())
	if err := over.Handshake(); err != nil {
		return nil, nil, handshakeError(hostOf(conn), err)
	}
	return over, over.ConnectionState().PeerCertificates[0], nil // the config asks for one
}

// sendAway says a reason, and nothing of this member but its name.
func (d *Door) sendAway(conn net.Conn, theirs hello, reason string) error {
	refused := &RefusedError{Peer: theirs.Node, Reason: reason}
	if refused.Peer == "" {
		refused.Peer = hostOf(conn)
	}
	if theirs.Node != "" {
		d.note(&theirs, false, reason)
	}
	self := d.hello()
	return errors.Join(refused, writeHello(conn, hello{Yard: self.Yard, Node: self.Node, Build: self.Build, Refused: reason}))
}

// readRecord takes in what a TLS client has said first: an answer to a client
// whose words lie unread would be lost with the connection.
func readRecord(conn net.Conn) {
	var head [5]byte
	if _, err := io.ReadFull(conn, head[:]); err == nil {
		_, _ = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(head[3:])))
	}
}

// secure brings TLS up on a connection this member has made to addr, if it has
// certificates. Whoever holds the one that it gives has still to say who he is.
func (d *Door) secure(conn net.Conn, addr string) (net.Conn, *x509.Certificate, error) {
	if d.certs == nil {
		return conn, nil, nil
	}
	over := tls.Client(conn, d.certs.Client(nil))
	err := over.Handshake()
	var plain tls.RecordHeaderError
	switch {
	case err == nil:
		return over, over.ConnectionState().PeerCertificates[0], nil
	case errors.As(err, &plain) && string(plain.RecordHeader[:len(magic)]) == magic:
		return nil, nil, &RefusedError{Peer: d.nameOf(addr), Reason: lacksTLS}
	}
	return nil, nil, handshakeError(d.nameOf(addr), err)
}

// refusal is err, as what it is if the member at addr has refused our
// certificate: by TLS 1.3 we hear of that only after our side of the handshake.
func (d *Door) refusal(addr string, err error) error {
	var alert *net.OpError
	if errors.As(err, &alert) && alert.Op == "remote error" {
		return &RefusedError{Peer: d.nameOf(addr), Reason: "refuses this member's certificate: " + alert.Err.Error()}
	}
	return err
}

// handshakeError tells a peer that will not, or is not wanted, from one that
// was just not there.
func handshakeError(peer string, err error) error {
	var waited net.Error
	if errors.As(err, &waited) && waited.Timeout() || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return &RefusedError{Peer: peer, Reason: "TLS handshake: " + err.Error()}
}

// impostor says that a certificate does not carry the name its holder goes by,
// or "".
func impostor(c *x509.Certificate, name string) string {
	if c == nil || certs.Names(c, name) {
		return ""
	}
	return fmt.Sprintf("is called by %q with the certificate of %s, which speaks for nobody else; make its own with 'yardmaster cert node %s'",
		name, certs.Of(c), name)
}

func hostOf(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return conn.RemoteAddr().String()
	}
	return host
}

// begun is a connection of which the first bytes have been read already.
type begun struct {
	net.Conn
	rest io.Reader
}

func (b *begun) Read(p []byte) (int, error) { return b.rest.Read(p) }
