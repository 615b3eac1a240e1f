package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// queueClear returns the verb 'queue clear'.
func queueClear(env *command.Env) *cobra.Command {
	var request api.QueueJobsRequest
	c := env.WithJSON(&cobra.Command{
		Use:   "clear <queue>",
		Short: "Remove a queue's jobs that are not active, by state or function",
		Long: `Removes jobs of a queue from the ledger: those in the states of --state, those that
call --function, or with --all every job that is not active. A waiting or delayed
job will not run. History and dead letters stay. 'yardmaster job cancel --queue' ends
jobs instead, also active ones.`,
		Example: `  yardmaster queue clear mail --state waiting,delayed --dry-run
  yardmaster queue clear mail --all`,
	})
	flags := c.Flags()
	flags.StringSliceVar(&request.States, "state", nil, "only jobs in these `states`: waiting, delayed, completed, failed, cancelled, expired")
	flags.StringVar(&request.Function, "function", "", "only jobs that call this `function`")
	flags.BoolVar(&request.All, "all", false, "all jobs of the queue that are not active")
	flags.BoolVarP(&request.DryRun, "dry-run", "n", false, "show which jobs would be removed, at most 1,000, without changing anything")
	c.RunE = func(c *cobra.Command, args []string) error {
		request.Name = args[0]
		switch selected := len(request.States) > 0 || request.Function != ""; {
		case !selected && !request.All:
			return usererror.Usage(c, "no jobs are named: give --state or --function, or --all for the whole queue")
		case selected && request.All:
			return usererror.Usage(c, "--all excludes --state and --function")
		}
		return clearQueue(c.Context(), env, request)
	}
	return c
}

// clearQueue removes the selected jobs and shows them. It repeats the request until no
// more are selected or one request changes nothing.
func clearQueue(ctx context.Context, env *command.Env, request api.QueueJobsRequest) error {
	list := &command.List{Env: env, Titles: "JOB\tSTATE\tRESULT", Name: "jobs"}
	results := map[string]int{}
	for {
		reply, err := connect.Decode[struct {
			api.QueueJobsReply
			Jobs []json.RawMessage `json:"jobs"` // printed as they are
		}](env.Send(ctx, api.Subject("queue-clear"), request))
		if err != nil {
			return refusedFor("queue", request.Name, err)
		}
		err = command.WriteItems(list, reply.Jobs, func(w io.Writer, j *api.QueueJob) {
			result := "not removed"
			switch {
			case request.DryRun:
				result = "would be removed"
			case j.Changed:
				result = "removed"
			}
			results[result]++
			command.Row(w, j.ID, j.State, result)
		})
		switch {
		case err != nil:
			return err
		case reply.Stopped != "":
			return errors.Join(list.End("no such jobs"), usererror.NotReady(reply.Stopped, "repeat the command for the rest"))
		case reply.More && !request.DryRun && reply.Changed > 0:
			continue
		}
		if err := list.End("no such jobs"); err != nil || len(results) == 0 {
			return err
		}
		more := ""
		if reply.More {
			more = "; there are more"
		}
		env.Note("%s", fmt.Sprint(command.Counts(results), more))
		return nil
	}
}
