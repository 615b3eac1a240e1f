package job

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Kept is a kind of data that is kept after jobs have ended.
type Kept uint8

// The kinds of data.
const (
	KeptFinished Kept = iota // the ledger's records of jobs that have ended
	KeptFailed               // dead letters
	KeptResults
	KeptEvents // history
	KeptLogs   // logs of jobs
	KeptIndex  // documents of ended jobs in each node's index

	keptKinds
)

var keptNames = [keptKinds]string{"finished", "failed", "results", "events", "logs", "index"}

// Bound is a way in which data is bounded.
type Bound uint8

// The bounds.
const (
	BoundAge   Bound = iota // in nanoseconds
	BoundCount              // records or messages
	BoundBytes

	bounds
)

var boundNames = [bounds]string{"age", "count", "bytes"}

// RetentionKey names a retention setting.
type RetentionKey struct {
	Kept  Kept
	Bound Bound
}

// RetentionKeys are the keys of the settings that a cluster has.
var RetentionKeys = func() (keys []RetentionKey) {
	for kept := range keptKinds {
		for bound := range bounds {
			if key := (RetentionKey{kept, bound}); key.reasonRefused() == "" {
				keys = append(keys, key)
			}
		}
	}
	return keys
}()

// QueueRetentionKeys are the keys of the settings that a queue may have.
var QueueRetentionKeys = []RetentionKey{
	{KeptFinished, BoundAge}, {KeptFinished, BoundCount}, {KeptFailed, BoundAge}, {KeptFailed, BoundCount}, {KeptResults, BoundAge},
}

// String returns the key as "finished.age".
func (k RetentionKey) String() string {
	if k.Kept >= keptKinds || k.Bound >= bounds {
		return fmt.Sprintf("retention %d.%d", k.Kept, k.Bound)
	}
	return keptNames[k.Kept] + "." + boundNames[k.Bound]
}

// compare orders keys by what is kept, then by bound.
func (k RetentionKey) compare(other RetentionKey) int {
	return cmp.Or(cmp.Compare(k.Kept, other.Kept), cmp.Compare(k.Bound, other.Bound))
}

// ParseRetentionKey parses a key as [RetentionKey.String] writes it; the key may be one
// that no cluster has. The error is an [*InvalidError], and lists the keys of a queue or of
// a cluster.
func ParseRetentionKey(text string, ofQueue bool) (RetentionKey, error) {
	for kept := range keptKinds {
		for bound := range bounds {
			if key := (RetentionKey{kept, bound}); key.String() == text {
				return key, nil
			}
		}
	}
	keys := RetentionKeys
	if ofQueue {
		keys = QueueRetentionKeys
	}
	return RetentionKey{}, invalid("retention setting %q; must be one of %s", text, keyNames(keys))
}

// keyNames returns the names of keys as a list in one text.
func keyNames(keys []RetentionKey) string {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = key.String()
	}
	return strings.Join(names, ", ")
}

// reasonRefused returns why a cluster has no setting of this key, "" if it has one.
func (k RetentionKey) reasonRefused() string {
	switch k {
	case RetentionKey{KeptFinished, BoundBytes}:
		return "records of finished jobs are about equally large; use finished.count"
	case RetentionKey{KeptResults, BoundCount}:
		return "a message of YARD_RESULTS has the results of many jobs; use results.age or results.bytes"
	case RetentionKey{KeptEvents, BoundCount}:
		return "a message of YARD_EVENTS has many events; use events.age or events.bytes"
	}
	return ""
}

// reasonRefusedForQueue returns why a queue has no setting of this key, "" if it has one.
func (k RetentionKey) reasonRefusedForQueue() string {
	if reason := k.reasonRefused(); reason != "" || slices.Contains(QueueRetentionKeys, k) {
		return reason
	}
	switch k.Kept {
	case KeptFailed:
		return "the size of dead letters is bounded for all queues together; use failed.age or failed.count for a queue, or failed.bytes for the yard"
	case KeptResults:
		return "the size of results is bounded for all queues together; use results.age for a queue, or results.bytes for the yard"
	}
	return fmt.Sprintf("%s of all queues are kept together; set %s for the yard", keptNames[k.Kept], k)
}

// Limits of retention settings.
const (
	MinRetentionAge   = time.Minute // the duplicate windows of streams are shorter
	MinRetentionBytes = 4 << 20     // of a stream, more than its largest message
	MaxRetentionBytes = 1 << 50

	// MaxFinished is the most records of finished jobs that a cluster may keep, and the
	// most that all queues with settings of their own keep together.
	MaxFinished = 2_000_000
	maxMessages = 10_000_000
	maxIndexed  = 1_000_000_000
	maxLogPages = 1_000_000 // each job with a log is a subject, which its stream keeps in memory
)

// RetentionSetting is one setting: an age in nanoseconds, a number, or a size in bytes. As
// a change, the value 0 resets it.
type RetentionSetting struct {
	Key   RetentionKey
	Value int64
}

// String returns the setting as "finished.age=30d", or "finished.age=default" for
// a change that resets it.
func (s RetentionSetting) String() string {
	switch {
	case s.Value == 0:
		return s.Key.String() + "=default"
	case s.Key.Bound == BoundAge:
		return fmt.Sprintf("%s=%s", s.Key, duration.Format(time.Duration(s.Value)))
	}
	return fmt.Sprintf("%s=%d", s.Key, s.Value)
}

// Validate checks a setting of a cluster, or of a queue. The value 0, a reset, is valid.
// The error is an [*InvalidError].
func (s RetentionSetting) Validate(ofQueue bool) error {
	reason := s.Key.reasonRefused()
	if ofQueue {
		reason = s.Key.reasonRefusedForQueue()
	}
	if reason != "" {
		return invalid("%s cannot be set: %s", s.Key, reason)
	}
	least, most := int64(1), int64(maxMessages)
	switch {
	case s.Key.Bound == BoundAge:
		least, most = int64(MinRetentionAge), int64(MaxDuration)
	case s.Key == RetentionKey{KeptResults, BoundBytes}: // two streams
		least, most = 2*MinRetentionBytes, MaxRetentionBytes
	case s.Key.Bound == BoundBytes:
		least, most = MinRetentionBytes, MaxRetentionBytes
	case s.Key.Kept == KeptFinished:
		most = MaxFinished
	case s.Key.Kept == KeptLogs:
		most = maxLogPages
	case s.Key.Kept == KeptIndex:
		most = maxIndexed
	}
	switch {
	case s.Value == 0 || s.Value >= least && s.Value <= most:
		return nil
	case s.Key.Bound == BoundAge:
		return invalid("%s is %s; must be %s to %s", s.Key, duration.Format(time.Duration(s.Value)), duration.Format(time.Duration(least)), duration.Format(time.Duration(most)))
	case s.Key.Bound == BoundBytes:
		return invalid("%s is %s; must be %s to %s", s.Key, FormatSize(s.Value), FormatSize(least), FormatSize(most))
	}
	return invalid("%s is %d; must be %d to %d", s.Key, s.Value, least, most)
}

// Retention is a list of settings, ordered by key and with at most one for each. It is
// immutable: a change makes another list.
type Retention []RetentionSetting

// Get returns the value of a setting, 0 if it is not set.
func (r Retention) Get(kept Kept, bound Bound) int64 {
	for _, s := range r {
		if s.Key == (RetentionKey{kept, bound}) {
			return s.Value
		}
	}
	return 0
}

// Age returns the age of a kind of data, 0 if it is not set.
func (r Retention) Age(kept Kept) time.Duration { return time.Duration(r.Get(kept, BoundAge)) }

// With returns the settings with changes: others stay, and those with the value 0 are
// removed.
func (r Retention) With(changes []RetentionSetting) Retention {
	var changed Retention
	for kept := range keptKinds {
		for bound := range bounds {
			value := r.Get(kept, bound)
			for _, c := range changes {
				if c.Key == (RetentionKey{kept, bound}) {
					value = c.Value
				}
			}
			if value != 0 {
				changed = append(changed, RetentionSetting{RetentionKey{kept, bound}, value})
			}
		}
	}
	return changed
}

// ValidateRetention checks settings of a cluster, or of a queue. The error is an
// [*InvalidError].
func ValidateRetention(settings []RetentionSetting, ofQueue bool) error {
	for _, s := range settings {
		if err := s.Validate(ofQueue); err != nil {
			return err
		}
	}
	return nil
}

// How long records of finished jobs are kept if nothing else is set.
const (
	FinishedAge   = 5 * time.Minute // of completed jobs, which the index still has
	RetryableAge  = 24 * time.Hour  // of the others, which are retried from their records
	FinishedCount = 200_000         // of completed jobs, and of the others
)

// DefaultRetention has the defaults of the settings, except for bytes: those depend on the
// size of the store when the streams are created.
var DefaultRetention = Retention{
	{Key: RetentionKey{Kept: KeptFinished, Bound: BoundAge}, Value: int64(FinishedAge)},
	{Key: RetentionKey{Kept: KeptFinished, Bound: BoundCount}, Value: FinishedCount},
	{Key: RetentionKey{Kept: KeptFailed, Bound: BoundAge}, Value: int64(30 * 24 * time.Hour)},
	{Key: RetentionKey{Kept: KeptFailed, Bound: BoundCount}, Value: 100_000},
	{Key: RetentionKey{Kept: KeptResults, Bound: BoundAge}, Value: int64(24 * time.Hour)},
	{Key: RetentionKey{Kept: KeptEvents, Bound: BoundAge}, Value: int64(7 * 24 * time.Hour)},
	{Key: RetentionKey{Kept: KeptLogs, Bound: BoundAge}, Value: int64(24 * time.Hour)},
	{Key: RetentionKey{Kept: KeptLogs, Bound: BoundCount}, Value: 250_000},
	{Key: RetentionKey{Kept: KeptIndex, Bound: BoundAge}, Value: int64(7 * 24 * time.Hour)},
	{Key: RetentionKey{Kept: KeptIndex, Bound: BoundCount}, Value: 50_000_000},
	{Key: RetentionKey{Kept: KeptIndex, Bound: BoundBytes}, Value: 8 << 30},
}
