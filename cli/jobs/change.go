package jobs

import (
	"io"
	"maps"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// jobRetry returns the verb 'job retry'.
func jobRetry(env *command.Env) *cobra.Command {
	return manyVerb(env, "retry", &cobra.Command{
		Use:   "retry [job]...",
		Short: "Retry failed, cancelled or expired jobs",
		Long: `Makes a failed, cancelled or expired job wait again, under its own id and with all its
attempts. It is due at once, also if it was cancelled before its time, and how it
ended is only in its history. A dead letter stays. 'yardmaster dlq requeue' also removes the dead letter, and works
for a job that is no longer in the ledger. To run a completed job again, use
'yardmaster job replay'.

With --query, the yard retries all jobs that match, by an operation. Failed jobs that are no
longer in the ledger become new jobs of their dead letters.`,
		Example: `  yardmaster job retry order-7 --queue mail
  yardmaster job retry --query 'queue:mail state:failed since:1h' --rate 100`,
	}, stateLine)
}

// jobRemove returns the verb 'job rm'.
func jobRemove(env *command.Env) *cobra.Command {
	return manyVerb(env, "remove", &cobra.Command{
		Use:     "rm [job]...",
		Aliases: []string{"remove", "del", "delete"},
		Short:   "Remove jobs that are not running",
		Long: `Removes a job that is not running from the ledger; a waiting job will not run. Its
history, and its dead letter if it has one, stay. With --query, the yard removes all jobs
that match, by an operation.`,
		Example: `  yardmaster job rm order-7 --queue mail
  yardmaster job rm --query 'queue:mail state:cancelled' --dry-run`,
	}, func(w io.Writer, s *api.JobRemoved) { command.Printf(w, "%s\tremoved\n", s.ID) })
}

func stateLine(w io.Writer, s *api.JobChanged) { command.Row(w, s.ID, s.State) }

// replayFlags are the flags of 'job replay'.
type replayFlags struct {
	queue, to, id, params string
	wait                  waitFlags
}

// jobReplay returns the verb 'job replay'.
func jobReplay(env *command.Env) *cobra.Command {
	var f replayFlags
	c := withQueue(env.WithJSON(&cobra.Command{
		Use:   "replay <job>...",
		Short: "Run an ended job again, as a new job",
		Long: `Makes a new job from one that has ended, and shows its id. The new
job has the same function, params, priority, attempts, timeout and retry interval,
is due at once, and has no unique, rate limit or debounce key. The ended job and
its dead letter stay unchanged.

With --id, repeating the command makes no second job. The params of a failed job are kept
as long as its dead letter, those of another one until its lane needs the space.`,
		Example: `  yardmaster job replay order-7 --queue mail
  yardmaster job replay 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 --to mail-slow --id again-7
  yardmaster job replay order-7 --queue mail --params '{"to":"bob"}' --wait`,
	}), &f.queue)
	flags := c.Flags()
	flags.StringVar(&f.to, "to", "", "enqueue into another, existing `queue`")
	flags.StringVar(&f.id, "id", "", "idempotency `key` of the new job: a UUID or any text up to 128 bytes")
	flags.StringVar(&f.params, "params", "", "JSON object instead of the job's own params: `json`, @file, or - for standard input")
	f.wait.add(c, "the new job")
	c.RunE = func(c *cobra.Command, jobs []string) error {
		changes, err := f.changes(env, c, len(jobs))
		if err != nil {
			return err
		}
		requests := jobRequests(jobs, f.queue)
		for _, request := range requests {
			maps.Copy(request, changes)
		}
		if !f.wait.given {
			return requestEach(c.Context(), env, "job-replay", requests, acceptedLine(env))
		}
		accepted, err := connect.Decode[api.EnqueueReply](env.Send(c.Context(), api.Subject("job-replay"), requests[0]))
		if err != nil {
			return err
		}
		noteExisting(env, &accepted, false) // a replayed job has no unique key
		return awaitAccepted(c.Context(), env, accepted, f.wait.limit)
	}
	return c
}

// changes returns the fields of a replay request that the flags of c set: how the new
// job differs from the ended one. It returns a usage error for invalid flags; some are
// allowed for one job only.
func (f *replayFlags) changes(env *command.Env, c *cobra.Command, numJobs int) (map[string]any, error) {
	fields := map[string]any{}
	if c.Flags().Changed("to") {
		if err := job.ValidQueue(f.to); err != nil {
			return nil, usererror.Usage(c, "--to: %v", err)
		}
		fields["to"] = f.to
	}
	if c.Flags().Changed("params") {
		params, err := readParams(env, c, f.params)
		if err != nil {
			return nil, err
		}
		fields["params"] = params
	}
	if err := f.wait.check(c); err != nil {
		return nil, err
	}
	if err := checkKey(c, f.id); err != nil {
		return nil, err
	}
	switch {
	case f.id != "" && numJobs > 1:
		return nil, usererror.Usage(c, "--id is for one job only")
	case f.wait.given && numJobs > 1:
		return nil, usererror.Usage(c, "--wait is for one job only")
	case f.id != "":
		fields["new_id"] = f.id
	}
	return fields, nil
}

// acceptedLine returns a function that prints the id of an accepted job.
func acceptedLine(env *command.Env) func(io.Writer, *api.EnqueueReply) {
	return func(w io.Writer, accepted *api.EnqueueReply) {
		noteExisting(env, accepted, false)
		command.Row(w, accepted.ID)
	}
}
