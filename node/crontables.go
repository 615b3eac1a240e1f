package node

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/runnerpool"
	"yardmaster/scheduler"
)

// What may become of missed ticks, and of ticks while the last one's job runs.
const (
	cronSkip  = "skip"
	cronOnce  = "once"
	cronAllow = "allow"
)

// declaredCrons reads the tables [[rrq.cron_jobs]]; queue takes the jobs of
// those that name none. An error names the table and the key.
func declaredCrons(tables []runnerpool.CronJob, queue string) ([]ledger.Cron, error) {
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
		c, err := declaredCron(&tables[i], queue, taken)
		if err != nil {
			return nil, fmt.Errorf("rrq.cron_jobs, table %d: %w", i+1, err)
		}
		crons[i] = c
	}
	return crons, nil
}

func declaredCron(t *runnerpool.CronJob, queue string, taken map[string]bool) (ledger.Cron, error) {
	c := ledger.Cron{
		Name: t.Name, Zone: t.TimeZone, Alone: t.Unique, CatchUp: t.Missed == cronOnce, Declared: true,
		Queue: runnerpool.QueueName(t.Queue),
	}
	fill(&c.Queue, queue)
	switch {
	case t.Function == "":
		return c, fmt.Errorf("function_name is missing; name the handler")
	case t.Missed != "" && t.Missed != cronSkip && t.Missed != cronOnce:
		return c, fmt.Errorf("missed is %q; must be skip or once", t.Missed)
	}
	if c.Name == "" {
		c.Name = cronName(t.Function, taken)
	}
	var err error
	if c.Times, err = fromRRQ(t.Schedule); err != nil {
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
	return c, scheduler.CheckCron(&c)
}

// cronName makes a name of a function, another than those taken.
func cronName(function string, taken map[string]bool) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}, function)
	clean = strings.TrimLeft(clean, "-_")
	clean = clean[:min(len(clean), job.MaxQueueLen-len("-10000"))]
	fill(&clean, "cron")
	name := clean
	for n := 2; taken[name]; n++ {
		name = clean + "-" + strconv.Itoa(n)
	}
	taken[name] = true
	return name
}

var rrqDays = [...]string{"", "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}

// rrqName shortens what RRQ's users may write out: "Thurs", "september".
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

// fromRRQ writes an expression as RRQ's users know it in our words: their days
// of the week begin with Sunday as 1, names may be written out, and a year may
// stand at the end.
func fromRRQ(expression string) (string, error) {
	fields := strings.Fields(expression)
	if len(fields) == 7 {
		if fields[6] != "*" {
			return "", fmt.Errorf("schedule %q: year is %q; must be left out or *", expression, fields[6])
		}
		fields = fields[:6]
	}
	if len(fields) != 6 {
		return expression, nil // whoever reads it says what is wrong
	}
	fields[4], _ = eachEnd(fields[4], func(end string) (string, error) { return rrqName(end), nil })
	days, err := eachEnd(fields[5], func(end string) (string, error) {
		n, notNumber := strconv.Atoi(end)
		switch {
		case notNumber != nil: // a name, or '*'
			return rrqName(end), nil
		case n < 1 || n >= len(rrqDays):
			return "", fmt.Errorf("schedule %q: day of week %d; must be 1 (Sunday) to 7, or a name such as MON", expression, n)
		}
		return rrqDays[n], nil
	})
	fields[5] = days
	return strings.Join(fields, " "), err
}

// eachEnd rewrites what a field's ranges and lists are made of, but no steps.
func eachEnd(field string, rewrite func(string) (string, error)) (string, error) {
	parts := strings.Split(field, ",")
	for i, part := range parts {
		part, step, stepped := strings.Cut(part, "/")
		ends := strings.Split(part, "-")
		for k, end := range ends {
			var err error
			if ends[k], err = rewrite(end); err != nil {
				return "", err
			}
		}
		if parts[i] = strings.Join(ends, "-"); stepped {
			parts[i] += "/" + step
		}
	}
	return strings.Join(parts, ","), nil
}
