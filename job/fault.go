package job

import (
	"encoding/json"
	"time"
)

// Fault describes why an attempt failed.
type Fault struct {
	Message string          `json:"message"`
	Type    string          `json:"type,omitempty"`
	Code    string          `json:"code,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
}

// AttemptError is the error of one attempt of a job, as its worker reported it.
type AttemptError struct {
	N     uint32    `json:"dispatch"`
	At    time.Time `json:"at"` // when it was reported
	Node  string    `json:"node"`
	Error Fault     `json:"error"`
}

// Fault types that the system itself sets or interprets.
const (
	HandlerNotFound = "handler_not_found" // final
	FaultCancelled  = "cancelled"
	FaultExpired    = "expired" // the job had not started in time
	FaultTimeout    = "timeout"
	FaultLost       = "lost"
	FaultInvalid    = "invalid"  // the job cannot be run as it is; final
	FaultRejected   = "rejected" // the record never became a job
)

// Limits of a fault, in bytes.
const (
	MaxInlineFault  = 4 << 10 // of the whole fault in an [Outcome]
	MaxFaultNameLen = 256     // of its type or code
)

// Sizes of a stored [AttemptError], in bytes: the default, and the bounds of the configuration.
const (
	DefaultErrorBytes = 16 << 10
	MinErrorBytes     = MaxInlineFault
	MaxErrorBytes     = 64 << 10
)

// Size returns the number of bytes of the fault's texts and details.
func (f *Fault) Size() int { return len(f.Message) + len(f.Type) + len(f.Code) + len(f.Details) }

// messageHead is the part of a cut message, in percent, that is its beginning.
const messageHead = 75

// IsCut reports whether f has lost a part. The whole fault may be stored as an [AttemptError].
func (f *Fault) IsCut() bool {
	return omission.MatchString(f.Message) || omission.Match(f.Details)
}

// Cut shortens f to n bytes, which must be at least [MaxInlineFault]. The message and the details
// each have half of that, and what the other does not use. Both lose their middle: see [Excerpt] and
// [CutDetails].
func (f *Fault) Cut(n int) {
	f.Type, f.Code = CutText(f.Type, MaxFaultNameLen), CutText(f.Code, MaxFaultNameLen)
	budget := n - len(f.Type) - len(f.Code)
	f.Details = CutDetails(f.Details, budget-min(len(f.Message), budget/2))
	f.Message = Excerpt(f.Message, budget-len(f.Details), messageHead)
}
