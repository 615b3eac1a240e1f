package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Send is [Settings.SendWithin] with the time limit of --timeout.
func (s *Settings) Send(ctx context.Context, subject string, request any) ([]byte, error) {
	return s.SendWithin(ctx, s.Timeout, subject, request)
}

// SendWithin connects to a node, sends one request and waits for the reply, at most
// for timeout. A request that is a []byte is sent as it is, any other as JSON.
func (s *Settings) SendWithin(ctx context.Context, timeout time.Duration, subject string, request any) ([]byte, error) {
	client, err := s.Dial(ctx)
	if err != nil {
		return nil, err
	}
	body, encoded := request.([]byte)
	if !encoded {
		if body, err = job.EncodeJSON(request); err != nil {
			return nil, fmt.Errorf("write the request as JSON: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return client.Request(ctx, subject, body)
}

// Decode returns a reply decoded from JSON. If err is not nil it returns err, so that
// the results of [Settings.Send] can be its arguments.
func Decode[T any](reply []byte, err error) (value T, _ error) {
	if err != nil {
		return value, err
	}
	if err := json.Unmarshal(reply, &value); err != nil {
		return value, BadReply(err)
	}
	return value, nil
}

// Refused returns the refusal of a node that err contains, or nil if err contains no
// refusal. If codes are given, it also returns nil for a refusal with another code.
func Refused(err error, codes ...string) *api.Error {
	refused, ok := errors.AsType[*api.Error](err)
	if !ok || len(codes) > 0 && !slices.Contains(codes, refused.Code) {
		return nil
	}
	return refused
}

// BadReply returns the error for a reply that cannot be decoded.
func BadReply(err error) error {
	return usererror.New(fmt.Sprintf("the reply cannot be decoded: %v", err),
		"use the yardmaster program of the node's version ('yardmaster status --json' shows it)")
}

// HTTPClient returns a client for HTTP that trusts the same CA and shows the same
// client certificate as the NATS connection.
func (s *Settings) HTTPClient() (*http.Client, error) {
	t, err := s.destination()
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.opts.CA != "" {
		if cfg.RootCAs, err = readCAs(t.opts.CA); err != nil {
			return nil, usererror.New(err.Error(), "correct it, or leave it out")
		}
	}
	if t.opts.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.opts.Cert, t.opts.Key)
		if err != nil {
			return nil, usererror.New(fmt.Sprintf("cert %s with key %s cannot be used: %v", t.opts.Cert, t.opts.Key, err), "correct it, or leave it out")
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, Proxy: http.ProxyFromEnvironment}}, nil
}

// readCAs returns the certificates in a PEM file.
func readCAs(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate: it must be PEM", path)
	}
	return pool, nil
}
