package operate

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
)

// DrainWorker returns the verb 'worker drain'.
func DrainWorker(env *command.Env) *cobra.Command {
	return changeWorker(env, "worker-drain", &cobra.Command{
		Use:   "drain <worker>",
		Short: "Give one worker or runner process no more jobs",
		Long: `Drains a connected worker or a runner process, by its name or its id, at whichever
member it is: it is given no more jobs and finishes those that it runs. It stays
connected, so that it does not continue at another member; stop it once it runs
none. 'yardmaster worker resume' ends the drain; so does a new connection of the
worker, or another process in its place. 'yardmaster workers' lists names and ids.`,
		Example: `  yardmaster worker drain mailer-7
  yardmaster worker drain rrq/py/7000 --node n2 --reason 'leaks memory'`,
	})
}

// ResumeWorker returns the verb 'worker resume'.
func ResumeWorker(env *command.Env) *cobra.Command {
	return changeWorker(env, "worker-resume", &cobra.Command{
		Use:     "resume <worker>",
		Short:   "Give a drained worker or runner process jobs again",
		Example: "  yardmaster worker resume mailer-7",
	})
}

// changeWorker completes a verb that drains or resumes a worker by an endpoint.
func changeWorker(env *command.Env, endpoint string, c *cobra.Command) *cobra.Command {
	var request api.WorkerRequest
	c = env.WithJSON(c)
	c.Flags().StringVar(&request.Node, "node", "", "the `node` that it is connected to, if several have one of that id")
	c.RunE = func(c *cobra.Command, args []string) error {
		request.Worker = args[0]
		return command.Request(c.Context(), env, api.Subject(endpoint), request, func(w io.Writer, d *api.WorkerDrain) {
			switch {
			case !d.Drained:
				command.Printf(w, "%s at %s takes jobs again\n", d.Worker, d.Node)
			case d.Running == 0:
				command.Printf(w, "%s at %s is drained: it runs nothing and may be stopped\n", d.Worker, d.Node)
			default:
				command.Printf(w, "%s at %s is drained: it finishes what it runs, jobs: %d\n", d.Worker, d.Node, d.Running)
			}
		})
	}
	return c
}
