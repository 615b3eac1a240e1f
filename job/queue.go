package job

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// MaxQueueLen is the longest queue name, in bytes.
const MaxQueueLen = 128

// MaxLimit is the highest concurrency limit of a queue.
const MaxLimit = 1<<32 - 1

// SystemQueue is the queue that every cluster has from its first start. Queue
// names that begin with "_" are reserved and take no jobs.
const SystemQueue = "_system"

// ErrBadQueueName is returned by [ValidQueue].
var ErrBadQueueName = errors.New("queue name must start with a letter or digit and hold only letters, digits, '_' and '-'")

// Queue is a named queue of jobs and its settings.
type Queue struct {
	ID     ID
	Name   string
	Paused bool
	Config QueueConfig
}

// QueueConfig holds the settings of a queue that users may change.
type QueueConfig struct {
	// Limit is the highest number of the queue's jobs that run at the same time
	// in the whole cluster, 1 to [MaxLimit]; 0 means unlimited.
	Limit uint32
	// AllowOverrides is stored for Overhop's clients and has no effect.
	AllowOverrides bool
	// RetryOnTimeout makes a timeout of a job that does not decide this itself be
	// retried like an error.
	RetryOnTimeout bool
	// Retention has the settings of [QueueRetentionKeys] that differ from the cluster's.
	Retention Retention
	// Limits are the names of the limits that all jobs of the queue use, at most [MaxLimitUses].
	Limits []string
	// KeyPath is where the params of a job have its key, such as "params.customer"; "": the jobs
	// have only keys that are given with them.
	KeyPath string
	// KeyOptional makes the key of a job without a value at KeyPath "". Otherwise such a job is
	// refused.
	KeyOptional bool
	// Fair shares the starts among keys, in proportion to their weights.
	Fair    bool
	Weights []KeyWeight // in the order of the keys; other keys have the weight 1
	// Age is the time of waiting that is worth as much as one class of priority; 0: a job of a
	// higher priority starts first however long others have waited.
	Age time.Duration
	// Priority, MaxAttempts and Timeout are those of jobs that give none; nil and 0: the cluster's.
	Priority    *uint8
	MaxAttempts uint32
	Timeout     time.Duration
	Retries     []RetryRule // in the order of their functions, see [QueueConfig.Rule]
	// Index has the paths in params by whose values jobs are found, at most [MaxIndexPaths], in order.
	Index []string
}

// KeyWeight is how many jobs of a key a fair queue starts in each round.
type KeyWeight struct {
	Key    string
	Weight uint32 // 1 to [MaxKeyWeight]
}

// Bounds of the weights of a queue.
const (
	MaxKeyWeight  = 1000
	MaxKeyWeights = 1000 // of a queue
)

// Weight returns the weight of a key.
func (c *QueueConfig) Weight(key string) int {
	i, found := slices.BinarySearchFunc(c.Weights, key, func(w KeyWeight, key string) int { return strings.Compare(w.Key, key) })
	if !found {
		return 1
	}
	return int(c.Weights[i].Weight)
}

// QueueChange is a change of a queue's settings. Those that are nil stay as they
// are.
type QueueChange struct {
	Limit          *uint32 // 0 removes the limit
	AllowOverrides *bool
	RetryOnTimeout *bool
	Retention      []RetentionSetting // the value 0 removes a setting
	Limits         *Names
	KeyPath        *string
	KeyOptional    *bool
	Fair           *bool
	Weights        []KeyWeight    // the weight 0 removes a key
	Age            *time.Duration // 0 removes it, likewise those below
	Priority       *int8          // -1 removes it
	MaxAttempts    *uint32
	Timeout        *time.Duration
	DropRetries    bool // removes all retry rules before Retries are made
	Retries        []RetryChange
	Index          *Names // paths in params
}

// Names are names, of limits or of types of errors.
type Names struct{ Names []string }

// IsEmpty reports whether the change changes nothing.
func (c QueueChange) IsEmpty() bool {
	return c.Limit == nil && c.AllowOverrides == nil && c.RetryOnTimeout == nil && len(c.Retention) == 0 &&
		c.Limits == nil && c.KeyPath == nil && c.KeyOptional == nil && c.Index == nil && c.Fair == nil && len(c.Weights) == 0 && c.Age == nil &&
		c.Priority == nil && c.MaxAttempts == nil && c.Timeout == nil &&
		!c.DropRetries && len(c.Retries) == 0
}

// String returns the changed settings, such as "concurrency_limit=4 failed.age=1h".
func (c QueueChange) String() string { return c.Text(false) }

// Text is like String. If long is set, durations but those of the retention have all their units: "5m0s" and
// not "5m".
func (c QueueChange) Text(long bool) string {
	var settings []string
	switch {
	case c.Limit == nil:
	case *c.Limit == 0:
		settings = append(settings, "concurrency_limit=none")
	default:
		settings = append(settings, fmt.Sprintf("concurrency_limit=%d", *c.Limit))
	}
	if c.AllowOverrides != nil {
		settings = append(settings, fmt.Sprintf("allow_job_overrides=%t", *c.AllowOverrides))
	}
	if c.RetryOnTimeout != nil {
		settings = append(settings, fmt.Sprintf("retry_on_timeout=%t", *c.RetryOnTimeout))
	}
	for _, s := range c.Retention {
		settings = append(settings, s.String())
	}
	return strings.Join(append(settings, c.startSettings(long)...), " ")
}

// startSettings returns the changed settings that decide when jobs start, and how.
func (c *QueueChange) startSettings(long bool) (settings []string) {
	add := func(name string, given bool, value string) {
		if given {
			settings = append(settings, name+"="+cmp.Or(value, "none"))
		}
	}
	if c.Limits != nil {
		add("limits", true, strings.Join(c.Limits.Names, ","))
	}
	add("key", c.KeyPath != nil, text(c.KeyPath, long))
	add("key_optional", c.KeyOptional != nil, text(c.KeyOptional, long))
	if c.Index != nil {
		add("index", true, strings.Join(c.Index.Names, ","))
	}
	add("fair", c.Fair != nil, text(c.Fair, long))
	for _, w := range c.Weights {
		add("weight", true, fmt.Sprintf("%s:%d", w.Key, w.Weight))
	}
	add("age", c.Age != nil, text(c.Age, long))
	add("priority", c.Priority != nil, text(c.Priority, long))
	add("max_attempts", c.MaxAttempts != nil, text(c.MaxAttempts, long))
	add("timeout", c.Timeout != nil, text(c.Timeout, long))
	add("retry", c.DropRetries, "")
	for i := range c.Retries {
		settings = append(settings, c.Retries[i].settings(long)...)
	}
	return settings
}

// Changed returns the configuration with a change.
func (c QueueConfig) Changed(change QueueChange) QueueConfig {
	if change.Limit != nil {
		c.Limit = *change.Limit
	}
	if change.AllowOverrides != nil {
		c.AllowOverrides = *change.AllowOverrides
	}
	if change.RetryOnTimeout != nil {
		c.RetryOnTimeout = *change.RetryOnTimeout
	}
	if len(change.Retention) > 0 {
		c.Retention = c.Retention.With(change.Retention)
	}
	if change.Limits != nil {
		c.Limits = slices.Compact(slices.Sorted(slices.Values(change.Limits.Names)))
	}
	if change.Index != nil {
		c.Index = slices.Compact(slices.Sorted(slices.Values(change.Index.Names)))
	}
	set(&c.KeyPath, change.KeyPath)
	set(&c.KeyOptional, change.KeyOptional)
	set(&c.Fair, change.Fair)
	set(&c.Age, change.Age)
	set(&c.MaxAttempts, change.MaxAttempts)
	set(&c.Timeout, change.Timeout)
	if change.DropRetries {
		c.Retries = nil
	}
	if len(change.Retries) > 0 {
		c.Retries = withRetries(c.Retries, change.Retries)
	}
	if len(change.Weights) > 0 {
		c.Weights = withWeights(c.Weights, change.Weights)
	}
	if change.Priority != nil {
		c.Priority = nil
		if *change.Priority >= 0 {
			c.Priority = new(uint8(*change.Priority))
		}
	}
	return c
}

// withWeights returns weights with changes.
func withWeights(weights, changes []KeyWeight) []KeyWeight {
	byKey := make(map[string]uint32)
	for _, w := range slices.Concat(weights, changes) {
		byKey[w.Key] = w.Weight
	}
	var changed []KeyWeight
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		if weight := byKey[key]; weight > 0 {
			changed = append(changed, KeyWeight{key, weight})
		}
	}
	return changed
}

// Validate returns an error, which is an [*InvalidError], if a setting that decides when jobs
// start is out of range. It does not know which limits exist.
func (c *QueueConfig) Validate() error {
	switch {
	case len(c.Limits) > MaxLimitUses:
		return invalid("the queue names %d limits; at most %d", len(c.Limits), MaxLimitUses)
	case len(c.Index) > MaxIndexPaths:
		return invalid("the queue names %d params to index; at most %d", len(c.Index), MaxIndexPaths)
	case len(c.Weights) > MaxKeyWeights:
		return invalid("the queue has weights of %d keys; at most %d", len(c.Weights), MaxKeyWeights)
	case c.Age != 0 && (c.Age < time.Second || c.Age > MaxDuration):
		return invalid("age is %s; must be 1s to %s", duration.Format(c.Age), duration.Format(MaxDuration))
	case c.Priority != nil && *c.Priority > MaxPriority:
		return invalid("priority is %d; must be 0 to %d", *c.Priority, MaxPriority)
	case c.Timeout < 0 || c.Timeout > MaxDuration:
		return invalid("timeout is %s; must be 1ms to %s", duration.Format(c.Timeout), duration.Format(MaxDuration))
	}
	for _, name := range c.Limits {
		if err := ValidLimit(name); err != nil {
			return err
		}
	}
	for _, path := range c.Index {
		if err := ValidIndexPath(path); err != nil {
			return err
		}
	}
	for _, w := range c.Weights {
		if err := ValidLimitKey(w.Key); err != nil {
			return err
		}
		if w.Weight > MaxKeyWeight {
			return invalid("the weight of key %q is %d; must be 1 to %d", w.Key, w.Weight, MaxKeyWeight)
		}
	}
	if err := validateRetries(c.Retries); err != nil {
		return err
	}
	return ValidKeyPath(c.KeyPath)
}

// ValidKeyPath checks where a queue finds the key of a job: "", or "params." followed by one or
// more names of fields, joined by dots.
func ValidKeyPath(path string) error {
	if path == "" || isParamsPath(path) {
		return nil
	}
	return invalid("key path %q must be params. and the names of fields, joined by dots, such as params.customer, in at most %d bytes", CutText(path, maxParamsPath), maxParamsPath)
}

// ValidIndexPath checks a path of [QueueConfig.Index]. The error is an [*InvalidError].
func ValidIndexPath(path string) error {
	if isParamsPath(path) {
		return nil
	}
	return invalid("path to index %q must be params. and the names of fields, joined by dots, such as params.customer, in UTF-8 and at most %d bytes", CutText(path, maxParamsPath), maxParamsPath)
}

const maxParamsPath = 256 // bytes

func isParamsPath(path string) bool {
	names, inParams := strings.CutPrefix(path, "params.")
	return inParams && len(path) <= maxParamsPath && utf8.ValidString(path) && !slices.Contains(strings.Split(names, "."), "")
}

// DefaultQueueConfig is the configuration of a queue that was created without
// one, or by its first job.
var DefaultQueueConfig = QueueConfig{AllowOverrides: true}

// ValidQueue checks the name of a queue. It must have 1 to [MaxQueueLen] bytes,
// begin with one of A-Z, a-z and 0-9, and continue with these, '_' and '-', so
// that it is one token of a NATS subject. The error wraps [ErrBadQueueName].
func ValidQueue(name string) error {
	if name == "" || len(name) > MaxQueueLen {
		return fmt.Errorf("queue name of %d bytes, must have 1 to %d: %w", len(name), MaxQueueLen, ErrBadQueueName)
	}
	for i := range len(name) {
		c := name[i]
		isAlphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		isSeparator := c == '_' || c == '-'
		if !isAlphanumeric && (i == 0 || !isSeparator) {
			return fmt.Errorf("queue name %q: %w", name, ErrBadQueueName)
		}
	}
	return nil
}
