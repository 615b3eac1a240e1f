package jobs

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// guardFlags are the flags of unique, rate limit and debounce keys.
type guardFlags struct {
	unique       string
	uniqueTTL    time.Duration
	rateLimitKey string
	rateLimit    time.Duration
	debounceKey  string
	debounce     time.Duration
}

func (f *guardFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.unique, "unique-key", "", "make no second job with this `key`; show the id of the first")
	flags.DurationVar(&f.uniqueTTL, "unique-ttl", 0, "`time` the job holds the unique key, at least until it is due (default 6h)")
	flags.StringVar(&f.rateLimitKey, "rate-limit-key", "", "make no job while another job holds this `key`")
	flags.DurationVar(&f.rateLimit, "rate-limit", 0, "`time` the job holds the rate limit key")
	flags.StringVar(&f.debounceKey, "debounce-key", "", "replace a job with this `key` that has not started")
	flags.DurationVar(&f.debounce, "debounce", 0, "`time` to wait for a newer job with the debounce key before this one starts")
}

// check returns a usage error for flags that a node would refuse.
func (f *guardFlags) check(c *cobra.Command) error {
	given := c.Flags().Changed
	for _, g := range []struct {
		key, time string
		held      time.Duration
	}{
		{"unique-key", "unique-ttl", f.uniqueTTL}, {"rate-limit-key", "rate-limit", f.rateLimit}, {"debounce-key", "debounce", f.debounce},
	} {
		switch {
		case given(g.time) && !given(g.key):
			return usererror.Usage(c, "--%s requires --%s", g.time, g.key)
		case given(g.key) && !given(g.time) && g.key != "unique-key":
			return usererror.Usage(c, "--%s requires --%s", g.key, g.time)
		case given(g.time) && (g.held < time.Millisecond || g.held > job.MaxGuardTTL):
			return usererror.Usage(c, "--%s is %s: must be 1ms to %dh", g.time, g.held, int(job.MaxGuardTTL.Hours()))
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

// into copies the flags that are set to spec.
func (f *guardFlags) into(spec *job.Spec, c *cobra.Command) {
	for _, key := range []struct {
		flag  string
		value *string
		field **string
	}{
		{"unique-key", &f.unique, &spec.UniqueKey}, {"rate-limit-key", &f.rateLimitKey, &spec.RateLimitKey},
		{"debounce-key", &f.debounceKey, &spec.DebounceKey},
	} {
		if c.Flags().Changed(key.flag) {
			*key.field = key.value
		}
	}
	for _, held := range []struct {
		flag  string
		value time.Duration
		field **int64
	}{
		{"unique-ttl", f.uniqueTTL, &spec.UniqueTTLMS}, {"rate-limit", f.rateLimit, &spec.RateLimitMS}, {"debounce", f.debounce, &spec.DebounceMS},
	} {
		if ms := held.value.Milliseconds(); c.Flags().Changed(held.flag) {
			*held.field = &ms
		}
	}
}

// noteExisting writes a line to standard error if the id in the reply is that of
// an existing job. unique is whether the job has a unique key.
func noteExisting(env *command.Env, accepted *api.EnqueueReply, unique bool) {
	switch {
	case accepted.Debounced:
		fmt.Fprintln(env.Err, "yardmaster: the job replaces one that has not started, under its id")
	case accepted.Duplicate && unique:
		env.Note("there already is a job with this --unique-key or --id, in queue %s", accepted.Queue)
	case accepted.Duplicate:
		fmt.Fprintln(env.Err, "yardmaster: the job already existed")
	}
}
