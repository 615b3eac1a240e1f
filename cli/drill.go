package cli

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

	"github.com/yardmaster-dev/yardmaster/drill"
	"github.com/yardmaster-dev/yardmaster/drill/catalogue"
)

func (a *app) drillVerbs() *cobra.Command {
	return group(&cobra.Command{
		Use:   "drill <verb>",
		Short: "Inject faults into test yards on this machine and check the result",
		Long: `Each drill starts its own yard of three nodes as processes of this program, with
workers, runners and publishers. It injects a fault, repairs it, and compares the
acknowledged jobs with the state of the yard and with the records of the workers.
A drill is skipped if the machine lacks something it needs, such as root.`,
		Example: `  yardmaster drill list
  yardmaster drill run kill-authority
  yardmaster drill run --all --report drills`,
	}, a.drillListVerb(), a.drillRunVerb(), a.drillWorkVerb())
}

func (a *app) drillListVerb() *cobra.Command {
	c := a.withJSONFlag(&cobra.Command{Use: "list", Short: "List the drills", Args: takeArgs(), Example: "  yardmaster drill list"})
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
		if a.json {
			return json.NewEncoder(indented{a}).Encode(list)
		}
		for _, e := range list {
			fmt.Fprintf(a.Out, "%3d %-24s %s\n%28s %s\n", e.Number, e.Name, e.Breaks, "", e.Promises)
		}
		return nil
	}
	return c
}

// drillFlags are the flags of 'drill run'.
type drillFlags struct {
	all    bool
	only   []string
	skip   []string
	report string
	seed   uint64
	quick  bool
}

func (a *app) drillRunVerb() *cobra.Command {
	var f drillFlags
	c := a.withJSONFlag(&cobra.Command{
		Use:   "run [drill...]",
		Short: "Run some or all drills",
		Long: `Runs drills one after the other, by name or by number. Exits with 1 if a check
failed or a drill could not be completed; the files of such a drill are kept, and
their directory is shown. The same seed makes the same schedule of faults.`,
		Example: `  yardmaster drill run kill-authority --seed 7
  yardmaster drill run --all --quick --report drills`,
		Args: cobra.ArbitraryArgs,
	})
	flags := c.Flags()
	flags.BoolVar(&f.all, "all", false, "run all drills")
	flags.StringSliceVar(&f.only, "only", nil, "`drills` to run, separated by commas")
	flags.StringSliceVar(&f.skip, "skip", nil, "`drills` to skip, separated by commas")
	flags.StringVar(&f.report, "report", "", "`directory` for report.json and report.md")
	flags.Uint64Var(&f.seed, "seed", 0, "seed `number` of the schedule of faults; 0 picks one")
	flags.BoolVar(&f.quick, "quick", false, "repeat each fault as rarely as possible")
	c.RunE = func(c *cobra.Command, names []string) error {
		names = append(names, f.only...)
		if len(names) == 0 && !f.all {
			return usageError(c, "name drills, or give --all")
		}
		drills, err := catalogue.Pick(names, f.skip)
		if err != nil {
			return usageError(c, err.Error()+": 'yardmaster drill list' lists them")
		}
		return a.drillRun(c.Context(), f, drills)
	}
	return c
}

func (a *app) drillRun(ctx context.Context, f drillFlags, drills []drill.Drill) error {
	for f.seed == 0 {
		f.seed = rand.Uint64() % 1e9
	}
	o := drill.Options{Binary: a.program.File, Version: a.program.Version, Seed: f.seed, Quick: f.quick, Out: a.Out,
		Dir: filepath.Join(os.TempDir(), fmt.Sprintf("yardmaster-drill-%d", os.Getpid()))}
	if a.json {
		o.Out = a.Err
	}
	sum, err := drill.Run(ctx, o, drills...)
	_ = os.Remove(o.Dir) // fails if a drill kept its files
	if f.report != "" {
		err = errors.Join(err, writeReport(f.report, &sum))
	}
	if a.json {
		err = errors.Join(err, sum.WriteJSON(a.Out))
	} else {
		fmt.Fprintln(a.Out)
		err = errors.Join(err, sum.WriteMarkdown(a.Out))
	}
	switch {
	case ctx.Err() != nil:
		return &userError{msg: "interrupted", remedy: "nothing was left running"}
	case err != nil:
		return &userError{msg: "the drills failed: " + err.Error(), remedy: "see the report"}
	case !sum.Good():
		return &userError{msg: "a check of a drill failed", remedy: fmt.Sprintf("see the logs that the report names; --seed %d repeats the schedule", f.seed)}
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

// drillWorkVerb returns the hidden verb that runs a worker of a drill; a drill
// starts it.
func (a *app) drillWorkVerb() *cobra.Command {
	return &cobra.Command{
		Use: drill.WorkVerb + " <task>", Hidden: true, Args: takeArgs("task"),
		RunE: func(c *cobra.Command, args []string) error {
			var t drill.Task
			if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
				return usageError(c, err.Error())
			}
			if err := drill.Work(c.Context(), t); err != nil {
				return processError(err, "", "only a drill starts this verb")
			}
			return nil
		},
	}
}
