package api

import (
	"encoding/json"

	"github.com/yardmaster-dev/yardmaster/job"
)

// EnqueueRequest is a job to enqueue.
type EnqueueRequest struct {
	job.Spec
	// ID is the producer's idempotency key: a UUID, which becomes the job's id, or
	// any text of up to 128 bytes, unique in the queue. "" means the header
	// Nats-Msg-Id (over HTTP Idempotency-Key), and without it a new id.
	ID string `json:"id"`
}

// EnqueueReply names the job that was accepted.
type EnqueueReply struct {
	ID        job.ID `json:"id"`
	Queue     string `json:"queue"`               // "": the job holds the unique key, and the user may not use its queue
	Duplicate bool   `json:"duplicate"`           // the same enqueue was accepted before, or the job holds its unique key: nothing has changed
	Debounced bool   `json:"debounced,omitempty"` // the job existed before and has the new specification; with Duplicate, since an earlier call with the same key
}

// CallRequest is a job to enqueue, and how long to wait for its end.
type CallRequest struct {
	EnqueueRequest
	// WaitMS is how long to wait, 1 ms to 10 min. nil means the header Yard-Wait,
	// and without it 30 s.
	WaitMS *int64 `json:"wait_ms"`
}

// CallReply reports how a job has ended.
type CallReply struct {
	EnqueueReply
	State         string          `json:"state"` // completed, failed, cancelled or expired
	Attempts      uint32          `json:"attempts"`
	Result        json.RawMessage `json:"result,omitempty"`
	ResultMsgpack []byte          `json:"result_msgpack,omitempty"`
	ResultBytes   int64           `json:"result_bytes,omitempty"`  // as in [Job], and the next two
	ResultGone    string          `json:"result_gone,omitempty"`   //
	ResultReason  string          `json:"result_reason,omitempty"` //
	Error         *job.Fault      `json:"error,omitempty"`
}

// BulkRequest is a list of jobs to enqueue.
type BulkRequest struct {
	Queue string            `json:"queue"` // of the jobs that name none
	Jobs  []json.RawMessage `json:"jobs"`  // 1 to 1000, each a [BulkJob]
}

// BulkJob is one job of a bulk request.
type BulkJob struct {
	EnqueueRequest
	Queue string `json:"queue"` // "" means the queue of the request
}

// BulkReply reports the result of each job, in the order of the request.
type BulkReply struct {
	Refused int          `json:"refused"` // number of jobs with an error
	Jobs    []BulkResult `json:"jobs"`
}

// BulkResult is the result of one job: either the fields of an [EnqueueReply] or an
// error.
type BulkResult struct {
	ID        *job.ID    `json:"id,omitempty"`
	Queue     string     `json:"queue,omitempty"`
	Duplicate bool       `json:"duplicate,omitempty"`
	Debounced bool       `json:"debounced,omitempty"`
	Error     *BulkError `json:"error,omitempty"`
}

// BulkError is why one job was not accepted, with the codes of [Error].
type BulkError struct {
	Code         string `json:"code"`
	Message      string `json:"message"`                  // at most 300 bytes
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"` // 0 means unknown
}
