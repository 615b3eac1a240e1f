package job

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Bounds of the tags and the metadata of a job.
const (
	MaxTags         = 20
	MaxTagLen       = 64 // bytes
	MaxMeta         = 20
	MaxMetaNameLen  = 64  // bytes
	MaxMetaValueLen = 512 // bytes
)

// UseKey sets LimitKey to Key, its short form, and clears Key. The error is an [*InvalidError].
func (s *Spec) UseKey() error {
	if s.Key == nil {
		return nil
	}
	if s.LimitKey != nil && *s.LimitKey != *s.Key {
		return invalid("key and limit_key differ; key is a short form of limit_key: give one of them")
	}
	s.LimitKey, s.Key = s.Key, nil
	return nil
}

// validateLimits checks the keys of limits, and the limits that the job names. The error is an
// [*InvalidError].
func (s *Spec) validateLimits() error {
	if s.LimitKey != nil {
		if err := ValidLimitKey(*s.LimitKey); err != nil {
			return err
		}
	}
	if len(s.Limits) > MaxLimitUses {
		return invalid("limits names %d limits; at most %d", len(s.Limits), MaxLimitUses)
	}
	for _, name := range sortedNames(s.Limits) {
		if err := ValidLimit(name); err != nil {
			return err
		}
		if err := ValidLimitKey(s.Limits[name]); err != nil {
			return invalid("limits.%s: %v", name, err)
		}
	}
	return nil
}

// sortedNames returns the names in a map in order. It takes no memory for an empty one, as that of
// nearly every job is.
func sortedNames(texts map[string]string) []string {
	if len(texts) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(texts))
}

// limitUses returns the limits that the job names, in the order of their names.
func (s *Spec) limitUses() []LimitUse {
	if len(s.Limits) == 0 {
		return nil
	}
	uses := make([]LimitUse, 0, len(s.Limits))
	for _, name := range sortedNames(s.Limits) {
		uses = append(uses, LimitUse{Limit: name, Key: s.Limits[name]})
	}
	return uses
}

// validateLabels checks the number and the sizes of tags and metadata. The error is an
// [*InvalidError].
func (s *Spec) validateLabels() error {
	if len(s.Tags) > MaxTags {
		return invalid("tags has %d texts; at most %d", len(s.Tags), MaxTags)
	}
	for _, tag := range s.Tags {
		if tag == "" || len(tag) > MaxTagLen {
			return invalid("tags has a text of %d bytes; must have 1 to %d", len(tag), MaxTagLen)
		}
	}
	if len(s.Meta) > MaxMeta {
		return invalid("meta has %d entries; at most %d", len(s.Meta), MaxMeta)
	}
	for _, name := range sortedNames(s.Meta) {
		if name == "" || len(name) > MaxMetaNameLen {
			return invalid("meta has a name of %d bytes; must have 1 to %d", len(name), MaxMetaNameLen)
		}
		if value := s.Meta[name]; len(value) > MaxMetaValueLen {
			return invalid("meta.%s has %d bytes; at most %d", name, len(value), MaxMetaValueLen)
		}
	}
	return nil
}

// Expires reports whether the job has a time at which it expires.
func (s *Spec) Expires() bool { return s.ExpiresAt != nil || s.ExpiresInMS != nil }

// ClearExpiry removes the time at which the job expires.
func (s *Spec) ClearExpiry() { s.ExpiresAt, s.ExpiresInMS = nil, nil }

// validateExpiry checks the time at which the job expires. The error is an [*InvalidError].
func (s *Spec) validateExpiry() error {
	if s.ExpiresAt != nil && s.ExpiresInMS != nil {
		return invalid("expires_at and expires_in_ms exclude each other: the one is a moment, the other a time from when the job is stored")
	}
	if s.ExpiresAt != nil && (s.ExpiresAt.Year() < 1970 || s.ExpiresAt.Year() > 2200) {
		return invalid("expires_at %s is out of range; must be in the years 1970 to 2200", s.ExpiresAt.Format(time.RFC3339))
	}
	var field string
	switch {
	case s.ExpiresAt != nil && s.RunAt != nil && !s.ExpiresAt.After(*s.RunAt):
		field = "expires_at is not after run_at"
	case s.ExpiresInMS != nil && s.DelayMS != nil && *s.ExpiresInMS <= *s.DelayMS:
		field = "expires_in_ms is not more than delay_ms"
	case s.ExpiresInMS != nil && s.DebounceMS != nil && *s.ExpiresInMS <= *s.DebounceMS:
		field = "expires_in_ms is not more than debounce_ms"
	default:
		return nil
	}
	return invalid("%s: the job would expire before it could start", field)
}

// expiry returns when the job expires, the zero time if it does not. stored is when its record
// was stored.
func (s *Spec) expiry(stored time.Time) time.Time {
	switch {
	case s.ExpiresAt != nil:
		return *s.ExpiresAt
	case s.ExpiresInMS != nil:
		return stored.Add(milliseconds(s.ExpiresInMS))
	}
	return time.Time{}
}

// MissingLimitError is returned for a job that names a limit which does not exist.
type MissingLimitError struct{ Limit string }

// Unwrap makes the error an [*InvalidError], too.
func (e *MissingLimitError) Unwrap() error { return &InvalidError{Reason: e.Error()} }

func (e *MissingLimitError) Error() string {
	return "the job names the limit " + e.Limit + ", which does not exist: create it with 'yardmaster limit set " + e.Limit + "', or leave it out of limits"
}

// keyIsNote reports whether the text under "key" in the body of a record is the note of the
// producer's key that [WithKey] added, given the record's queue and key, and the job's id.
func (s *Spec) keyIsNote(queue, producerKey string, id ID) bool {
	if s.Key == nil || *s.Key == producerKey {
		return true
	}
	named, err := KeyID(queue, strings.Clone(*s.Key))
	return err == nil && named == id
}
