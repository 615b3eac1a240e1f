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
)

// Send sends one request, as [Settings.SendWithin] does, and waits for the reply at
// most the time of --timeout.
func (s *Settings) Send(ctx context.Context, subject string, request any) ([]byte, error) {
	return s.SendWithin(ctx, s.Timeout, subject, request)
}

// SendWithin connects to a node, sends one request and returns the reply. A request
// that is a []byte is sent as it is, any other as JSON.
func (s *Settings) SendWithin(ctx context.Context, timeout time.Duration, subject string, request any) ([]byte, error) {
	cl, err := s.Dial(ctx)
	if err != nil {
		return nil, err
	}
	body, raw := request.([]byte)
	if !raw {
		if body, err = json.Marshal(request); err != nil {
			return nil, fmt.Errorf("write the request as JSON: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return cl.Request(ctx, subject, body)
}

// Decode decodes a reply, unless err is set.
func Decode[T any](reply []byte, err error) (v T, _ error) {
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(reply, &v); err != nil {
		return v, BadReply(err)
	}
	return v, nil
}

// Refused returns the refusal in err if its code is one of codes, or any if none are
// given; nil otherwise.
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

// HTTPClient returns a client for HTTP with the CA and the client certificate of
// the NATS connection.
func (s *Settings) HTTPClient() (*http.Client, error) {
	d, err := s.destination()
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if d.opts.CA != "" {
		text, err := os.ReadFile(d.opts.CA)
		if err == nil {
			if cfg.RootCAs = x509.NewCertPool(); !cfg.RootCAs.AppendCertsFromPEM(text) {
				err = fmt.Errorf("%s holds no certificate: it must be PEM", d.opts.CA)
			}
		}
		if err != nil {
			return nil, usererror.New(err.Error(), "correct it, or leave it out")
		}
	}
	if d.opts.Cert != "" {
		own, err := tls.LoadX509KeyPair(d.opts.Cert, d.opts.Key)
		if err != nil {
			return nil, usererror.New(fmt.Sprintf("cert %s with key %s cannot be used: %v", d.opts.Cert, d.opts.Key, err), "correct it, or leave it out")
		}
		cfg.Certificates = []tls.Certificate{own}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, Proxy: http.ProxyFromEnvironment}}, nil
}
