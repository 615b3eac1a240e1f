package cronspec

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// field describes one of the six fields of an expression.
type field struct {
	name     string
	min, max int
	names    []string // of its values, from min on; nil: values have no names
	period   string   // with which steps start again, such as "hour" for minutes
	unit     string   // of the interval that a user may have meant by a large step; "": none
}

var fieldsInOrder = [...]field{
	{"second", 0, 59, nil, "minute", "s"}, {"minute", 0, 59, nil, "hour", "m"}, {"hour", 0, 23, nil, "day", "h"}, {"day of month", 1, 31, nil, "month", "d"},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}, "year", ""},
	{"day of week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}, "week", ""}, // 7 is Sunday, too
}

// set is a set of small numbers: n is in it if bit n is 1.
type set uint64

// has reports whether n is in s.
func (s set) has(n int) bool { return s>>n&1 == 1 }

// from returns the smallest number in s that is at least n, or -1 if there is none.
func (s set) from(n int) int {
	if rest := s >> n; rest != 0 {
		return n + bits.TrailingZeros64(uint64(rest))
	}
	return -1
}

// fields are the values of the fields of an expression.
type fields struct{ second, minute, hour, day, month, weekday set }

// The sets of all values.
const (
	allHours    set = 1<<24 - 1
	allDays     set = 1<<32 - 1<<1
	allWeekdays set = 1<<7 - 1
)

// parseFields parses six fields.
func parseFields(texts []string) (f fields, err error) {
	for i, values := range [...]*set{&f.second, &f.minute, &f.hour, &f.day, &f.month, &f.weekday} {
		described := &fieldsInOrder[i]
		if *values, err = described.parse(texts[i]); err != nil {
			return f, fmt.Errorf("%s is %q: %w", described.name, texts[i], err)
		}
	}
	if f.weekday.has(7) {
		f.weekday = f.weekday&allWeekdays | 1
	}
	return f, nil
}

// parse parses a field: a list of "*" or "?", a value, or a range of values, each perhaps with
// a step, such as "0-30/10,45" or "MON-FRI".
func (f *field) parse(text string) (values set, err error) {
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		first, last, step, err := f.parseRange(part)
		if err != nil {
			return 0, err
		}
		for n := first; n <= last; n += step {
			values |= 1 << n
		}
	}
	if values == 0 {
		return 0, fmt.Errorf("give %s", f.allowed())
	}
	return values, nil
}

// parseRange parses a part of a list, such as "10-30/5". A step after a single value, as in
// "10/5", extends it to the end of the field.
func (f *field) parseRange(part string) (first, last, step int, err error) {
	ends, stepText, hasStep := strings.Cut(part, "/")
	step = 1
	if hasStep {
		if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
			return 0, 0, 0, fmt.Errorf("the step %q after / must be a number, 1 or more", stepText)
		}
		step = min(step, f.max+1) // so that no sum overflows
	}
	if ends == "*" || ends == "?" {
		return f.min, f.max - f.surplus(), step, nil
	}
	firstText, lastText, isRange := strings.Cut(ends, "-")
	if first, err = f.parseValue(firstText); err != nil {
		return 0, 0, 0, err
	}
	switch {
	case !isRange && hasStep && first <= f.max-f.surplus():
		return first, f.max - f.surplus(), step, nil
	case !isRange:
		return first, first, step, nil
	}
	if last, err = f.parseValue(lastText); err != nil {
		return 0, 0, 0, err
	}
	if f.surplus() > 0 && last == 0 && first > 0 { // such as FRI-SUN
		last = f.max
	}
	if last < first {
		return 0, 0, 0, fmt.Errorf("the range %s ends before it begins; write it as two, separated by a comma", ends)
	}
	return first, last, step, nil
}

// surplus returns how many values at the end of the field repeat earlier ones: of the days of the
// week 7, which is Sunday like 0.
func (f *field) surplus() int {
	if f.max == 7 {
		return 1
	}
	return 0
}

// parseValue parses a number or a name.
func (f *field) parseValue(text string) (int, error) {
	if i := slices.Index(f.names, strings.ToLower(text)); i >= 0 {
		return f.min + i, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.min || n > f.max {
		return 0, fmt.Errorf("%q is none of %s", text, f.allowed())
	}
	return n, nil
}

// allowed returns the values of the field as a text for errors, such as "1 to 12 or JAN to DEC".
func (f *field) allowed() string {
	allowed := fmt.Sprintf("%d to %d", f.min, f.max)
	if f.names != nil {
		allowed += " or " + strings.ToUpper(f.names[0]) + " to " + strings.ToUpper(f.names[len(f.names)-1])
	}
	return allowed
}

// largeStep returns a message about the first step in texts, six valid fields, that is larger
// than its field, such as "*/90" of minutes, which has only the minute 0; "" if there is none.
func largeStep(texts []string) string {
	for i, text := range texts {
		f := &fieldsInOrder[i]
		size := f.max - f.min + 1 - f.surplus()
		for part := range strings.SplitSeq(text, ",") {
			_, stepText, _ := strings.Cut(part, "/")
			step, err := strconv.Atoi(stepText)
			if err != nil || step <= size {
				continue
			}
			reason := fmt.Sprintf("%s is %q: a step starts again with each %s, so it is at most %d", f.name, text, f.period, size)
			if f.unit != "" {
				reason += fmt.Sprintf(`; for a tick every %d%s write "@every %d%s"`, step, f.unit, step, f.unit)
			}
			return reason
		}
	}
	return ""
}

// maxYears is how far next looks for a day. The longest wait is for 29 February, from 2096 to
// 2104.
const maxYears = 9

// next returns the first local time after t that matches, in whole seconds, or the zero time if no
// time in maxYears does. Local times are passed as if they were in UTC.
func (f *fields) next(t time.Time) time.Time {
	t = t.Truncate(time.Second).Add(time.Second)
	hour, minute, second := t.Clock()
	day := t.Truncate(24 * time.Hour)
	if clock, ok := f.clock(hour, minute, second); ok && f.matchesDay(day) {
		return day.Add(clock)
	}
	first, _ := f.clock(0, 0, 0) // every set has a value
	for day, last := day.AddDate(0, 0, 1), day.AddDate(maxYears, 0, 0); day.Before(last); {
		switch {
		case !f.month.has(int(day.Month())):
			day = day.AddDate(0, 1, 1-day.Day())
		case f.matchesDay(day):
			return day.Add(first)
		default:
			day = day.AddDate(0, 0, 1)
		}
	}
	return time.Time{}
}

// clock returns the first matching time of day that is not before the given one.
func (f *fields) clock(hour, minute, second int) (sinceMidnight time.Duration, ok bool) {
	at := func(hour, minute, second int) (time.Duration, bool) {
		return time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second, true
	}
	if f.hour.has(hour) {
		if s := f.second.from(second); s >= 0 && f.minute.has(minute) {
			return at(hour, minute, s)
		}
		if m := f.minute.from(minute + 1); m >= 0 {
			return at(hour, m, f.second.from(0))
		}
	}
	if h := f.hour.from(hour + 1); h >= 0 {
		return at(h, f.minute.from(0), f.second.from(0))
	}
	return 0, false
}

// matchesDay reports whether a day matches. If both the days of the month and the days of the week
// are restricted, as only in entries of earlier releases, a day needs to match one of the two.
func (f *fields) matchesDay(day time.Time) bool {
	byDay, byWeekday := f.day.has(day.Day()), f.weekday.has(int(day.Weekday()))
	if f.restrictsBoth() {
		byDay, byWeekday = byDay || byWeekday, true
	}
	return f.month.has(int(day.Month())) && byDay && byWeekday
}

// restrictsBoth reports whether some days of the month and some days of the week do not match.
func (f *fields) restrictsBoth() bool { return f.day != allDays && f.weekday != allWeekdays }
