package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"

	"github.com/spf13/cobra"
)

// aspects are the values of --for, with the HTTP path that reports each.
var aspects = []struct{ name, path string }{
	{"ready", "/readyz"}, {"accepting", "/readyz"}, {"dispatching", "/readyz"}, {"serving", "/healthz"},
}

func (a *app) healthVerb() *cobra.Command {
	var aspect, url string
	var ready bool
	c := a.withJSONFlag(&cobra.Command{
		Use:   "health",
		Short: "Exit with 0 if a node is ready, for scripts and health checks",
		Long: `Exits with 0 if the node that replies is ready, and with 1 if it is not ready or no
node replies. A yard that cannot dispatch may still accept jobs; --for selects
what to check. With --url the check goes to the node's HTTP listener, which needs
no token for it and replies before the node has joined the cluster; there, --for
serving checks only that the process is running.`,
		Example: `  yardmaster health --for accepting && yardmaster enqueue mail --params '{}'
  yardmaster health --url http://127.0.0.1:4280 --for serving
  yardmaster health --url https://10.0.0.1:4280 --tlsca ca.pem`,
		Args: takeArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if ready && c.Flags().Changed("for") && aspect != "ready" {
				return usageError(c, "--ready and --for "+aspect+" exclude each other")
			}
			for _, known := range aspects {
				if known.name == aspect {
					return a.health(c.Context(), aspect, url, known.path)
				}
			}
			return usageError(c, fmt.Sprintf("--for is %q: must be one of ready, accepting, dispatching, serving", aspect))
		},
	})
	c.Flags().StringVar(&aspect, "for", "ready", "`aspect` to check: ready, accepting, dispatching or serving")
	c.Flags().BoolVar(&ready, "ready", false, "same as --for ready")
	c.Flags().StringVar(&url, "url", "", "`url` of the node's HTTP listener, to check over HTTP instead of NATS")
	return c
}

// healthReply is the health of a node.
type healthReply struct {
	Serving     bool     `json:"serving"`
	Ready       bool     `json:"ready"`
	Accepting   bool     `json:"accepting"`
	Dispatching bool     `json:"dispatching"`
	Reasons     []string `json:"reasons"`
}

func (a *app) health(ctx context.Context, aspect, url, path string) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	text, from, err := a.requestHealth(ctx, url, path)
	if err != nil {
		return err
	}
	var h healthReply
	if err := json.Unmarshal(text, &h); err != nil {
		return badReplyError(err)
	}
	good := map[string]bool{
		"ready": h.Ready, "accepting": h.Accepting, "dispatching": h.Dispatching, "serving": h.Serving || url == "",
	}[aspect]
	if a.json {
		if err := a.printJSON(text); err != nil || good {
			return err
		}
		return &exitError{exitFailed}
	}
	if good {
		_, err := fmt.Fprintln(a.Out, aspect)
		return err
	}
	return &userError{
		msg:    fmt.Sprintf("node %s is not %s: %s", from, aspect, orDash(strings.Join(h.Reasons, "; and "))),
		remedy: "'yardmaster status' shows more",
	}
}

// requestHealth requests a node's health over HTTP, or over NATS if url is
// empty. from names the node that replied.
func (a *app) requestHealth(ctx context.Context, url, path string) (text []byte, from string, err error) {
	if url != "" {
		text, err = a.fetchHealth(ctx, url, path)
		return text, "at " + url, err
	}
	cl, err := a.dial(ctx)
	if err != nil {
		return nil, "", err
	}
	defer cl.Close()
	answer, err := cl.request(ctx, api.Subject("status"), struct{}{})
	if err != nil {
		return nil, "", err
	}
	var s struct {
		Node      string          `json:"node"`
		Readiness json.RawMessage `json:"readiness"`
	}
	if err := json.Unmarshal(answer, &s); err != nil {
		return nil, "", badReplyError(err)
	}
	return s.Readiness, s.Node, nil
}

// httpClient returns a client that uses the CA and the client certificate of the
// NATS connection.
func (a *app) httpClient() (*http.Client, error) {
	d, err := a.destination()
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
			return nil, &userError{msg: err.Error(), remedy: "correct it, or leave it out"}
		}
	}
	if d.opts.Cert != "" {
		own, err := tls.LoadX509KeyPair(d.opts.Cert, d.opts.Key)
		if err != nil {
			return nil, &userError{msg: fmt.Sprintf("cert %s with key %s cannot be used: %v", d.opts.Cert, d.opts.Key, err), remedy: "correct it, or leave it out"}
		}
		cfg.Certificates = []tls.Certificate{own}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, Proxy: http.ProxyFromEnvironment}}, nil
}

// fetchHealth requests url+path and returns the body of a 200 or 503 response;
// both carry the health as JSON.
func (a *app) fetchHealth(ctx context.Context, url, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+path, nil)
	if err != nil {
		return nil, &userError{msg: fmt.Sprintf("--url is %q: %v", url, err), remedy: "give it as http://127.0.0.1:4280", usage: true}
	}
	client, err := a.httpClient()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	w, err := client.Do(r)
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return nil, &userError{
			msg:    "the certificate of " + url + " is not trusted: " + untrusted.Err.Error(),
			remedy: "name its CA with --tlsca, and the node by a name in its certificate; 'yardmaster cert show' shows both",
		}
	case err != nil:
		return nil, &userError{
			msg:    "no node replied over HTTP: " + err.Error(),
			remedy: "start one with 'yardmaster node', or give the URL of its http.listen with --url",
		}
	}
	defer w.Body.Close()
	text, err := io.ReadAll(io.LimitReader(w.Body, 1<<20))
	remedy := "give the URL of a node's http.listen with --url"
	if w.StatusCode == http.StatusBadRequest && strings.HasPrefix(url, "http://") {
		remedy += "; with https:// if the node has [http.tls]"
	}
	if known := []int{http.StatusOK, http.StatusServiceUnavailable}; err == nil && !slices.Contains(known, w.StatusCode) {
		err = fmt.Errorf("status %s", w.Status)
	}
	if err != nil {
		return nil, &userError{msg: fmt.Sprintf("the reply of %s%s is not that of a node: %v", url, path, err), remedy: remedy}
	}
	return text, nil
}
