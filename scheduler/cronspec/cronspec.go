// Package cronspec checks cron entries, parses their cron expressions, and determines
// when their ticks are due.
package cronspec

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/internal/zoneinfo"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Schedule is a parsed cron expression with its time zone.
//
// A schedule that includes every hour of the day, such as "0 30 * * * *", follows elapsed time:
// it has a tick whenever the clock of its zone shows a matching time. A skipped hour has no ticks,
// and an hour that the clock shows twice has its ticks twice.
//
// A schedule that names hours, such as "0 30 2 * * *" or "0 0 */2 * * *", has a tick at each of its
// times of day once a day, however the clock is set: the ticks of a skipped hour become one tick at
// its end, and a double hour has its ticks the first time. For example, if the clock is set from
// 02:00 to 03:00, the tick of 02:30 is at 03:00.
//
// "@every 90s" follows elapsed time.
type Schedule struct {
	every  time.Duration // of @every; 0: fields
	fields fields
	zone   *time.Location
}

// descriptors are the expressions that have names.
var descriptors = map[string]string{
	"@hourly": "0 0 * * * *", "@daily": "0 0 0 * * *", "@midnight": "0 0 0 * * *", "@weekly": "0 0 0 * * 0",
	"@monthly": "0 0 0 1 * *", "@yearly": "0 0 0 1 1 *", "@annually": "0 0 0 1 1 *",
}

// Parse parses an expression of six fields (second, minute, hour, day of month,
// month, day of week with Sunday as 0 or 7), of five without the second, or a descriptor
// such as @daily or "@every 90s". zone is an IANA name, or "" for UTC. An error is
// a [*job.InvalidError] that names the field.
//
// Parse accepts what earlier releases have stored. [CheckSchedule] checks new entries.
func Parse(expression, zone string) (Schedule, error) {
	parsed := Schedule{zone: time.UTC}
	if zone != "" {
		var err error
		if parsed.zone, err = zoneinfo.Load(zone); err != nil {
			return Schedule{}, &job.InvalidError{Reason: fmt.Sprintf("time_zone %q is not known; give an IANA name such as \"Europe/Berlin\", or none for UTC", zone)}
		}
	}
	invalid := func(reason string) (Schedule, error) {
		return Schedule{}, &job.InvalidError{Reason: fmt.Sprintf("schedule %q: %s", expression, reason)}
	}
	if interval, ok := strings.CutPrefix(strings.Join(strings.Fields(expression), " "), "@every "); ok {
		every, err := duration.Parse(interval)
		if err != nil {
			return invalid(err.Error())
		}
		parsed.every = max(every.Truncate(time.Second), time.Second)
		return parsed, nil
	}
	texts, reason := splitFields(expression)
	if reason != "" {
		return invalid(reason)
	}
	var err error
	if parsed.fields, err = parseFields(texts); err != nil {
		return invalid(err.Error())
	}
	anyDay := func(field string) bool { return field[0] == '*' || field[0] == '?' }
	if parsed.fields.restrictsBoth() && !anyDay(texts[3]) && !anyDay(texts[5]) {
		return invalid(bothDays)
	}
	if parsed.fields.next(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return invalid("there is no such day")
	}
	return parsed, nil
}

const bothDays = "day of month and day of week are both given, which some programs take as either and some as both; leave one at *"

// splitFields returns the six fields of an expression, or the reason why it does not have them.
func splitFields(expression string) (texts []string, reason string) {
	texts = strings.Fields(expression)
	switch {
	case len(texts) == 0:
		return nil, "it is empty; give six fields: " + fieldNames()
	case strings.Contains(expression, "="):
		return nil, "give the time zone separately, as time_zone"
	case texts[0][0] == '@':
		fields, ok := descriptors[strings.Join(texts, " ")]
		if !ok {
			return nil, "besides six fields there are @hourly, @daily, @weekly, @monthly, @yearly and @every <time>"
		}
		return strings.Fields(fields), ""
	case len(texts) == 5:
		return slices.Insert(texts, 0, "0"), "" // the second
	case len(texts) != 6:
		return nil, fmt.Sprintf("it has %d fields; give six: %s", len(texts), fieldNames())
	}
	return texts, ""
}

// fieldNames returns the names of the six fields.
func fieldNames() string {
	var names []string
	for i := range fieldsInOrder {
		names = append(names, fieldsInOrder[i].name)
	}
	return strings.Join(names, ", ")
}

// After returns the first tick after t, in UTC, or the zero time if the next nine years have no
// tick.
func (c *Schedule) After(t time.Time) time.Time {
	t = t.UTC()
	switch {
	case c.every > 0:
		return t.Truncate(time.Second).Add(c.every)
	case c.fields.hour == allHours:
		return c.afterHourly(t)
	}
	return c.afterNamed(t)
}

// Interval returns the interval of @every, or 0 if the ticks depend on what the clock shows.
func (c *Schedule) Interval() time.Duration { return c.every }

// Local returns t in the zone of the schedule.
func (c *Schedule) Local(t time.Time) time.Time { return t.In(c.zone) }
