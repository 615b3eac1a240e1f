package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// QueueRequest names a queue, or describes a new one.
type QueueRequest struct {
	Name string `json:"name"`
	// Limit is how many of the queue's jobs run at the same time in the whole yard,
	// 1 to [job.MaxLimit]; nil means no limit.
	Limit          *int64               `json:"concurrency_limit"`
	AllowOverrides *bool                `json:"allow_job_overrides"` // nil means true
	RetryOnTimeout bool                 `json:"retry_on_timeout"`    // whether a timeout is retried like an error, unless the job decides
	Retention      QueueRetentionChange `json:"retention,omitzero"`  // settings that differ from the yard's
	Retry          []RetryRuleChange    `json:"retry,omitempty"`     // how jobs are retried, by function
	StartSettings
}

// QueueChange names a queue, and the settings of it that change.
type QueueChange struct {
	Name           string                     `json:"name"`
	Limit          Setting[int64]             `json:"concurrency_limit,omitzero"`
	AllowOverrides Setting[bool]              `json:"allow_job_overrides,omitzero"`
	RetryOnTimeout Setting[bool]              `json:"retry_on_timeout,omitzero"`
	Retention      QueueRetentionChange       `json:"retention,omitzero"`
	Retry          Setting[[]RetryRuleChange] `json:"retry,omitzero"` // rules that are not given stay; null removes all
	StartSettings
}

// StartSettings are settings of a queue that decide when its jobs start, and how, and how they are found. Null, also in a
// request that adds a queue, means the default.
type StartSettings struct {
	Limits      Setting[[]string] `json:"limits,omitzero"`       // names of the limits that all jobs of the queue use; null: none
	Key         Setting[string]   `json:"key,omitzero"`          // where params have the key of a job, such as params.customer; null: nowhere
	KeyOptional Setting[bool]     `json:"key_optional,omitzero"` // accept jobs without a value there, under the key ""
	Fair        Setting[bool]     `json:"fair,omitzero"`         // share the starts among keys
	Weights     map[string]*int64 `json:"weights,omitempty"`     // jobs of a key that start in each round of a fair queue, 1 to 1000; null: one; keys that are not named stay
	Age         Setting[int64]    `json:"age_ms,omitzero"`       // time of waiting that is worth one class of priority; null: no time is
	Priority    Setting[int64]    `json:"priority,omitzero"`     // of jobs that give none, likewise the following ones; null: the yard's
	MaxAttempts Setting[int64]    `json:"max_attempts,omitzero"`
	Timeout     Setting[int64]    `json:"timeout_ms,omitzero"`
	Index       Setting[[]string] `json:"index,omitzero"` // paths in params by whose values jobs are found, such as params.customer, at most 8; null: none
}

// addTo adds the settings to a change of a queue.
func (s *StartSettings) addTo(c *job.QueueChange) error {
	var v settings
	c.Limits, c.Index = NamesOf(s.Limits), NamesOf(s.Index)
	c.KeyPath = settingOf(&v, "key", s.Key, "", func(path string) (string, bool) { return path, path != "" && job.ValidKeyPath(path) == nil },
		"params. and the names of fields, joined by dots, such as params.customer, or null")
	isBool := func(b bool) (bool, bool) { return b, true }
	c.KeyOptional = settingOf(&v, "key_optional", s.KeyOptional, false, isBool, "")
	c.Fair = settingOf(&v, "fair", s.Fair, false, isBool, "")
	c.Age = millisecondsOf(&v, "age_ms", s.Age)
	c.Priority = settingOf(&v, "priority", s.Priority, -1, func(n int64) (int8, bool) { return int8(n), n >= 0 && n <= job.MaxPriority }, "0 to 9, or null")
	c.MaxAttempts = countOf(&v, "max_attempts", s.MaxAttempts, math.MaxUint32)
	c.Timeout = millisecondsOf(&v, "timeout_ms", s.Timeout)
	for _, key := range slices.Sorted(maps.Keys(s.Weights)) {
		weight := countOf(&v, fmt.Sprintf("the weight of key %q", key), Setting[int64]{true, s.Weights[key]}, job.MaxKeyWeight)
		c.Weights = append(c.Weights, job.KeyWeight{Key: key, Weight: *weight})
	}
	return v.err
}

// Config returns the configuration of the queue that the request adds, without its retention. The
// error is a [*job.InvalidError].
func (q *QueueRequest) Config() (job.QueueConfig, error) {
	change := job.QueueChange{AllowOverrides: q.AllowOverrides, RetryOnTimeout: &q.RetryOnTimeout}
	limit, err := concurrencyLimit(Setting[int64]{q.Limit != nil, q.Limit})
	if err == nil {
		err = q.addTo(&change)
	}
	change.Limit = limit
	return job.DefaultQueueConfig.Changed(change), err
}

// Change returns the change of the queue's settings, without its retention. The error is a
// [*job.InvalidError].
func (q *QueueChange) Change() (change job.QueueChange, err error) {
	change.Limit, err = concurrencyLimit(q.Limit)
	if err != nil {
		return change, err
	}
	if value, given := q.AllowOverrides.Get(); given {
		change.AllowOverrides = cmp.Or(value, &job.DefaultQueueConfig.AllowOverrides)
	}
	if value, given := q.RetryOnTimeout.Get(); given {
		change.RetryOnTimeout = cmp.Or(value, &job.DefaultQueueConfig.RetryOnTimeout)
	}
	return change, q.addTo(&change)
}

// concurrencyLimit returns the change of the number of jobs that run at the same time.
func concurrencyLimit(s Setting[int64]) (*uint32, error) {
	var v settings
	limit := settingOf(&v, "concurrency_limit", s, 0, func(n int64) (uint32, bool) { return uint32(n), n >= 1 && n <= job.MaxLimit },
		fmt.Sprintf("1 to %d, or null for no limit", int64(job.MaxLimit)))
	return limit, v.err
}

// Setting is a setting in a request that changes some of them. A key that is missing in
// the request leaves the setting as it is; null resets it to its default.
type Setting[T any] struct {
	given bool
	value *T
}

// SetTo returns the setting that changes to value.
func SetTo[T any](value T) Setting[T] { return Setting[T]{true, &value} }

// Reset returns the setting that changes to its default.
func Reset[T any]() Setting[T] { return Setting[T]{given: true} }

// Get returns the value to which the setting changes, nil if it is to be reset; given is
// false if it stays as it is.
func (s Setting[T]) Get() (value *T, given bool) { return s.value, s.given }

// MarshalJSON returns the JSON of the value, null for a reset.
func (s Setting[T]) MarshalJSON() ([]byte, error) { return json.Marshal(s.value) }

// UnmarshalJSON reads a value, or null for a reset.
func (s *Setting[T]) UnmarshalJSON(data []byte) error {
	s.given = true
	return json.Unmarshal(data, &s.value)
}

// Type returns the type of the JSON: a pointer to that of the value.
func (s Setting[T]) Type() reflect.Type { return reflect.TypeOf(s.value) }

// Queue is a queue, and how many jobs it has.
type Queue struct {
	ID             job.ID             `json:"id"`
	Name           string             `json:"name"`
	State          string             `json:"state"`             // running or paused
	Limit          *uint32            `json:"concurrency_limit"` // nil means no limit
	AllowOverrides bool               `json:"allow_job_overrides"`
	RetryOnTimeout bool               `json:"retry_on_timeout,omitempty"`
	Retention      []RetentionSetting `json:"retention,omitempty"` // that differ from the yard's
	Limits         []string           `json:"limits,omitempty"`    // names of the limits that all its jobs use
	Key            string             `json:"key,omitempty"`       // where params have the key of a job
	KeyOptional    bool               `json:"key_optional,omitempty"`
	Fair           bool               `json:"fair,omitempty"`
	Weights        map[string]uint32  `json:"weights,omitempty"`      // of keys in a fair queue, if not 1; only of one queue that is shown
	Age            int64              `json:"age_ms,omitempty"`       // 0 means none
	Priority       *uint8             `json:"priority,omitempty"`     // of jobs that give none; nil means the yard's
	MaxAttempts    uint32             `json:"max_attempts,omitempty"` // likewise; 0 means the yard's
	Timeout        int64              `json:"timeout_ms,omitempty"`   // likewise
	Index          []string           `json:"index,omitempty"`        // paths in params by whose values jobs are found
	Schemas        []QueueSchema      `json:"schemas,omitempty"`      // of payloads, by function; only of one queue that is shown
	Retry          []RetryRule        `json:"retry,omitempty"`        // how jobs are retried, by function; not in lists of queues
	Counts         map[string]int     `json:"counts"`                 // by state: waiting, delayed, active, completed, failed, cancelled and expired
}

// QueueListRequest asks for a page of the queues.
type QueueListRequest struct {
	Limit int    `json:"limit"` // queues of a page, 1 to 1000; 0 means 1000
	After string `json:"after"` // Next of the previous page; "" means the first page
}

// QueueList is a page of the queues, by name.
type QueueList struct {
	Queues []Queue `json:"queues"`
	Next   string  `json:"next,omitempty"` // After of the next page; "" means that this is the last one
	// KeptMS is set if the ledger keeps failed, cancelled and expired jobs for less than a day after their
	// end: in the counts are those that it has.
	KeptMS int64 `json:"kept_ms,omitempty"`
}

// QueueJobsRequest selects jobs of a queue, to cancel or to remove them: by state, by
// function or both, or all that can be changed.
type QueueJobsRequest struct {
	Name     string   `json:"name"`
	States   []string `json:"states"`
	Function string   `json:"function"`
	All      bool     `json:"all"`
	DryRun   bool     `json:"dry_run"` // only return the jobs
	Limit    int      `json:"limit"`   // at most 1000; 0 means 1000
	Reason   string   `json:"reason"`  // of a cancellation
}

// QueueJobsChange selects jobs of a queue, and how to change them.
type QueueJobsChange struct {
	QueueJobsRequest
	JobSettings
}

// QueueJobsReply holds the jobs that were selected, and what became of them.
type QueueJobsReply struct {
	Queue   string     `json:"queue"`
	Changed int        `json:"changed"` // number of jobs that were cancelled, changed or removed
	More    bool       `json:"more"`    // further jobs are selected: repeat the request
	DryRun  bool       `json:"dry_run"`
	Stopped string     `json:"stopped,omitempty"` // why not all of Jobs were changed
	Jobs    []QueueJob `json:"jobs"`
}

// QueueJob is a job of a [QueueJobsReply].
type QueueJob struct {
	ID      job.ID `json:"id"`
	State   string `json:"state"`   // after the change; of a removed job, before it
	Changed bool   `json:"changed"` // false: not tried, or the job was faster
}

// Removed reports that a queue or a cron entry was removed.
type Removed struct {
	Name    string `json:"name"`
	Removed bool   `json:"removed"` // always true
}

// QueueOf returns a queue of the ledger as the API shows it.
func QueueOf(v *ledger.QueueView) Queue {
	q := Queue{
		ID: v.ID, Name: v.Name, State: QueueState(v.Paused), AllowOverrides: v.Config.AllowOverrides,
		RetryOnTimeout: v.Config.RetryOnTimeout, Retention: OwnRetention(v.Config.Retention),
		Retry:  retryRulesOf(v.Config.Retries),
		Limits: v.Config.Limits, Key: v.Config.KeyPath, KeyOptional: v.Config.KeyOptional, Fair: v.Config.Fair,
		Age: v.Config.Age.Milliseconds(), Priority: v.Config.Priority, MaxAttempts: v.Config.MaxAttempts, Timeout: v.Config.Timeout.Milliseconds(),
		Index: v.Config.Index,
	}
	if v.Config.Limit > 0 {
		q.Limit = &v.Config.Limit
	}
	if len(v.Config.Weights) > 0 {
		q.Weights = make(map[string]uint32, len(v.Config.Weights))
		for _, w := range v.Config.Weights {
			q.Weights[w.Key] = w.Weight
		}
	}
	q.Counts = StateCounts(v.Counts)
	return q
}

// QueueState returns the state of a queue.
func QueueState(paused bool) string {
	if paused {
		return "paused"
	}
	return "running"
}

// Brief returns the queue without what may be large.
func (q Queue) Brief() Queue {
	q.Weights, q.Schemas, q.Retry = nil, nil, nil
	return q
}

// StateCounts returns numbers of jobs by the names of their states.
func StateCounts(counts [job.States]int) map[string]int {
	named := make(map[string]int, len(counts))
	for s := job.Waiting; int(s) < job.States; s++ {
		named[s.String()] = counts[s]
	}
	return named
}
