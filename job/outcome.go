package job

import "time"

// Status is how a dispatch ended, or why it never started.
type Status uint8

// The ways a dispatch ends. The first four are reported by the runner or worker
// and count as an attempt; after Declined, Lost and Interrupted the attempt is
// given back.
const (
	Success      Status = iota + 1
	Retry               // the handler asked to be run again
	TimedOut            // the deadline passed, or the handler reported a timeout; final unless the job retries timeouts
	Error               // see Fault
	Declined            // a worker's NACK, or no capacity: it never started; or the handler snoozes: it did
	Lost                // the worker, runner or node was lost, before or during the run
	Interrupted         // stopped because the node shuts down
	RunCancelled        // stopped because a caller cancelled the job; final
)

var statusNames = [...]string{"", "success", "retry", "timeout", "error", "declined", "lost", "interrupted", "cancelled"}

func (s Status) String() string { return statusNames[s] }

// Value is a result in the encoding in which it was received. JSON is used
// wherever it represents the value exactly.
type Value struct {
	Msgpack bool   // Data is MessagePack; else JSON
	Data    []byte // nil: no value
}

// DroppedResult describes a result that could not be stored. The job has
// succeeded nevertheless.
type DroppedResult struct {
	Size   int64  `json:"size"` // bytes
	Reason string `json:"reason"`
}

// MaxDropReason is the maximum length of a [DroppedResult]'s reason, in bytes.
const MaxDropReason = 256

// ResultSize returns the size in bytes of the result that is in data, in blob, or
// dropped: at most one of them is set.
func ResultSize(data []byte, blob *Blob, dropped *DroppedResult) int64 {
	switch {
	case blob != nil:
		return blob.Size
	case dropped != nil:
		return dropped.Size
	}
	return int64(len(data))
}

// Outcome is how one dispatch of a job ended.
type Outcome struct {
	Job        ID
	N          uint32
	Status     Status
	Result     Value
	Blob       *Blob // where the result is stored if it is too large to send inline
	Fault      *Fault
	RetryAfter *time.Duration // requested by the worker; the policy limits it
	Final      bool           // the worker ruled out another attempt
	Started    bool           // the worker acknowledged it, or the runner received it
	MoveIndex  uint64         // index of the entry that moved it to the reporting node; 0: it started there; set by the agent
	Dropped    *DroppedResult // why the result is not kept; nil: it is, or there is none
	ByNode     bool           // the node ended it without its worker's report; the worker may continue at another node
}

// DispatchID returns which dispatch ended.
func (o *Outcome) DispatchID() DispatchID { return DispatchID{o.Job, o.N} }

// MaxInlineResult is the largest result that an Outcome carries, in bytes.
const MaxInlineResult = 1 << 10
