package cronspec

import "time"

// maxShift is longer than any change of the clock of a zone: the longest is a day, when a country
// moves to the other side of the date line.
const maxShift = 48 * time.Hour

// span is a period in which the offset of a zone from UTC does not change. The offsets of
// consecutive spans may be the same.
type span struct {
	zone       *time.Location
	start, end time.Time // end is not a part of the span; zero: unbounded
	offset     time.Duration
}

// spanAt returns the span that t is in.
func spanAt(t time.Time, zone *time.Location) span {
	t = t.In(zone)
	start, end := t.ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		end = end.AddDate(0, 0, 1) // for Go, every year ends after 365 days
	}
	_, seconds := t.Zone()
	return span{zone, start.UTC(), end.UTC(), time.Duration(seconds) * time.Second}
}

// previous returns the span before s, which must have a start.
func (s span) previous() span {
	before := spanAt(s.start.Add(-1), s.zone)
	before.end = s.start
	return before
}

// next returns the span after s, which must have an end.
func (s span) next() span {
	after := spanAt(s.end, s.zone)
	after.start = s.end // spanAt may have returned more
	return after
}

// local returns what the clock of the zone shows at t, which is in s, as a time in UTC.
func (s span) local(t time.Time) time.Time { return t.UTC().Add(s.offset) }

// instant returns when the clock of the zone would show local if the offset were that of s.
func (s span) instant(local time.Time) time.Time { return local.Add(-s.offset) }

// isAfter reports whether t is after s.
func (s span) isAfter(t time.Time) bool { return !s.end.IsZero() && !t.Before(s.end) }

// latest returns the latest local time that the clock of the zone has shown up to t. If the clock
// was set back, that is a nanosecond before the time from which it was set back, until it shows a
// later time.
func latest(t time.Time, zone *time.Location) time.Time {
	s := spanAt(t, zone)
	shown := s.local(t)
	for !s.start.IsZero() && t.Sub(s.start) < maxShift {
		end := s.start.Add(-1)
		s = s.previous()
		if last := s.local(end); last.After(shown) {
			shown = last
		}
	}
	return shown
}

// afterNamed returns the first tick after t of a schedule that names hours: the first instant
// at which the clock of the zone shows the next scheduled local time or, if that time is
// skipped, a later one. A local time that the clock has shown before does not count.
func (c *Schedule) afterNamed(t time.Time) time.Time {
	local := c.fields.next(latest(t, c.zone))
	if local.IsZero() {
		return local
	}
	for s := spanAt(t, c.zone); ; s = s.next() {
		tick := s.instant(local)
		if s.isAfter(tick) {
			continue
		}
		if tick.Before(s.start) {
			return s.start // the clock was set forward past local
		}
		return tick
	}
}

// afterHourly returns the first tick after t of a schedule that includes every hour: the first
// instant at which the clock of the zone shows a scheduled local time, the first time or again.
func (c *Schedule) afterHourly(t time.Time) time.Time {
	s := spanAt(t, c.zone)
	for from := s.local(t); ; from = s.local(s.start.Add(-1)) {
		local := c.fields.next(from)
		if local.IsZero() {
			return local
		}
		tick := s.instant(local)
		if !s.isAfter(tick) {
			return tick
		}
		s = s.next()
	}
}

// Note explains a tick of the schedule at which the clock of the zone is set forward or shows an
// hour a second time: "skipped hour: runs at 03:00", "double hour: first" or "double hour:
// second". It returns "" for other ticks.
func (c *Schedule) Note(tick time.Time) string {
	if c.every > 0 {
		return ""
	}
	hourly := c.fields.hour == allHours
	s := spanAt(tick, c.zone)
	local := s.local(tick)
	if !hourly && !s.start.IsZero() && tick.Equal(s.start) {
		before := s.previous()
		if scheduled := c.fields.next(before.local(tick.Add(-1))); scheduled.Before(local) && !scheduled.IsZero() {
			return "skipped " + shiftName(s.offset-before.offset) + ": runs at " + clockText(local)
		}
	}
	if !s.end.IsZero() && s.end.Sub(tick) < maxShift {
		after := s.next()
		if again := after.instant(local); !again.Before(s.end) && again.Before(s.end.Add(s.offset-after.offset)) {
			return "double " + shiftName(s.offset-after.offset) + ": first"
		}
	}
	if hourly && latest(tick, c.zone).After(local) {
		return "double " + shiftName(s.previous().offset-s.offset) + ": second"
	}
	return ""
}

// clockText returns the time of day of a local time, such as "03:00".
func clockText(local time.Time) string {
	if local.Second() != 0 {
		return local.Format(time.TimeOnly)
	}
	return local.Format("15:04")
}

// shiftName returns the name of the period that is skipped or doubled if a clock is set by d, such
// as "hour".
func shiftName(d time.Duration) string {
	switch d {
	case time.Hour:
		return "hour"
	case 30 * time.Minute:
		return "half hour"
	case 24 * time.Hour:
		return "day"
	}
	return "time"
}
