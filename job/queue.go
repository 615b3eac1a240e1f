package job

import (
	"errors"
	"fmt"
)

// MaxQueueLen is the longest queue name, in bytes.
const MaxQueueLen = 128

// MaxLimit is the highest concurrency limit.
const MaxLimit = 1<<32 - 1

// SystemQueue exists from the first start on; names that begin with "_" are
// the yard's own and take no jobs.
const SystemQueue = "_system"

// ErrBadQueueName refuses a name that [ValidQueue] does not take.
var ErrBadQueueName = errors.New("queue name must start with a letter or digit and hold only letters, digits, '_' and '-'")

// Queue is a named line jobs stand in.
type Queue struct {
	ID     ID
	Name   string
	Paused bool
	Config QueueConfig
}

// QueueConfig is what a user may set of a queue.
type QueueConfig struct {
	// Limit is the highest number of its jobs that run at once in the whole
	// yard, 1 to 2^32-1; 0 means no limit.
	Limit uint32
	// AllowOverrides is stored for Overhop's users and enforced nowhere.
	AllowOverrides bool
}

// DefaultQueueConfig is the configuration of a queue that was created by its
// first job, or without one.
var DefaultQueueConfig = QueueConfig{AllowOverrides: true}

// ValidQueue checks a queue's name: ASCII, 1 to [MaxQueueLen] bytes, the first
// [A-Za-z0-9], the rest [A-Za-z0-9_-], so that it is one subject token.
func ValidQueue(name string) error {
	if name == "" || len(name) > MaxQueueLen {
		return fmt.Errorf("queue name of %d bytes, must have 1 to %d: %w", len(name), MaxQueueLen, ErrBadQueueName)
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '_' && c != '-') {
			return fmt.Errorf("queue name %q: %w", name, ErrBadQueueName)
		}
	}
	return nil
}
