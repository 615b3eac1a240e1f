package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"yardmaster/drill/demo"

	"github.com/spf13/cobra"
)

func (a *app) demoVerb() *cobra.Command {
	o := demo.Options{Nodes: 1, Jobs: 2000}
	c := a.takesJSON(&cobra.Command{
		Use:   "demo",
		Short: "Show the yard at work, and kill its authority on the way",
		Long: `Starts nodes, runners and workers in a temporary directory, enqueues jobs of
every kind, kills the node in charge half-way if asked to, and takes stock: what
the yard says of its jobs is held against its history and against the files in
which workers and runners wrote down what they ran. Exits with 1 if anything was
lost or ended twice.`,
		Example: `  yardmaster demo
  yardmaster demo --nodes 3 --kill`,
		Args: args(),
	})
	flags := c.Flags()
	flags.IntVar(&o.Nodes, "nodes", o.Nodes, "`number` of nodes: 1 or 3")
	flags.IntVar(&o.Jobs, "jobs", o.Jobs, "`number` of jobs")
	flags.BoolVar(&o.Kill, "kill", false, "kill the authority half-way; a lone node is started again")
	flags.StringVar(&o.Dir, "dir", "", "`directory` to keep everything in (default a temporary one, removed after a success)")
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
		return usage(c, wrong.Error())
	case c.Context().Err() != nil:
		return &problem{what: "interrupted", do: "nothing was left running"}
	case err != nil:
		return &problem{what: "the demo cannot go on: " + err.Error(), do: "look at the logs, or try it with fewer jobs"}
	}
	if a.json {
		err = json.NewEncoder(indented{a}).Encode(report)
	} else {
		fmt.Fprintln(a.Out)
		err = report.Write(a.Out)
	}
	if err == nil && !report.Good() {
		err = &problem{what: "the yard did not keep its promises", do: "please report it with what is in " + report.Kept}
	}
	return err
}

// indented writes whole JSON texts the way all answers are shown.
type indented struct{ a *app }

func (w indented) Write(b []byte) (int, error) { return len(b), w.a.printJSON(b) }

var _ io.Writer = indented{}
