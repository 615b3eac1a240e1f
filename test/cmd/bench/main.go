// Command bench benchmarks a yard on this machine against baselines: see package
// [github.com/yardmaster-dev/yardmaster/test/bench].
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/test/bench"
	"github.com/yardmaster-dev/yardmaster/test/cmd/command"
)

func main() { command.Main(newCommand()) }

// newCommand returns the command with its flags.
func newCommand() *cobra.Command {
	var o bench.Options
	var asJSON bool
	seconds := 3
	c := &cobra.Command{
		Use:   "bench",
		Short: "Benchmark a yard on this machine against baselines",
		Long: `Starts nodes as separate processes in a temporary directory, puts load on them,
and compares them with baselines that use no yard: a bare stream, a bare Raft
group, a hand-written work queue on the same server, a TCP echo, and bare
runners. All of them sync to disk before they reply. Writes one line of JSON per
figure, then a table with notes. Exits with 1 if an accepted job was not settled.

The nodes run the program that YARD_BIN names, by default one built from source.
docs/reference/performance.md explains the figures.`,
		Example: `  bench
  bench --only overhop --rounds 1
  bench --only rrq
  bench --only yard3.plain,yard3.limit --seconds 5
  bench --only index.page --documents 10000000`,
		Args: cobra.NoArgs,
	}
	flags := c.Flags()
	flags.StringSliceVar(&o.Only, "only", nil, "`names` or prefixes of figures, separated by commas; their baselines are measured too")
	flags.IntVar(&seconds, "seconds", seconds, "approximate length of a round in `seconds`")
	flags.IntVar(&o.Rounds, "rounds", 3, "`number` of rounds; a figure is their median")
	flags.IntVar(&o.Documents, "documents", 200_000, "`number` of ended jobs in the index of which pages are requested")
	flags.BoolVar(&o.Profile, "profile", false, "print the pprof address of each node")
	flags.BoolVarP(&asJSON, "json", "j", false, "write only the lines of JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if seconds < 1 || seconds > 60 || o.Rounds < 1 || o.Rounds > 100 {
			return fmt.Errorf("%d rounds of %d seconds: must be 1 to 100 of 1 to 60", o.Rounds, seconds)
		}
		if o.Documents < 1 {
			return fmt.Errorf("--documents %d: must be at least 1", o.Documents)
		}
		o.Round, o.Out, o.Progress = time.Duration(seconds)*time.Second, os.Stdout, os.Stderr
		return command.With(func(path string) error {
			o.Binary = path
			return run(c.Context(), o, asJSON)
		})
	}
	c.AddCommand(newScaleCommand(), command.Hidden(bench.PeerVerb+" <options>", bench.Peer))
	return c
}

// run measures the figures and writes their table unless asJSON is set.
func run(ctx context.Context, o bench.Options, asJSON bool) error {
	figures, err := bench.Run(ctx, o)
	if len(figures) > 0 && !asJSON {
		fmt.Println()
		err = errors.Join(err, bench.WriteReport(os.Stdout, figures))
	}
	switch {
	case errors.Is(err, bench.ErrUnknownFigure):
		return fmt.Errorf("--only %w", err)
	case ctx.Err() != nil:
		return command.Fail(errors.New("interrupted; nothing was left running"))
	case err != nil:
		return command.Fail(errors.New("the benchmark failed: " + strings.ReplaceAll(err.Error(), "; ", ", ") + "; see the logs there"))
	}
	return nil
}
