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
		{"forward", "0 30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", "2026-03-28T01:30:00Z 2026-03-30T00:30:00Z"},
		// On 25 October 2026 it changes from 03:00 to 02:00: 02:30 comes twice.
		{"back", "0 30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z 2026-10-25T01:30:00Z 2026-10-26T01:30:00Z"},
		// A zone in which midnight is skipped.
		{"no midnight", "0 0 0 * * *", "America/Santiago", "2026-09-05T00:00:00Z", "2026-09-05T04:00:00Z 2026-09-07T03:00:00Z"},
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
		{"0 0 0 * * 7", "", "day of week is"},
		{"x * * * *", "", "minute is"},
		{"0 0 0 1 * MON", "", "both given"},
		{"0 0 0 31 2 *", "", "no such day"},
		{"@sometimes", "", "@hourly"},
		{"TZ=UTC 0 0 * * *", "", "time_zone"},
		{"TZ=UTC", "", "time_zone"},
		{"@daily", "Berlin", "IANA"},
		{"@daily", "Local", "IANA"},
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
