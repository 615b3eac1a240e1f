package api

import (
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// OperationStart describes an action on all jobs that match a query. Times in the query that are
// relative refer to the start, and jobs that are accepted later are left as they are.
type OperationStart struct {
	Action       string          `json:"action"`           // retry, cancel, remove or requeue
	Query        string          `json:"query"`            // as of job-find, without an order; "" matches nothing: give all jobs as id:*
	Rate         uint32          `json:"rate"`             // jobs per second, at most 100000; 0 means as fast as the yard takes them beside its other work
	Params       json.RawMessage `json:"params,omitempty"` // requeue only: a JSON merge patch (RFC 7396) for the params
	To           string          `json:"to"`               // requeue only: another queue; "" means that of each job
	KeepAttempts bool            `json:"keep_attempts"`
	Key          string          `json:"key"` // a request with the key of an earlier one starts no second operation; "" means none
}

// OperationRequest names an operation, or a page of operations.
type OperationRequest struct {
	ID    uint64 `json:"id"`
	After uint64 `json:"after"` // the list continues after this one; 0 means its beginning
	Limit int    `json:"limit"` // operations in a reply, at most 100; 0 means 50
}

// OperationChange changes the rate of an operation.
type OperationChange struct {
	ID   uint64 `json:"id"`
	Rate uint32 `json:"rate"` // jobs per second; 0 means as fast as the yard takes them
}

// Operation is an action on all jobs that match a query, and how far it is.
type Operation struct {
	ID           uint64             `json:"id"`
	Action       string             `json:"action"`
	Query        string             `json:"query"` // with absolute times
	State        string             `json:"state"` // running, paused, done or cancelled
	Until        time.Time          `json:"accepted_until"`
	Rate         uint32             `json:"rate"`
	Params       json.RawMessage    `json:"params,omitempty"`
	To           string             `json:"to,omitempty"`
	KeepAttempts bool               `json:"keep_attempts,omitempty"`
	Expected     uint64             `json:"expected,omitempty"` // number of jobs that matched before the start; omitted if they were not all counted
	Matched      uint64             `json:"matched"`            // jobs that it has come to; the sum of the next three
	Changed      uint64             `json:"changed"`
	Skipped      uint64             `json:"skipped"`               // they were left as they were
	SkippedBy    map[string]uint64  `json:"skipped_by,omitempty"`  // number of those by reason
	Failed       uint64             `json:"failed"`                // the action was refused
	Failures     []OperationFailure `json:"failures,omitempty"`    // operation-show only: the first of these
	Reached      *time.Time         `json:"reached,omitempty"`     // when the last job was accepted that it has come to
	WaitingFor   string             `json:"waiting_for,omitempty"` // why it does not go on at present
	Actor        string             `json:"actor,omitempty"`
	Door         string             `json:"door,omitempty"`
	Reason       string             `json:"reason,omitempty"`
	Started      time.Time          `json:"started_at"`
	Updated      time.Time          `json:"updated_at"`
	Ended        *time.Time         `json:"ended_at,omitempty"`
}

// OperationFailure is a job that an operation could not change.
type OperationFailure struct {
	Job   job.ID `json:"job"`
	Error string `json:"error"`
}

// OperationList is a page of the operations, newest first.
type OperationList struct {
	Operations []Operation `json:"operations"`
	Next       uint64      `json:"next,omitempty"` // After of the next page; omitted on the last one
}

// OperationPreview is what an operation would do if it were started now.
type OperationPreview struct {
	Action     string            `json:"action"`
	Query      string            `json:"query"`               // with absolute times
	Matched    int               `json:"matched"`             // number of jobs that match
	AtLeast    bool              `json:"at_least"`            // not all were counted: more may match
	Applicable int               `json:"applicable"`          // number of those to which the action applies
	Unchecked  int               `json:"unchecked,omitempty"` // number of those whose dead letters may be gone: there was no time to look for all
	States     map[string]int    `json:"states"`              // number of jobs by state
	Skipped    map[string]int    `json:"skipped,omitempty"`   // number of jobs to which the action does not apply, by reason
	Advice     []string          `json:"advice,omitempty"`    // on labels in the query that no job has
	Sample     []OperationSample `json:"sample"`              // the first jobs, at most 20
	Index      uint64            `json:"index"`               // of the last entry of the ledger that the index of jobs has
}

// OperationSample is one of the jobs that match.
type OperationSample struct {
	ID         job.ID          `json:"id"`
	Queue      string          `json:"queue"`
	Function   string          `json:"function,omitempty"`
	State      string          `json:"state"`
	Created    time.Time       `json:"created_at"`
	Error      *job.Fault      `json:"error,omitempty"`       // of its last attempt
	Skipped    string          `json:"skipped,omitempty"`     // why the action does not apply
	DeadLetter uint64          `json:"dead_letter,omitempty"` // number of the dead letter of a failed job
	Params     json.RawMessage `json:"params,omitempty"`      // requeue with params: as the new job would have them
	Refused    string          `json:"refused,omitempty"`     // why the new job would be refused
}

// OperationOf returns an operation of the ledger as the API shows it, without failures.
func OperationOf(o *ledger.Operation) Operation {
	shown := Operation{
		ID: o.Number, Action: o.Action.String(), Query: o.Query, State: o.State.String(), Until: o.Until, Rate: o.Rate, Params: o.Params, To: o.To,
		KeepAttempts: o.KeepAttempts, Expected: o.Expected, Matched: o.Matched(), Changed: o.Changed, Skipped: o.Skipped.Total(), SkippedBy: o.Skipped.ByReason(), Failed: o.Failed,
		WaitingFor: o.Waiting, Actor: o.By.Name, Door: string(o.By.Door), Reason: o.By.Reason, Started: o.Started, Updated: o.Updated,
	}
	if !o.Ended.IsZero() {
		shown.Ended = &o.Ended
	}
	if o.Cursor != (ledger.JobPlace{}) {
		shown.Reached = new(time.Unix(0, o.Cursor.Accepted).UTC())
	}
	return shown
}
