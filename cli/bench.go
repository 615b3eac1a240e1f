package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/bench"

	"github.com/spf13/cobra"
)

func (a *app) benchVerb() *cobra.Command {
	var o bench.Options
	seconds := 3
	c := a.withJSONFlag(&cobra.Command{
		Use:   "bench",
		Short: "Benchmark a yard on this machine against baselines",
		Long: `Starts nodes as separate processes in a temporary directory, puts load on them,
and compares them with baselines that use no yard: a bare stream, a bare Raft
group, a hand-written work queue on the same server, a TCP echo, and bare
runners. All of them sync to disk before they reply. Writes one line of JSON per
figure, then a table with notes. Exits with 1 if an accepted job was not settled.

docs/reference/performance.md explains the figures.`,
		Example: `  yardmaster bench
  yardmaster bench --only overhop --rounds 1
  yardmaster bench --only rrq
  yardmaster bench --only yard3.plain,yard3.limit --seconds 5`,
		Args: takeArgs(),
	})
	flags := c.Flags()
	flags.StringSliceVar(&o.Only, "only", nil, "`names` or prefixes of figures, separated by commas; their baselines are measured too")
	flags.IntVar(&seconds, "seconds", seconds, "approximate length of a round in `seconds`")
	flags.IntVar(&o.Rounds, "rounds", 3, "`number` of rounds; a figure is their median")
	flags.BoolVar(&o.Profile, "profile", false, "print the pprof address of each node")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if seconds < 1 || seconds > 60 || o.Rounds < 1 || o.Rounds > 100 {
			return usageError(c, fmt.Sprintf("%d rounds of %d seconds: must be 1 to 100 of 1 to 60", o.Rounds, seconds))
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
	case errors.Is(err, bench.ErrUnknownFigure):
		return usageError(c, "--only "+err.Error())
	case c.Context().Err() != nil:
		return &userError{msg: "interrupted", remedy: "nothing was left running"}
	case err != nil:
		return &userError{msg: "the benchmark failed: " + strings.ReplaceAll(err.Error(), "; ", ", "), remedy: "see the logs there"}
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

// benchPeerVerb returns the hidden verb that runs one process of a baseline;
// 'bench' starts it.
func (a *app) benchPeerVerb() *cobra.Command {
	return &cobra.Command{
		Use: bench.PeerVerb + " <options>", Hidden: true, Args: takeArgs("options"),
		RunE: func(c *cobra.Command, args []string) error {
			o, err := bench.ParsePeer(args[0])
			if err != nil {
				return usageError(c, err.Error())
			}
			return bench.Peer(c.Context(), o)
		},
	}
}
