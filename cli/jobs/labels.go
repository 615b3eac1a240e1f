package jobs

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
)

// labelFlags are the flags for the limits that a job uses, what is shown with it, and when it
// expires.
type labelFlags struct {
	limitKey  string
	limits    []string // name[=key]
	tags      []string
	meta      []string // name=value
	expiresIn time.Duration
	expiresAt string
}

func (f *labelFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.limitKey, "limit-key", "", "`key` under which the job uses limits and shares a fair queue, such as a customer (default from its params if the queue has a key path)")
	flags.StringArrayVar(&f.limits, "use-limit", nil, "`name[=key]` of a limit to use besides those of the queue; may be repeated")
	flags.StringArrayVar(&f.tags, "tag", nil, "`text` shown with the job; may be repeated")
	flags.StringArrayVar(&f.meta, "meta", nil, "`name=value` shown with the job; may be repeated")
	durationflag.Var(flags, &f.expiresIn, "expires-in", 0, "end the job as expired if it has not started in this `time` after it is stored")
}

// addMoment adds --expires-at, which means nothing for the jobs of a cron entry.
func (f *labelFlags) addMoment(c *cobra.Command) {
	c.Flags().StringVar(&f.expiresAt, "expires-at", "", "end the job as expired if it has not started by this `time`, in RFC 3339 format")
}

// setOn sets in spec what the flags of c give.
func (f *labelFlags) setOn(spec *job.Spec, c *cobra.Command) (err error) {
	given := c.Flags().Changed
	if given("limit-key") {
		spec.LimitKey = &f.limitKey
	}
	for _, text := range f.limits {
		name, key, _ := strings.Cut(text, "=")
		if spec.Limits == nil {
			spec.Limits = make(map[string]string)
		}
		spec.Limits[name] = key
	}
	spec.Tags = f.tags
	if spec.Meta, err = namedValues(c, "meta", f.meta); err != nil {
		return err
	}
	switch {
	case given("expires-in") && given("expires-at"):
		return usererror.Usage(c, "--expires-in and --expires-at exclude each other")
	case given("expires-in") && (f.expiresIn < time.Millisecond || f.expiresIn > job.MaxDuration):
		return usererror.Usage(c, "--expires-in is %s: must be 1ms to %s", duration.Format(f.expiresIn), duration.Format(job.MaxDuration))
	case given("expires-in"):
		spec.ExpiresInMS = new(f.expiresIn.Milliseconds())
	case given("expires-at"):
		at, err := time.Parse(time.RFC3339, f.expiresAt)
		if err != nil {
			return usererror.Usage(c, "--expires-at is %q: must be a time like %s", f.expiresAt, time.Now().UTC().Format(time.RFC3339))
		}
		spec.ExpiresAt = &at
	}
	return nil
}

// namedValues returns the entries of a repeated flag with values of the form name=value, or nil
// without such a flag.
func namedValues(c *cobra.Command, flag string, texts []string) (map[string]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	entries := make(map[string]string, len(texts))
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usererror.Usage(c, "--%s is %q: must be name=value", flag, text)
		}
		entries[name] = value
	}
	return entries, nil
}
