package jobs

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/faults"
)

// jobErrors returns the verb 'job errors'.
func jobErrors(env *command.Env) *cobra.Command {
	return jobVerb(env, "errors", &cobra.Command{
		Use:   "errors <job>",
		Short: "Show the errors of a job's attempts, with their tracebacks",
		Long: `Shows the errors of the last attempts of a job that failed with details, such as a
traceback, or with a long message; oldest first. An error above
scheduler.max_error_bytes is kept without its middle, and a line says how much is
missing. Errors are kept as long as logs, up to 1000 of a job: 'yardmaster retention
show'.`,
		Example: `  yardmaster job errors order-7 --queue mail`,
	}, func(w io.Writer, reply *api.JobErrors) {
		if len(reply.Errors) == 0 {
			command.Printf(w, "no errors with details are kept; 'yardmaster job history %s' has the messages\n", reply.ID)
		}
		if reply.More {
			command.Printf(w, "(there are earlier ones)\n")
		}
		faults.WriteAttempts(w, reply.Errors)
	})
}
