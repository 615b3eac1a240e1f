package api

import (
	"encoding/json"
	"reflect"

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
}

// QueueChange names a queue, and the settings of it that change.
type QueueChange struct {
	Name           string                     `json:"name"`
	Limit          Setting[int64]             `json:"concurrency_limit,omitzero"`
	AllowOverrides Setting[bool]              `json:"allow_job_overrides,omitzero"`
	RetryOnTimeout Setting[bool]              `json:"retry_on_timeout,omitzero"`
	Retention      QueueRetentionChange       `json:"retention,omitzero"`
	Retry          Setting[[]RetryRuleChange] `json:"retry,omitzero"` // rules that are not given stay; null removes all
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
	Schemas        []QueueSchema      `json:"schemas,omitempty"`   // of payloads, by function; only of one queue that is shown
	Retry          []RetryRule        `json:"retry,omitempty"`     // how jobs are retried, by function; not in lists of queues
	Counts         map[string]int     `json:"counts"`              // by state: waiting, delayed, active, completed, failed, cancelled and expired
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
		ID: v.ID, Name: v.Name, State: "running", AllowOverrides: v.Config.AllowOverrides,
		RetryOnTimeout: v.Config.RetryOnTimeout, Retention: OwnRetention(v.Config.Retention),
		Retry: retryRulesOf(v.Config.Retries),
	}
	if v.Paused {
		q.State = "paused"
	}
	if v.Config.Limit > 0 {
		q.Limit = &v.Config.Limit
	}
	q.Counts = StateCounts(v.Counts)
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
