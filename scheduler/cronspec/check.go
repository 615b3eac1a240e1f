package cronspec

import (
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Check returns an error if a new cron entry is invalid: its schedule cannot be parsed or
// has an interval that is not in whole seconds or a step that is too large, its time zone is not
// known or is "Factory", or its job cannot be enqueued. The error is a [*job.InvalidError] that
// names the field.
func Check(c *ledger.Cron) error {
	if err := CheckSchedule(c.Schedule, c.TimeZone); err != nil {
		return err
	}
	if err := job.ValidQueue(c.Name); err != nil {
		return &job.InvalidError{Reason: fmt.Sprintf("name %q: must be 1 to %d letters, digits, '_' and '-', a letter or digit first", c.Name, job.MaxQueueLen)}
	}
	if err := job.ValidQueue(c.Queue); err != nil {
		return &job.InvalidError{Reason: "queue: " + err.Error()}
	}
	if len(c.Body) > ledger.MaxCronBody {
		return &job.InvalidError{Reason: fmt.Sprintf("job has %d bytes; a cron entry's at most %d: store what is larger elsewhere and name it in params", len(c.Body), ledger.MaxCronBody)}
	}
	spec, err := job.ParseJob(c.Body)
	switch {
	case err != nil:
		return err
	case spec.Deferred():
		return &job.InvalidError{Reason: "run_at, delay_ms: a cron entry's schedule says when its jobs run"}
	case spec.ExpiresAt != nil:
		return &job.InvalidError{Reason: "expires_at: a cron entry's jobs are made at different times; give expires_in_ms"}
	case spec.Blob != nil:
		return &job.InvalidError{Reason: "blob is written by nodes; send the body itself"}
	case spec.HasGuards():
		return &job.InvalidError{Reason: "a cron entry's job has no unique, rate limit or debounce key; overlap \"skip\" keeps its jobs apart"}
	}
	return nil
}

// CheckSchedule returns an error if a new cron entry must not have this schedule and time zone,
// as [Check] does.
func CheckSchedule(expression, zone string) error {
	parsed, err := Parse(expression, zone)
	if err != nil {
		return err
	}
	if zone == "Factory" {
		return &job.InvalidError{Reason: "time_zone \"Factory\" stands for a zone that was not set; give an IANA name such as \"Europe/Berlin\", or none for UTC"}
	}
	if parsed.every > 0 {
		return checkInterval(expression)
	}
	texts, _ := splitFields(expression)
	reason := largeStep(texts)
	if parsed.fields.restrictsBoth() {
		reason = bothDays
	}
	if reason != "" {
		return &job.InvalidError{Reason: fmt.Sprintf("schedule %q: %s", expression, reason)}
	}
	return nil
}

// checkInterval returns an error if expression, which Parse accepts, is an @every with an
// interval below a second or with a fraction of a second. Parse accepts these, rounded to
// whole seconds of at least one, because earlier releases have stored such entries.
func checkInterval(expression string) error {
	fields := strings.Fields(expression)
	interval, err := duration.Parse(fields[1])
	if err != nil || interval < time.Second || interval%time.Second != 0 {
		return &job.InvalidError{Reason: fmt.Sprintf("schedule %q: the interval of @every must be whole seconds, 1s or more, such as 90s, 1h30m or 1d", expression)}
	}
	return nil
}
