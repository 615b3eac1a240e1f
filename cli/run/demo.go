package run

import (
	"errors"

	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/demo"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// Demo returns the verb demo.
func Demo(env *command.Env) *cobra.Command {
	o := demo.Options{Nodes: 1, Jobs: 2000}
	c := env.WithJSON(&cobra.Command{
		Use:   "demo",
		Short: "Run a demo yard, and optionally kill its authority half-way",
		Long: `Starts nodes, runners and workers in a temporary directory, enqueues jobs of
every kind, with --kill kills the node that holds the authority half-way, and
checks the result: it compares the state of the jobs with the yard's history and
with the files in which workers and runners record what they ran. Exits with 1
if a job was lost or ended twice.`,
		Example: `  yardmaster demo
  yardmaster demo --nodes 3 --kill`,
	})
	flags := c.Flags()
	flags.IntVar(&o.Nodes, "nodes", o.Nodes, "`number` of nodes: 1 or 3")
	flags.IntVar(&o.Jobs, "jobs", o.Jobs, "`number` of jobs")
	flags.BoolVar(&o.Kill, "kill", false, "kill the node that holds the authority half-way; a single node is restarted")
	flags.StringVar(&o.Dir, "dir", "", "`directory` for all files (default a temporary one, removed after success)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		o.Out = env.Err
		if !env.JSON {
			o.Out = env.Out
		}
		return runDemo(env, c, o)
	}
	return c
}

// runDemo runs a demo and shows its report. It returns an error if the demo could not be
// completed or the report is not good.
func runDemo(env *command.Env, c *cobra.Command, o demo.Options) error {
	report, err := demo.Run(c.Context(), o)
	invalid, ok := errors.AsType[*demo.OptionError](err)
	switch {
	case ok:
		return usererror.Usage(c, "%v", invalid)
	case c.Context().Err() != nil:
		return usererror.New("interrupted", "nothing was left running")
	case err != nil:
		return usererror.New("the demo failed: "+err.Error(), "see the logs, or try it with fewer jobs")
	}
	if env.JSON {
		err = command.PrintValue[demo.Report](env, report, nil)
	} else {
		command.Printf(env.Out, "\n")
		err = report.Write(env.Out)
	}
	if err == nil && !report.Good() {
		err = usererror.New("a check of the demo failed", "please report it, with the files in "+report.Kept)
	}
	return err
}
