// Package cronspec checks cron entries, parses their cron expressions, and determines
// when their ticks are due.
package cronspec

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the same time zones on all members, whatever their hosts have

	"github.com/robfig/cron/v3"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Schedule is a parsed cron expression with its time zone.
type Schedule struct {
	schedule cron.Schedule
	zone     *time.Location
}

var (
	parser     = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
	fieldNames = [...]string{"second", "minute", "hour", "day of month", "month", "day of week"}
)

// Parse parses an expression of six fields (second, minute, hour, day of month,
// month, day of week with Sunday as 0), of five without the second, or a descriptor
// such as @daily or "@every 90s". zone is an IANA name, or "" for UTC. An error is
// a [*job.InvalidError] that names the field.
//
// When daylight saving time begins, ticks within the skipped hour do not come; when
// it ends, ticks within the repeated hour come twice.
func Parse(expression, zone string) (Schedule, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" { // Local differs between members
		return Schedule{}, &job.InvalidError{Reason: fmt.Sprintf("time_zone %q is not known; give an IANA name such as \"Europe/Berlin\", or none for UTC", zone)}
	}
	invalid := func(reason string) (Schedule, error) {
		return Schedule{}, &job.InvalidError{Reason: fmt.Sprintf("schedule %q: %s", expression, reason)}
	}
	fields := strings.Fields(expression)
	switch {
	case len(fields) == 0:
		return invalid("it is empty; give six fields: " + strings.Join(fieldNames[:], ", "))
	case strings.Contains(expression, "="):
		return invalid("give the time zone separately, as time_zone")
	}
	isDescriptor := fields[0][0] == '@'
	if !isDescriptor {
		if len(fields) == 5 {
			fields = slices.Insert(fields, 0, "0") // the second
		}
		if len(fields) != 6 {
			return invalid(fmt.Sprintf("it has %d fields; give six: %s", len(fields), strings.Join(fieldNames[:], ", ")))
		}
		if reason := invalidField(fields); reason != "" {
			return invalid(reason)
		}
	}
	if fields[0] == "@every" && len(fields) == 2 {
		if interval, err := duration.Parse(fields[1]); err == nil { // the parser has no days
			fields[1] = interval.String()
		}
	}
	schedule, err := parser.Parse(strings.Join(fields, " "))
	if err != nil {
		return invalid(err.Error() + "; besides six fields there are @hourly, @daily, @weekly, @monthly, @yearly and @every <time>")
	}
	parsed := Schedule{schedule, loc}
	if parsed.After(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return invalid("there is no such day")
	}
	return parsed, nil
}

// invalidField returns a message about the first of six fields that is invalid, or ""
// if all are valid.
func invalidField(fields []string) string {
	for i, field := range fields {
		single := []string{"*", "*", "*", "*", "*", "*"}
		single[i] = field
		if _, err := parser.Parse(strings.Join(single, " ")); err != nil {
			return fmt.Sprintf("%s is %q: %v", fieldNames[i], field, err)
		}
	}
	anyDay := func(field string) bool { return field[0] == '*' || field[0] == '?' }
	if !anyDay(fields[3]) && !anyDay(fields[5]) {
		return "day of month and day of week are both given, which some programs take as either and some as both; leave one at *"
	}
	return ""
}

// After returns the first tick after t, in UTC, or the zero time if there is none in
// five years.
func (c Schedule) After(t time.Time) time.Time {
	next := c.schedule.Next(t.In(c.zone))
	if !next.After(t) {
		return time.Time{}
	}
	return next.UTC()
}

// Check returns an error if a new cron entry is invalid: its schedule cannot be parsed or
// has an interval that is not in whole seconds, or its job cannot be enqueued. The error is
// a [*job.InvalidError] that names the field.
func Check(c *ledger.Cron) error {
	if _, err := Parse(c.Schedule, c.TimeZone); err != nil {
		return err
	}
	if err := checkInterval(c.Schedule); err != nil {
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

// checkInterval returns an error if expression, which Parse accepts, is an @every with an
// interval below a second or with a fraction of a second. Parse accepts these, rounded to
// whole seconds of at least one, because earlier releases have stored such entries.
func checkInterval(expression string) error {
	fields := strings.Fields(expression)
	if fields[0] != "@every" {
		return nil
	}
	interval, err := duration.Parse(fields[1])
	if err != nil || interval < time.Second || interval%time.Second != 0 {
		return &job.InvalidError{Reason: fmt.Sprintf("schedule %q: the interval of @every must be whole seconds, 1s or more, such as 90s, 1h30m or 1d", expression)}
	}
	return nil
}
