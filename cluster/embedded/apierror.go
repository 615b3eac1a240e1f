package embedded

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// APIError is an error that JetStream answered with.
type APIError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *APIError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.ErrCode) }

// APIReply is the part that all replies of the JetStream API have in common. The types
// of replies embed it.
type APIReply struct {
	Error *APIError `json:"error"` // nil for a success
}

// apiError returns the error that JetStream answered with, nil for a success.
func (r *APIReply) apiError() *APIError { return r.Error }

// JetStream error codes.
const (
	codeResourceLimits   = 10002 // account limits
	codeUnavailable      = 10008
	codeNotLeader        = 10009
	CodeNoResources      = 10023 // limits of this server
	CodeNoMessage        = 10037
	codeTooLarge         = 10054
	CodeWrongLast        = 10071
	codeNotEnabled       = 10076
	codeStoreFailed      = 10077 // also when the stream is full
	codeConflict         = 10158 // the same key is being stored
	codeTooManyRequests  = 10167
	CodeWrongLastUnknown = 10164
	codeTooManyBatches   = 10210
)

// ErrorClass classifies an error by what a publisher may do next.
type ErrorClass int

const (
	ClassFinal     ErrorClass = iota // not stored, and would not be later
	ClassRetry                       // not stored; no space at the moment
	ClassOtherLane                   // not stored; another lane may take it
	ClassConflict                    // the same key is being stored right now
	ClassTooLarge                    // no lane takes it
)

// Class returns the class of e.
func (e *APIError) Class() ErrorClass {
	switch e.ErrCode {
	case codeResourceLimits, codeTooManyRequests, codeTooManyBatches:
		return ClassRetry
	case codeStoreFailed:
		if strings.Contains(e.Description, "exceeded") { // the stream's maximum of bytes or messages
			return ClassRetry
		}
		return ClassOtherLane
	case CodeNoResources, codeUnavailable, codeNotLeader, codeNotEnabled:
		return ClassOtherLane
	case codeConflict:
		return ClassConflict
	case codeTooLarge:
		return ClassTooLarge
	}
	if e.Code == 429 {
		return ClassRetry
	}
	return ClassFinal
}

// StorageFull reports whether e means that a stream, an account or a disk is full.
func (e *APIError) StorageFull() bool {
	switch e.ErrCode {
	case codeResourceLimits, CodeNoResources:
		return true
	case codeStoreFailed:
		return strings.Contains(e.Description, "exceeded") || strings.Contains(e.Description, "no space")
	}
	return false
}

// Unavailable converts e to the error that callers get. They should retry a full
// stream later than a full queue, because space is freed within minutes, while a queue
// drains within seconds.
func (e *APIError) Unavailable() *job.UnavailableError {
	retryAfter := time.Second
	if e.ErrCode == codeStoreFailed || e.ErrCode == codeResourceLimits {
		retryAfter = 5 * time.Second
	}
	reason := e.Description
	if e.StorageFull() {
		reason += "; 'yardmaster status' shows which stream is full, and what to do"
	}
	return &job.UnavailableError{Reason: reason, RetryAfter: retryAfter}
}

// PubAck is a stream's acknowledgement of a publish.
type PubAck struct {
	Seq       uint64
	Duplicate bool
}

// ParsePubAck parses an acknowledgement. An error that JetStream answered with is
// returned as an [*APIError]. Nearly all acknowledgements are {"stream":"S", "seq":1},
// which is parsed by hand because that is faster; all others are decoded as JSON.
func ParsePubAck(data []byte) (PubAck, error) {
	beforeSeq, afterSeq, _ := bytes.Cut(data, []byte(`"seq":`))
	number := bytes.TrimSuffix(bytes.TrimLeft(afterSeq, " "), []byte("}"))
	seq, err := strconv.ParseUint(string(number), 10, 64)
	if err == nil && seq > 0 && bytes.HasPrefix(beforeSeq, []byte(`{"stream":`)) {
		return PubAck{Seq: seq}, nil
	}
	var reply struct {
		APIReply
		Stream    string `json:"stream"`
		Seq       uint64 `json:"seq"`
		Duplicate bool   `json:"duplicate"`
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return PubAck{}, fmt.Errorf("malformed publish acknowledgement: %w", err)
	}
	if reply.Error != nil {
		return PubAck{}, reply.Error
	}
	if reply.Stream == "" || reply.Seq == 0 {
		return PubAck{}, fmt.Errorf("publish acknowledgement without a sequence: %.80q", data)
	}
	return PubAck{Seq: reply.Seq, Duplicate: reply.Duplicate}, nil
}
