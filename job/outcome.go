package job

import (
	"encoding/json"
	"time"
)

// Status tells how a dispatch ended, or that it never started.
type Status uint8

// The ways a dispatch ends. The first four are the runner's or worker's own
// words and count the attempt; the others give the attempt back.
const (
	Success     Status = iota + 1
	Retry              // the handler asks to be run again
	TimedOut           // hard or self-made; final
	Error              // see Fault
	Declined           // a worker's NACK, or no room: it never started
	Lost               // worker, runner or node gone, before or in the middle
	Interrupted        // stopped by us: node shutdown
	Cancelled          // stopped because a caller cancelled the job; final
)

var statusNames = [...]string{"", "success", "retry", "timeout", "error", "declined", "lost", "interrupted", "cancelled"}

func (s Status) String() string { return statusNames[s] }

// Value is a result in the encoding it came in. JSON is used wherever JSON
// carries the value exactly.
type Value struct {
	Msgpack bool   // Data is MessagePack, else JSON
	Data    []byte // nil: no value
}

// Fault says why an attempt failed.
type Fault struct {
	Message string          `json:"message"`
	Type    string          `json:"type,omitempty"`
	Code    string          `json:"code,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
}

// Fault types with a meaning.
const (
	HandlerNotFound = "handler_not_found" // final
	FaultCancelled  = "cancelled"
	FaultTimeout    = "timeout"
	FaultLost       = "lost"
	FaultInvalid    = "invalid"           // the job cannot be run as it is; final
	FaultNotStored  = "result_not_stored" // it ran, and its result could not be kept; final
	FaultRejected   = "rejected"          // its record never became a job
)

// Outcome is how one dispatch ended.
type Outcome struct {
	Job        ID
	N          uint32
	Status     Status
	Result     Value
	Blob       *Blob // the result, when it is too large to travel inline
	Fault      *Fault
	RetryAfter *time.Duration // asked by the worker; the policy clamps it
	Final      bool           // the worker forbids another attempt
	Started    bool           // the worker acknowledged it, or the runner got it
}

// Inline limits, in bytes.
const (
	MaxInlineResult = 1 << 10
	MaxInlineFault  = 4 << 10
	MaxFaultName    = 256 // a fault's type, and its code
)
