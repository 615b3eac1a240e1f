// Package operations has the verbs for operations, which change all jobs that match a query, and
// the flags with which other verbs start them.
package operations

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"

	"github.com/spf13/cobra"
)

// Verbs returns the verb operation.
func Verbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "operation <verb>",
		Short: "List, show, pause, resume, cancel and set operations, which change all jobs that match a query",
		Long: `Shows and changes operations. An operation retries, cancels, removes or requeues all
jobs that match a query. 'yardmaster job retry --query', 'job cancel --query',
'job rm --query' and 'dlq requeue --query' start one. The yard carries it out, also
if this program ends or a node dies.`,
		Example: `  yardmaster job retry --query 'queue:mail state:failed since:1h' --rate 100
  yardmaster operation show 7
  yardmaster operation pause 7`,
	}, list(env),
		verb(env, "show", "Show an operation, how far it is, and the first jobs that it could not change"),
		verb(env, "pause", "Pause an operation: it changes no more jobs until it is resumed"),
		verb(env, "resume", "Resume a paused operation where it was"),
		verb(env, "cancel", "End an operation; the jobs that it has changed stay changed"),
		set(env))
}

// number parses the number of an operation.
func number(c *cobra.Command, text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 {
		return 0, usererror.Usage(c, "%q is not the number of an operation", text)
	}
	return id, nil
}

// verb returns a verb that takes one operation, sends the request of the same name and shows the
// operation.
func verb(env *command.Env, name, short string) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:     name + " <operation>",
		Short:   short,
		Example: "  yardmaster operation " + name + " 7",
		RunE: func(c *cobra.Command, args []string) error {
			id, err := number(c, args[0])
			if err != nil {
				return err
			}
			return command.Request(c.Context(), env, api.Subject("operation-"+name), map[string]any{"id": id}, show)
		},
	})
}

// set returns the verb 'operation set'.
func set(env *command.Env) *cobra.Command {
	var rate uint32
	c := env.WithJSON(&cobra.Command{
		Use:     "set <operation>",
		Short:   "Change the rate of an operation",
		Example: "  yardmaster operation set 7 --rate 500",
		RunE: func(c *cobra.Command, args []string) error {
			id, err := number(c, args[0])
			switch {
			case err != nil:
				return err
			case !c.Flags().Changed("rate"):
				return usererror.Usage(c, "--rate is missing")
			}
			return command.Request(c.Context(), env, api.Subject("operation-set"), map[string]any{"id": id, "rate": rate}, show)
		},
	})
	c.Flags().Uint32Var(&rate, "rate", 0, "`jobs` per second; 0 for as fast as the yard takes them beside its other work")
	return c
}

// list returns the verb 'operation list'.
func list(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the operations that run, and those of the last 7 days, newest first",
		Example: "  yardmaster operation list",
		RunE: func(c *cobra.Command, _ []string) error {
			out := &command.List{Env: env, Titles: "OPERATION\tACTION\tSTATE\tMATCHED\tCHANGED\tSKIPPED\tFAILED\tSTARTED\tBY\tQUERY", Least: []string{"BY", "SKIPPED", "STARTED", "MATCHED"}, Name: "operations"}
			for after := uint64(0); ; {
				page, err := connect.Decode[struct {
					Operations []json.RawMessage `json:"operations"`
					Next       uint64            `json:"next"`
				}](env.Send(c.Context(), api.Subject("operation-list"), map[string]any{"after": after}))
				if err != nil {
					return err
				}
				err = command.WriteItems(out, page.Operations, func(w io.Writer, o *api.Operation) {
					command.Row(w, o.ID, o.Action, o.State, o.Matched, o.Changed, o.Skipped, o.Failed, command.TimeText(&o.Started), command.OrDash(o.Actor), o.Query)
				})
				if err != nil {
					return err
				}
				if after = page.Next; after == 0 {
					return out.End("no operations")
				}
			}
		},
	})
}

// show writes an operation.
func show(out io.Writer, o *api.Operation) {
	w := command.Table(out)
	row := command.Fields(w)
	row("operation", fmt.Sprint(o.ID))
	row("action", o.Action)
	row("state", o.State)
	row("waiting for", o.WaitingFor)
	row("query", o.Query)
	row("params", string(o.Params))
	row("to", o.To)
	row("rate", rateText(o.Rate))
	row("expected", zeroAsNone(o.Expected))
	row("matched", fmt.Sprint(o.Matched))
	row("changed", fmt.Sprint(o.Changed))
	row("skipped", fmt.Sprint(o.Skipped))
	for _, why := range command.SortedKeys(o.SkippedBy) {
		row("  "+why, fmt.Sprint(o.SkippedBy[why]))
	}
	row("failed", fmt.Sprint(o.Failed))
	row("reached", command.TimeText(o.Reached))
	row("accepted until", command.TimeText(&o.Until))
	row("started", command.TimeText(&o.Started))
	row("ended", command.TimeText(o.Ended))
	row("by", byText(o))
	w.Flush()
	if len(o.Failures) == 0 {
		return
	}
	command.Printf(out, "\nJOB\tERROR\n")
	for i := range o.Failures {
		command.Row(out, o.Failures[i].Job, o.Failures[i].Error)
	}
}

func rateText(rate uint32) string {
	if rate == 0 {
		return ""
	}
	return fmt.Sprintf("%d jobs/s", rate)
}

func zeroAsNone(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// byText returns who started an operation, and why.
func byText(o *api.Operation) string {
	if o.Actor == "" {
		return ""
	}
	text := fmt.Sprintf("%s over %s", o.Actor, o.Door)
	if o.Reason != "" {
		text += ": " + o.Reason
	}
	return text
}

// progress returns how far an operation is as one line.
func progress(o *api.Operation) string {
	text := fmt.Sprintf("operation %d %s: %d changed, %d skipped, %d failed", o.ID, o.State, o.Changed, o.Skipped, o.Failed)
	if o.Expected > 0 {
		text += fmt.Sprintf(" of %d", o.Expected)
	}
	if rest := o.Expected - o.Matched; o.State == "running" && o.Rate > 0 && o.Expected > o.Matched {
		text += fmt.Sprintf("; about %s left", duration.Format((time.Duration(rest) * time.Second / time.Duration(o.Rate)).Round(time.Second)))
	}
	return text + cmp.Or(prefixed("; waiting for ", o.WaitingFor), "")
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
