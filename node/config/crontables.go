package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/scheduler/cronspec"
)

// Crons returns the cron entries of the tables [[rrq.cron_jobs]]. An error names the
// table and the key.
func (c *Config) Crons() ([]ledger.Cron, error) {
	tables := c.RRQ.CronJobs
	if len(tables) > ledger.MaxCrons {
		return nil, fmt.Errorf("rrq.cron_jobs has %d tables; at most %d", len(tables), ledger.MaxCrons)
	}
	taken := map[string]bool{}
	for i := range tables {
		if name := tables[i].Name; name != "" {
			if taken[name] {
				return nil, fmt.Errorf("rrq.cron_jobs: two tables have the name %q; give each its own", name)
			}
			taken[name] = true
		}
	}
	crons := make([]ledger.Cron, len(tables))
	for i := range tables {
		cron, err := declaredCron(&tables[i], c.RRQ.DefaultQueueName(), taken)
		if err != nil {
			return nil, fmt.Errorf("rrq.cron_jobs, table %d: %w", i+1, err)
		}
		crons[i] = cron
	}
	return crons, nil
}

// declaredCron converts one table. An entry without a queue gets defaultQueue. One
// without a name gets a name that is not in taken, and is added to it.
func declaredCron(t *runnerpool.CronJob, defaultQueue string, taken map[string]bool) (ledger.Cron, error) {
	c := ledger.Cron{
		Name: t.Name, TimeZone: t.TimeZone, NoOverlap: t.Unique, CatchUp: t.Missed == api.CronOnce, Declared: true,
		Queue: cmp.Or(runnerpool.QueueName(t.Queue), defaultQueue),
	}
	switch {
	case t.Function == "":
		return c, fmt.Errorf("function_name is missing; name the handler")
	case t.Missed != "" && t.Missed != api.CronSkip && t.Missed != api.CronOnce:
		return c, fmt.Errorf("missed is %q; must be skip or once", t.Missed)
	}
	if c.Name == "" {
		c.Name = cronName(t.Function, taken)
	}
	var err error
	if c.Schedule, err = fromRRQ(t.Schedule); err != nil {
		return c, err
	}
	spec := job.Spec{Function: t.Function}
	if len(t.Params) > 0 {
		if spec.Params, err = json.Marshal(t.Params); err != nil {
			return c, fmt.Errorf("params cannot be JSON: %w", err)
		}
	}
	if c.Body, err = json.Marshal(spec); err != nil {
		return c, err
	}
	err = cronspec.Check(&c)
	return c, err
}

// cronName derives the name of a cron entry from the name of its function: with '-' for
// what a name must not contain, and a number if the name is taken. It adds it to taken.
func cronName(function string, taken map[string]bool) string {
	base := strings.Map(func(r rune) rune {
		isLetterOrDigit := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if isLetterOrDigit || r == '_' {
			return r
		}
		return '-'
	}, function)
	base = strings.TrimLeft(base, "-_")
	base = base[:min(len(base), job.MaxQueueLen-len("-10000"))]
	base = cmp.Or(base, "cron")
	name := base
	for n := 2; taken[name]; n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	taken[name] = true
	return name
}

// rrqDays are the names of the days of the week by their numbers in RRQ.
var rrqDays = [...]string{"", "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}

// rrqName shortens names of days and months that RRQ lets users write out, such as
// "Thurs" or "september", to three letters.
func rrqName(name string) string {
	for _, long := range [...]string{
		"SUNDAY", "MONDAY", "TUES", "TUESDAY", "WEDNESDAY", "THURS", "THURSDAY", "FRIDAY", "SATURDAY",
		"JANUARY", "FEBRUARY", "MARCH", "APRIL", "JUNE", "JULY", "AUGUST", "SEPTEMBER", "OCTOBER", "NOVEMBER", "DECEMBER",
	} {
		if strings.EqualFold(name, long) {
			return long[:3]
		}
	}
	return name
}

// fromRRQ converts a cron expression of RRQ: its days of the week begin with Sunday as
// 1, names may be written out, and a year may follow at the end.
func fromRRQ(expression string) (string, error) {
	fields := strings.Fields(expression)
	if len(fields) == 7 {
		if fields[6] != "*" {
			return "", fmt.Errorf("schedule %q: year is %q; must be left out or *", expression, fields[6])
		}
		fields = fields[:6]
	}
	if len(fields) != 6 {
		return expression, nil // cronspec.Check reports what is wrong
	}
	fields[4], _ = mapRangeEnds(fields[4], func(end string) (string, error) { return rrqName(end), nil })
	days, err := mapRangeEnds(fields[5], func(end string) (string, error) {
		day, err := strconv.Atoi(end)
		switch {
		case err != nil: // a name, or '*'
			return rrqName(end), nil
		case day < 1 || day >= len(rrqDays):
			return "", fmt.Errorf("schedule %q: day of week %d; must be 1 (Sunday) to 7, or a name such as MON", expression, day)
		}
		return rrqDays[day], nil
	})
	fields[5] = days
	return strings.Join(fields, " "), err
}

// mapRangeEnds returns a field of a cron expression, such as "MON-FRI/2,7", with rewrite
// applied to each value in its lists and ranges, but not to steps.
func mapRangeEnds(field string, rewrite func(string) (string, error)) (string, error) {
	parts := strings.Split(field, ",")
	for i, part := range parts {
		part, step, hasStep := strings.Cut(part, "/")
		ends := strings.Split(part, "-")
		for n, end := range ends {
			var err error
			if ends[n], err = rewrite(end); err != nil {
				return "", err
			}
		}
		if parts[i] = strings.Join(ends, "-"); hasStep {
			parts[i] += "/" + step
		}
	}
	return strings.Join(parts, ","), nil
}
