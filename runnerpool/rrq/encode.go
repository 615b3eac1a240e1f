package rrq

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// The messages are encoded by hand: every key is written, in the order of the
// protocol's description, without reflection.

// appendRequest appends r as one frame to b. The error is a [*TooLargeError],
// or an [ErrMalformed] if Params is not a JSON object.
func appendRequest(b []byte, r *Request) ([]byte, error) {
	params, err := normalizeParams(r.Params)
	if err != nil {
		return b, err
	}
	b, mark := frame.Begin(b)
	b = append(b, `{"type":"request","payload":{"protocol_version":"2","request_id":`...)
	b = appendString(b, r.RequestID)
	b = append(b, `,"job_id":`...)
	b = appendString(b, r.JobID)
	b = append(b, `,"function_name":`...)
	b = appendString(b, r.Function)
	b = append(b, `,"params":`...)
	b = append(b, params...)
	b = append(b, `,"context":`...)
	b = appendContext(b, &r.Context)
	b = append(b, "}}"...)
	return closeFrame(b, mark)
}

func appendContext(b []byte, c *Context) []byte {
	b = append(b, `{"job_id":`...)
	b = appendString(b, c.JobID)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendUint(b, uint64(c.Attempt), 10)
	b = append(b, `,"enqueue_time":"`...)
	b = appendTime(b, c.EnqueueTime)
	b = append(b, `","queue_name":`...)
	b = appendString(b, c.QueueName)
	if c.Deadline.IsZero() {
		b = append(b, `,"deadline":null`...)
	} else {
		b = append(b, `,"deadline":"`...)
		b = appendTime(b, c.Deadline)
		b = append(b, '"')
	}
	b = append(b, `,"trace_context":`...)
	b = appendStringMap(b, c.Trace)
	b = append(b, `,"correlation_context":`...)
	b = appendStringMap(b, c.Correlation)
	b = append(b, `,"worker_id":`...)
	b = appendOptional(b, c.WorkerID)
	b = append(b, `,"fence":`...)
	b = strconv.AppendUint(b, c.Fence, 10)
	return append(b, '}')
}

// appendOutcome appends o as one frame to b. The error is a [*TooLargeError].
func appendOutcome(b []byte, o *Outcome) ([]byte, error) {
	b, mark := frame.Begin(b)
	b = append(b, `{"type":"response","payload":{"job_id":`...)
	b = appendString(b, o.JobID)
	b = append(b, `,"request_id":`...)
	b = appendOptional(b, o.RequestID)
	b = append(b, `,"status":`...)
	b = appendString(b, o.Status)
	b = append(b, `,"result":`...)
	b = appendRaw(b, o.Result)
	b = append(b, `,"error":`...)
	if f := o.Fault; f == nil {
		b = append(b, "null"...)
	} else {
		b = append(b, `{"message":`...)
		b = appendString(b, f.Message)
		b = append(b, `,"type":`...)
		b = appendOptional(b, f.Type)
		b = append(b, `,"code":`...)
		b = appendOptional(b, f.Code)
		b = append(b, `,"details":`...)
		b = append(appendRaw(b, f.Details), '}')
	}
	b = append(b, `,"retry_after_seconds":`...)
	if o.RetryAfter == nil {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendFloat(b, *o.RetryAfter, 'f', -1, 64)
	}
	b = append(b, "}}"...)
	return closeFrame(b, mark)
}

// appendCancel appends c as one frame to b. The error is a [*TooLargeError].
func appendCancel(b []byte, c *Cancel) ([]byte, error) {
	b, mark := frame.Begin(b)
	b = append(b, `{"type":"cancel","payload":{"protocol_version":"2","job_id":`...)
	b = appendString(b, c.JobID)
	b = append(b, `,"request_id":`...)
	b = appendOptional(b, c.RequestID)
	b = append(b, `,"hard_kill":`...)
	b = strconv.AppendBool(b, c.HardKill)
	b = append(b, "}}"...)
	return closeFrame(b, mark)
}

// closeFrame finishes the frame that [frame.Begin] began at mark. A frame that
// the peer would refuse, because it exceeds [MaxFrame], is removed from b, and
// the error is a [*TooLargeError].
func closeFrame(b []byte, mark int) ([]byte, error) {
	if size := frame.End(b, mark); size > MaxFrame {
		return b[:mark], &TooLargeError{Size: size, Limit: MaxFrame}
	}
	return b, nil
}

// normalizeParams returns params in a form that a runner can decode: without
// leading space, {} if they are empty, and with U+FFFD for invalid UTF-8. The
// error is [ErrMalformed] if they are not a JSON object.
func normalizeParams(params json.RawMessage) (json.RawMessage, error) {
	params = bytes.TrimLeft(params, " \t\r\n")
	if len(params) == 0 {
		return json.RawMessage("{}"), nil
	}
	if params[0] != '{' || !json.Valid(params) {
		return nil, fmt.Errorf("%w: params are not a JSON object", ErrMalformed)
	}
	if !utf8.Valid(params) {
		params = bytes.ToValidUTF8(params, []byte("\uFFFD"))
	}
	return params, nil
}

// appendRaw appends JSON, or null if there is none.
func appendRaw(b []byte, raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return append(b, "null"...)
	}
	return append(b, raw...)
}

// appendOptional appends a string, or null for "".
func appendOptional(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

// appendStringMap appends m as a JSON object sorted by key, or null for nil.
func appendStringMap(b []byte, m map[string]string) []byte {
	if m == nil {
		return append(b, "null"...)
	}
	b = append(b, '{')
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, k)
		b = append(b, ':')
		b = appendString(b, m[k])
	}
	return append(b, '}')
}

// appendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, _ := json.Marshal(s) // a string cannot fail
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// appendTime appends a time as RFC 3339 in UTC, with at most microseconds,
// which every runtime preserves.
func appendTime(b []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(b, "2006-01-02T15:04:05.999999Z")
}
