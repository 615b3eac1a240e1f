package api

import (
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// QueueRequest names a queue, or describes a new one.
type QueueRequest struct {
	Name string `json:"name"`
	// Limit is how many of the queue's jobs run at the same time in the whole yard,
	// 1 to [job.MaxLimit]; nil means no limit.
	Limit          *int64 `json:"concurrency_limit"`
	AllowOverrides *bool  `json:"allow_job_overrides"` // nil means true
}

// Queue is a queue, and how many jobs it has.
type Queue struct {
	ID             job.ID         `json:"id"`
	Name           string         `json:"name"`
	State          string         `json:"state"`             // running or paused
	Limit          *uint32        `json:"concurrency_limit"` // nil means no limit
	AllowOverrides bool           `json:"allow_job_overrides"`
	Counts         map[string]int `json:"counts"` // by state: waiting, delayed, active, completed and failed
}

// QueueList is the list of all queues, by name.
type QueueList struct {
	Queues []Queue `json:"queues"`
}

// Removed reports that a queue or a cron entry was removed.
type Removed struct {
	Name    string `json:"name"`
	Removed bool   `json:"removed"` // always true
}

// QueueOf returns a queue of the ledger as the API shows it.
func QueueOf(v *ledger.QueueView) Queue {
	q := Queue{ID: v.ID, Name: v.Name, State: "running", AllowOverrides: v.Config.AllowOverrides, Counts: map[string]int{}}
	if v.Paused {
		q.State = "paused"
	}
	if v.Config.Limit > 0 {
		q.Limit = &v.Config.Limit
	}
	for _, s := range []job.State{job.Waiting, job.Delayed, job.Active, job.Completed, job.Failed} {
		q.Counts[s.String()] = v.Counts[s]
	}
	return q
}
