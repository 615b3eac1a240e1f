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

	"yardmaster/cluster"

	"github.com/spf13/cobra"
)

// aspects of a node's health, by the path that tells of them over HTTP.
var aspects = []struct{ name, path string }{
	{"ready", "/readyz"}, {"accepting", "/readyz"}, {"dispatching", "/readyz"}, {"serving", "/healthz"},
}

func (a *app) healthVerb() *cobra.Command {
	var aspect, url string
	var ready bool
	c := a.takesJSON(&cobra.Command{
		Use:   "health",
		Short: "Exit with 0 if the yard is ready, for scripts and health checks",
		Long: `Exits with 0 if the node that answers is ready, and with 1 if it is not, or if
there is none. A yard that cannot dispatch may still accept jobs: --for says
which of the two counts. With --url the node's HTTP door is asked, which needs
no token for this and answers before the node has joined the others: then
--for serving asks only whether the process lives.`,
		Example: `  yardmaster health --for accepting && yardmaster enqueue mail --params '{}'
  yardmaster health --url http://127.0.0.1:4280 --for serving
  yardmaster health --url https://10.0.0.1:4280 --tlsca ca.pem`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if ready && c.Flags().Changed("for") && aspect != "ready" {
				return usage(c, "--ready and --for "+aspect+" contradict each other")
			}
			for _, known := range aspects {
				if known.name == aspect {
					return a.health(c.Context(), aspect, url, known.path)
				}
			}
			return usage(c, fmt.Sprintf("--for is %q: must be one of ready, accepting, dispatching, serving", aspect))
		},
	})
	c.Flags().StringVar(&aspect, "for", "ready", "`aspect` that counts: ready, accepting, dispatching or serving")
	c.Flags().BoolVar(&ready, "ready", false, "the same as --for ready")
	c.Flags().StringVar(&url, "url", "", "`address` of the node's HTTP door, to ask there and not over NATS")
	return c
}

// healthAnswer is how a node stands.
type healthAnswer struct {
	Serving     bool     `json:"serving"`
	Ready       bool     `json:"ready"`
	Accepting   bool     `json:"accepting"`
	Dispatching bool     `json:"dispatching"`
	Reasons     []string `json:"reasons"`
}

func (a *app) health(ctx context.Context, aspect, url, path string) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	text, from, err := a.askHealth(ctx, url, path)
	if err != nil {
		return err
	}
	var h healthAnswer
	if err := json.Unmarshal(text, &h); err != nil {
		return unreadable(err)
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
	return &problem{
		what: fmt.Sprintf("node %s is not %s: %s", from, aspect, or(strings.Join(h.Reasons, "; and "))),
		do:   "'yardmaster status' shows more",
	}
}

// askHealth asks over HTTP, or without a url over NATS; from is who answers.
func (a *app) askHealth(ctx context.Context, url, path string) (text []byte, from string, err error) {
	if url != "" {
		text, err = a.look(ctx, url, path)
		return text, "at " + url, err
	}
	y, err := a.dial(ctx)
	if err != nil {
		return nil, "", err
	}
	defer y.Close()
	answer, err := y.ask(ctx, cluster.SubjectStatus, struct{}{})
	if err != nil {
		return nil, "", err
	}
	var s struct {
		Node      string          `json:"node"`
		Readiness json.RawMessage `json:"readiness"`
	}
	if err := json.Unmarshal(answer, &s); err != nil {
		return nil, "", unreadable(err)
	}
	return s.Readiness, s.Node, nil
}

// httpClient believes and shows over HTTPS what is believed and shown over NATS.
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
			return nil, &problem{what: err.Error(), do: "correct it, or leave it out"}
		}
	}
	if d.opts.Cert != "" {
		own, err := tls.LoadX509KeyPair(d.opts.Cert, d.opts.Key)
		if err != nil {
			return nil, &problem{what: fmt.Sprintf("cert %s with key %s cannot be used: %v", d.opts.Cert, d.opts.Key, err), do: "correct it, or leave it out"}
		}
		cfg.Certificates = []tls.Certificate{own}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, Proxy: http.ProxyFromEnvironment}}, nil
}

// look asks the HTTP door, which says by its status what it says in its answer.
func (a *app) look(ctx context.Context, url, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+path, nil)
	if err != nil {
		return nil, &problem{what: fmt.Sprintf("--url is %q: %v", url, err), do: "give it as http://127.0.0.1:4280", usage: true}
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
		return nil, &problem{
			what: "the node at " + url + " is not believed: " + untrusted.Err.Error(),
			do:   "name the authority of its certificate by --tlsca, and the node by a name that it carries; 'yardmaster cert show' shows them",
		}
	case err != nil:
		return nil, &problem{
			what: "no node answers over HTTP: " + err.Error(),
			do:   "start one with 'yardmaster node', or give the address of its http.listen by --url",
		}
	}
	defer w.Body.Close()
	text, err := io.ReadAll(io.LimitReader(w.Body, 1<<20))
	do := "give the address of a node's http.listen by --url"
	if w.StatusCode == http.StatusBadRequest && strings.HasPrefix(url, "http://") {
		do += "; with https:// if the node has [http.tls]"
	}
	if known := []int{http.StatusOK, http.StatusServiceUnavailable}; err == nil && !slices.Contains(known, w.StatusCode) {
		err = fmt.Errorf("status %s", w.Status)
	}
	if err != nil {
		return nil, &problem{what: fmt.Sprintf("%s%s is no node's answer: %v", url, path, err), do: do}
	}
	return text, nil
}
