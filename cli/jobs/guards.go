package jobs

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// guardFlags are the flags of unique, rate limit and debounce keys.
type guardFlags struct{ unique, rateLimit, debounce guard }

// guard is a key, and the time a job holds it.
type guard struct {
	key  string
	held time.Duration
}

func (f *guardFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.unique.key, "unique-key", "", "make no second job with this `key`; show the id of the first")
	flags.DurationVar(&f.unique.held, "unique-ttl", 0, "`time` the job holds the unique key, at least until it is due (default 6h)")
	flags.StringVar(&f.rateLimit.key, "rate-limit-key", "", "make no job while another job holds this `key`")
	flags.DurationVar(&f.rateLimit.held, "rate-limit", 0, "`time` the job holds the rate limit key")
	flags.StringVar(&f.debounce.key, "debounce-key", "", "replace a job with this `key` that has not started")
	flags.DurationVar(&f.debounce.held, "debounce", 0, "`time` to wait for a newer job with the debounce key before this one starts")
}

// into copies the flags that are given to spec. It returns a usage error for those
// that a node would refuse.
func (f *guardFlags) into(spec *job.Spec, c *cobra.Command) error {
	given := c.Flags().Changed
	for _, g := range []struct {
		keyFlag, timeFlag string
		guard             *guard
		key               **string
		ms                **int64
	}{
		{"unique-key", "unique-ttl", &f.unique, &spec.UniqueKey, &spec.UniqueTTLMS},
		{"rate-limit-key", "rate-limit", &f.rateLimit, &spec.RateLimitKey, &spec.RateLimitMS},
		{"debounce-key", "debounce", &f.debounce, &spec.DebounceKey, &spec.DebounceMS},
	} {
		switch held := g.guard.held; {
		case given(g.timeFlag) && !given(g.keyFlag):
			return usererror.Usage(c, "--%s requires --%s", g.timeFlag, g.keyFlag)
		case given(g.keyFlag) && !given(g.timeFlag) && g.keyFlag != "unique-key":
			return usererror.Usage(c, "--%s requires --%s", g.keyFlag, g.timeFlag)
		case given(g.timeFlag) && (held < time.Millisecond || held > job.MaxGuardTTL):
			return usererror.Usage(c, "--%s is %s: must be 1ms to %dh", g.timeFlag, held, int(job.MaxGuardTTL.Hours()))
		}
		if given(g.keyFlag) {
			*g.key = &g.guard.key
		}
		if given(g.timeFlag) {
			*g.ms = new(g.guard.held.Milliseconds())
		}
	}
	switch {
	case given("rate-limit-key") && given("debounce-key"):
		return usererror.Usage(c, "--rate-limit-key and --debounce-key exclude each other")
	case given("debounce-key") && (given("in") || given("at")):
		return usererror.Usage(c, "--debounce-key excludes --in and --at")
	}
	return nil
}

// noteExisting writes a line to standard error if the id in the reply is that of
// an existing job. unique is whether the job has a unique key.
func noteExisting(env *command.Env, accepted *api.EnqueueReply, unique bool) {
	switch {
	case accepted.Debounced:
		env.Note("the job replaces one that has not started, under its id")
	case accepted.Duplicate && unique:
		env.Note("there already is a job with this --unique-key or --id, in queue %s", accepted.Queue)
	case accepted.Duplicate:
		env.Note("the job already existed")
	}
}
