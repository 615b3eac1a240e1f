package overhop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// configError is a failure to connect that only another configuration, here or at the node,
// changes: TLS on one side, or a certificate that is refused.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

// isMisconfigured reports whether err is or wraps a [configError].
func isMisconfigured(err error) bool {
	_, ok := errors.AsType[*configError](err)
	return ok
}

// explainTLS returns the error of a TLS handshake with what to check, if that is known.
func (nd *nodeDialer) explainTLS(ctx context.Context, addr string, err error) error {
	err = fmt.Errorf("TLS with node: %w", err)
	_, isPlain := errors.AsType[tls.RecordHeaderError](err)
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case unverified:
		return &configError{fmt.Errorf("%w; check that RootCAs of the TLS configuration has the CA of the nodes, and that the certificate is valid now and for this address", err)}
	case isPlain || isClosed(err) && nd.speaksPlain(ctx, addr):
		return &configError{fmt.Errorf("%w: its port does not speak TLS; remove the TLS configuration here, or enable TLS at the node", err)}
	}
	return explainAlert(err)
}

// explainAlert returns err with what to check if a node has refused the client's part of a
// TLS handshake, in TLS 1.3 possibly after it, and otherwise err itself.
func explainAlert(err error) error {
	if isAlert(err) {
		return &configError{fmt.Errorf("%w; check that the TLS configuration has a client certificate from the CA that the node trusts, if it requires one, and a version that it supports", err)}
	}
	return err
}

// explainRefusal returns the error of a connection on which the node does not answer HELLO with
// what that means: a port that speaks TLS closes a plain connection, or answers it with an
// alert, which looks like a frame that is too large.
func (nd *nodeDialer) explainRefusal(ctx context.Context, addr string, err error) error {
	if nd.tls != nil {
		return explainAlert(err)
	}
	tooLarge, isTooLarge := errors.AsType[*frame.TooLargeError](err)
	if !isTooLarge && !isClosed(err) {
		return err
	}
	if isTooLarge {
		if other := otherPort(tooLarge.Prefix()); other != "" {
			return &configError{errors.New(other)}
		}
	}
	if nd.speaksTLS(ctx, addr) {
		return &configError{fmt.Errorf("its port requires TLS: configure TLS and the CA of its certificate here, too: %w", err)}
	}
	return fmt.Errorf("it does not answer HELLO; if its port requires TLS, configure TLS and the CA of its certificate here, too: %w", err)
}

// otherPort returns an error text that names the protocol of a port, by the first four bytes of
// its answer to HELLO, or "" if these begin no protocol that it knows.
func otherPort(begin string) string {
	const want = "; give the address of the worker port, server.port, 9876 by default"
	switch begin {
	case "HTTP":
		return "its port speaks HTTP, as http.listen of a node does, 4280 by default" + want
	case "INFO":
		return "its port speaks NATS, as nats.listen of a node does, 4222 by default" + want
	case "SSH-":
		return "its port speaks SSH" + want
	}
	return ""
}

// isClosed reports whether err means that the node has closed the connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// isAlert reports whether err is an alert that a TLS peer has sent.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// speaksTLS reports whether the node at addr begins a TLS handshake.
func (nd *nodeDialer) speaksTLS(ctx context.Context, addr string) bool {
	nc, err := nd.dial(ctx, addr)
	if err != nil {
		return false
	}
	defer nc.Close()
	err = tls.Client(nc, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) // nothing is sent over it
	return err == nil || isAlert(err)
}

// speaksPlain reports whether the node at addr answers a HELLO without TLS.
func (nd *nodeDialer) speaksPlain(ctx context.Context, addr string) bool {
	nc, err := nd.dial(ctx, addr)
	if err != nil {
		return false
	}
	defer nc.Close()
	_, err = Connect(ctx, nc, Options{Plain: true}) // without a token, which others could read
	return err == nil || ErrorCode(err) != ""
}
