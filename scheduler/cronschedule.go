package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the same time zones on all members, whatever their hosts have

	"github.com/robfig/cron/v3"

	"github.com/yardmaster-dev/yardmaster/job"
)

// CronSchedule is a parsed cron expression with its time zone.
type CronSchedule struct {
	schedule cron.Schedule
	zone     *time.Location
}

var (
	cronParser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
	cronFields = [...]string{"second", "minute", "hour", "day of month", "month", "day of week"}
)

// ParseCron parses an expression of six fields (second, minute, hour, day of month,
// month, day of week with Sunday as 0), of five without the second, or a descriptor
// such as @daily or "@every 90s". zone is an IANA name, or "" for UTC. An error is
// a [*job.InvalidError] that names the field.
//
// When daylight saving time begins, ticks within the skipped hour do not come; when
// it ends, ticks within the repeated hour come twice.
func ParseCron(expression, zone string) (CronSchedule, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" { // Local differs between members
		return CronSchedule{}, &job.InvalidError{Reason: fmt.Sprintf("time_zone %q is not known; give an IANA name such as \"Europe/Berlin\", or none for UTC", zone)}
	}
	invalid := func(reason string) (CronSchedule, error) {
		return CronSchedule{}, &job.InvalidError{Reason: fmt.Sprintf("schedule %q: %s", expression, reason)}
	}
	fields := strings.Fields(expression)
	switch {
	case len(fields) == 0:
		return invalid("it is empty; give six fields: " + strings.Join(cronFields[:], ", "))
	case strings.Contains(expression, "="):
		return invalid("give the time zone separately, as time_zone")
	case fields[0][0] == '@':
	case len(fields) == 5:
		fields = slices.Insert(fields, 0, "0")
		fallthrough
	case len(fields) == 6:
		if reason := checkCronFields(fields); reason != "" {
			return invalid(reason)
		}
	default:
		return invalid(fmt.Sprintf("it has %d fields; give six: %s", len(fields), strings.Join(cronFields[:], ", ")))
	}
	schedule, err := cronParser.Parse(strings.Join(fields, " "))
	if err != nil {
		return invalid(err.Error() + "; besides six fields there are @hourly, @daily, @weekly, @monthly, @yearly and @every <time>")
	}
	parsed := CronSchedule{schedule, loc}
	if parsed.After(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return invalid("there is no such day")
	}
	return parsed, nil
}

// checkCronFields returns which of six fields is invalid and why, or "".
func checkCronFields(fields []string) string {
	for i, field := range fields {
		single := []string{"*", "*", "*", "*", "*", "*"}
		single[i] = field
		if _, err := cronParser.Parse(strings.Join(single, " ")); err != nil {
			return fmt.Sprintf("%s is %q: %v", cronFields[i], field, err)
		}
	}
	anyDay := func(field string) bool { return field[0] == '*' || field[0] == '?' }
	if !anyDay(fields[3]) && !anyDay(fields[5]) {
		return "day of month and day of week are both given, which some programs take as either and some as both; leave one at *"
	}
	return ""
}

// After returns the first tick after t, in UTC, or zero if there is none in five
// years.
func (c CronSchedule) After(t time.Time) time.Time {
	next := c.schedule.Next(t.In(c.zone))
	if !next.After(t) {
		return time.Time{}
	}
	return next.UTC()
}
