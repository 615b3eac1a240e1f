package inspect

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// aspects are the values of --for, with the HTTP path that reports each.
var aspects = []struct{ name, path string }{
	{"ready", "/readyz"}, {"accepting", "/readyz"}, {"dispatching", "/readyz"}, {"serving", "/healthz"},
}

// Health returns the verb health.
func Health(env *command.Env) *cobra.Command {
	var aspect, url string
	var ready bool
	c := env.WithJSON(&cobra.Command{
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
		RunE: func(c *cobra.Command, _ []string) error {
			if ready && c.Flags().Changed("for") && aspect != "ready" {
				return usererror.Usage(c, "--ready and --for %s exclude each other", aspect)
			}
			for _, known := range aspects {
				if known.name == aspect {
					return health(c.Context(), env, aspect, url, known.path)
				}
			}
			return usererror.Usage(c, "--for is %q: must be one of ready, accepting, dispatching, serving", aspect)
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

func health(ctx context.Context, env *command.Env, aspect, url, path string) error {
	ctx, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	text, from, err := requestHealth(ctx, env, url, path)
	if err != nil {
		return err
	}
	h, err := connect.Decode[healthReply](text, nil)
	if err != nil {
		return err
	}
	good := map[string]bool{
		"ready": h.Ready, "accepting": h.Accepting, "dispatching": h.Dispatching, "serving": h.Serving || url == "",
	}[aspect]
	if env.JSON {
		if err := env.PrintJSON(text); err != nil || good {
			return err
		}
		return usererror.Failed
	}
	if good {
		_, err := fmt.Fprintln(env.Out, aspect)
		return err
	}
	return usererror.New(fmt.Sprintf("node %s is not %s: %s", from, aspect, command.OrDash(strings.Join(h.Reasons, "; and "))), "'yardmaster status' shows more")
}

// requestHealth requests a node's health over HTTP, or over NATS if url is
// empty. from names the node that replied.
func requestHealth(ctx context.Context, env *command.Env, url, path string) (text []byte, from string, err error) {
	if url != "" {
		text, err = fetchHealth(ctx, env, url, path)
		return text, "at " + url, err
	}
	s, err := connect.Decode[struct {
		Node      string          `json:"node"`
		Readiness json.RawMessage `json:"readiness"`
	}](env.Send(ctx, api.Subject("status"), struct{}{}))
	return s.Readiness, s.Node, err
}

// fetchHealth requests url+path and returns the body of a 200 or 503 response;
// both carry the health as JSON.
func fetchHealth(ctx context.Context, env *command.Env, url, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+path, nil)
	if err != nil {
		return nil, &usererror.Error{Msg: fmt.Sprintf("--url is %q: %v", url, err), Remedy: "give it as http://127.0.0.1:4280", Usage: true}
	}
	client, err := env.HTTPClient()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	w, err := client.Do(r)
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return nil, usererror.New("the certificate of "+url+" is not trusted: "+untrusted.Err.Error(),
			"name its CA with --tlsca, and the node by a name in its certificate; 'yardmaster cert show' shows both")
	case err != nil:
		return nil, usererror.New("no node replied over HTTP: "+err.Error(), "start one with 'yardmaster node', or give the URL of its http.listen with --url")
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
		return nil, usererror.New(fmt.Sprintf("the reply of %s%s is not that of a node: %v", url, path, err), remedy)
	}
	return text, nil
}
