package job

import (
	"errors"
	"fmt"
	"strings"
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
}

// QueueChange is a change of a queue's settings. Those that are nil stay as they
// are.
type QueueChange struct {
	Limit          *uint32 // 0 removes the limit
	AllowOverrides *bool
	RetryOnTimeout *bool
	Retention      []RetentionSetting // the value 0 removes a setting
}

// IsEmpty reports whether the change changes nothing.
func (c QueueChange) IsEmpty() bool {
	return c.Limit == nil && c.AllowOverrides == nil && c.RetryOnTimeout == nil && len(c.Retention) == 0
}

// String returns the changed settings, such as "concurrency_limit=4 failed.age=1h".
func (c QueueChange) String() string {
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
	return strings.Join(settings, " ")
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
	return c
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
