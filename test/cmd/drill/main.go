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
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/drill/catalogue"
	"github.com/yardmaster-dev/yardmaster/test/program"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills the process
	err := command().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "drill:", err)
	if errors.As(err, new(*failure)) {
		os.Exit(exitFailed)
	}
	os.Exit(exitUsage)
}

// failure is an error that is not one of the command line.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

// command returns the tree of commands.
func command() *cobra.Command {
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
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(listCommand(), runCommand(), workCommand())
	return root
}

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
		return run(c.Context(), f, drills)
	}
	return c
}

// run runs drills and writes their reports.
func run(ctx context.Context, f runFlags, drills []drill.Drill) error {
	for f.seed == 0 {
		f.seed = rand.Uint64() % 1e9
	}
	o := drill.Options{Seed: f.seed, Quick: f.quick, Out: os.Stdout,
		Dir: filepath.Join(os.TempDir(), fmt.Sprintf("yardmaster-drill-%d", os.Getpid()))}
	if f.json {
		o.Out = os.Stderr
	}
	built, err := os.MkdirTemp("", "yardmaster-program-")
	if err != nil {
		return &failure{"make a directory for the program: " + err.Error()}
	}
	defer os.RemoveAll(built)
	if o.Binary, err = program.Find(built); err != nil {
		return &failure{err.Error()}
	}
	if o.Version, err = program.Version(o.Binary); err != nil {
		return &failure{err.Error()}
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
		return &failure{"interrupted; nothing was left running"}
	case err != nil:
		return &failure{"the drills failed: " + err.Error() + "; see the report"}
	case !sum.Good():
		return &failure{fmt.Sprintf("a check of a drill failed; see the logs that the report names; --seed %d repeats the schedule", f.seed)}
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

// workCommand returns the hidden command that runs a worker of a drill; a drill
// starts it.
func workCommand() *cobra.Command {
	return &cobra.Command{
		Use: drill.WorkVerb + " <task>", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := drill.Work(c.Context(), args[0]); err != nil {
				return &failure{err.Error()}
			}
			return nil
		},
	}
}
