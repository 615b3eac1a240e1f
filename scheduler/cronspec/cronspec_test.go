package cronspec

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

func TestParse_Times(t *testing.T) {
	for _, tt := range []struct{ name, times, zone, from, want string }{
		{"six fields", "30 15 9 * * *", "", "2026-03-01T00:00:00Z", "2026-03-01T09:15:30Z 2026-03-02T09:15:30Z"},
		{"five fields", "*/20 9 * * *", "", "2026-03-01T09:30:00Z", "2026-03-01T09:40:00Z 2026-03-02T09:00:00Z"},
		{"every second", "* * * * * *", "", "2026-03-01T23:59:58.5Z", "2026-03-01T23:59:59Z 2026-03-02T00:00:00Z"},
		{"strictly after", "0 0 9 * * *", "", "2026-03-01T09:00:00Z", "2026-03-02T09:00:00Z"},
		{"Sunday is 0", "0 0 9 * * 0", "", "2026-03-02T00:00:00Z", "2026-03-08T09:00:00Z"},
		{"days by name", "0 0 9 * * mon-WED", "", "2026-03-03T10:00:00Z", "2026-03-04T09:00:00Z 2026-03-09T09:00:00Z"},
		{"a leap day", "0 0 0 29 2 *", "", "2026-03-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"at an interval", "@every 90s", "", "2026-03-01T00:00:10Z", "2026-03-01T00:01:40Z 2026-03-01T00:03:10Z"},
		{"a zone", "0 0 3 * * *", "Europe/Berlin", "2026-01-10T00:00:00Z", "2026-01-10T02:00:00Z"},
		{"a zone's summer", "0 0 3 * * *", "Europe/Berlin", "2026-07-10T00:00:00Z", "2026-07-10T01:00:00Z"},

		// On 29 March 2026 the time in Berlin changes from 02:00 to 03:00: there is no 02:30.
		{"forward", "0 30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", "2026-03-28T01:30:00Z 2026-03-29T01:00:00Z 2026-03-30T00:30:00Z"},
		{"forward, on that day alone", "0 30 2 29 3 *", "Europe/Berlin", "2025-03-30T00:00:00Z", "2026-03-29T01:00:00Z 2027-03-29T00:30:00Z"},
		{"forward, several", "30 */20 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z 2026-03-29T01:00:30Z 2026-03-29T01:20:30Z"},
		{"forward, hourly", "0 30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T00:30:00Z 2026-03-29T01:30:00Z"},
		{"forward, every second hour", "0 30 */2 * * *", "Europe/Berlin", "2026-03-28T22:00:00Z", "2026-03-28T23:30:00Z 2026-03-29T01:00:00Z 2026-03-29T02:30:00Z"},
		// On 25 October 2026 it changes from 03:00 to 02:00: 02:30 comes twice.
		{"back", "0 30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z 2026-10-26T01:30:00Z"},
		{"back, on that day alone", "0 30 2 25 10 *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-10-25T00:30:00Z 2027-10-25T00:30:00Z"},
		{"back, hourly", "0 30 0-23 * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z 2026-10-25T01:30:00Z 2026-10-25T02:30:00Z"},
		{"back, between the two", "0 30 2 * * *", "Europe/Berlin", "2026-10-25T01:15:00Z", "2026-10-26T01:30:00Z"},
		// A zone in which midnight is skipped.
		{"no midnight", "0 0 0 * * *", "America/Santiago", "2026-09-05T00:00:00Z", "2026-09-05T04:00:00Z 2026-09-06T04:00:00Z 2026-09-07T03:00:00Z"},
		{"no midnight, daily", "@daily", "America/Santiago", "2026-09-06T00:00:00Z", "2026-09-06T04:00:00Z"},
		{"no midnight, weekly", "@weekly", "America/Santiago", "2026-09-01T00:00:00Z", "2026-09-06T04:00:00Z 2026-09-13T03:00:00Z"},
		// A zone in which half an hour is skipped, from 02:00 to 02:30.
		{"half an hour", "0 45 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", "2026-10-03T15:45:00Z 2026-10-04T15:45:00Z"},
		{"the other half", "0 15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", "2026-10-03T15:30:00Z 2026-10-04T15:15:00Z"},
		{"after eight years", "0 0 0 29 2 *", "", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"},

		{"Sunday is 7", "0 0 9 * * 7", "", "2026-03-02T00:00:00Z", "2026-03-08T09:00:00Z 2026-03-15T09:00:00Z"},
		{"to Sunday", "0 0 9 * * 5-7", "", "2026-03-02T00:00:00Z", "2026-03-06T09:00:00Z 2026-03-07T09:00:00Z 2026-03-08T09:00:00Z 2026-03-13T09:00:00Z"},
		{"to Sunday by name", "0 0 9 * * Fri-SUN", "", "2026-03-02T00:00:00Z", "2026-03-06T09:00:00Z 2026-03-07T09:00:00Z 2026-03-08T09:00:00Z 2026-03-13T09:00:00Z"},
		{"to Sunday in steps", "0 0 9 * * 1-7/3,tue", "", "2026-03-01T10:00:00Z", "2026-03-02T09:00:00Z 2026-03-03T09:00:00Z 2026-03-05T09:00:00Z 2026-03-08T09:00:00Z 2026-03-09T09:00:00Z"},
		{"all days", "0 0 9 * * 0-7", "", "2026-03-01T10:00:00Z", "2026-03-02T09:00:00Z 2026-03-03T09:00:00Z 2026-03-04T09:00:00Z 2026-03-05T09:00:00Z 2026-03-06T09:00:00Z 2026-03-07T09:00:00Z 2026-03-08T09:00:00Z"},
		{"from a value on", "0 50/5 9 * DEC ?", "", "2026-03-01T10:00:00Z", "2026-12-01T09:50:00Z 2026-12-01T09:55:00Z 2026-12-02T09:50:00Z"},
	} {
		schedule, err := Parse(tt.times, tt.zone)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		at, err := time.Parse(time.RFC3339, tt.from)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range strings.Fields(tt.want) {
			at = schedule.After(at)
			got = append(got, at.Format(time.RFC3339))
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, strings.Join(got, " "), tt.want)
		}
	}
}

func TestParse_Refuses(t *testing.T) {
	for _, tt := range []struct{ times, zone, says string }{
		{"", "", "empty"},
		{"* * * *", "", "4 fields"},
		{"* * * * * * *", "", "7 fields"},
		{"61 * * * * *", "", "second is"},
		{"0 0 25 * * *", "", "hour is"},
		{"0 0 0 * 13 *", "", "month is"},
		{"0 0 0 * * 8", "", "0 to 7 or SUN to SAT"},
		{"0 0 0 * * 6-3", "", "ends before it begins"},
		{"0 0 0 * * -1", "", "day of week is"},
		{"0 0 0 0 * *", "", "1 to 31"},
		{"0 0 0 * FOO *", "", "1 to 12 or JAN to DEC"},
		{"0 */0 * * * *", "", "1 or more"},
		{"0 */x * * * *", "", "1 or more"},
		{"0 1-2-3 * * * *", "", "none of 0 to 59"},
		{"0 , * * * *", "", "give 0 to 59"},
		{"@every day", "", "schedule"},
		{"x * * * *", "", "minute is"},
		{"0 0 0 1 * MON", "", "both given"},
		{"0 0 0 31 2 *", "", "no such day"},
		{"@sometimes", "", "@hourly"},
		{"TZ=UTC 0 0 * * *", "", "time_zone"},
		{"TZ=UTC", "", "time_zone"},
		{"@daily", "Berlin", "IANA"},
		{"@daily", "Local", "IANA"},
		{"@daily", "localtime", "IANA"},
		{"@daily", "posixrules", "IANA"},
		{"@daily", "europe/berlin", "IANA"},
		{"@daily", "../etc/passwd", "IANA"},
	} {
		_, err := Parse(tt.times, tt.zone)
		var invalid *job.InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q in %q: error %v, want %q in it", tt.times, tt.zone, err, tt.says)
		}
	}
}

// New entries have intervals of whole seconds. Entries that earlier releases stored with
// other intervals still run, rounded as before.
func TestCheck_Intervals(t *testing.T) {
	from := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		schedule string
		valid    bool
		interval time.Duration // between the ticks of a stored entry
	}{
		{"@every 1s", true, time.Second},
		{"@every 1000ms", true, time.Second},
		{" @every  1h30m ", true, 90 * time.Minute},
		{"@every 1.5m", true, 90 * time.Second},
		{"@every 1d12h", true, 36 * time.Hour},
		{"@hourly", true, time.Hour},
		{"@every -5s", false, time.Second},
		{"@every 0s", false, time.Second},
		{"@every 1ms", false, time.Second},
		{"@every 999ms", false, time.Second},
		{"@every 1.7s", false, time.Second},
		{"@every 1m0.5s", false, time.Minute},
	} {
		err := Check(&ledger.Cron{Name: "tick", Schedule: tt.schedule, Queue: "mail", Body: []byte(`{"function":"send"}`)})
		var invalid *job.InvalidError
		if tt.valid && err != nil {
			t.Errorf("%q: %v", tt.schedule, err)
		} else if !tt.valid && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), "whole seconds, 1s or more")) {
			t.Errorf("%q: error %v, want one about whole seconds", tt.schedule, err)
		}
		schedule, err := Parse(tt.schedule, "")
		if err != nil {
			t.Errorf("%q as stored: %v", tt.schedule, err)
		} else if got := schedule.After(from).Sub(from); got != tt.interval {
			t.Errorf("%q as stored: ticks every %v, want %v", tt.schedule, got, tt.interval)
		}
	}
}

// New entries must not have a step that is larger than its field, or the zone "Factory". Entries
// that earlier releases have stored still run as before.
func TestCheckSchedule(t *testing.T) {
	for _, tt := range []struct{ schedule, zone, says string }{
		{"*/90 * * * *", "", `minute is "*/90": a step starts again with each hour, so it is at most 60; for a tick every 90m write "@every 90m"`},
		{"0 0 */36 * * *", "", `"@every 36h"`},
		{"0 0 0 */40 * *", "", `"@every 40d"`},
		{"0 0 0 1 2,*/13 *", "", "at most 12"},
		{"0 0 0 * * */8", "", "at most 7"},
		{"0 10/61 * * * *", "", "at most 60"},
		{"@daily", "Factory", "not set"},
		{"0 0 0 */2 * MON", "", "both given"},
		{"0 0 0 99 * *", "", "day of month"},
		{"*/60 * * * *", "", ""},
		{"0 0 */24 * * *", "", ""},
		{"@every 90m", "Europe/Berlin", ""},
	} {
		err := CheckSchedule(tt.schedule, tt.zone)
		var invalid *job.InvalidError
		if tt.says == "" && err != nil || tt.says != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%q in %q: error %v, want %q in it", tt.schedule, tt.zone, err, tt.says)
		}
	}
	for schedule, want := range map[string]string{"*/90 * * * *": "2026-03-01T01:00:00Z", "0 0 0 */2 * MON": "2026-03-02T00:00:00Z"} {
		parsed, err := Parse(schedule, "Factory")
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed.After(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)).Format(time.RFC3339); got != want {
			t.Errorf("%q as stored: %s, want %s", schedule, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0 0 3 * * *", "Europe/Berlin")
	f.Add("@every 1h", "")
	f.Add("*/7 1-5,9 */2 ? JAN-MAR MON", "UTC")
	f.Fuzz(func(t *testing.T, expression, zone string) {
		schedule, err := Parse(expression, zone)
		if err != nil {
			return
		}
		from := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		for range 4 {
			next := schedule.After(from)
			if next.IsZero() {
				return
			}
			if !next.After(from) {
				t.Fatalf("%q: %s comes after %s", expression, next, from)
			}
			from = next
		}
	})
}
