package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"yardmaster/cluster"
)

// yard is a connection to a node.
type yard struct {
	*cluster.Client
	timeout time.Duration
}

// dial connects to the node that flags, environment and contexts name.
func (a *app) dial(ctx context.Context) (*yard, error) {
	d, err := a.destination()
	if err != nil {
		return nil, err
	}
	if a.timeout < time.Millisecond {
		return nil, &problem{what: fmt.Sprintf("--timeout is %v: nothing answers so soon", a.timeout), do: "give it as 5s", usage: true}
	}
	a.dialled = d
	c, err := cluster.Dial(ctx, d.url, d.opts)
	if err != nil {
		return nil, a.unreachable(err)
	}
	return &yard{Client: c, timeout: a.timeout}, nil
}

// ask sends one request and gives the answer's bytes.
func (y *yard) ask(ctx context.Context, subject string, request any) ([]byte, error) {
	return y.askWithin(ctx, y.timeout, subject, request)
}

func (y *yard) askWithin(ctx context.Context, d time.Duration, subject string, request any) ([]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("write the request as JSON: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return y.Request(ctx, subject, body)
}

// show asks one thing and shows the answer: as it came with --json, else by
// table. Both are written in one piece.
func show[T any](ctx context.Context, a *app, subject string, request any, table func(io.Writer, *T)) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	answer, err := y.ask(ctx, subject, request)
	if err != nil {
		return err
	}
	return print(a, answer, table)
}

func print[T any](a *app, answer []byte, table func(io.Writer, *T)) error {
	if a.json {
		return a.printJSON(answer)
	}
	var v T
	if err := json.Unmarshal(answer, &v); err != nil {
		return unreadable(err)
	}
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	table(w, &v)
	w.Flush() // a bytes.Buffer takes everything
	_, err := a.Out.Write(out.Bytes())
	return err
}

func unreadable(err error) error {
	return &problem{
		what: fmt.Sprintf("the yard's answer cannot be read: %v", err),
		do:   "use a command line of the node's own version ('yardmaster status --json' shows it)",
	}
}

// printJSON shows an answer with its keys in the order they came in.
func (a *app) printJSON(answer []byte) error {
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(answer), "", "  "); err != nil {
		return unreadable(err)
	}
	out.WriteByte('\n')
	_, err := a.Out.Write(out.Bytes())
	return err
}
