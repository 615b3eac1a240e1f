package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"yardmaster/job"
)

// apiError is JetStream's refusal.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.ErrCode) }

// JetStream's error codes that mean something to us.
const (
	codeResourceLimits   = 10002 // account limits
	codeUnavailable      = 10008
	codeNotLeader        = 10009
	codeNoResources      = 10023 // of this server
	codeNoMessage        = 10037
	codeTooLarge         = 10054
	codeWrongLast        = 10071
	codeNotEnabled       = 10076
	codeStoreFailed      = 10077 // also: full
	codeConflict         = 10158 // the same key is under way
	codeTooManyRequests  = 10167
	codeWrongLastUnknown = 10164
	codeTooManyBatches   = 10210
)

// refusal sorts what may be done after an error.
type refusal int

const (
	refusalFinal     refusal = iota
	refusalLater             // not stored; there is no room now
	refusalElsewhere         // not stored; another lane may take it
	refusalConflict          // the same key is being stored right now
	refusalTooLarge
)

func (e *apiError) kind() refusal {
	switch e.ErrCode {
	case codeResourceLimits, codeTooManyRequests, codeTooManyBatches:
		return refusalLater
	case codeStoreFailed:
		if strings.Contains(e.Description, "exceeded") { // maximum bytes or messages
			return refusalLater
		}
		return refusalElsewhere
	case codeNoResources, codeUnavailable, codeNotLeader, codeNotEnabled:
		return refusalElsewhere
	case codeConflict:
		return refusalConflict
	case codeTooLarge:
		return refusalTooLarge
	}
	if e.Code == 429 {
		return refusalLater
	}
	return refusalFinal
}

// ErrFull says that a stream, an account or a disk has no room.
var ErrFull = errors.New("no room is left")

func (e *apiError) full() bool {
	return e.ErrCode == codeResourceLimits || e.ErrCode == codeNoResources ||
		e.ErrCode == codeStoreFailed && (strings.Contains(e.Description, "exceeded") || strings.Contains(e.Description, "no space"))
}

// delay is how long a "later" should be: a full lane is emptied by the minute,
// a full queue by the second.
func (e *apiError) delay() time.Duration {
	if e.ErrCode == codeStoreFailed || e.ErrCode == codeResourceLimits {
		return 5 * time.Second
	}
	return time.Second
}

// later is the refusal for callers.
func (e *apiError) later() error {
	return &job.UnavailableError{Reason: e.Description, RetryAfter: e.delay()}
}

// pubAck is what a stream answers to a publish.
type pubAck struct {
	seq       uint64
	count     int // messages in a batch; 0: a lone one
	duplicate bool
}

// parsePubAck reads the answer. Almost all of them are the same few bytes, so
// they are cut by hand and anything else goes through JSON.
func parsePubAck(data []byte) (pubAck, error) {
	if bytes.Contains(data, []byte(`"error"`)) || !bytes.HasPrefix(data, []byte(`{"stream":`)) {
		return parseOddPubAck(data)
	}
	_, rest, ok := bytes.Cut(data, []byte(`"seq":`))
	seq, rest, isNumber := leadingUint(bytes.TrimLeft(rest, " "))
	if !ok || !isNumber || seq == 0 {
		return parseOddPubAck(data)
	}
	if len(rest) <= 1 { // "}": nothing but the sequence
		return pubAck{seq: seq}, nil
	}
	return parseOddPubAck(data)
}

func parseOddPubAck(data []byte) (pubAck, error) {
	var a struct {
		Stream    string    `json:"stream"`
		Seq       uint64    `json:"seq"`
		Duplicate bool      `json:"duplicate"`
		Count     int       `json:"count"`
		Error     *apiError `json:"error"`
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return pubAck{}, fmt.Errorf("answer to a publish is not readable: %w", err)
	}
	if a.Error != nil {
		return pubAck{}, a.Error
	}
	if a.Stream == "" || a.Seq == 0 {
		return pubAck{}, fmt.Errorf("answer to a publish names no sequence: %.80q", data)
	}
	return pubAck{seq: a.Seq, count: a.Count, duplicate: a.Duplicate}, nil
}

func leadingUint(b []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	n, err := strconv.ParseUint(string(b[:i]), 10, 64)
	return n, b[i:], err == nil
}
