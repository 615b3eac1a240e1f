package job

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Defaults and limits of guards.
const (
	DefaultUniqueTTL = 6 * time.Hour
	MaxGuardTTL      = 365 * 24 * time.Hour // the longest TTL of any guard
)

// Guards are the keys by which a producer restricts when a job may be created.
// A key is valid across all queues of the cluster.
//
// Unique: while the key is held, no second job with it is created; the producer
// gets the id of the first. It is held for its TTL, or until its job has started or
// ended. Rate: while the key is held, no job with it is
// created at all. Debounce: while a job with the key has not started, a newer
// record replaces what it asks for and postpones its start by the window. Rate
// and Debounce exclude each other.
type Guards struct{ Unique, Rate, Debounce Guard }

// Guard is a key and how long it is held. The zero Guard is not set.
type Guard struct {
	Key   GuardKey
	TTL   time.Duration
	Until Until // a unique key: what frees it in place of TTL
}

// Until is what frees a unique key.
type Until uint8

// Values of Until. A job that is retried does not take its key again.
const (
	UntilTTL   Until = iota
	UntilStart       // the job's first start, or its end without one
	UntilEnd         // the job's end
)

// untilNames are the values of unique_until.
var untilNames = map[string]Until{"start": UntilStart, "end": UntilEnd}

// GuardKey is the first 16 bytes of a hash of a guard's kind and key text. Keys
// of different kinds never collide.
type GuardKey [16]byte

// IsSet reports whether the producer asked for the guard.
func (g Guard) IsSet() bool { return g.TTL > 0 || g.Until != UntilTTL }

// Kinds of guards. They are part of the hash and must never change.
const (
	kindUnique   = 'u'
	kindRate     = 'r'
	kindDebounce = 'd'
)

// newGuard returns the guard of the given kind for a producer's key and the time
// in milliseconds for which it is held. A nil key means no guard; without a time
// the key is held for defaultTTL.
func newGuard(kind byte, key *string, ttlMS *int64, defaultTTL time.Duration) Guard {
	if key == nil {
		return Guard{}
	}
	hash := sha256.Sum256(append([]byte{kind}, *key...))
	guard := Guard{Key: GuardKey(hash[:]), TTL: defaultTTL}
	if ttlMS != nil {
		guard.TTL = milliseconds(ttlMS)
	}
	return guard
}

// HasGuards reports whether the job has a guard, so that the ledger decides
// whether it is created.
func (s *Spec) HasGuards() bool {
	return s.UniqueKey != nil || s.RateLimitKey != nil || s.DebounceKey != nil
}

// guards returns the guards of a validated spec, or nil if it has none.
func (s *Spec) guards() *Guards {
	if !s.HasGuards() {
		return nil
	}
	guards := &Guards{
		Unique:   newGuard(kindUnique, s.UniqueKey, s.UniqueTTLMS, DefaultUniqueTTL),
		Rate:     newGuard(kindRate, s.RateLimitKey, s.RateLimitMS, 0),
		Debounce: newGuard(kindDebounce, s.DebounceKey, s.DebounceMS, 0),
	}
	if s.UniqueUntil != nil {
		guards.Unique.TTL, guards.Unique.Until = 0, untilNames[*s.UniqueUntil]
	}
	return guards
}

// validateGuards checks the keys of s and how long they are held, and that no
// key is combined with another field that contradicts it. The error is an
// [*InvalidError].
func (s *Spec) validateGuards() error {
	for _, g := range [...]struct {
		keyField, ttlField string
		key                *string
		ttlMS              *int64
		hasDefaultTTL      bool
	}{
		{"unique_key", "unique_ttl_ms", s.UniqueKey, s.UniqueTTLMS, true},
		{"rate_limit_key", "rate_limit_ms", s.RateLimitKey, s.RateLimitMS, false},
		{"debounce_key", "debounce_ms", s.DebounceKey, s.DebounceMS, false},
	} {
		switch {
		case g.key == nil && g.ttlMS == nil:
			continue
		case g.key == nil:
			return invalid("%s means nothing without %s: give both or neither", g.ttlField, g.keyField)
		case g.ttlMS == nil && !g.hasDefaultTTL:
			return invalid("%s needs %s: how long it is held, in milliseconds", g.keyField, g.ttlField)
		case len(*g.key) > MaxKeyLen || strings.TrimSpace(*g.key) == "":
			return invalid("%s has %d bytes; must have 1 to %d, not all of them blank", g.keyField, len(*g.key), MaxKeyLen)
		}
		if limit := MaxGuardTTL.Milliseconds(); g.ttlMS != nil && (*g.ttlMS < 1 || *g.ttlMS > limit) {
			return invalid("%s is %d; must be 1 to %d", g.ttlField, *g.ttlMS, limit)
		}
	}

	if s.UniqueUntil != nil {
		_, known := untilNames[*s.UniqueUntil]
		switch {
		case !known:
			return invalid("unique_until is %q; must be start or end, or not given for a time", *s.UniqueUntil)
		case s.UniqueKey == nil:
			return invalid("unique_until means nothing without unique_key: give both or neither")
		case s.UniqueTTLMS != nil:
			return invalid("unique_until and unique_ttl_ms exclude each other: the key is held until the job's start or end, or for a time")
		}
	}
	if s.RateLimitKey != nil && s.DebounceKey != nil {
		return invalid("rate_limit_key and debounce_key exclude each other: the one refuses the later job, the other takes it for the earlier")
	}
	if s.DebounceKey != nil && s.Deferred() {
		field := "run_at"
		if s.DelayMS != nil {
			field = "delay_ms"
		}
		return invalid("debounce_key and %s exclude each other: a debounced job starts debounce_ms after the last was asked for", field)
	}
	return nil
}

// RemovedError is returned when no job was created because the one that had its key was
// removed by a caller. The yard keeps the ids of removed jobs for
// some time, so that no late copy of a record creates a job again.
type RemovedError struct {
	Queue string
	ID    ID            // of the job that was removed
	Kept  time.Duration // how long its id is kept at least
}

// CodeRemoved is the word with which programs recognize a [RemovedError].
const CodeRemoved = "duplicate_of_removed"

func (e *RemovedError) Error() string {
	return fmt.Sprintf("%s: no job was made, because job %s had the same key and was removed; use another key, or this one again %s or more after the removal", CodeRemoved, e.ID, duration.Format(e.Kept))
}

// DuplicateError is returned when no job was created because another job holds
// its unique key.
type DuplicateError struct {
	Queue string
	ID    ID // of the job that holds it
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("job %s of queue %s holds the same unique key", e.ID, e.Queue)
}

// RateLimitedError is returned when no job was created because its rate limit
// key is held.
type RateLimitedError struct {
	RetryAfter time.Duration // until the key is free, by the ledger's clock
}

func (e *RateLimitedError) Error() string {
	return fmt.Sprintf("the rate limit key is held, so no job was made; it is free in %s", duration.Format(max(e.RetryAfter, time.Millisecond).Round(time.Millisecond)))
}
