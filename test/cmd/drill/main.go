// Command drill injects faults into test yards on this machine and checks the
// result: see package [github.com/yardmaster-dev/yardmaster/test/drill].
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/test/cmd/command"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/catalogue"
	"github.com/yardmaster-dev/yardmaster/test/program"
)

func main() { command.Main(newCommand()) }

// newCommand returns the tree of commands.
func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "drill",
		Short: "Inject faults into test yards on this machine and check the result",
		Long: `Each drill starts its own yard of three nodes as processes, with workers, runners
and publishers. It injects a fault, repairs it, and compares the acknowledged jobs
with the state of the yard and with the records of the workers. A drill is skipped
if the machine lacks something it needs, such as root.

The nodes run the program that YARD_BIN names, by default one built from source.`,
		Example: `  drill list
  drill run kill-authority
  drill run --all --report drills`,
	}
	root.AddCommand(listCommand(), runCommand(), command.Hidden(drill.WorkVerb+" <task>", drill.Work))
	return root
}

// listCommand returns the command that lists the drills.
func listCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "list", Short: "List the drills", Args: cobra.NoArgs, Example: "  drill list"}
	c.Flags().BoolVarP(&asJSON, "json", "j", false, "show the list as JSON")
	c.RunE = func(*cobra.Command, []string) error {
		type entry struct {
			Number   int    `json:"number"`
			Name     string `json:"name"`
			Breaks   string `json:"breaks"`
			Promises string `json:"promises"`
		}
		var list []entry
		for _, d := range catalogue.All() {
			list = append(list, entry{d.Number, d.Name, d.Breaks, d.Promises})
		}
		if asJSON {
			e := json.NewEncoder(os.Stdout)
			e.SetIndent("", "  ")
			return e.Encode(list)
		}
		for _, e := range list {
			fmt.Printf("%3d %-24s %s\n%28s %s\n", e.Number, e.Name, e.Breaks, "", e.Promises)
		}
		return nil
	}
	return c
}

// runFlags are the flags of the command run.
type runFlags struct {
	all, quick, json bool
	only, skip       []string
	report           string
	seed             uint64
}

// runCommand returns the command that runs drills.
func runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [drill...]",
		Short: "Run some or all drills",
		Long: `Runs drills one after the other, by name or by number. Exits with 1 if a check
failed or a drill could not be completed; the files of such a drill are kept, and
their directory is shown. The same seed makes the same schedule of faults.`,
		Example: `  drill run kill-authority --seed 7
  drill run --all --quick --report drills`,
	}
	flags := c.Flags()
	flags.BoolVar(&f.all, "all", false, "run all drills")
	flags.StringSliceVar(&f.only, "only", nil, "`drills` to run, separated by commas")
	flags.StringSliceVar(&f.skip, "skip", nil, "`drills` to skip, separated by commas")
	flags.StringVar(&f.report, "report", "", "`directory` for report.json and report.md")
	flags.Uint64Var(&f.seed, "seed", 0, "seed `number` of the schedule of faults; 0 picks one")
	flags.BoolVar(&f.quick, "quick", false, "repeat each fault as rarely as possible")
	flags.BoolVarP(&f.json, "json", "j", false, "show the report as JSON")
	c.RunE = func(c *cobra.Command, names []string) error {
		names = append(names, f.only...)
		if len(names) == 0 && !f.all {
			return errors.New("name drills, or give --all")
		}
		drills, err := catalogue.Pick(names, f.skip)
		if err != nil {
			return fmt.Errorf("%w: 'drill list' lists them", err)
		}
		return command.With(func(path string) error { return run(c.Context(), path, f, drills) })
	}
	return c
}

// run runs drills and writes their reports.
func run(ctx context.Context, path string, f runFlags, drills []drill.Drill) (err error) {
	for f.seed == 0 {
		f.seed = rand.Uint64() % 1e9
	}
	o := drill.Options{Binary: path, Seed: f.seed, Quick: f.quick, Out: os.Stdout,
		Dir: filepath.Join(os.TempDir(), fmt.Sprintf("yardmaster-drill-%d", os.Getpid()))}
	if f.json {
		o.Out = os.Stderr
	}
	if o.Version, err = program.Version(path); err != nil {
		return command.Fail(err)
	}
	sum, err := drill.Run(ctx, o, drills...)
	_ = os.Remove(o.Dir) // fails if a drill kept its files
	if f.report != "" {
		err = errors.Join(err, writeReport(f.report, &sum))
	}
	if f.json {
		err = errors.Join(err, sum.WriteJSON(os.Stdout))
	} else {
		fmt.Println()
		err = errors.Join(err, sum.WriteMarkdown(os.Stdout))
	}
	switch {
	case ctx.Err() != nil:
		return command.Fail(errors.New("interrupted; nothing was left running"))
	case err != nil:
		return command.Fail(errors.New("the drills failed: " + err.Error() + "; see the report"))
	case !sum.Good():
		return command.Fail(fmt.Errorf("a check of a drill failed; see the logs that the report names; --seed %d repeats the schedule", f.seed))
	}
	return nil
}

// writeReport writes report.json and report.md to dir.
func writeReport(dir string, sum *drill.Summary) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the directory of the report: %w", err)
	}
	for name, write := range map[string]func(io.Writer) error{"report.json": sum.WriteJSON, "report.md": sum.WriteMarkdown} {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
		if err := errors.Join(write(file), file.Close()); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	return nil
}
