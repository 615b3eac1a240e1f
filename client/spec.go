package client

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Spec is a job to enqueue. Queue is required; every other field may be left zero. Use
// [Enqueue] for jobs whose params have a type of their own.
type Spec struct {
	// Queue is the queue that workers subscribe to.
	Queue string
	// Function selects the handler: a name of the worker's choice, or
	// "runner#handler" for a handler of an RRQ runner.
	Function string
	// Params are the handler's input. Structs travel as maps, with the names of
	// their json tags; integers are exact and []byte is binary. Params with a fraction,
	// or an integer beyond int64, must be a struct or map and have no []byte. A value with a
	// method MarshalJSON or MarshalText travels as that encodes it. The whole job is smaller
	// than the frame limit of the nodes, 8 MiB by default: [ErrTooLarge].
	Params any
	// Key makes the enqueue idempotent: up to 128 bytes, unique in the queue. For some
	// minutes, that of a job which was removed is refused: DUPLICATE_OF_REMOVED.
	Key string
	// RunAt is the earliest start; the zero time means now.
	RunAt time.Time
	// Delay is the time from acceptance to the earliest start. It depends on no wall clock.
	// RunAt and Delay exclude each other.
	Delay time.Duration
	// Priority is 0 to 9, 9 starts first; nil means 5.
	Priority *int
	// MaxAttempts is how often the job may be tried; 0 means the cluster's default.
	MaxAttempts int
	// Timeout ends an attempt that takes longer; 0 means the cluster's default.
	Timeout time.Duration
	// RetryOnTimeout is whether an attempt that exceeds its timeout is retried like one
	// that fails; nil means as the queue has it, which by default is false.
	RetryOnTimeout *bool
	// RetryInterval is the delay after each failed attempt; 0 means one that increases.
	RetryInterval time.Duration

	// ResultTTL is how long the result is shown after the end of the job; 0 means as long as
	// the retention of the queue allows.
	ResultTTL time.Duration

	// UniqueKey makes no job while another one holds this key: [ErrConflict], and
	// [Error.JobID] is the other's id. The job holds the key for UniqueTTL after its enqueue, even
	// if it ends earlier or later; 0 means six hours. Or it holds the key until UniqueUntil, its
	// "start" or "end".
	UniqueKey   string
	UniqueTTL   time.Duration
	UniqueUntil string
	// ExistingOnConflict returns the id of the job that holds UniqueKey, without an error.
	ExistingOnConflict bool
	// RateLimitKey makes no job while another one holds this key: [ErrRateLimited]. The
	// job holds it for the time RateLimit.
	RateLimitKey string
	RateLimit    time.Duration
	// DebounceKey replaces a job with this key that has not started, under that job's id.
	// The job starts after the time Debounce, unless it is replaced.
	DebounceKey string
	Debounce    time.Duration

	// Trace carries a trace context, for example traceparent, to the handler.
	Trace map[string]string

	// LimitKey is the key under which the job uses limits, such as the id of a customer: a
	// limit may bound the jobs of each key, and a fair queue serves the keys in turn. nil
	// means the value at the key path of the queue, if it has one, and else none.
	LimitKey *string
	// Limits are limits that the job uses besides those of its queue, each with a key; ""
	// stands for LimitKey.
	Limits map[string]string
	// Tags and Meta are shown with the job and passed to its handler: up to 20 each, of tags with 1 to 64 bytes, and
	// of names with as many and values of up to 512 bytes.
	Tags []string
	Meta map[string]string
	// ExpiresIn ends the job as expired if it has not started in this time after it was
	// accepted, ExpiresAt if it has not started by then. One of them may be set.
	ExpiresIn time.Duration
	ExpiresAt time.Time
}

// ErrInvalidJob is wrapped by the errors of jobs that cannot be sent.
var ErrInvalidJob = errors.New("invalid job")

func invalidJob(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalidJob}, args...)...)
}

// validate returns an error that wraps [ErrInvalidJob] if a field is invalid.
func (s *Spec) validate() error {
	switch {
	case s.Queue == "":
		return invalidJob("Queue is empty")
	case s.MaxAttempts < 0 || s.MaxAttempts > math.MaxUint32:
		return invalidJob("MaxAttempts is %d; it is at most %d", s.MaxAttempts, math.MaxUint32)
	case s.Priority != nil && (*s.Priority < 0 || *s.Priority > 9):
		return invalidJob("Priority is %d; it is 0 to 9", *s.Priority)
	case s.UniqueKey == "" && (s.UniqueTTL != 0 || s.UniqueUntil != ""):
		return invalidJob("UniqueTTL and UniqueUntil need UniqueKey")
	case (s.RateLimitKey == "") != (s.RateLimit == 0):
		return invalidJob("RateLimitKey and RateLimit need each other")
	case (s.DebounceKey == "") != (s.Debounce == 0):
		return invalidJob("DebounceKey and Debounce need each other")
	case s.Delay != 0 && !s.RunAt.IsZero():
		return invalidJob("RunAt and Delay exclude each other")
	case s.ExpiresIn != 0 && !s.ExpiresAt.IsZero():
		return invalidJob("ExpiresIn and ExpiresAt exclude each other")
	}
	for _, d := range [...]struct {
		name  string
		value time.Duration
	}{
		{"Timeout", s.Timeout}, {"RetryInterval", s.RetryInterval}, {"ResultTTL", s.ResultTTL},
		{"UniqueTTL", s.UniqueTTL}, {"RateLimit", s.RateLimit}, {"Debounce", s.Debounce}, {"ExpiresIn", s.ExpiresIn}, {"Delay", s.Delay},
	} {
		if d.value != 0 && (d.value < time.Millisecond || d.value > job.MaxDuration) {
			return invalidJob("%s is %s; if it is set, it is at least 1ms and at most ten years", d.name, duration.Format(d.value))
		}
	}
	return nil
}

// message returns the job, which is valid, as a request of the protocol. The error wraps
// [ErrInvalidJob].
func (s *Spec) message() (overhop.Enqueue, error) {
	request := overhop.Enqueue{
		Queue: s.Queue, Function: s.Function, Key: s.Key, At: s.RunAt, MaxAttempts: int64(s.MaxAttempts),
		Timeout: s.Timeout.Milliseconds(), RetryOnTimeout: s.RetryOnTimeout, RetryInterval: s.RetryInterval.Milliseconds(), Trace: s.Trace,
		ResultTTL: s.ResultTTL.Milliseconds(),
		UniqueKey: unlessZero(s.UniqueKey), UniqueTTL: unlessZero(s.UniqueTTL.Milliseconds()), UniqueUntil: unlessZero(s.UniqueUntil),
		RateLimitKey: unlessZero(s.RateLimitKey), RateLimit: unlessZero(s.RateLimit.Milliseconds()),
		DebounceKey: unlessZero(s.DebounceKey), Debounce: unlessZero(s.Debounce.Milliseconds()),
		LimitKey: s.LimitKey, Limits: s.Limits, Tags: s.Tags, Meta: s.Meta,
		ExpiresIn: unlessZero(s.ExpiresIn.Milliseconds()), ExpiresAt: s.ExpiresAt,
	}
	if s.Delay > 0 {
		request.Delay, request.At = new(s.Delay.Milliseconds()), time.Now().Add(s.Delay)
	}
	if s.Priority != nil {
		request.Priority = new(int64(*s.Priority))
	}
	if s.Params != nil {
		payload, err := overhop.Marshal(s.Params)
		if err != nil {
			return overhop.Enqueue{}, invalidJob("Params: %w", err)
		}
		if payload.HasNumber() && payload.Kind() != overhop.KindMap {
			return overhop.Enqueue{}, invalidJob("Params have fractions, or integers beyond int64, outside a struct or map")
		}
		request.Payload = payload
	}
	return request, nil
}

// unlessZero returns a pointer to v, or nil if v is the zero value.
func unlessZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return new(v) // not &v, which would be allocated for a zero value, too
}

// Option changes the [Spec] of a job that [Enqueue] and its like send.
type Option func(*Spec)

// Queue names the queue of a job; see [Args] for the default.
func Queue(name string) Option { return func(s *Spec) { s.Queue = name } }

// Key makes the enqueue idempotent: see [Spec.Key].
func Key(key string) Option { return func(s *Spec) { s.Key = key } }

// Delay lets a job start no earlier than d after the cluster has accepted it. It depends on no wall
// clock, except in the JSON of a [Spec], which has the start by the clock of this program.
func Delay(d time.Duration) Option {
	return func(s *Spec) { s.Delay = max(d, 0).Round(time.Millisecond) }
}

// RunAt lets a job start no earlier than at t.
func RunAt(t time.Time) Option { return func(s *Spec) { s.RunAt = t } }

// Priority sets the priority of a job, 0 to 9: 9 starts first. The default is 5.
func Priority(n int) Option { return func(s *Spec) { s.Priority = &n } }

// MaxAttempts sets how often a job may be tried.
func MaxAttempts(n int) Option { return func(s *Spec) { s.MaxAttempts = n } }

// Timeout ends an attempt that takes longer than d.
func Timeout(d time.Duration) Option { return func(s *Spec) { s.Timeout = d } }

// RetryOnTimeout sets whether an attempt that exceeds its timeout is retried.
func RetryOnTimeout(retry bool) Option { return func(s *Spec) { s.RetryOnTimeout = &retry } }

// RetryEvery sets a fixed delay after each failed attempt, in place of one that increases.
func RetryEvery(d time.Duration) Option { return func(s *Spec) { s.RetryInterval = d } }

// ResultTTL sets how long the result is shown after the end of the job.
func ResultTTL(d time.Duration) Option { return func(s *Spec) { s.ResultTTL = d } }

// Unique makes no job while another one holds this key, for ttl after the enqueue of
// the other one, even if that ends earlier or later: see [Spec.UniqueKey].
func Unique(key string, ttl time.Duration) Option {
	return func(s *Spec) { s.UniqueKey, s.UniqueTTL = key, ttl }
}

// UniqueUntil is like [Unique] for a job that holds the key until its "start" or its "end".
func UniqueUntil(key, event string) Option {
	return func(s *Spec) { s.UniqueKey, s.UniqueUntil = key, event }
}

// A ConflictPolicy decides what happens to a job whose unique key another one holds.
type ConflictPolicy bool

const (
	Refuse      ConflictPolicy = false // the error is [ErrConflict]; the default
	UseExisting ConflictPolicy = true  // the id is that of the other job
)

// OnConflict sets what happens if another job holds the job's unique key.
func OnConflict(p ConflictPolicy) Option { return func(s *Spec) { s.ExistingOnConflict = bool(p) } }

// RateLimit makes no job while another one holds this key, which it does for d: see
// [Spec.RateLimitKey].
func RateLimit(key string, d time.Duration) Option {
	return func(s *Spec) { s.RateLimitKey, s.RateLimit = key, d }
}

// Debounce replaces a job with this key that has not started, and starts d later: see
// [Spec.DebounceKey].
func Debounce(key string, d time.Duration) Option {
	return func(s *Spec) { s.DebounceKey, s.Debounce = key, d }
}

// LimitKey sets the key under which a job uses limits: see [Spec.LimitKey].
func LimitKey(key string) Option { return func(s *Spec) { s.LimitKey = &key } }

// UseLimit lets a job use a limit besides those of its queue. A key of "" stands for the job's
// [LimitKey].
func UseLimit(name, key string) Option {
	return func(s *Spec) {
		s.Limits = maps.Clone(s.Limits)
		if s.Limits == nil {
			s.Limits = make(map[string]string)
		}
		s.Limits[name] = key
	}
}

// Tags adds tags, which are shown with a job and passed to its handler.
func Tags(tags ...string) Option {
	return func(s *Spec) { s.Tags = append(slices.Clip(s.Tags), tags...) }
}

// Meta sets the metadata that is shown with a job and passed to its handler.
func Meta(meta map[string]string) Option { return func(s *Spec) { s.Meta = meta } }

// ExpiresIn ends a job as expired if it has not started in this time after it was accepted.
func ExpiresIn(d time.Duration) Option { return func(s *Spec) { s.ExpiresIn = d } }

// ExpiresAt ends a job as expired if it has not started by t.
func ExpiresAt(t time.Time) Option { return func(s *Spec) { s.ExpiresAt = t } }

// Trace carries a trace context to the handler.
func Trace(context map[string]string) Option { return func(s *Spec) { s.Trace = context } }
