package jobs

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// retryFlags are the flags of a queue's retry rule.
type retryFlags struct {
	function, attempts, backoff, maxBackoff, jitter, retryOn, discardOn, retry string
}

// register adds the flags to c.
func (f *retryFlags) register(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.function, "function", "", "`function` to whose jobs the retry settings apply (default all functions without settings of their own)")
	flags.StringVar(&f.attempts, "attempts", "", "total attempts of jobs that set none, of the queue or of --function, a `number` or none")
	flags.StringVar(&f.backoff, "backoff", "", "`delay` after the first failed attempt, doubled with each, or none")
	flags.StringVar(&f.maxBackoff, "max-backoff", "", "longest `delay` between attempts, or none")
	flags.StringVar(&f.jitter, "jitter", "", "`percent` by which delays are lengthened at most, or none")
	flags.StringVar(&f.retryOn, "retry-on", "", "`types` or codes of the only errors that are retried, joined by commas, or none")
	flags.StringVar(&f.discardOn, "discard-on", "", "`types` or codes of errors that end a job at once, joined by commas, or none")
}

// registerRemoval adds the flag that removes rules to c.
func (f *retryFlags) registerRemoval(c *cobra.Command) {
	c.Flags().StringVar(&f.retry, "retry", "", "`none` removes all retry settings of --function, or of the queue")
}

// add adds what the flags of c change to a request, as its setting retry.
func (f *retryFlags) add(c *cobra.Command, request map[string]any) error {
	rule := map[string]any{"function": f.function}
	given := len(rule)
	for _, flag := range []struct {
		name, key, value string
		parse            func(text string) (value any, must string)
	}{
		{"attempts", "max_attempts", f.attempts, parseNumber(1, 1000)},
		{"backoff", "backoff_ms", f.backoff, parseDelay},
		{"max-backoff", "max_backoff_ms", f.maxBackoff, parseDelay},
		{"jitter", "jitter", f.jitter, parseNumber(0, job.MaxJitter)},
		{"retry-on", "retry_on", f.retryOn, parseErrors},
		{"discard-on", "discard_on", f.discardOn, parseErrors},
	} {
		switch {
		case !c.Flags().Changed(flag.name):
		case flag.value == "none":
			rule[flag.key] = nil
		default:
			value, must := flag.parse(flag.value)
			if must != "" {
				return usererror.Usage(c, "--%s is %q: must be %s, or none", flag.name, flag.value, must)
			}
			rule[flag.key] = value
		}
	}
	if attempts, set := rule["max_attempts"]; set && f.function == "" {
		request["max_attempts"] = attempts // a setting of the queue
		delete(rule, "max_attempts")
	}
	isSet := len(rule) > given
	switch removes := c.Flags().Changed("retry"); {
	case removes && f.retry != "none":
		return usererror.Usage(c, "--retry is %q: must be none, which removes the retry settings", f.retry)
	case removes && f.function == "" && isSet:
		return usererror.Usage(c, "--retry none removes the settings of all functions: give it without other retry settings, or with --function")
	case removes && f.function == "":
		request["retry"] = nil
		return nil
	case removes:
		rule["remove"] = true
	case f.function != "" && !isSet:
		return usererror.Usage(c, "--function needs a retry setting, such as --backoff")
	case !isSet:
		return nil
	}
	request["retry"] = []any{rule}
	return nil
}

// parseNumber returns the parser of a number within bounds.
func parseNumber(lowest, highest int64) func(string) (value any, must string) {
	return func(text string) (any, string) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < lowest || n > highest {
			return nil, fmt.Sprintf("%d to %d", lowest, highest)
		}
		return n, ""
	}
}

// parseDelay parses a delay as milliseconds.
func parseDelay(text string) (value any, must string) {
	d, err := duration.Parse(text)
	if err != nil || d < time.Millisecond || d > job.MaxDuration {
		return nil, "1ms to " + duration.Format(job.MaxDuration) + ", such as 10s"
	}
	return d.Milliseconds(), ""
}

// parseErrors parses types or codes of errors, which are joined by commas.
func parseErrors(text string) (value any, must string) {
	names := strings.Split(text, ",")
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, " \t\n") {
			return nil, "types or codes of errors, joined by commas, such as http_503,timeout"
		}
	}
	return names, ""
}

// queueRetries prints the retry rules of a queue.
func queueRetries(w io.Writer, q *api.Queue) {
	if len(q.Retry) == 0 {
		return
	}
	command.Printf(w, "\n")
	command.Titles(w, "RETRIES OF\tATTEMPTS\tBACKOFF\tMAX BACKOFF\tJITTER\tRETRY ON\tDISCARD ON", "JITTER", "MAX BACKOFF")
	for i := range q.Retry {
		r := &q.Retry[i]
		jitter, attempts, function := "-", "-", r.Function
		if r.Jitter != nil {
			jitter = fmt.Sprintf("%d%%", *r.Jitter)
		}
		if r.MaxAttempts > 0 {
			attempts = fmt.Sprint(r.MaxAttempts)
		}
		if function == "" {
			function = "*"
		}
		command.Row(w, function, attempts, delayText(r.BackoffMS), delayText(r.MaxBackoffMS), jitter,
			command.OrDash(strings.Join(r.RetryOn, ",")), command.OrDash(strings.Join(r.DiscardOn, ",")))
	}
}

// delayText returns a delay, or "-" for 0.
func delayText(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return duration.Format(time.Duration(ms) * time.Millisecond)
}
