package overhop

import (
	"testing"
	"time"
)

// A start time may be written in every form that RFC 3339 allows.
func TestParseEnqueue_Times(t *testing.T) {
	start := time.Date(2026, 6, 30, 23, 59, 59, 500_000_000, time.UTC)
	for text, want := range map[string]time.Time{
		"2026-06-30T23:59:59.5Z":      start,
		"2026-06-30t23:59:59.5z":      start,
		"2026-06-30 23:59:59.5Z":      start,
		"2026-06-30T23:59:60.5Z":      start.Add(time.Second),
		"2026-06-30 23:59:60.5+00:00": start.Add(time.Second),
		"2026-07-01t01:59:59.5+02:00": start,
	} {
		e, err := ParseEnqueue(Fields{"q": "mail", "scheduled_at": text}.Raw(), false)
		if err != nil || !e.At.Equal(want) {
			t.Errorf("%s is %s, %v, want %s", text, e.At, err, want)
		}
	}
	for _, text := range []string{"", "2026-06-30", "2026-06-30_23:59:59Z", "2026-06-30T23:59:61Z", "2026-06-30T23:59:59", "2026-06-30T60:00:00Z"} {
		if _, err := ParseEnqueue(Fields{"q": "mail", "scheduled_at": text}.Raw(), false); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
