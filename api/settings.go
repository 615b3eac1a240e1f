package api

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// settings reads the settings of a request, and keeps the first error.
type settings struct{ err error }

// settingOf returns the value to which a setting changes: unset if it is reset, nil if it stays as
// it is. convert returns its value, and false if it is out of range, which is then described by
// valid.
func settingOf[From, To any](v *settings, name string, s Setting[From], unset To, convert func(From) (To, bool), valid string) *To {
	value, given := s.Get()
	switch {
	case !given:
		return nil
	case value == nil:
		return &unset
	}
	converted, ok := convert(*value)
	if !ok && v.err == nil {
		v.err = &job.InvalidError{Reason: fmt.Sprintf("%s is %v; must be %s", name, quoted(*value), valid)}
	}
	return &converted
}

// quoted returns a text in quotes, and other values as they are.
func quoted(value any) any {
	if text, ok := value.(string); ok {
		return fmt.Sprintf("%q", text)
	}
	return value
}

// countOf returns a number from 1 to most, 0 if the setting is reset.
func countOf(v *settings, name string, s Setting[int64], most int64) *uint32 {
	return settingOf(v, name, s, 0, func(n int64) (uint32, bool) { return uint32(n), n >= 1 && n <= most }, fmt.Sprintf("1 to %d, or null", most))
}

// millisecondsOf returns a time, 0 if the setting is reset.
func millisecondsOf(v *settings, name string, s Setting[int64]) *time.Duration {
	const most = int64(job.MaxDuration / time.Millisecond)
	return settingOf(v, name, s, 0, func(ms int64) (time.Duration, bool) {
		return time.Duration(ms) * time.Millisecond, ms >= 1 && ms <= most
	}, fmt.Sprintf("1 to %d milliseconds, or null", most))
}

// NamesOf returns the names to which a setting changes, none for a reset, nil if it stays.
func NamesOf(s Setting[[]string]) *job.Names {
	value, given := s.Get()
	switch {
	case !given:
		return nil
	case value == nil:
		return &job.Names{}
	}
	return &job.Names{Names: *value}
}
