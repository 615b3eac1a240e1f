package jobs

import (
	"maps"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// jobSet returns the verb 'job set'.
func jobSet(env *command.Env) *cobra.Command {
	var (
		queue, at string
		in        time.Duration
		now       bool
		priority  int
	)
	c := withQueue(env.WithJSON(&cobra.Command{
		Use:   "set <job>...",
		Short: "Change when a waiting or delayed job starts, or its priority",
		Long: `Changes jobs that have not started: their priority, when they start, or both. A job
that waits for its next attempt may be changed, too; --now skips the delay. Repeating
the command with --now, --at or --priority changes nothing. A job that runs or has
ended is refused.`,
		Example: `  yardmaster job set order-7 --queue mail --now
  yardmaster job set 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 --priority 9 --in 2h`,
	}), &queue)
	flags := c.Flags()
	flags.BoolVar(&now, "now", false, "start as soon as possible")
	flags.StringVar(&at, "at", "", "do not start before this `time`, such as 2026-12-24T06:00:00Z")
	durationflag.Var(flags, &in, "in", 0, "do not start before this `time` from now, such as 2h")
	flags.IntVar(&priority, "priority", job.DefaultPriority, "0 to 9; a higher `number` starts first")
	c.RunE = func(c *cobra.Command, jobs []string) error {
		changes := map[string]any{}
		start := 0
		for _, name := range []string{"now", "at", "in"} {
			if c.Flags().Changed(name) {
				start++
			}
		}
		switch {
		case start > 1:
			return usererror.Usage(c, "give one of --now, --at and --in")
		case start == 0 && !c.Flags().Changed("priority"):
			return usererror.Usage(c, "give --now, --at, --in or --priority, or one of the first three with --priority")
		case c.Flags().Changed("in") && in < 0:
			return usererror.Usage(c, "--in is %s; must not be negative", duration.Format(in))
		case c.Flags().Changed("in"):
			changes["delay_ms"] = in.Milliseconds()
		case now:
			changes["delay_ms"] = 0
		case at != "":
			t, err := time.Parse(time.RFC3339, at)
			if err != nil {
				return usererror.Usage(c, "--at is %q; must be a time such as 2026-12-24T06:00:00Z", at)
			}
			changes["run_at"] = t
		}
		if c.Flags().Changed("priority") {
			if priority < 0 || priority > job.MaxPriority {
				return usererror.Usage(c, "--priority is %d; must be 0 to %d", priority, job.MaxPriority)
			}
			changes["priority"] = priority
		}
		requests := jobRequests(jobs, queue)
		for _, request := range requests {
			maps.Copy(request, changes)
		}
		return requestEach(c.Context(), env, "job-set", requests, stateLine)
	}
	return c
}
