package api

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// DeadLetterRequest selects dead letters: those that match all fields that are set.
// From, Until and Limit divide a long request into parts.
type DeadLetterRequest struct {
	Letters      []uint64   `json:"letters"` // by number, at most 1000
	Jobs         []job.ID   `json:"jobs"`    // at most 1000
	Queue        string     `json:"queue"`
	Function     string     `json:"function"`
	Error        string     `json:"error"` // type or code of the error, or part of its text or of the reason
	FailedBefore *time.Time `json:"failed_before"`
	FailedAfter  *time.Time `json:"failed_after"`

	Order string `json:"order"` // of a list: newest or oldest first; "" means newest; changes begin with the oldest
	From  uint64 `json:"from"`  // where to continue: Next of the reply before; 0 means the beginning
	Until uint64 `json:"until"` // newest number; 0 means the newest at this time
	Limit int    `json:"limit"` // maximum of dead letters in the reply, up to 1000; 0 means 100

	// For changes only.
	All          bool   `json:"all"` // selects all dead letters: required without another filter
	DryRun       bool   `json:"dry_run"`
	To           string `json:"to"`            // another queue; "" means the same
	KeepAttempts bool   `json:"keep_attempts"` // the attempts so far count
}

// Continuation is where a reply about dead letters ends. The next request continues
// there.
type Continuation struct {
	Next  uint64 `json:"next,omitempty"` // From of the next request; 0 means that there are no more
	Until uint64 `json:"until"`          // Until of the next request
}

// DeadLetterMessage is the body of a message of the stream YARD_DLQ: a job that has
// failed for good.
type DeadLetterMessage struct {
	ID       string          `json:"id"` // of the job
	Queue    string          `json:"queue"`
	Function string          `json:"function,omitempty"`
	Reason   string          `json:"reason"`
	Error    *job.Fault      `json:"error,omitempty"`
	Attempts uint32          `json:"attempts"`
	Accepted time.Time       `json:"accepted_at"`
	Failed   time.Time       `json:"failed_at"`
	Lane     uint8           `json:"lane"`
	Seq      uint64          `json:"lane_seq"`
	Index    uint8           `json:"lane_index,omitempty"` // of the record in its message
	Job      json.RawMessage `json:"job,omitempty"`        // the record, if it is JSON
	Record   []byte          `json:"record,omitempty"`     // the record, if it is not
}

// RecordBody returns the record, or nil if it was gone when the letter was written.
func (m *DeadLetterMessage) RecordBody() []byte {
	if m.Job != nil {
		return m.Job
	}
	return m.Record
}

// DeadLetter is a dead letter with its number and the state of its job.
type DeadLetter struct {
	Number uint64 `json:"letter"`
	DeadLetterMessage
	State string `json:"state,omitempty"` // current state of its job; "" means that the ledger no longer has it
}

// DeadLetterPage is a page of dead letters, newest first unless the request says otherwise, without records.
type DeadLetterPage struct {
	Letters []DeadLetter `json:"letters"`
	Continuation
}

// DeadLetterCounts are numbers of dead letters.
type DeadLetterCounts struct {
	Count     int            `json:"count"`
	Oldest    *time.Time     `json:"oldest,omitempty"` // when the oldest failed
	Newest    *time.Time     `json:"newest,omitempty"`
	Queues    map[string]int `json:"queues"`
	Functions map[string]int `json:"functions"` // "" for jobs that name none
	Errors    map[string]int `json:"errors"`    // by type; "…" for those beyond the first 500
	// Groups are the numbers by type and code, the largest first; the type "…" is for those beyond 500.
	Groups []DeadLetterGroup `json:"groups"`
}

// DeadLetterGroup is the number of dead letters that have the same type and code of error.
type DeadLetterGroup struct {
	Type  string `json:"type"`           // of the error, else the beginning of the reason
	Code  string `json:"code,omitempty"` // "" if it has none
	Count int    `json:"count"`
}

// DeadLetterGroups returns the groups with the given counts, the largest first. The groups that are keys have
// the Count 0.
func DeadLetterGroups(counts map[DeadLetterGroup]int) (groups []DeadLetterGroup) {
	for group, n := range counts {
		group.Count = n
		groups = append(groups, group)
	}
	slices.SortFunc(groups, func(a, b DeadLetterGroup) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.Type, b.Type), cmp.Compare(a.Code, b.Code))
	})
	return groups
}

// DeadLetterStats counts dead letters. Add up the parts of a request.
type DeadLetterStats struct {
	DeadLetterCounts
	Continuation
}

// What happened to a dead letter. It leaves the stream only once that is certain.
const (
	ResultRetried  = "retried"  // its job waits again, under the same id
	ResultEnqueued = "enqueued" // a new job was created from it
	ResultStale    = "stale"    // nothing to do: its job has moved on since
	ResultRemoved  = "removed"
	ResultFailed   = "failed" // it is still in the stream
)

// DeadLetterResult reports what happened to one dead letter, or in a dry run would.
type DeadLetterResult struct {
	Number uint64 `json:"letter"`
	ID     string `json:"id"`     // the job that failed
	Result string `json:"result"` // one of the Result constants
	Job    string `json:"job,omitempty"`
	Queue  string `json:"queue,omitempty"` // of Job
	Note   string `json:"note,omitempty"`
	Error  string `json:"error,omitempty"` // what failed and what to do
}

// DeadLetterResults is the reply to a change, with one result per dead letter.
type DeadLetterResults struct {
	DryRun bool               `json:"dry_run"`
	Items  []DeadLetterResult `json:"items"`
	Continuation
	Stopped string `json:"stopped,omitempty"` // why the rest was not begun, if not for lack of time
}
