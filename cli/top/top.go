// Package top has the verb top: the overview of the yard in a terminal, live.
package top

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"time"
	_ "time/tzdata" // the viewer's zone, on hosts without a database

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
)

// How often the overview is asked for, and how long an answer may take. A node without a quorum
// needs about half a second.
const (
	refreshEvery  = time.Second
	answerTimeout = 3 * time.Second
)

// snapshotWidth is the width of a snapshot that is not written to a terminal.
const snapshotWidth = 120

// Top returns the verb top.
func Top(env *command.Env) *cobra.Command {
	var once bool
	window := "1h"
	c := env.WithJSON(&cobra.Command{
		Use:   "top [<queue>]",
		Short: "Watch rates, waiting times, queues and failures, live",
		Long: `Shows how many jobs are accepted, started and ended in a second, how long they
wait and run, failures by type, the queues with what they have left to do,
limits that keep jobs waiting, members, and what operators did. Press '?' for the
keys. If a node ends, it goes on with another one of --server.

With --once, --json, without a terminal or on one without a cursor, it shows the
present state once and ends.`,
		Example: `  yardmaster top
  yardmaster top mail --window 15m
  yardmaster top --once`,
	})
	c.Flags().BoolVar(&once, "once", false, "show the present state once")
	c.Flags().StringVar(&window, "window", window, "`time` that totals and charts are of, up to 24h, such as 15m")
	c.RunE = func(c *cobra.Command, args []string) error {
		s := newState(window)
		env.OnOutdated = nil // the frame says it
		if len(args) > 0 {
			s.queue = args[0]
		}
		fetch := func(ctx context.Context, r request) answer { return ask(ctx, env, r) }
		if once || env.JSON || !interactive(env) {
			return snapshot(c.Context(), env, s, fetch)
		}
		if _, err := env.Dial(c.Context()); err != nil {
			return err
		}
		program := tea.NewProgram(&model{state: *s, fetch: fetch, ctx: c.Context()},
			tea.WithContext(c.Context()), tea.WithInput(env.In), tea.WithOutput(env.Out), tea.WithoutSignalHandler())
		if _, err := program.Run(); err != nil && c.Context().Err() == nil {
			return usererror.New("the terminal cannot be used: "+err.Error(), "'yardmaster top --once' shows the same once")
		}
		return nil
	}
	return c
}

// interactive reports whether standard input and output are a terminal with a cursor.
func interactive(env *command.Env) bool {
	isTerminal := func(stream any) bool {
		f, ok := stream.(*os.File)
		return ok && term.IsTerminal(f.Fd())
	}
	return env.Getenv("TERM") != "dumb" && isTerminal(env.In) && isTerminal(env.Out)
}

// request is what the state to show depends on.
type request struct{ window, queue string }

// answer is an answer of a node.
type answer struct {
	request
	overview    *api.Overview
	raw         []byte                // the overview as it was sent
	explanation *api.QueueExplanation // of the queue, nil without one
	err         error
}

// ask asks a node for an overview and, if the request names a queue, why its jobs run or do not.
func ask(ctx context.Context, env *command.Env, r request) answer {
	a := answer{request: r}
	a.raw, a.err = env.SendWithin(ctx, answerTimeout, api.Subject("overview"), &api.OverviewRequest{Window: r.window, Queue: r.queue})
	if a.err != nil {
		return a
	}
	overview, err := connect.Decode[api.Overview](a.raw, nil)
	if a.overview, a.err = &overview, err; err != nil || r.queue == "" {
		return a
	}
	explanation, err := connect.Decode[api.QueueExplanation](env.SendWithin(ctx, answerTimeout, api.Subject("queue-explain"), map[string]string{"name": r.queue}))
	a.explanation, a.err = &explanation, err
	return a
}

// snapshot writes the present state once, without colours.
func snapshot(ctx context.Context, env *command.Env, s *state, fetch func(context.Context, request) answer) error {
	a := fetch(ctx, s.request())
	if a.err != nil {
		return a.err
	}
	if env.JSON {
		return env.PrintJSON(a.raw)
	}
	s.receive(a)
	s.width, s.plain = snapshotWidth, true
	lines := s.lines()
	if width := command.Width(env.Out); width > 0 {
		s.width = width
		lines = s.frame()
	}
	var out bytes.Buffer
	for _, line := range lines {
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.Copy(env.Out, &out)
	return err
}
