// Command soak runs a yard under load for minutes or hours and checks that it levels off:
// see package [github.com/yardmaster-dev/yardmaster/test/soak].
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/test/cmd/command"
	"github.com/yardmaster-dev/yardmaster/test/program"
	"github.com/yardmaster-dev/yardmaster/test/soak"
)

func main() { command.Main(newCommand()) }

// newCommand returns the command with its flags.
func newCommand() *cobra.Command {
	o := soak.Options{Out: os.Stdout}
	c := &cobra.Command{
		Use:   "soak",
		Short: "Run a yard under load for long and check that it levels off",
		Long: `Starts three nodes as separate processes with small bounds, enqueues jobs of many
kinds at a fixed rate, kills nodes now and then, and records memory, disk, latency
and lag. Exits with 1 if one of these does not level off, if an accepted job did
not end exactly once, or if a job was refused while no node showed a reason. After
an interrupt it reports what it has seen so far.

The nodes run the program that YARD_BIN names, by default one built from source.`,
		Example: `  soak
  soak --duration 5m --rate 500
  soak --duration 8h --report /var/tmp/soak`,
		Args: cobra.NoArgs,
	}
	flags := c.Flags()
	flags.DurationVar(&o.Duration, "duration", soak.FullLength, "`time` for which jobs are enqueued")
	flags.IntVar(&o.Rate, "rate", 1500, "jobs per second")
	flags.IntVar(&o.Queues, "queues", 10_000, "`number` of queues; a yard has at most 10000")
	flags.IntVar(&o.Keys, "keys", 100_000, "`number` of unique keys")
	flags.StringVar(&o.Report, "report", "soak-report", "`directory` for report.txt, soak.svg, samples.csv and report.json")
	flags.Uint64Var(&o.Seed, "seed", 0, "`number` that determines the jobs and the faults; 0 picks one")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.Duration < 30*time.Second || o.Rate < 1 || o.Rate > 100_000 || o.Queues < 4 || o.Keys < 1 {
			return errors.New("--duration must be at least 30s, --rate 1 to 100000, --queues at least 4, --keys at least 1")
		}
		return command.With(func(path string) error { return run(c.Context(), path, o) })
	}
	return c
}

// run runs the soak and shows its report.
func run(ctx context.Context, path string, o soak.Options) (err error) {
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	o.Binary, o.Dir = path, filepath.Join(os.TempDir(), fmt.Sprintf("yardmaster-soak-%d", os.Getpid()))
	if o.Version, err = program.Version(path); err != nil {
		return command.Fail(err)
	}
	report, err := soak.Run(ctx, o)
	if err != nil {
		return command.Fail(fmt.Errorf("the soak could not be completed: %w; the files of the nodes are in %s", err, o.Dir))
	}
	fmt.Println()
	if err := errors.Join(report.WriteText(os.Stdout), report.WriteFiles()); err != nil {
		return command.Fail(err)
	}
	fmt.Printf("The picture is %s.\n", filepath.Join(o.Report, "soak.svg"))
	switch {
	case len(report.Failures) > 0:
		return command.Fail(fmt.Errorf("the soak failed; the files of the nodes are in %s:\n  %s", o.Dir, strings.Join(report.Failures, "\n  ")))
	case report.Interrupted:
		return command.Fail(errors.New("interrupted; nothing was left running"))
	}
	return nil
}
