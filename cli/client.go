package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
)

// client is a connection to a node.
type client struct {
	*cluster.Client
	timeout time.Duration
}

// dial connects to the node that flags, environment and contexts name, and sets
// a.target. The caller closes the client.
func (a *app) dial(ctx context.Context) (*client, error) {
	d, err := a.destination()
	if err != nil {
		return nil, err
	}
	if a.timeout < time.Millisecond {
		return nil, &userError{msg: fmt.Sprintf("--timeout is %v: must be at least 1ms", a.timeout), remedy: "give a duration such as 5s", usage: true}
	}
	a.target = d
	c, err := cluster.Dial(ctx, d.url, d.opts)
	if err != nil {
		return nil, a.unreachable(err)
	}
	return &client{Client: c, timeout: a.timeout}, nil
}

// request sends one request, as JSON, and returns the reply. It waits at most
// the time of --timeout.
func (cl *client) request(ctx context.Context, subject string, request any) ([]byte, error) {
	return cl.requestWithin(ctx, cl.timeout, subject, request)
}

func (cl *client) requestWithin(ctx context.Context, timeout time.Duration, subject string, request any) ([]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("write the request as JSON: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return cl.Request(ctx, subject, body)
}

// requestAndPrint sends one request and prints the reply as [printReply] does.
func requestAndPrint[T any](ctx context.Context, a *app, subject string, request any, table func(io.Writer, *T)) error {
	cl, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	answer, err := cl.request(ctx, subject, request)
	if err != nil {
		return err
	}
	return printReply(a, answer, table)
}

// printReply writes a reply to standard output in one write: indented with
// --json, otherwise decoded into T and formatted by table.
func printReply[T any](a *app, answer []byte, table func(io.Writer, *T)) error {
	if a.json {
		return a.printJSON(answer)
	}
	var v T
	if err := json.Unmarshal(answer, &v); err != nil {
		return badReplyError(err)
	}
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	table(w, &v)
	w.Flush() // a bytes.Buffer does not fail
	_, err := a.Out.Write(out.Bytes())
	return err
}

func badReplyError(err error) error {
	return &userError{
		msg:    fmt.Sprintf("the reply cannot be decoded: %v", err),
		remedy: "use the yardmaster program of the node's version ('yardmaster status --json' shows it)",
	}
}

// printJSON writes a JSON text to standard output, indented, with its keys in
// their original order.
func (a *app) printJSON(answer []byte) error {
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(answer), "", "  "); err != nil {
		return badReplyError(err)
	}
	out.WriteByte('\n')
	_, err := a.Out.Write(out.Bytes())
	return err
}
