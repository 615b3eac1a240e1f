package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"

	"github.com/spf13/cobra"
)

func (a *app) jobRetry() *cobra.Command {
	return changesJobs(a, &cobra.Command{
		Use:   "retry <job>...",
		Short: "Give a failed job its attempts anew",
		Long: `Lets a failed job wait again, under its own id, with all its attempts. Its dead
letter stays and says so under NOW; 'yardmaster dlq requeue' does the same and
removes the letter, also when the yard has forgotten the job. To do once more
what a job did that has completed, use 'yardmaster job replay'.`,
		Example: "  yardmaster job retry order-7 --queue mail",
	}, "retry", stateLine)
}

func (a *app) jobRemove() *cobra.Command {
	return changesJobs(a, &cobra.Command{
		Use:     "rm <job>...",
		Aliases: []string{"remove", "del", "delete"},
		Short:   "Remove a job that is not running",
		Long: `Lets the yard forget a job that is not running: one that waits is never run. Its
dead letter, if it has one, and its history stay.`,
		Example: "  yardmaster job rm order-7 --queue mail",
	}, "remove", func(w io.Writer, s *goneAnswer) { fmt.Fprintf(w, "%s\tremoved\n", s.ID) })
}

// changesJobs makes a verb that takes jobs and does the same to each.
func changesJobs[T any](a *app, c *cobra.Command, verb string, table func(io.Writer, *T)) *cobra.Command {
	var queue string
	c.Args = someJobs
	c.RunE = func(c *cobra.Command, jobs []string) error {
		return eachJob(a, c, verb, jobs, func(name string) any { return named(name, queue) }, table)
	}
	return withQueue(a.takesJSON(c), &queue)
}

func someJobs(c *cobra.Command, given []string) error {
	return args("job")(c, given[:min(len(given), 1)])
}

// eachJob asks the same of one job after another, up to the first that is
// refused.
func eachJob[T any](a *app, c *cobra.Command, verb string, jobs []string, request func(name string) any, table func(io.Writer, *T)) error {
	y, err := a.dial(c.Context())
	if err != nil {
		return err
	}
	defer y.Close()
	for _, name := range jobs {
		answer, err := y.ask(c.Context(), jobSubject(verb), request(name))
		if err != nil {
			return err
		}
		if err := print(a, answer, table); err != nil {
			return err
		}
	}
	return nil
}

func jobSubject(verb string) string { return cluster.SubjectAPI + ".job." + verb }

func stateLine(w io.Writer, s *stateAnswer) { fmt.Fprintf(w, "%s\t%s\n", s.ID, s.State) }

func (a *app) jobReplay() *cobra.Command {
	var (
		queue, to, id, params string
		wait                  bool
		longest               time.Duration
	)
	c := withQueue(a.takesJSON(&cobra.Command{
		Use:   "replay <job>...",
		Short: "Do once more what a job did that has ended, as a new job",
		Long: `Makes a new job of one that has completed or failed, and shows its id: the same
function, params, priority, attempts, timeout and retry interval, due at once,
without unique, rate limit and debounce keys. The job that has ended stays as it
is, and so does its dead letter.

With --id, repeating the command makes no second job. What a job was asked to do
is kept about as long as the yard remembers it; a failed job's for as long as its
dead letter.`,
		Example: `  yardmaster job replay order-7 --queue mail
  yardmaster job replay 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 --to mail-slow --id again-7
  yardmaster job replay order-7 --queue mail --params '{"to":"bob"}' --wait`,
		Args: someJobs,
	}), &queue)
	flags := c.Flags()
	flags.StringVar(&to, "to", "", "another `queue`, which must exist")
	flags.StringVar(&id, "id", "", "idempotency `key` of the new job: a UUID or any text up to 128 bytes")
	flags.StringVar(&params, "params", "", "JSON object instead of the job's own params: `json`, @file, or - for standard input")
	flags.BoolVar(&wait, "wait", false, "wait until the new job has ended; exit with 1 if it failed")
	flags.DurationVar(&longest, "for", 0, "longest `time` of --wait; exit with 1 after it (default until the job has ended)")
	c.RunE = func(c *cobra.Command, jobs []string) error {
		fields := map[string]any{}
		if c.Flags().Changed("to") {
			if err := job.ValidQueue(to); err != nil {
				return usage(c, "--to: "+err.Error())
			}
			fields["to"] = to
		}
		if c.Flags().Changed("params") {
			text, err := a.params(c, params)
			if err != nil {
				return err
			}
			fields["params"] = text
		}
		if err := validFor(c, longest); err != nil {
			return err
		}
		switch {
		case c.Flags().Changed("for") && !wait:
			return usage(c, "--for limits --wait, which is not given")
		case len(id) > job.MaxKeyLen:
			return usage(c, "--id: "+job.ErrKeyTooLong.Error())
		case id != "" && len(jobs) > 1:
			return usage(c, "--id names one new job; replay the others by themselves")
		case wait && len(jobs) > 1:
			return usage(c, "--wait waits for one job; replay the others by themselves")
		case id != "":
			fields["new_id"] = id
		}
		request := func(name string) any { return with(named(name, queue), fields) }
		if wait {
			return a.replayAndWait(c, request(jobs[0]), longest)
		}
		return eachJob(a, c, "replay", jobs, request, a.acceptedLine)
	}
	return c
}

// with is a request with more fields.
func with(request, fields map[string]any) map[string]any {
	maps.Copy(request, fields)
	return request
}

// acceptedLine shows the id of a job that was made.
func (a *app) acceptedLine(w io.Writer, e *enqueueAnswer) {
	a.tellExisting(*e, &guardFlags{})
	fmt.Fprintln(w, e.ID)
}

func (a *app) replayAndWait(c *cobra.Command, request any, longest time.Duration) error {
	y, err := a.dial(c.Context())
	if err != nil {
		return err
	}
	defer y.Close()
	answer, err := y.ask(c.Context(), jobSubject("replay"), request)
	if err != nil {
		return err
	}
	var made enqueueAnswer
	if err := json.Unmarshal(answer, &made); err != nil {
		return unreadable(err)
	}
	a.tellExisting(made, &guardFlags{})
	return a.awaitAccepted(c.Context(), y, made, longest)
}
