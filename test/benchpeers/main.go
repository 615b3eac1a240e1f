// Command benchpeers measures Yardmaster beside the job systems that a Debian machine can
// run, under the same load: see docs/reference/performance.md. It is a separate module,
// so that Yardmaster does not depend on their clients.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/test/bench"
	"github.com/yardmaster-dev/yardmaster/test/cmd/command"
	"github.com/yardmaster-dev/yardmaster/test/program"
)

func main() { command.Main(newCommand()) }

// newCommand returns the command with its flags.
func newCommand() *cobra.Command {
	o := bench.SystemsOptions{Rate: 500, Open: 10 * time.Second, Progress: os.Stderr}
	c := &cobra.Command{
		Use:   "benchpeers",
		Short: "Benchmark Yardmaster beside other job systems on this machine",
		Long: `Starts a JetStream work queue, Yardmaster, Redis with asynq, PostgreSQL with River
and beanstalkd, one after the other, each with its data on disk in a temporary
directory, puts the same load on them, and writes a table. Every system syncs a job
to disk before it acknowledges it.

The nodes run the program that YARD_BIN names, by default one built from source.
docs/reference/performance.md explains the columns.`,
		Example: `  benchpeers
  benchpeers --only jetstream,river --rounds 1`,
		Args: cobra.NoArgs,
	}
	flags := c.Flags()
	flags.StringSliceVar(&o.Only, "only", nil, "`names` of systems, separated by commas: jetstream, yardmaster3, yardmaster1, asynq, river, beanstalkd")
	flags.IntVar(&o.Jobs, "jobs", 20_000, "`number` of jobs of a round")
	flags.IntVar(&o.Slots, "slots", 1000, "`number` of jobs that the workers of a system run at once")
	flags.IntVar(&o.Rounds, "rounds", 3, "`number` of rounds; a figure is their median")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.Jobs < 1 || o.Slots < 6 || o.Slots > 10_000 || o.Rounds < 1 {
			return errors.New("--jobs and --rounds must be at least 1, --slots 6 to 10000")
		}
		return command.With(func(path string) error {
			systems, err := systems(path, o.Only)
			if err != nil {
				return command.Fail(err)
			}
			figures, err := bench.RunSystems(c.Context(), o, systems)
			if err == nil {
				fmt.Println()
				err = bench.WriteSystems(os.Stdout, figures)
			}
			if c.Context().Err() != nil {
				err = errors.New("interrupted; nothing was left running")
			}
			return command.Fail(err)
		})
	}
	c.AddCommand(command.Hidden(bench.PeerVerb+" <options>", bench.Peer))
	return c
}

// systems returns all systems, the baseline first. It returns an error if the programs of
// one that is selected are not installed.
func systems(binary string, only []string) ([]bench.System, error) {
	version, err := program.Version(binary)
	if err != nil {
		return nil, err
	}
	all := []bench.System{bench.JetStreamQueue(), bench.Yardmaster(3, binary, version), bench.Yardmaster(1, binary, version)}
	for _, find := range []func() (bench.System, error){asynqOnRedis, riverOnPostgreSQL, beanstalkd} {
		s, err := find()
		if err != nil && (len(only) == 0 || slices.Contains(only, s.Name)) {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
