package job

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Bounds of named limits.
const (
	MaxLimitNameLen = 64   // bytes
	MaxLimitKeyLen  = 128  // bytes of the key of a job
	MaxLimitUses    = 8    // limits that a queue or a job may name
	MaxOpenAfter    = 1000 // failures
	MaxCircuitTypes = 16   // types of errors that open a circuit
	MaxBurst        = 1_000_000
	maxRateSpan     = 10 * 365 * 24 * time.Hour // the longest time that a burst may stand for
)

// Limit is a named bound on the jobs that use it, whatever their queues. A job uses the limits
// of its queue and those that it names itself, each under a key.
type Limit struct {
	Name        string
	Total       Slots  // jobs that run at the same time
	PerKey      Slots  // the same, of each key
	Rate        Rate   // starts
	Burst       uint32 // starts at once, after a pause; 0: as [Limit.Bursts] returns
	RatePerKey  Rate   // starts, of each key
	BurstPerKey uint32 // as Burst
	Circuit     Circuit
	Paused      bool // no job that uses it starts
}

// NewLimit returns a limit that bounds nothing.
func NewLimit(name string) Limit { return Limit{Name: name, Total: Unbounded, PerKey: Unbounded} }

// Slots is the highest number of jobs that run at the same time, from 1 to [MaxLimit], or
// [Unbounded]. Limits that earlier builds have set may have 0, which starts no job.
type Slots int64

// Unbounded is the Slots that bounds nothing.
const Unbounded Slots = -1

// String returns the number, or "none".
func (s Slots) String() string {
	if s < 0 {
		return "none"
	}
	return strconv.FormatInt(int64(s), 10)
}

// Rate is how many jobs may start in a time. The zero Rate bounds nothing.
type Rate struct {
	Starts uint32
	Per    time.Duration
}

// IsSet reports whether the rate bounds anything.
func (r Rate) IsSet() bool { return r.Starts > 0 }

// Interval returns the time between two starts, rounded up so that the rate is never exceeded.
func (r Rate) Interval() time.Duration {
	return (r.Per + time.Duration(r.Starts) - 1) / time.Duration(r.Starts)
}

// rateUnits are the units of time of a rate.
var rateUnits = []struct {
	name string
	per  time.Duration
}{{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}}

// ParseRate parses a rate such as "100/s", "5/m", "1/h", "1/d" or "3/10s"; "none" is the zero
// Rate.
func ParseRate(text string) (Rate, error) {
	bad := func() (Rate, error) {
		return Rate{}, invalid("rate is %q; must be a number of starts and a time, such as 100/s, 5/m, 1/h or 3/10s, or none", text)
	}
	if text == "none" {
		return Rate{}, nil
	}
	starts, per, found := strings.Cut(text, "/")
	n, err := strconv.ParseUint(starts, 10, 32)
	if !found || err != nil || n == 0 {
		return bad()
	}
	for _, unit := range rateUnits {
		if per == unit.name {
			return Rate{uint32(n), unit.per}, nil
		}
		if times, isUnit := strings.CutSuffix(per, unit.name); isUnit {
			count, err := strconv.ParseUint(times, 10, 16)
			if err != nil || count == 0 {
				return bad()
			}
			return Rate{uint32(n), time.Duration(count) * unit.per}, nil
		}
	}
	return bad()
}

// String returns the rate as [ParseRate] reads it.
func (r Rate) String() string {
	if !r.IsSet() {
		return "none"
	}
	for _, unit := range slices.Backward(rateUnits) {
		switch {
		case r.Per == unit.per:
			return fmt.Sprintf("%d/%s", r.Starts, unit.name)
		case r.Per%unit.per == 0:
			return fmt.Sprintf("%d/%d%s", r.Starts, r.Per/unit.per, unit.name)
		}
	}
	return fmt.Sprintf("%d/%s", r.Starts, r.Per)
}

// validate returns an error if the rate, which the error calls name, or the time that a burst
// stands for is out of range.
func (r Rate) validate(name string, burst uint32) error {
	const longest = 7 * 24 * time.Hour
	switch {
	case !r.IsSet() && burst > 0:
		return invalid("the burst of %s means nothing without a rate: give both or neither", name)
	case !r.IsSet():
		return nil
	case r.Per < time.Second || r.Per > longest:
		return invalid("%s counts starts in %s; must be 1s to %s", name, duration.Format(r.Per), duration.Format(longest))
	case int64(r.Starts) > int64(r.Per/time.Microsecond):
		return invalid("%s is %s; must be at most a start in a microsecond", name, r)
	case burst > MaxBurst:
		return invalid("the burst of %s is %d; must be at most %d", name, burst, MaxBurst)
	case time.Duration(burst) > maxRateSpan/r.Interval():
		return invalid("the burst of %s is %d; at that rate it is the starts of more than %d years", name, burst, maxRateSpan/(365*24*time.Hour))
	}
	return nil
}

// burst returns how many jobs may start at once: what is set, or else as many as start in a
// tenth of a second, at least one.
func (r Rate) burst(set uint32) uint32 {
	if set > 0 || !r.IsSet() {
		return set
	}
	return max(1, uint32(100*time.Millisecond/r.Interval()))
}

// Bursts returns how many jobs may start at once after a pause, of all keys and of each: what
// is set, or else as many as start in a tenth of a second, at least one.
func (l *Limit) Bursts() (all, ofKey uint32) {
	return l.Rate.burst(l.Burst), l.RatePerKey.burst(l.BurstPerKey)
}

// Circuit stops the starts of jobs after failures, as a circuit breaker does. With OpenAfter 0
// it does nothing.
type Circuit struct {
	OpenAfter  uint32        // so many failures
	Within     time.Duration // in this time open the circuit
	On         []string      // types or codes of the errors that count; empty: all
	HalfOpen   uint32        // how many jobs may probe at the same time whether it can close; 0: one
	ProbeAfter time.Duration // how long it is open before the first probe; 0: as Within
}

// Counts reports whether a failure with an error of a type and code counts.
func (c *Circuit) Counts(errorType, code string) bool {
	return c.OpenAfter > 0 && (len(c.On) == 0 || slices.Contains(c.On, errorType) || code != "" && slices.Contains(c.On, code))
}

// Probes returns how many jobs may probe at the same time.
func (c *Circuit) Probes() int { return int(max(c.HalfOpen, 1)) }

// Pause returns how long the circuit is open before the first probe.
func (c *Circuit) Pause() time.Duration {
	if c.ProbeAfter > 0 {
		return c.ProbeAfter
	}
	return c.Within
}

func (c *Circuit) validate() error {
	if c.OpenAfter == 0 {
		if c.Within != 0 || len(c.On) > 0 || c.HalfOpen != 0 || c.ProbeAfter != 0 {
			return invalid("within, on, half_open and probe_after mean nothing without open_after: give the number of failures that open the circuit")
		}
		return nil
	}
	switch {
	case c.OpenAfter > MaxOpenAfter:
		return invalid("open_after is %d; must be 1 to %d failures", c.OpenAfter, MaxOpenAfter)
	case c.Within < time.Second || c.Within > 24*time.Hour:
		return invalid("within is %s; open_after needs the time in which the failures are counted, 1s to 24h", duration.Format(c.Within))
	case c.ProbeAfter != 0 && (c.ProbeAfter < time.Second || c.ProbeAfter > 24*time.Hour):
		return invalid("probe_after is %s; must be 1s to 24h", duration.Format(c.ProbeAfter))
	case len(c.On) > MaxCircuitTypes:
		return invalid("on has %d types of errors; at most %d", len(c.On), MaxCircuitTypes)
	case c.HalfOpen > MaxOpenAfter:
		return invalid("half_open is %d; must be 1 to %d jobs", c.HalfOpen, MaxOpenAfter)
	}
	for _, name := range c.On {
		if name == "" || len(name) > MaxFaultNameLen {
			return invalid("on has a type of %d bytes; must have 1 to %d", len(name), MaxFaultNameLen)
		}
	}
	return nil
}

// Validate returns an error, which is an [*InvalidError], if a setting is out of range. It accepts
// Slots of 0, because a limit that has them from an earlier build can still be changed; requests
// that set 0 are refused before.
func (l *Limit) Validate() error {
	if err := ValidLimit(l.Name); err != nil {
		return err
	}
	for _, bound := range [...]struct {
		name  string
		value Slots
	}{{"total", l.Total}, {"per_key", l.PerKey}} {
		if bound.value < Unbounded || bound.value > MaxLimit {
			return invalid("%s is %d; must be 1 to %d, or null for no bound", bound.name, bound.value, int64(MaxLimit))
		}
	}
	if err := l.Rate.validate("rate", l.Burst); err != nil {
		return err
	}
	if err := l.RatePerKey.validate("rate_per_key", l.BurstPerKey); err != nil {
		return err
	}
	return l.Circuit.validate()
}

// BoundsKeys reports whether the limit bounds each key.
func (l *Limit) BoundsKeys() bool { return l.PerKey >= 0 || l.RatePerKey.IsSet() }

// ValidLimit checks the name of a limit, which has the form of the name of a queue.
func ValidLimit(name string) error {
	if len(name) > MaxLimitNameLen || ValidQueue(name) != nil {
		return invalid("limit name %q must have 1 to %d letters, digits, '_' and '-', and start with a letter or digit", CutText(name, MaxLimitNameLen), MaxLimitNameLen)
	}
	return nil
}

// ValidLimitKey checks the key of a job under which it uses limits: "", or up to
// [MaxLimitKeyLen] bytes of UTF-8 without control characters.
func ValidLimitKey(key string) error {
	switch {
	case len(key) > MaxLimitKeyLen:
		return invalid("limit key has %d bytes; at most %d", len(key), MaxLimitKeyLen)
	case !utf8.ValidString(key) || strings.ContainsFunc(key, unicode.IsControl):
		return invalid("limit key %q must be UTF-8 without control characters", key)
	}
	return nil
}

// LimitUse is a limit that a job uses, and the key under which it does.
type LimitUse struct{ Limit, Key string }

// LimitChange is a change of a limit. Settings that are nil stay as they are.
type LimitChange struct {
	Total, PerKey       *Slots
	Rate, RatePerKey    *Rate
	Burst, BurstPerKey  *uint32
	OpenAfter, HalfOpen *uint32
	Within, ProbeAfter  *time.Duration
	On                  *Names
}

// IsEmpty reports whether the change changes nothing.
func (c LimitChange) IsEmpty() bool { return c == LimitChange{} }

// Changed returns the limit with a change. Without OpenAfter, a circuit has no other settings.
func (l Limit) Changed(c LimitChange) Limit {
	set(&l.Total, c.Total)
	set(&l.PerKey, c.PerKey)
	set(&l.Rate, c.Rate)
	set(&l.RatePerKey, c.RatePerKey)
	if c.Rate != nil && !c.Rate.IsSet() {
		l.Burst = 0
	}
	if c.RatePerKey != nil && !c.RatePerKey.IsSet() {
		l.BurstPerKey = 0
	}
	set(&l.Burst, c.Burst)
	set(&l.BurstPerKey, c.BurstPerKey)
	if c.OpenAfter != nil && *c.OpenAfter == 0 {
		l.Circuit = Circuit{}
	}
	set(&l.Circuit.OpenAfter, c.OpenAfter)
	set(&l.Circuit.Within, c.Within)
	set(&l.Circuit.HalfOpen, c.HalfOpen)
	set(&l.Circuit.ProbeAfter, c.ProbeAfter)
	if c.On != nil {
		l.Circuit.On = slices.Clone(c.On.Names)
	}
	return l
}

// set sets *field to *value, unless value is nil.
func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// String returns the changed settings, such as "total=20 rate=100/s".
func (c LimitChange) String() string { return c.Text(false) }

// Text is like String. If long is set, durations have all their units: "5m0s" and not "5m".
func (c LimitChange) Text(long bool) string {
	var settings []string
	add := func(name string, given bool, value any) {
		if given {
			settings = append(settings, fmt.Sprintf("%s=%v", name, value))
		}
	}
	add("total", c.Total != nil, text(c.Total, long))
	add("per_key", c.PerKey != nil, text(c.PerKey, long))
	add("rate", c.Rate != nil, text(c.Rate, long))
	add("burst", c.Burst != nil, text(c.Burst, long))
	add("rate_per_key", c.RatePerKey != nil, text(c.RatePerKey, long))
	add("burst_per_key", c.BurstPerKey != nil, text(c.BurstPerKey, long))
	add("open_after", c.OpenAfter != nil, text(c.OpenAfter, long))
	add("within", c.Within != nil, text(c.Within, long))
	if c.On != nil {
		add("on", true, strings.Join(c.On.Names, ","))
	}
	add("half_open", c.HalfOpen != nil, text(c.HalfOpen, long))
	add("probe_after", c.ProbeAfter != nil, text(c.ProbeAfter, long))
	return strings.Join(settings, " ")
}

// text returns the value of a setting as text, "" for nil. A duration is "5m", or "5m0s" if long is set.
func text[T any](value *T, long bool) string {
	if value == nil {
		return ""
	}
	if d, ok := any(*value).(time.Duration); ok && !long {
		return duration.Format(d)
	}
	return fmt.Sprint(*value)
}

// Bucket is the state of a rate as a token bucket: the time, in Unix nanoseconds, at which it
// would be full again but for one interval for each start that is still to be made up for. A
// bucket whose time has passed is full.
type Bucket int64

// Next returns the earliest time, in Unix nanoseconds, at which a job may start.
func (b Bucket) Next(r Rate, burst uint32) int64 {
	if burst == 0 {
		return math.MaxInt64
	}
	return int64(b) - int64(burst-1)*int64(r.Interval())
}

// Available returns how many jobs may start at a time.
func (b Bucket) Available(r Rate, burst uint32, now int64) int {
	owed := max(0, int64(b)-now)
	interval := int64(r.Interval())
	return max(0, int(burst)-int((owed+interval-1)/interval))
}

// Start returns the bucket after a start.
func (b Bucket) Start(r Rate, now int64) Bucket {
	return Bucket(max(int64(b), now) + int64(r.Interval()))
}

// Converted returns the bucket of a rate that replaces another one: with the same number of
// starts to be made up for.
func (b Bucket) Converted(from, to Rate, now int64) Bucket {
	if owed := int64(b) - now; owed > 0 && from.IsSet() && to.IsSet() {
		high, low := bits.Mul64(uint64(owed), uint64(to.Interval()))
		interval := uint64(from.Interval())
		if high >= interval {
			return Bucket(math.MaxInt64 / 2)
		}
		converted, rest := bits.Div64(high, low, interval)
		if rest > 0 {
			converted++
		}
		return Bucket(now + int64(min(converted, math.MaxInt64/4)))
	}
	return 0
}
