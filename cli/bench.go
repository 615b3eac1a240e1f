package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"yardmaster/bench"

	"github.com/spf13/cobra"
)

func (a *app) benchVerb() *cobra.Command {
	var o bench.Options
	seconds := 3
	c := a.takesJSON(&cobra.Command{
		Use:   "bench",
		Short: "Measure a yard on this machine, beside the floors it stands on",
		Long: `Starts nodes as separate processes in a temporary directory, loads them, and
measures beside them what remains without a yard: a bare stream, a bare Raft
group, a work queue written by hand on the same server, a TCP echo, and bare
runners. Everything is on disk before it is answered. Writes a line of JSON for each figure, and at
last a table with notes.
Exits with 1 if a job was accepted and not settled.

docs/performance.md says what the figures mean.`,
		Example: `  yardmaster bench
  yardmaster bench --only overhop --rounds 1
  yardmaster bench --only rrq
  yardmaster bench --only yard3.plain,yard3.limit --seconds 5`,
		Args: args(),
	})
	flags := c.Flags()
	flags.StringSliceVar(&o.Only, "only", nil, "`names` of figures between commas, or what they begin with; their floors come along")
	flags.IntVar(&seconds, "seconds", seconds, "about how many `seconds` a round is to last")
	flags.IntVar(&o.Rounds, "rounds", 3, "`number` of rounds; a figure is their median")
	flags.BoolVar(&o.Profile, "profile", false, "say where each node can be profiled while it runs")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if seconds < 1 || seconds > 60 || o.Rounds < 1 || o.Rounds > 100 {
			return usage(c, fmt.Sprintf("%d rounds of %d seconds: must be 1 to 100 of 1 to 60", o.Rounds, seconds))
		}
		o.Round, o.Out, o.Progress = time.Duration(seconds)*time.Second, a.Out, a.Err
		return a.bench(c, o)
	}
	return c
}

func (a *app) bench(c *cobra.Command, o bench.Options) error {
	figures, err := bench.Run(c.Context(), o)
	if len(figures) > 0 && !a.json {
		err = errors.Join(err, a.benchTable(figures))
	}
	switch {
	case errors.Is(err, bench.ErrNothing):
		return usage(c, "--only "+err.Error())
	case c.Context().Err() != nil:
		return &problem{what: "interrupted", do: "nothing was left running"}
	case err != nil:
		return &problem{what: "measuring cannot go on: " + strings.ReplaceAll(err.Error(), "; ", ", "), do: "look at the logs there"}
	}
	return nil
}

func (a *app) benchTable(figures []bench.Figure) error {
	if _, err := io.WriteString(a.Out, "\n"+bench.Machine()+"\n\n"); err != nil {
		return err
	}
	if err := bench.WriteTable(a.Out, figures); err != nil {
		return err
	}
	if _, err := io.WriteString(a.Out, "\n"); err != nil {
		return err
	}
	return bench.WriteNotes(a.Out, figures)
}

// benchPeerVerb is a process under the floors of 'bench', started by it.
func (a *app) benchPeerVerb() *cobra.Command {
	return &cobra.Command{
		Use: bench.PeerVerb + " <options>", Hidden: true, Args: args("options"),
		RunE: func(c *cobra.Command, args []string) error {
			o, err := bench.ParsePeer(args[0])
			if err != nil {
				return usage(c, err.Error())
			}
			return bench.Peer(c.Context(), o)
		},
	}
}
