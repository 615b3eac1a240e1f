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
	return e.ErrCode == codeResourceLimits || e.ErrCode == CodeNoResources ||
		e.ErrCode == codeStoreFailed && (strings.Contains(e.Description, "exceeded") || strings.Contains(e.Description, "no space"))
}

// retryAfter returns how long a caller should wait before it retries: space in a
// full stream is freed within minutes, a full queue drains within seconds.
func (e *APIError) retryAfter() time.Duration {
	if e.ErrCode == codeStoreFailed || e.ErrCode == codeResourceLimits {
		return 5 * time.Second
	}
	return time.Second
}

// Unavailable converts e to the error that callers get.
func (e *APIError) Unavailable() error {
	return &job.UnavailableError{Reason: e.Description, RetryAfter: e.retryAfter()}
}

// PubAck is a stream's acknowledgement of a publish.
type PubAck struct {
	Seq       uint64
	Count     int // messages of the batch; 0 for a single message
	Duplicate bool
}

// ParsePubAck parses an acknowledgement. Nearly all have the same short form,
// which is parsed by hand; everything else is decoded as JSON.
func ParsePubAck(data []byte) (PubAck, error) {
	if bytes.Contains(data, []byte(`"error"`)) || !bytes.HasPrefix(data, []byte(`{"stream":`)) {
		return parsePubAckJSON(data)
	}
	_, rest, ok := bytes.Cut(data, []byte(`"seq":`))
	seq, rest, isNumber := leadingUint(bytes.TrimLeft(rest, " "))
	if !ok || !isNumber || seq == 0 {
		return parsePubAckJSON(data)
	}
	if len(rest) <= 1 { // "}": nothing follows the sequence
		return PubAck{Seq: seq}, nil
	}
	return parsePubAckJSON(data)
}

// parsePubAckJSON decodes an acknowledgement as JSON. An error that JetStream
// reported is returned as an [*APIError].
func parsePubAckJSON(data []byte) (PubAck, error) {
	var a struct {
		Stream    string    `json:"stream"`
		Seq       uint64    `json:"seq"`
		Duplicate bool      `json:"duplicate"`
		Count     int       `json:"count"`
		Error     *APIError `json:"error"`
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return PubAck{}, fmt.Errorf("malformed publish acknowledgement: %w", err)
	}
	if a.Error != nil {
		return PubAck{}, a.Error
	}
	if a.Stream == "" || a.Seq == 0 {
		return PubAck{}, fmt.Errorf("publish acknowledgement without a sequence: %.80q", data)
	}
	return PubAck{Seq: a.Seq, Count: a.Count, Duplicate: a.Duplicate}, nil
}

// leadingUint parses the decimal number at the beginning of b.
func leadingUint(b []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	n, err := strconv.ParseUint(string(b[:i]), 10, 64)
	return n, b[i:], err == nil
}
