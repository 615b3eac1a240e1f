package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/yardmaster-dev/yardmaster/cli/demo"

	"github.com/spf13/cobra"
)

func (a *app) demoVerb() *cobra.Command {
	o := demo.Options{Nodes: 1, Jobs: 2000}
	c := a.withJSONFlag(&cobra.Command{
		Use:   "demo",
		Short: "Run a demo yard, and optionally kill its authority half-way",
		Long: `Starts nodes, runners and workers in a temporary directory, enqueues jobs of
every kind, with --kill kills the node that holds the authority half-way, and
checks the result: it compares the state of the jobs with the yard's history and
with the files in which workers and runners record what they ran. Exits with 1
if a job was lost or ended twice.`,
		Example: `  yardmaster demo
  yardmaster demo --nodes 3 --kill`,
		Args: takeArgs(),
	})
	flags := c.Flags()
	flags.IntVar(&o.Nodes, "nodes", o.Nodes, "`number` of nodes: 1 or 3")
	flags.IntVar(&o.Jobs, "jobs", o.Jobs, "`number` of jobs")
	flags.BoolVar(&o.Kill, "kill", false, "kill the node that holds the authority half-way; a single node is restarted")
	flags.StringVar(&o.Dir, "dir", "", "`directory` for all files (default a temporary one, removed after success)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		o.Out = a.Err
		if !a.json {
			o.Out = a.Out
		}
		return a.demo(c, o)
	}
	return c
}

func (a *app) demo(c *cobra.Command, o demo.Options) error {
	report, err := demo.Run(c.Context(), o)
	var wrong *demo.OptionError
	switch {
	case errors.As(err, &wrong):
		return usageError(c, wrong.Error())
	case c.Context().Err() != nil:
		return &userError{msg: "interrupted", remedy: "nothing was left running"}
	case err != nil:
		return &userError{msg: "the demo failed: " + err.Error(), remedy: "see the logs, or try it with fewer jobs"}
	}
	if a.json {
		err = json.NewEncoder(indented{a}).Encode(report)
	} else {
		fmt.Fprintln(a.Out)
		err = report.Write(a.Out)
	}
	if err == nil && !report.Good() {
		err = &userError{msg: "a check of the demo failed", remedy: "please report it, with the files in " + report.Kept}
	}
	return err
}

// indented writes each JSON text it receives to standard output, indented.
type indented struct{ a *app }

func (w indented) Write(b []byte) (int, error) { return len(b), w.a.printJSON(b) }

var _ io.Writer = indented{}
