package job

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"
)

// Limits of guards.
const (
	DefaultUniqueTTL = 6 * time.Hour
	MaxGuardTime     = 365 * 24 * time.Hour // of a unique key, a rate limit, a debounce window
)

// Guards are the keys by which a producer lets a job be made only if no other
// job stands in its way. They are the yard's, not a queue's.
//
// Unique: while the key lives, a second job with it is not made; whoever asks
// gets the first. Rate: while the key is held, no job with it is made at all.
// Debounce: a job with the key that has not started yet becomes what the newer
// one asks for, and starts a window later. Rate and Debounce exclude each
// other.
type Guards struct{ Unique, Rate, Debounce Guard }

// Guard is one of them: a key and how long it is held. The zero Guard is none.
type Guard struct {
	Key GuardKey
	For time.Duration
}

// GuardKey is what is kept of a key: the begin of a hash of its kind and text.
// Two keys of different kinds never meet.
type GuardKey [16]byte

// Given tells a guard that was asked for.
func (g Guard) Given() bool { return g.For > 0 }

// Kinds of guards, as they go into the hash: never to be changed.
const (
	kindUnique   = 'u'
	kindRate     = 'r'
	kindDebounce = 'd'
)

func newGuard(kind byte, key *string, ms *int64, otherwise time.Duration) Guard {
	if key == nil {
		return Guard{}
	}
	sum := sha256.Sum256(append([]byte{kind}, *key...))
	g := Guard{Key: GuardKey(sum[:]), For: otherwise}
	if ms != nil {
		g.For = time.Duration(*ms) * time.Millisecond
	}
	return g
}

// Guarded tells a job that the ledger has to decide about before it exists.
func (s *Spec) Guarded() bool {
	return s.UniqueKey != nil || s.RateLimitKey != nil || s.DebounceKey != nil
}

// guards gives a checked spec's guards; nil for none.
func (s *Spec) guards() *Guards {
	if !s.Guarded() {
		return nil
	}
	return &Guards{
		Unique:   newGuard(kindUnique, s.UniqueKey, s.UniqueTTLMS, DefaultUniqueTTL),
		Rate:     newGuard(kindRate, s.RateLimitKey, s.RateLimitMS, 0),
		Debounce: newGuard(kindDebounce, s.DebounceKey, s.DebounceMS, 0),
	}
}

func (s *Spec) validateGuards() error {
	for _, g := range [...]struct {
		key, time string
		given     *string
		ms        *int64
		optional  bool
	}{
		{"unique_key", "unique_ttl_ms", s.UniqueKey, s.UniqueTTLMS, true},
		{"rate_limit_key", "rate_limit_ms", s.RateLimitKey, s.RateLimitMS, false},
		{"debounce_key", "debounce_ms", s.DebounceKey, s.DebounceMS, false},
	} {
		switch {
		case g.given == nil && g.ms == nil:
			continue
		case g.given == nil:
			return invalid("%s means nothing without %s: give both or neither", g.time, g.key)
		case g.ms == nil && !g.optional:
			return invalid("%s needs %s: how long it is held, in milliseconds", g.key, g.time)
		case len(*g.given) > MaxKeyLen || strings.TrimSpace(*g.given) == "":
			return invalid("%s has %d bytes; must have 1 to %d, not all of them blank", g.key, len(*g.given), MaxKeyLen)
		}
		if most := MaxGuardTime.Milliseconds(); g.ms != nil && (*g.ms < 1 || *g.ms > most) {
			return invalid("%s is %d; must be 1 to %d", g.time, *g.ms, most)
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

// DuplicateError says that no job was made because another holds its unique
// key.
type DuplicateError struct {
	Queue string
	ID    ID // of the job that holds it
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("job %s of queue %s holds the same unique key", e.ID, e.Queue)
}

// LimitedError says that no job was made because its rate limit key is held.
type LimitedError struct {
	RetryAfter time.Duration // until the key is free, as the ledger knew it
}

func (e *LimitedError) Error() string {
	return fmt.Sprintf("the rate limit key is held, so no job was made; it is free in %s", max(e.RetryAfter, time.Millisecond).Round(time.Millisecond))
}
