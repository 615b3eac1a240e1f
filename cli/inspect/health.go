package inspect

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"

	"github.com/spf13/cobra"
)

// healthPaths has the values of --for, with the HTTP path that reports each.
var healthPaths = map[string]string{
	"ready": "/readyz", "accepting": "/readyz", "dispatching": "/readyz", "serving": "/healthz",
}

// Health returns the verb health.
func Health(env *command.Env) *cobra.Command {
	var aspect, url string
	var ready bool
	c := env.WithJSON(&cobra.Command{
		Use:   "health",
		Short: "Exit with 0 if a node is ready, for scripts and health checks",
		Long: `Exits with 0 if the node that replies is ready, with 4 if it is not ready or cannot be
reached, and with 5 if it does not reply in time. A yard that cannot dispatch may still accept jobs; --for selects
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
			path, known := healthPaths[aspect]
			if !known {
				return usererror.Usage(c, "--for is %q: must be one of ready, accepting, dispatching, serving", aspect)
			}
			return health(c.Context(), env, aspect, url, path)
		},
	})
	c.Flags().StringVar(&aspect, "for", "ready", "`aspect` to check: ready, accepting, dispatching or serving")
	c.Flags().BoolVar(&ready, "ready", false, "same as --for ready")
	c.Flags().StringVar(&url, "url", "", "`url` of the node's HTTP listener, to check over HTTP instead of NATS")
	return c
}

// health shows an aspect of a node's health, and returns an error if the node does not
// have it. The node is asked at url+path over HTTP, or over NATS if url is "".
func health(ctx context.Context, env *command.Env, aspect, url, path string) error {
	ctx, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	text, node, err := requestHealth(ctx, env, url, path)
	if err != nil {
		return err
	}
	reply, err := connect.Decode[struct {
		api.Readiness
		Serving bool `json:"serving"`
	}](text, nil)
	if err != nil {
		return err
	}

	hasAspect := map[string]bool{
		"ready": reply.Ready, "accepting": reply.Accepting, "dispatching": reply.Dispatching, "serving": reply.Serving || url == "",
	}[aspect]
	switch {
	case env.JSON:
		if err := env.PrintJSON(text); err != nil || hasAspect {
			return err
		}
		return &usererror.Exit{Code: usererror.CodeNotReady}
	case hasAspect:
		return command.Printf(env.Out, "%s\n", aspect)
	}
	return usererror.NotReady(fmt.Sprintf("node %s is not %s: %s", node, aspect, command.OrDash(strings.Join(reply.Reasons, "; and "))), "'yardmaster status' shows more")
}

// requestHealth requests a node's health at url+path over HTTP, or over NATS if url is
// "". It returns the health as JSON, and the name or address of the node that replied.
func requestHealth(ctx context.Context, env *command.Env, url, path string) (text []byte, node string, err error) {
	if url != "" {
		text, err = fetchHealth(ctx, env, url, path)
		return text, "at " + url, err
	}
	status, err := connect.Decode[struct {
		Node      string          `json:"node"`
		Readiness json.RawMessage `json:"readiness"`
	}](env.Send(ctx, api.Subject("status"), struct{}{}))
	return status.Readiness, status.Node, err
}

// fetchHealth sends an HTTP request for url+path and returns the body of a response with
// status 200 or 503, which is the health as JSON. It returns an error for any other
// response.
func fetchHealth(ctx context.Context, env *command.Env, url, path string) ([]byte, error) {
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return nil, usererror.Invalid(fmt.Sprintf("--url is %q: must begin with http:// or https://", url), "give it as http://127.0.0.1:4280")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+path, nil)
	if err != nil {
		return nil, usererror.Invalid(fmt.Sprintf("--url is %q: %v", url, err), "give it as http://127.0.0.1:4280")
	}
	client, err := env.HTTPClient()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()

	response, err := client.Do(request)
	untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case ok:
		return nil, usererror.NotReady("the certificate of "+url+" is not trusted: "+untrusted.Err.Error(),
			"name its CA with --tlsca, and the node by a name in its certificate; 'yardmaster cert show' shows both")
	case errors.Is(err, context.DeadlineExceeded):
		return nil, usererror.Timeout(fmt.Sprintf("no node replied over HTTP within %s", duration.Format(env.Timeout)), "give the URL of its http.listen with --url, or wait longer with --timeout")
	case err != nil:
		return nil, usererror.NotReady("no node replied over HTTP: "+err.Error(), "start one with 'yardmaster node', or give the URL of its http.listen with --url")
	}
	defer response.Body.Close()

	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK && response.StatusCode != http.StatusServiceUnavailable {
		err = fmt.Errorf("status %s", response.Status)
	}
	if err == nil {
		return text, nil
	}
	remedy := "give the URL of a node's http.listen with --url"
	if response.StatusCode == http.StatusBadRequest && strings.HasPrefix(url, "http://") {
		remedy += "; with https:// if the node has [http.tls]"
	}
	return nil, usererror.NotReady(fmt.Sprintf("the reply of %s%s is not that of a node: %v", url, path, err), remedy)
}
