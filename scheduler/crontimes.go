package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // all members read the same time zones, whatever their machines have

	"github.com/robfig/cron/v3"

	"yardmaster/job"
)

// CronTimes are the moments that a cron expression names in a time zone.
type CronTimes struct {
	schedule cron.Schedule
	zone     *time.Location
}

var (
	cronParser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)
	cronFields = [...]string{"second", "minute", "hour", "day of month", "month", "day of week"}
)

// ParseCron reads an expression of six fields (second, minute, hour, day of
// month, month, day of week with Sunday as 0), of five without the second, or
// one such as @daily or "@every 90s". zone is IANA's name, "" for UTC. An error
// is a [*job.InvalidError] that names the field.
//
// A clock that is put forward leaves out what lay between; one that is put back
// shows an hour twice, and what lies in it comes twice.
func ParseCron(expression, zone string) (CronTimes, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" { // every member's own
		return CronTimes{}, &job.InvalidError{Reason: fmt.Sprintf("time_zone %q is not known; give an IANA name such as \"Europe/Berlin\", or none for UTC", zone)}
	}
	wrong := func(why string) (CronTimes, error) {
		return CronTimes{}, &job.InvalidError{Reason: fmt.Sprintf("schedule %q: %s", expression, why)}
	}
	fields := strings.Fields(expression)
	switch {
	case len(fields) == 0:
		return wrong("it is empty; give six fields: " + strings.Join(cronFields[:], ", "))
	case strings.Contains(expression, "="):
		return wrong("give the time zone by itself, as time_zone")
	case fields[0][0] == '@':
	case len(fields) == 5:
		fields = slices.Insert(fields, 0, "0")
		fallthrough
	case len(fields) == 6:
		if why := cronFault(fields); why != "" {
			return wrong(why)
		}
	default:
		return wrong(fmt.Sprintf("it has %d fields; give six: %s", len(fields), strings.Join(cronFields[:], ", ")))
	}
	schedule, err := cronParser.Parse(strings.Join(fields, " "))
	if err != nil {
		return wrong(err.Error() + "; besides six fields there are @hourly, @daily, @weekly, @monthly, @yearly and @every <time>")
	}
	times := CronTimes{schedule, loc}
	if times.After(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return wrong("there is no such day")
	}
	return times, nil
}

// cronFault says which of six fields is wrong and why; "" if none is.
func cronFault(fields []string) string {
	for i, field := range fields {
		alone := []string{"*", "*", "*", "*", "*", "*"}
		alone[i] = field
		if _, err := cronParser.Parse(strings.Join(alone, " ")); err != nil {
			return fmt.Sprintf("%s is %q: %v", cronFields[i], field, err)
		}
	}
	anyDay := func(field string) bool { return field[0] == '*' || field[0] == '?' }
	if !anyDay(fields[3]) && !anyDay(fields[5]) {
		return "day of month and day of week are both given, which some programs take as either and some as both; leave one at *"
	}
	return ""
}

// After is the first moment after t, in UTC; zero if there is none within five
// years.
func (c CronTimes) After(t time.Time) time.Time {
	next := c.schedule.Next(t.In(c.zone))
	if !next.After(t) {
		return time.Time{}
	}
	return next.UTC()
}
