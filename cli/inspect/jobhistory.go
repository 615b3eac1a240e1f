package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/faults"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// clockMargin is how much earlier than a job was created by the clock of its producer its first
// event may have been stored.
const clockMargin = time.Hour

// JobHistory returns the verb job history.
func JobHistory(env *command.Env) *cobra.Command {
	var queue string
	var follow bool
	c := env.WithJSON(&cobra.Command{
		Use:   "history <job>",
		Short: "Show all events of a job, from its acceptance on",
		Long: `Shows all events of a job that history keeps, oldest first: its dispatches, where each
ran, how it ended, and what operators did to it. With --follow it continues with new
events. The events of a job that the yard no longer has are looked for in all of the
history. Below the events are the errors of the attempts, with their tracebacks; with
--json, 'yardmaster job errors' has them.`,
		Example: `  yardmaster job history order-7 --queue mail
  yardmaster job history 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 --json`,
		RunE: func(c *cobra.Command, args []string) error {
			f := history.Filter{Idle: true}
			shown, err := connect.Decode[api.Job](env.Send(c.Context(), api.Subject("job-show"), command.JobRequest(args[0], queue)))
			switch {
			case err == nil:
				f.Job, f.Since = shown.ID.String(), shown.Created.Add(-clockMargin)
			case connect.Refused(err, api.CodeNotFound) == nil:
				return err
			default:
				id, ok := idOf(args[0], queue)
				if !ok {
					return jobNotFoundError(args[0], queue)
				}
				f.Job = id.String()
			}
			events, err := events(c.Context(), env, &f, follow)
			if err == nil && events == 0 && !follow {
				return usererror.NotFound(fmt.Sprintf("history has no event of job %s", f.Job),
					"try again if it was enqueued just now; 'yardmaster retention show' shows how long events are kept")
			}
			if err == nil && !env.JSON && !follow {
				writeErrors(c.Context(), env, f.Job)
			}
			return err
		},
	})
	c.Flags().StringVarP(&queue, "queue", "q", "", "`queue` of the job, if it is named by its key")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events until interrupted")
	return c
}

// writeErrors writes the errors of a job's attempts, if there are any and they can be read.
func writeErrors(ctx context.Context, env *command.Env, id string) {
	reply, err := connect.Decode[api.JobErrors](env.Send(ctx, api.Subject("job-errors"), command.JobRequest(id, "")))
	switch {
	case err != nil && connect.Refused(err, api.CodeNotFound) == nil:
		env.Note("the errors of the attempts cannot be read: %v", err)
	case len(reply.Errors) > 0:
		command.Printf(env.Out, "\n")
		faults.WriteAttempts(env.Out, reply.Errors)
	}
}
