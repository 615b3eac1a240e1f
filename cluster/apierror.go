package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// apiError is an error that JetStream answered with.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.ErrCode) }

// The JetStream error codes that this package handles.
const (
	codeResourceLimits   = 10002 // account limits
	codeUnavailable      = 10008
	codeNotLeader        = 10009
	codeNoResources      = 10023 // limits of this server
	codeNoMessage        = 10037
	codeTooLarge         = 10054
	codeWrongLast        = 10071
	codeNotEnabled       = 10076
	codeStoreFailed      = 10077 // also when the stream is full
	codeConflict         = 10158 // the same key is being stored
	codeTooManyRequests  = 10167
	codeWrongLastUnknown = 10164
	codeTooManyBatches   = 10210
)

// errorClass classifies an error by what a publisher may do next.
type errorClass int

const (
	classFinal     errorClass = iota
	classRetry                // not stored; no space at the moment
	classOtherLane            // not stored; another lane may take it
	classConflict             // the same key is being stored right now
	classTooLarge
)

// class returns the class of e.
func (e *apiError) class() errorClass {
	switch e.ErrCode {
	case codeResourceLimits, codeTooManyRequests, codeTooManyBatches:
		return classRetry
	case codeStoreFailed:
		if strings.Contains(e.Description, "exceeded") { // the stream's maximum of bytes or messages
			return classRetry
		}
		return classOtherLane
	case codeNoResources, codeUnavailable, codeNotLeader, codeNotEnabled:
		return classOtherLane
	case codeConflict:
		return classConflict
	case codeTooLarge:
		return classTooLarge
	}
	if e.Code == 429 {
		return classRetry
	}
	return classFinal
}

// storageFull reports whether e means that a stream, an account or a disk is full.
func (e *apiError) storageFull() bool {
	return e.ErrCode == codeResourceLimits || e.ErrCode == codeNoResources ||
		e.ErrCode == codeStoreFailed && (strings.Contains(e.Description, "exceeded") || strings.Contains(e.Description, "no space"))
}

// retryAfter returns how long a caller should wait before it retries: space in a
// full stream is freed within minutes, a full queue drains within seconds.
func (e *apiError) retryAfter() time.Duration {
	if e.ErrCode == codeStoreFailed || e.ErrCode == codeResourceLimits {
		return 5 * time.Second
	}
	return time.Second
}

// unavailable converts e to the error that callers get.
func (e *apiError) unavailable() error {
	return &job.UnavailableError{Reason: e.Description, RetryAfter: e.retryAfter()}
}

// pubAck is a stream's acknowledgement of a publish.
type pubAck struct {
	seq       uint64
	count     int // messages of the batch; 0 for a single message
	duplicate bool
}

// parsePubAck parses an acknowledgement. Nearly all have the same short form,
// which is parsed by hand; everything else is decoded as JSON.
func parsePubAck(data []byte) (pubAck, error) {
	if bytes.Contains(data, []byte(`"error"`)) || !bytes.HasPrefix(data, []byte(`{"stream":`)) {
		return parsePubAckJSON(data)
	}
	_, rest, ok := bytes.Cut(data, []byte(`"seq":`))
	seq, rest, isNumber := leadingUint(bytes.TrimLeft(rest, " "))
	if !ok || !isNumber || seq == 0 {
		return parsePubAckJSON(data)
	}
	if len(rest) <= 1 { // "}": nothing follows the sequence
		return pubAck{seq: seq}, nil
	}
	return parsePubAckJSON(data)
}

// parsePubAckJSON decodes an acknowledgement as JSON. An error that JetStream
// reported is returned as an [*apiError].
func parsePubAckJSON(data []byte) (pubAck, error) {
	var a struct {
		Stream    string    `json:"stream"`
		Seq       uint64    `json:"seq"`
		Duplicate bool      `json:"duplicate"`
		Count     int       `json:"count"`
		Error     *apiError `json:"error"`
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return pubAck{}, fmt.Errorf("malformed publish acknowledgement: %w", err)
	}
	if a.Error != nil {
		return pubAck{}, a.Error
	}
	if a.Stream == "" || a.Seq == 0 {
		return pubAck{}, fmt.Errorf("publish acknowledgement without a sequence: %.80q", data)
	}
	return pubAck{seq: a.Seq, count: a.Count, duplicate: a.Duplicate}, nil
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
