package cli

import (
	"fmt"
	"time"

	"yardmaster/job"

	"github.com/spf13/cobra"
)

// guardFlags are the flags of the keys that may keep a job from being made.
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
	flags.StringVar(&f.unique, "unique-key", "", "make no second job with this `key`: show the first one's id")
	flags.DurationVar(&f.uniqueTTL, "unique-ttl", 0, "`time` that the unique key lives, at least until the job may start (default 6h)")
	flags.StringVar(&f.rateLimitKey, "rate-limit-key", "", "make no job while this `key` is held by an earlier one")
	flags.DurationVar(&f.rateLimit, "rate-limit", 0, "`time` that this job holds the rate limit key")
	flags.StringVar(&f.debounceKey, "debounce-key", "", "take the place of the job with this `key` that has not started, if there is one")
	flags.DurationVar(&f.debounce, "debounce", 0, "`time` to wait for a newer job with the debounce key before this one starts")
}

// check refuses what the yard would, in the words of the flags.
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
			return usage(c, fmt.Sprintf("--%s means nothing without --%s", g.time, g.key))
		case given(g.key) && !given(g.time) && g.key != "unique-key":
			return usage(c, fmt.Sprintf("--%s needs --%s, which says for how long", g.key, g.time))
		case given(g.time) && (g.held < time.Millisecond || g.held > job.MaxGuardTime):
			return usage(c, fmt.Sprintf("--%s is %s: must be 1ms to %dh", g.time, g.held, int(job.MaxGuardTime.Hours())))
		}
	}
	switch {
	case given("rate-limit-key") && given("debounce-key"):
		return usage(c, "--rate-limit-key and --debounce-key exclude each other")
	case given("debounce-key") && (given("in") || given("at")):
		return usage(c, "--debounce-key says itself when the job starts: leave --in and --at out")
	}
	return nil
}

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

// tellExisting says when the id that is shown is not a new job's.
func (a *app) tellExisting(accepted enqueueAnswer, f *guardFlags) {
	switch {
	case accepted.Debounced:
		fmt.Fprintln(a.Err, "yardmaster: the job takes the place of one that has not started, under its id")
	case accepted.Duplicate && f.unique != "":
		fmt.Fprintf(a.Err, "yardmaster: the yard has a job with this --unique-key or --id already, in queue %s\n", accepted.Queue)
	case accepted.Duplicate:
		fmt.Fprintln(a.Err, "yardmaster: the yard had this job already")
	}
}
