package cronspec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/zoneinfo"
)

// change is a moment at which the clock of a zone is set.
type change struct {
	at            int64 // Unix time, in minutes
	before, after int   // offsets from UTC, in minutes
}

// offsetAt returns the offset from UTC in minutes.
func offsetAt(minute int64, zone *time.Location) int {
	_, seconds := time.Unix(minute*60, 0).In(zone).Zone()
	return seconds / 60
}

// changesOf returns the changes of a zone in some years. It compares the offsets of consecutive
// days.
func changesOf(zone *time.Location, first, last int) (all []change) {
	const day = 24 * 60
	end := time.Date(last+1, 1, 1, 0, 0, 0, 0, time.UTC).Unix() / 60
	for from := time.Date(first, 1, 1, 0, 0, 0, 0, time.UTC).Unix() / 60; from < end; from += day {
		before, after := offsetAt(from, zone), offsetAt(from+day, zone)
		if before == after {
			continue
		}
		at := from
		for offsetAt(at, zone) == before {
			at++
		}
		all = append(all, change{at, before, after})
	}
	return all
}

// oracle is a schedule in the oracle's terms: the set of its minutes, hours, days and months.
// nil means all.
type oracle struct{ minutes, hours, days, months, weekdays []int }

// matches reports whether a local time, in minutes since 1970, is one of the schedule's.
func (o *oracle) matches(local int64) bool {
	is := func(set []int, value int) bool { return set == nil || slices.Contains(set, value) }
	day := time.Unix(local/(24*60)*24*60*60, 0).UTC()
	return is(o.minutes, int(local%60)) && is(o.hours, int(local/60%24)) &&
		is(o.days, day.Day()) && is(o.months, int(day.Month())) && is(o.weekdays, int(day.Weekday()))
}

// ticks walks through each minute around a change, like a person with a watch and a list, and
// returns the ticks. If the schedule has all hours, each minute at which the watch shows a
// listed time is a tick. Otherwise the list is struck off: a listed time is done when the watch
// shows it or, because it was set forward, a later one, and times that are struck off stay so.
func (o *oracle) ticks(c change, from, to int64) (ticks []int64) {
	var struck int64 // latest local time that is struck off
	for at := from - 1; at < to; at++ {
		watch := at + int64(c.before)
		if at >= c.at {
			watch = at + int64(c.after)
		}
		due := false
		switch {
		case o.hours == nil:
			due = o.matches(watch)
		case struck == 0:
			struck = watch
		default:
			for struck < watch {
				struck++
				due = due || o.matches(struck)
			}
		}
		if due && at >= from {
			ticks = append(ticks, at)
		}
	}
	return ticks
}

// expression returns the schedule as a cron expression.
func (o *oracle) expression() string {
	list := func(set []int) string {
		if set == nil {
			return "*"
		}
		texts := make([]string, len(set))
		for i, value := range set {
			texts[i] = strconv.Itoa(value)
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprintf("0 %s %s %s %s %s", list(o.minutes), list(o.hours), list(o.days), list(o.months), list(o.weekdays))
}

// oraclesAround returns schedules with ticks around a change: before, at its beginning, within
// and after what is skipped or doubled; daily, weekly and yearly ones, and some of many ticks.
func oraclesAround(c change) (all []oracle) {
	begin := c.at + int64(min(c.before, c.after))
	for _, minute := range []int64{-61, -30, -1, 0, 1, 15, 29, 30, 31, 59, 60, 61, 24*60 - 1, 24 * 60} {
		local := time.Unix((begin+minute)*60, 0).UTC()
		daily := oracle{minutes: []int{local.Minute()}, hours: []int{local.Hour()}}
		weekly, yearly := daily, daily
		weekly.weekdays = []int{int(local.Weekday())}
		yearly.days, yearly.months = []int{local.Day()}, []int{int(local.Month())}
		all = append(all, daily, weekly, yearly,
			oracle{minutes: daily.minutes}, oracle{hours: daily.hours}, oracle{minutes: daily.minutes, days: []int{local.Day()}})
	}
	return append(all,
		oracle{minutes: []int{0}, hours: []int{0}}, oracle{minutes: []int{0, 20, 40}, hours: []int{0, 1, 2, 3, 23}},
		oracle{minutes: []int{30}, hours: []int{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22}}, oracle{minutes: []int{0, 15, 30, 45}}, oracle{})
}

// comparison compares the ticks of schedules with those of the oracle.
type comparison struct {
	*testing.T
	results map[change]*expected
	sizes   map[int]int // numbers of changes by the minutes that the clock is set by
}

// expected has the schedules for a change, with their ticks in the two hours before it and the 27
// after it.
type expected struct {
	oracles []oracle
	ticks   [][]int64
}

// zone compares the ticks around each change of a zone in some years. Of a change that was
// compared in another zone it compares a few.
func (cmp *comparison) zone(name string, first, last int) {
	zone, err := zoneinfo.Load(name)
	if err != nil {
		cmp.Fatal(err)
	}
	for _, c := range changesOf(zone, first, last) {
		cmp.sizes[c.after-c.before]++
		from, to := c.at-2*60, c.at+27*60
		r, known := cmp.results[c]
		if !known {
			r = &expected{oracles: oraclesAround(c)}
			for i := range r.oracles {
				r.ticks = append(r.ticks, r.oracles[i].ticks(c, from, to))
			}
			cmp.results[c] = r
		}
		for i := range r.oracles {
			if known && (i+len(name))%16 != 0 {
				continue
			}
			expression := r.oracles[i].expression()
			schedule, err := Parse(expression, name)
			if err != nil {
				cmp.Fatal(err)
			}
			var got []int64
			for at := schedule.After(time.Unix(from*60-1, 0)); !at.IsZero() && at.Unix() < to*60; at = schedule.After(at) {
				got = append(got, at.Unix()/60)
				if note, want := schedule.Note(at), r.oracles[i].note(c, at.Unix()/60); note != want {
					cmp.Fatalf("%q in %s at %s: note %q, want %q", expression, name, at, note, want)
				}
			}
			if want := r.ticks[i]; !slices.Equal(got, want) {
				cmp.Fatalf("%q in %s around %s: %v, want %v", expression, name, time.Unix(c.at*60, 0).UTC(), times(got), times(want))
			}
		}
	}
}

// note returns the note of a tick near a change.
func (o *oracle) note(c change, at int64) string {
	d := c.after - c.before
	name := map[int]string{60: "hour", 30: "half hour", 24 * 60: "day"}[max(d, -d)]
	if name == "" {
		name = "time"
	}
	switch {
	case d > 0 && at == c.at && o.hours != nil:
		for skipped := at + int64(c.before); skipped < at+int64(c.after); skipped++ {
			if o.matches(skipped) {
				return "skipped " + name + ": runs at " + time.Unix((at+int64(c.after))*60, 0).UTC().Format("15:04")
			}
		}
	case d < 0 && at >= c.at+int64(d) && at < c.at:
		return "double " + name + ": first"
	case d < 0 && at >= c.at && at < c.at-int64(d):
		return "double " + name + ": second" // only those with all hours have ticks then
	}
	return ""
}

// TestAfter_Changes compares the ticks around each change of each zone from 2026 to 2032, and
// around changes of other kinds in the past.
func TestAfter_Changes(t *testing.T) {
	cmp := &comparison{t, map[change]*expected{}, map[int]int{}}
	for _, name := range zoneinfo.Names() {
		cmp.zone(name, 2026, 2032)
	}
	cmp.zone("Pacific/Apia", 2011, 2011)        // without 30 December, to the other side of the date line
	cmp.zone("Pacific/Kwajalein", 1993, 1993)   // likewise
	cmp.zone("America/Caracas", 2007, 2016)     // half an hour back, and forward again
	cmp.zone("Asia/Pyongyang", 2015, 2018)      // likewise
	cmp.zone("Africa/Casablanca", 2018, 2025)   // back in Ramadan
	cmp.zone("Europe/Volgograd", 2010, 2020)    // standard time and summer time at once
	cmp.zone("Antarctica/Casey", 2009, 2025)    // by hours, back and forth
	cmp.zone("Antarctica/Troll", 2010, 2025)    // by two hours
	cmp.zone("America/Sao_Paulo", 2010, 2019)   // at midnight
	cmp.zone("America/St_Johns", 2000, 2011)    // a minute after midnight
	cmp.zone("Asia/Kathmandu", 1985, 1986)      // a quarter of an hour
	cmp.zone("Australia/Lord_Howe", 1981, 2025) // by an hour, then by half an hour
	t.Logf("%d different changes; numbers by their minutes: %v", len(cmp.results), cmp.sizes)
	for size, least := range map[int]int{60: 1000, -60: 1000, 30: 14, -30: 14, 120: 14, -120: 14, 15: 1, 24 * 60: 1} {
		if cmp.sizes[size] < least {
			t.Errorf("%d changes by %d minutes, want %d or more; all: %v", cmp.sizes[size], size, least, cmp.sizes)
		}
	}
}

func times(minutes []int64) (texts []string) {
	for _, minute := range minutes {
		texts = append(texts, time.Unix(minute*60, 0).UTC().Format(time.DateTime))
	}
	return texts
}

// The years of Go's rules have 365 days: 31 December of a leap year is an exception.
func TestAfter_EndOfLeapYear(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "Australia/Sydney", "America/New_York"} {
		for expression, interval := range map[string]time.Duration{"0 0 12 * * *": 24 * time.Hour, "0 0 * * * *": time.Hour} {
			schedule, err := Parse(expression, zone)
			if err != nil {
				t.Fatal(err)
			}
			at := schedule.After(time.Date(2028, 12, 28, 0, 0, 0, 0, time.UTC))
			for at.Before(time.Date(2029, 1, 3, 0, 0, 0, 0, time.UTC)) {
				next := schedule.After(at)
				if next.Sub(at) != interval {
					t.Fatalf("%q in %s: %s comes after %s", expression, zone, next, at)
				}
				at = next
			}
		}
	}
}
