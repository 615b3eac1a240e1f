package jobs

import (
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

func jobRetry(env *command.Env) *cobra.Command {
	return jobsCommand(env, &cobra.Command{
		Use:   "retry <job>...",
		Short: "Retry a failed job",
		Long: `Makes a failed job wait again, under its own id and with all its attempts. Its
dead letter stays. 'yardmaster dlq requeue' also removes the dead letter, and works
for a job that is no longer in the ledger. To run a completed job again, use
'yardmaster job replay'.`,
		Example: "  yardmaster job retry order-7 --queue mail",
	}, "retry", stateLine)
}

func jobRemove(env *command.Env) *cobra.Command {
	return jobsCommand(env, &cobra.Command{
		Use:     "rm <job>...",
		Aliases: []string{"remove", "del", "delete"},
		Short:   "Remove a job that is not running",
		Long: `Removes a job that is not running from the ledger; a waiting job will not run. Its
history, and its dead letter if it has one, stay.`,
		Example: "  yardmaster job rm order-7 --queue mail",
	}, "remove", func(w io.Writer, s *api.JobRemoved) { fmt.Fprintf(w, "%s\tremoved\n", s.ID) })
}

// jobsCommand adds to c the flags and the action of a verb that sends the same
// request for each of its jobs, and returns c.
func jobsCommand[T any](env *command.Env, c *cobra.Command, verb string, table func(io.Writer, *T)) *cobra.Command {
	var queue string
	c.RunE = func(c *cobra.Command, jobs []string) error {
		return eachJob(env, c, verb, jobs, func(name string) any { return command.JobRequest(name, queue) }, table)
	}
	return withQueue(env.WithJSON(c), &queue)
}

// eachJob sends a request for one job after the other and prints the replies. It
// stops at the first error.
func eachJob[T any](env *command.Env, c *cobra.Command, verb string, jobs []string, request func(name string) any, table func(io.Writer, *T)) error {
	for _, name := range jobs {
		if err := command.Request(c.Context(), env, api.Subject("job-"+verb), request(name), table); err != nil {
			return err
		}
	}
	return nil
}

func stateLine(w io.Writer, s *api.JobChanged) { fmt.Fprintf(w, "%s\t%s\n", s.ID, s.State) }

func jobReplay(env *command.Env) *cobra.Command {
	var (
		queue, to, id, params string
		wait                  bool
		limit                 time.Duration
	)
	c := withQueue(env.WithJSON(&cobra.Command{
		Use:   "replay <job>...",
		Short: "Run an ended job again, as a new job",
		Long: `Makes a new job from one that has completed or failed, and shows its id. The new
job has the same function, params, priority, attempts, timeout and retry interval,
is due at once, and has no unique, rate limit or debounce key. The ended job and
its dead letter stay unchanged.

With --id, repeating the command makes no second job. The params of a completed job
are kept about as long as the job is in the ledger, those of a failed job as long
as its dead letter.`,
		Example: `  yardmaster job replay order-7 --queue mail
  yardmaster job replay 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 --to mail-slow --id again-7
  yardmaster job replay order-7 --queue mail --params '{"to":"bob"}' --wait`,
	}), &queue)
	flags := c.Flags()
	flags.StringVar(&to, "to", "", "enqueue into another, existing `queue`")
	flags.StringVar(&id, "id", "", "idempotency `key` of the new job: a UUID or any text up to 128 bytes")
	flags.StringVar(&params, "params", "", "JSON object instead of the job's own params: `json`, @file, or - for standard input")
	flags.BoolVar(&wait, "wait", false, "wait until the new job has ended; exit with 1 if it failed")
	flags.DurationVar(&limit, "for", 0, "longest `time` to wait with --wait; then exit with 1 (default no limit)")
	c.RunE = func(c *cobra.Command, jobs []string) error {
		fields := map[string]any{}
		if c.Flags().Changed("to") {
			if err := job.ValidQueue(to); err != nil {
				return usererror.Usage(c, "--to: %v", err)
			}
			fields["to"] = to
		}
		if c.Flags().Changed("params") {
			text, err := readParams(env, c, params)
			if err != nil {
				return err
			}
			fields["params"] = text
		}
		if err := validateFor(c, limit); err != nil {
			return err
		}
		switch {
		case c.Flags().Changed("for") && !wait:
			return usererror.Usage(c, "--for requires --wait")
		case len(id) > job.MaxKeyLen:
			return usererror.Usage(c, "--id: %v", job.ErrKeyTooLong)
		case id != "" && len(jobs) > 1:
			return usererror.Usage(c, "--id is for one job only")
		case wait && len(jobs) > 1:
			return usererror.Usage(c, "--wait is for one job only")
		case id != "":
			fields["new_id"] = id
		}
		request := func(name string) any {
			request := command.JobRequest(name, queue)
			maps.Copy(request, fields)
			return request
		}
		if wait {
			return replayAndWait(env, c, request(jobs[0]), limit)
		}
		return eachJob(env, c, "replay", jobs, request, acceptedLine(env))
	}
	return c
}

// acceptedLine returns a function that prints the id of an accepted job.
func acceptedLine(env *command.Env) func(io.Writer, *api.EnqueueReply) {
	return func(w io.Writer, e *api.EnqueueReply) {
		noteExisting(env, e, false)
		fmt.Fprintln(w, e.ID)
	}
}

func replayAndWait(env *command.Env, c *cobra.Command, request any, limit time.Duration) error {
	made, err := connect.Decode[api.EnqueueReply](env.Send(c.Context(), api.Subject("job-replay"), request))
	if err != nil {
		return err
	}
	noteExisting(env, &made, false)
	return awaitAccepted(c.Context(), env, made, limit)
}
